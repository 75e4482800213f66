"""What ranks say when they differ, fail or are stopped: one sentence, its exit code, and no process left behind."""

import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest
from rank_runs import ENV, TRAIN, needs_ranks, ranks_of, room, run  # noqa: F401

pytestmark = needs_ranks
LIBRARY = pathlib.Path("/usr/lib/x86_64-linux-gnu/libmpi.so.40")


def sentences(done):
    return [line for line in done.stderr.splitlines() if line.startswith("headwise: ")]


@pytest.mark.parametrize(("zero", "one", "field"), [
    ("--seed 1", "--seed 2", "seed"), ("--heads mha:heads=4", "--heads mha:heads=8", "heads"),
    ("--dropout 0.2", "--dropout 0.3", "dropout"), ("--rate 0.001", "--rate 0.002", "rate")])
def test_ranks_of_other_words(room, zero, one, field):
    words = f"train bank.tsv {TRAIN} --out never --data 2"
    done = run(f"mpirun -n 1 headwise {words} {zero} : -n 1 headwise {words} {one}", room)
    assert done.returncode == 1 and len(sentences(done)) == 1, done.stderr
    first, last = (own.split()[1] for own in (zero, one))
    if field == "heads":
        first, last = f'"{first}"', f'"{last}"'
    assert sentences(done)[0] == f"headwise: ranks: train: rank 1 has {field} {last}, rank 0 has {first}; start all ranks with the same words"
    assert not (room / "never").exists()


def test_ranks_of_other_teams(room):
    words = f"train bank.tsv --out never {TRAIN}"
    done = run(f"mpirun -n 1 headwise {words} --data 2 : -n 1 headwise {words} --tensor 2", room)
    assert done.returncode == 1 and len(sentences(done)) == 1, done.stderr
    assert re.search(r"rank 1 has tensor 2, rank 0 has 0; start all ranks with the same words", sentences(done)[0])


def test_ranks_of_other_data(room):
    (room / "other.tsv").write_text((room / "bank.tsv").read_text().replace("euro", "franc"))
    (room / "elsewhere").mkdir(exist_ok=True)
    shutil.copy(room / "other.tsv", room / "elsewhere/bank.tsv")
    line = f"headwise train bank.tsv --out never --data 2 {TRAIN}"
    done = run(f"mpirun -n 1 {line} : -n 1 --wdir {room / 'elsewhere'} {line}", room)
    assert done.returncode == 1 and len(sentences(done)) == 1, done.stderr
    told = re.fullmatch(r"headwise: ranks: train: rank 1 has crc32c (\d+), rank 0 has (\d+); start all ranks with the same words",
                        sentences(done)[0])
    assert told and told[1] != told[2], done.stderr


def test_ranks_of_other_levels(room):
    """Instructions change bits: an ISA level of its own is a numerics class of its own."""
    line = f"headwise train bank.tsv --out never --data 2 {TRAIN}"
    done = run(f"mpirun -n 1 {line} : -n 1 env HEADWISE_ISA=plain {line}", room)
    assert done.returncode == 1 and len(sentences(done)) == 1, done.stderr
    assert re.search(r"rank 1 has numerics .*plain.*, rank 0 has .*; start all ranks with the same words", sentences(done)[0]), done.stderr


def test_an_mpi_that_is_not_installed(room):
    """The library is hidden in a mount namespace of the command's own."""
    hidden = f"mount --bind /dev/null {LIBRARY.resolve()} && exec headwise predict model hi --tensor 2"
    if not LIBRARY.exists() or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode != 0:
        pytest.skip("needs Debian's Open MPI and the right to make a mount namespace")
    done = run(f"unshare --mount sh -c {shlex.quote(hidden)}", room, HEADWISE_ENGINE="mpi")
    assert done.returncode == 1 and len(sentences(done)) == 1, done.stderr
    assert "install the package openmpi-bin" in done.stderr


def limited(limit, words):
    """A rank under a limit of the shell; a file that grows past one is an error to it, no signal."""
    line = f"trap '' XFSZ; ulimit {limit}; exec headwise {words}"
    return f"sh -c {shlex.quote(line)}"


@pytest.mark.parametrize(("rank", "teams"), [(0, "--data 2"), (1, "--tensor 2 --slices")])
def test_a_disk_that_is_full_on_one_rank(room, rank, teams):
    """Rank 0 writes the checkpoints of a data team; each rank of a tensor team its slices."""
    words = f"train bank.tsv --out full{rank} {teams} --heads gqa:heads=4,kv_heads=2,dim=8 {TRAIN}"
    ranks = [limited("-f 40", words) if r == rank else f"headwise {words}" for r in (0, 1)]
    done = run(" : ".join(f"{'mpirun ' if r == 0 else ''}-n 1 {line}" for r, line in enumerate(ranks)), room, HEADWISE_RANK_SECONDS="200")
    assert done.returncode == 1, done.stderr
    own = [s for s in sentences(done) if s.startswith("headwise: rank 1: ") == (rank == 1)]
    assert any("File too large" in s for s in own), done.stderr
    # Where there is room again, the same command goes on.
    again = run(f"mpirun -n 2 headwise {words}", room)
    assert again.returncode == 0, again.stderr


