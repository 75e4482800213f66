"""Threads, GIL, fork and exit: right answers from many Python threads at once, no hanging child, no noise at the end."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
import torch
from oracle import normal

import headwise as hw

SHAPES = [(1, 32, 8, 64), (2, 65, 4, 16), (1, 300, 2, 32), (4, 7, 3, 5)]
MASK = hw.Mask.causal()


def f32(seed, *shape):
    return normal(seed, *shape).astype(np.float32)


@pytest.fixture(scope="module")
def cases():
    inputs = [tuple(f32(3 * i + j, *shape) for j in range(3)) for i, shape in enumerate(SHAPES)]
    return [(qkv, hw.attention(*qkv, MASK)) for qkv in inputs]


@pytest.fixture(autouse=True)
def default_threads():
    yield
    hw.set_threads(None)


def in_threads(count, work):
    """Runs work(index) on that many threads, all starting together; the first failure is raised here."""
    gate, failures = threading.Barrier(count), []

    def run(index):
        try:
            gate.wait()
            work(index)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failures:
        raise failures[0]


def test_16_threads_at_once(cases):
    hw.set_threads(2)

    def work(index):
        for i in range(40):
            qkv, want = cases[(index + i) % len(cases)]
            if i % 2:
                got = hw.attention(*(torch.from_numpy(x) for x in qkv), MASK).numpy()
            else:
                got = hw.attention(*qkv, MASK)
            assert np.array_equal(got, want)

    in_threads(16, work)


def test_one_context_shared_by_8_threads_takes_turns(cases):
    ctx = hw.Context(threads=2)

    def work(index):
        for i in range(40):
            qkv, want = cases[(index + i) % len(cases)]
            assert np.array_equal(hw.attention(*qkv, MASK, ctx=ctx), want)

    in_threads(8, work)


def test_errors_in_one_thread_do_not_reach_another(cases):
    def work(index):
        for i in range(40):
            qkv, want = cases[i % len(cases)]
            if index % 2:
                with pytest.raises(ValueError):
                    hw.attention(*qkv, MASK, scale=float("nan"))
            else:
                assert np.array_equal(hw.attention(*qkv, MASK), want)

    in_threads(8, work)


def test_the_gil_is_free_while_a_kernel_runs():
    hw.set_threads(1)

    def naps_within_a_call(tokens):
        """How often this thread came to itself between the begin and the end of a call in another."""
        q, k, v = (f32(i, 1, tokens, 4, 64) for i in range(3))
        at, naps = [], []

        def call():
            at.append(time.monotonic())
            hw.attention(q, k, v, kernels="ref")
            at.append(time.monotonic())

        worker = threading.Thread(target=call)
        worker.start()
        while worker.is_alive():
            time.sleep(0.001)
            naps.append(time.monotonic())
        worker.join()
        return sum(at[0] < nap < at[1] for nap in naps)

    # A machine that keeps this thread waiting is asked for longer calls; with the GIL held there is no nap in any.
    assert any(naps_within_a_call(tokens) >= 20 for tokens in (400, 800, 1600))


def test_set_threads_holds_for_every_python_thread():
    hw.set_threads(3)
    seen = [hw.get_threads()]
    in_threads(2, lambda _: seen.append(hw.get_threads()))
    hw.set_threads(1)
    seen.append(hw.get_threads())
    assert seen == [3, 3, 3, 1]
    assert hw.Context(threads=5).threads == 5
    assert repr(hw.Context(threads=2, kernels="ref")) == 'Context(threads=2, kernels="ref")'


def in_child(work):
    """Forks; the child runs `work` and says by its exit code whether it held. A hanging child is killed and fails."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return "the child hung"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_in_the_middle(cases):
    hw.set_threads(3)
    ctx, stop = hw.Context(threads=2), threading.Event()

    def busy(shared):
        i = 0
        while not stop.is_set():
            qkv, _ = cases[i % len(cases)]
            hw.attention(*qkv, MASK, ctx=ctx if shared else None)
            i += 1

    threads = [threading.Thread(target=busy, args=(i % 2 == 0,)) for i in range(4)]
    for t in threads:
        t.start()

    def work():
        good = all(np.array_equal(hw.attention(*qkv, MASK), want) for qkv, want in cases)
        good = good and all(np.array_equal(hw.attention(*qkv, MASK, ctx=ctx), want) for qkv, want in cases)
        fresh = hw.Context(threads=2)
        return good and np.array_equal(hw.attention(*cases[0][0], MASK, ctx=fresh), cases[0][1])

    try:
        for _ in range(10):
            assert in_child(work) == 0
            qkv, want = cases[1]
            assert np.array_equal(hw.attention(*qkv, MASK), want)
    finally:
        stop.set()
        for t in threads:
            t.join()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_of_a_child(cases):
    qkv, want = cases[0]

    def right():
        return np.array_equal(hw.attention(*qkv, MASK), want)

    assert right() and in_child(lambda: right() and in_child(right) == 0) == 0