def test_a_rank_without_memory(room):
    big = f"train bank.tsv --out big --data 2 {TRAIN} --model-dim 2048 --feed-dim 8192 --depth 8 --heads mha:heads=8".replace(
        "--model-dim 32 --feed-dim 64 --depth 1", "")
    done = run(f"mpirun -n 1 headwise {big} : -n 1 {limited('-v 700000', big)}", room, HEADWISE_RANK_SECONDS="60")
    assert done.returncode == 1, done.stderr
    assert any(re.fullmatch(r"headwise: (out of memory|rank 1: .*\d bytes were asked and the system has not that many); use smaller sizes.*", said)
               for said in sentences(done)), done.stderr


def stands(rank):
    try:
        return pathlib.Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:  # it ended
        return False


def starting_pair(room, **env):
    """Two ranks of which the second stands from its first moment, and the first waits for it in MPI's start; fewer where
    they ended before they were seen."""
    words = "headwise predict model hi --tensor 2"
    job = subprocess.Popen(shlex.split(f"mpirun -n 1 {words} : -n 1 sh -c 'kill -STOP $$; exec {words}'"), cwd=room,
                           env=dict(ENV, **env), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    end, ranks = time.monotonic() + 200, []
    while (len(ranks) < 2 or not stands(ranks[1])) and time.monotonic() < end and job.poll() is None:
        time.sleep(0.01)
        ranks = ranks_of(job.pid)
    return job, ranks


def holds_signals(rank):
    """The rank has its own handler of SIGTERM: MPI starts."""
    caught = re.search(r"SigCgt:\s*([0-9a-f]+)", pathlib.Path(f"/proc/{rank}/status").read_text())
    return bool(int(caught[1], 16) >> (signal.SIGTERM - 1) & 1)


def end_all(job, ranks):
    for pid in [job.pid, *ranks]:
        if pid == job.pid or pid in ranks_of(job.pid):
            os.kill(pid, signal.SIGKILL)
    job.communicate()


def test_a_rank_that_never_starts(room):
    job, ranks = starting_pair(room, HEADWISE_START_SECONDS="2")
    try:
        said = job.communicate(timeout=200)[1]
    except subprocess.TimeoutExpired:
        end_all(job, ranks)
        raise
    assert job.returncode == 75, said
    assert "headwise: ranks: not all ranks have come to the start for 2 s; look which stand, then start all ranks again" in said
    assert run("mpirun -n 2 headwise predict model hi --tensor 2", room, HEADWISE_START_SECONDS="inf").returncode == 0
    refused = run("mpirun -n 2 headwise predict model hi --tensor 2", room, HEADWISE_START_SECONDS="soon")
    assert refused.returncode == 1 and 'HEADWISE_START_SECONDS is "soon"; give seconds above 0' in refused.stderr


def test_a_signal_while_a_rank_starts(room):
    """It waits until MPI runs: a rank that ends before can leave mpirun itself standing, with no rank alive."""
    job, ranks = starting_pair(room, HEADWISE_START_SECONDS="600")
    try:
        assert len(ranks) == 2 and stands(ranks[1]), ranks
        end = time.monotonic() + 200
        while not holds_signals(ranks[0]) and time.monotonic() < end:
            time.sleep(0.01)
        assert holds_signals(ranks[0])
        os.kill(ranks[0], signal.SIGTERM)
        time.sleep(0.5)
        assert ranks[0] in ranks_of(job.pid) and job.poll() is None
        os.kill(ranks[1], signal.SIGCONT)
        said = job.communicate(timeout=200)[1]
    except BaseException:
        end_all(job, ranks)
        raise
    assert job.returncode == 128 + signal.SIGTERM, said


def ranks_now(room):
    """Processes that work in this folder: what runs there started, and they alone."""
    found = set()
    for link in pathlib.Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(link) == str(room) and b"python" not in (link.parent / "cmdline").read_bytes():
                found.add(int(link.parent.name))
        except OSError:
            pass
    return found


def all_ended(room):
    """An end takes a moment; one that does not come in a minute is none."""
    end = time.monotonic() + 60
    while ranks_now(room) and time.monotonic() < end:
        time.sleep(0.05)
    return not ranks_now(room)


@pytest.mark.parametrize("runs", [100 if os.environ.get("HEADWISE_SLOW") == "1" else 5])
def test_no_process_is_left_behind(room, runs):
    """Runs that end by themselves, are refused, killed, stopped by a signal or lose a rank, in turns."""
    words = TRAIN.replace("--epochs 2", "--epochs 9999")
    for turn in range(runs):
        train = f"mpirun -n 2 headwise train bank.tsv --out left{turn} --data 2 {words}"
        line = ["mpirun -n 2 headwise predict model 'the euro' --tensor 2", "mpirun -n 2 headwise predict model hi --tensor 4",
                train, train, train][turn % 5]
        assert all_ended(room)
        with subprocess.Popen(shlex.split(line), cwd=room, env=dict(ENV, HEADWISE_RANK_SECONDS="200"), stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as job:
            log, end = room / f"left{turn}.run/log.jsonl", time.monotonic() + 200
            while line == train and not (log.exists() and log.stat().st_size > 0) and time.monotonic() < end and job.poll() is None:
                time.sleep(0.02)
            ranks = ranks_of(job.pid)
            if turn % 5 == 2:
                job.send_signal(signal.SIGINT)
            elif turn % 5 > 2 and len(ranks) == 2:
                os.kill(ranks[turn // 5 % 2], signal.SIGKILL if turn % 5 == 3 else signal.SIGTERM)
            try:
                said = job.communicate(timeout=300)[1]
            finally:
                job.kill()
        assert (job.returncode == 0) == (turn % 5 == 0), f"{line}: {job.returncode}: {said}"
        assert all_ended(room), f"run {turn} of {line} left a process: {said}"