def run_program(code, **env):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=300,
    )


PROGRAM = """
    import threading, numpy as np, headwise as hw
    hw.set_threads(3)
    x = np.ones((1, 200, 4, 32), np.float32)
    def forever():
        while True:
            hw.attention(x, x, x)
"""


def test_workers_end_with_their_context_and_their_thread():
    code = """
    import os, threading, time, numpy as np, headwise as hw
    x = np.ones((1, 32, 4, 16), np.float32)
    def count(want):
        end = time.monotonic() + 100  # a thread that was joined leaves /proc a moment later
        while len(os.listdir("/proc/self/task")) != want and time.monotonic() < end:
            time.sleep(0.01)
        return len(os.listdir("/proc/self/task")) - before
    before = len(os.listdir("/proc/self/task"))
    ctx = hw.Context(threads=4)
    hw.attention(x, x, x, ctx=ctx)
    print(count(before + 3))
    del ctx
    print(count(before))
    hw.set_threads(3)
    held, done = threading.Barrier(5), threading.Event()
    def work():
        hw.attention(x, x, x)
        held.wait()
        done.wait()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads: t.start()
    held.wait()
    print(count(before + 4 * 3))
    done.set()
    for t in threads: t.join()
    print(count(before))
"""
    done = run_program(code)
    assert (done.stdout, done.stderr) == ("3\n0\n12\n0\n", "")


def test_exit_with_daemon_threads_inside_kernels_is_quiet():
    code = (
        PROGRAM
        + """
    for _ in range(6):
        threading.Thread(target=forever, daemon=True).start()
    import time; time.sleep(0.2)
"""
    )
    for _ in range(3):
        done = run_program(code)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_calls_from_exit_handlers_still_work():
    code = """
    import atexit, numpy as np
    x = np.ones((1, 200, 4, 32), np.float32)
    atexit.register(lambda: print(hw.attention(x, x, x).mean()))
    import headwise as hw
    hw.set_threads(3)
    hw.attention(x, x, x)
"""
    done = run_program(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1.0\n", "")


def test_the_environment_and_the_affinity_set_the_default():
    asks = "import headwise as hw; print(hw.get_threads())"
    assert run_program(asks, HEADWISE_THREADS="5").stdout == "5\n"
    pinned = f"import os; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}]); {asks}"
    assert run_program(pinned, HEADWISE_THREADS="").stdout == "1\n"
    assert "HEADWISE_THREADS" in run_program(asks, HEADWISE_THREADS="many").stderr
    one_kernel = "import headwise as hw; print(hw.Context().kernels)"
    assert run_program(one_kernel, HEADWISE_KERNELS="ref").stdout == "ref\n"


def test_a_multiprocessing_pool_by_fork():
    code = """
    import multiprocessing as mp, numpy as np, headwise as hw
    x = np.ones((1, 100, 4, 32), np.float32)
    def one(i):
        return float(hw.attention(x * i, x, x).sum())
    if __name__ == "__main__":
        hw.set_threads(2)
        want = [one(i) for i in range(4)]
        with mp.get_context("fork").Pool(2) as pool:
            print(pool.map(one, range(4)) == want)
"""
    done = run_program(code)
    assert (done.returncode, done.stdout) == (0, "True\n")


LONG_CALL = """
import os, signal, sys, threading, time
import numpy as np
import headwise as hw

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it
hw.set_threads(int(sys.argv[1]))
x = np.ones((1, 8192, 16, 128), np.float32)  # 0.5 TFLOP: many seconds on two cores
y = x[:, :, :2]  # two heads: two tasks, each of many seconds
hw.attention(x[:, :64], x[:, :64], x[:, :64])
sent = []

def interrupt():
    sent.append(time.process_time())
    os.kill(os.getpid(), signal.SIGINT)

try:
    threading.Timer(0.3, interrupt).start()
    while True:  # a timer that comes late meets the next call
        if sys.argv[2] == "forward":
            hw.attention(x, x, x)
        else:
            hw.attention_backward(y, y, y, y, y, np.zeros((1, 2, 8192), np.float32))
except KeyboardInterrupt:
    print(time.process_time() - sent[0])  # of all threads: a busy machine does not change it
    small = x[:, :64]
    assert np.array_equal(hw.attention(small, small, small), small)
"""


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_ctrl_c_ends_a_long_call(way, threads):
    done = subprocess.run(
        [sys.executable, "-c", LONG_CALL, str(threads), way], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 and done.stdout, done.stderr
    assert float(done.stdout) < 3  # 0.05 s and some tiles


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
interpreters.run_string(interpreters.create(), "try: import headwise\\nexcept ImportError as no: print(no, flush=True)")
"""


def test_a_subinterpreter_is_refused_and_the_process_ends_well():
    command = [sys.executable, "-W", "ignore", "-c", SUBINTERPRETER]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "headwise: it was imported in a subinterpreter, and its threads belong to the main interpreter; "
        "import it there, or use processes\n"
    )
