"""Ranks that are processes of Open MPI: the same answers and the same model as one process, and what is said when ranks fail."""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from rank_runs import ENV, PROGRAM, TRAIN, needs_ranks, ranks_of, room, run  # noqa: F401

PAGE = pathlib.Path(__file__).parents[3] / "docs/distributed.md"
HOSTS = PAGE.parents[1] / "benchmarks/ranks/ranks_hosts.py"
TEXTS = ["the euro", "my loan", "block a card, please"]

pytestmark = needs_ranks


def test_the_lines_of_the_page(room):
    """Each mpirun line of the page runs; what it prints is what one process prints."""
    lines = [line.removeprefix("$ ") for block in re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.S | re.M)
             for line in block.splitlines() if line.removeprefix("$ ").startswith("mpirun ")]
    assert len(lines) >= 3
    for line in lines:
        if " serve " in line:
            continue  # test_serving_over_ranks
        if " train " in line:
            line += f" {TRAIN}"
        done = run(line, room)
        assert done.returncode == 0, line + done.stderr
        if " train " in line:
            continue
        alone = run(re.sub(r"mpirun -n \d+ (.*?) --(tensor|context) \d+", r"\1", line), room)
        assert alone.returncode == 0 and done.stdout == alone.stdout, line


def test_other_ways_of_bytes(room):
    """Over the loopback, and over two hosts that are namespaces with shaped links, the answers of one process."""
    words = "headwise predict model 'the euro' 'my loan' --json"
    one = run(words, room)
    tcp = run(f"mpirun -n 2 --mca btl tcp,self {words} --tensor 2", room)
    assert tcp.returncode == 0 and tcp.stdout == one.stdout, tcp.stderr
    probe = f"hwtest{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True).returncode != 0:
        pytest.skip("needs the right to make network namespaces")
    subprocess.run(["ip", "netns", "del", probe], check=True)
    hosts = run(f"{sys.executable} {HOSTS} --hosts 2 --rate 1gbit {words} --tensor 2", room)
    assert hosts.returncode == 0 and hosts.stdout == one.stdout, hosts.stderr


SUMS = """
import numpy as np, headwise as hw
world = hw.distributed.start()
size = 300_001
part = lambda r: np.random.default_rng(r).standard_normal(size, dtype=np.float32)
rows = [part(r) for r in range(world.ranks)]
while len(rows) > 1:
    rows = [a + b for a, b in zip(rows[::2], rows[1::2])]
for dtype in (None, "f16"):
    before = world.counted["bytes"]
    got = world.sum(part(world.rank), dtype=dtype)
    assert np.array_equal(got, rows[0].astype(got.dtype)), dtype
    sent = (world.counted["bytes"] - before) / ((4 + got.itemsize) * size * (world.ranks - 1) / world.ranks)
    assert abs(sent - 1) < 1e-4, sent
    assert np.array_equal(world.gather(got[:3], 0).reshape(-1, 3), np.tile(got[:3], (world.ranks, 1)))
print("right")
"""


@pytest.mark.parametrize("here", ["", "env OMPI_COMM_WORLD_LOCAL_SIZE=1"])
def test_sums_of_processes_are_the_tree(room, here):
    """Long messages travel whole on one host, in pieces between several; what is made of them goes on before all has come."""
    done = run(f"mpirun -n 4 --oversubscribe {here} {sys.executable} -c {shlex.quote(SUMS)}", room)
    assert done.returncode == 0 and done.stdout.count("right") == 4, done.stderr  # mpirun mixes lines


def test_data_ranks_leave_the_same_model(room):
    done = run(f"mpirun -n 2 headwise train bank.tsv --out shared --data 2 {TRAIN}", room)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of training; try") == 1  # rank 0 alone prints
    assert (room / "shared/model.safetensors").read_bytes() == (room / "model/model.safetensors").read_bytes()
    assert not list(room.glob("shared.run*"))


def stopped(room, words):
    """A training of slices that heard SIGTERM behind a checkpoint: its folder and its words. One that was done before
    this process came to send it is tried again, longer."""
    for epochs in (60, 240, 960):
        long = words.replace("--epochs 2", f"--epochs {epochs}")
        with subprocess.Popen(shlex.split(f"mpirun -n 2 headwise train bank.tsv --out gone{epochs} --tensor 2 --slices {long}"), cwd=room,
                              env=ENV, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as job:
            end = time.monotonic() + 200
            while not list(room.glob(f"gone{epochs}.run/step-*.json")) and time.monotonic() < end and job.poll() is None:
                time.sleep(0.05)
            for rank in ranks_of(job.pid)[:1]:
                os.kill(rank, signal.SIGTERM)
            said = job.communicate(timeout=200)[1]
        if job.returncode != 0:
            break
    assert job.returncode != 0 and "nothing is lost; the same command goes on" in said, said
    return f"gone{epochs}", long


def test_tensor_ranks_leave_the_same_model(room):
    """Cut over one, two and four ranks, with and without a data team; a training that was stopped goes on over other ranks."""
    words = f"{TRAIN} --heads gqa:heads=4,kv_heads=2,dim=8"
    assert run(f"headwise train bank.tsv --out cut1 --tensor 1 --data 1 {words}", room).returncode == 0
    model = (room / "cut1/model.safetensors").read_bytes()
    for ranks, teams in [(2, "--tensor 2 --data 1"), (4, "--tensor 2 --data 2")]:
        done = run(f"mpirun -n {ranks} headwise train bank.tsv --out cut{ranks} {teams} {words}", room)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("of training; try") == 1
        assert (room / f"cut{ranks}/model.safetensors").read_bytes() == model, teams
    # Stopped behind its first epoch; the same words over other ranks find its checkpoint.
    gone, long = stopped(room, words)
    # Its slices make one file, which others read, and which goes on over one rank.
    tensors = pytest.importorskip("safetensors.numpy")
    kept = sorted(room.glob(f"{gone}.run/step-*.json"))[-1]
    assert run(f"headwise checkpoint join {kept} whole.safetensors", room).stdout == "wrote whole.safetensors\n"
    slices = [tensors.load_file(kept.with_suffix(f".rank-{rank}.safetensors")) for rank in (0, 1)]
    whole = tensors.load_file(room / "whole.safetensors")
    name = next(n for n in whole if n.startswith("param.") and n.endswith("attention.q.weight"))
    assert np.array_equal(np.concatenate([s[name] for s in slices]), whole[name])
    assert set(whole) == {n for s in slices for n in s} and len(slices[0]) > len(slices[1])
    nowhere = run("headwise checkpoint join nowhere.json whole.safetensors", room)
    assert nowhere.returncode == 1 and "nowhere.json" in nowhere.stderr
    again = run(f"headwise train bank.tsv --out {gone} --tensor 1 {long}", room)
    assert again.returncode == 0, again.stderr
    assert run(f"headwise train bank.tsv --out straight --tensor 1 {long}", room).returncode == 0
    assert (room / f"{gone}/model.safetensors").read_bytes() == (room / "straight/model.safetensors").read_bytes()


@pytest.mark.parametrize("heads", ["mha:heads=4+gated:source=input,act=silu", "talking:heads=4"])
def test_heads_that_share_or_mix(room, heads):
    """Learnt on one rank and on two with the same bits; two ranks answer what one process answers."""
    for ranks, start in [(1, ""), (2, "mpirun -n 2 ")]:
        done = run(f"{start}headwise train bank.tsv --out {heads[:4]}{ranks} --tensor {ranks} --heads {heads} {TRAIN}", room)
        assert done.returncode == 0, done.stderr
    assert (room / f"{heads[:4]}1/model.safetensors").read_bytes() == (room / f"{heads[:4]}2/model.safetensors").read_bytes()
    two = run(f"mpirun -n 2 headwise predict {heads[:4]}1 'the euro' 'my loan' 'a card' --json --tensor 2", room)
    one = run(f"headwise predict {heads[:4]}1 'the euro' 'my loan' 'a card' --json", room)
    assert two.returncode == 0 and two.stdout == one.stdout, two.stderr


@pytest.mark.parametrize("order", ["one_rank", "tree", "engine"])
def test_orders(room, order):
    """A model of plain heads in every order; the tree of one rank has the bits of two."""
    if not (room / "plain").exists():
        assert run(f"headwise train bank.tsv --out plain --heads gqa:heads=4,kv_heads=1,dim=8 {TRAIN}", room).returncode == 0
    two = run(f"mpirun -n 2 headwise predict plain 'the euro' 'my loan' --json --tensor 2 --order {order}", room)
    one = run(f"headwise predict plain 'the euro' 'my loan' --json --tensor 1 --order {order}", room)
    assert two.returncode == 0 and one.returncode == 0, two.stderr + one.stderr
    if order == "engine":
        for a, b in zip(two.stdout.splitlines(), one.stdout.splitlines()):
            assert json.loads(a)["confidence"] == pytest.approx(json.loads(b)["confidence"], rel=1e-5)
    else:
        assert two.stdout == one.stdout


def test_ranks_generate_the_text_of_one(room):
    words = "llama 'the name' 'and the' --max-tokens 30 --temperature 0.8 --seed 4 --json"
    one = run(f"headwise generate {words}", room)
    two = run(f"mpirun -n 2 headwise generate {words} --tensor 2 --kv-dtype f32", room)
    assert one.returncode == two.returncode == 0, two.stderr
    assert two.stdout == one.stdout and one.stdout.count('"text"') == 2
    for more, said in [("--stats", "--stats know all heads"), ("--kv-file x", "use one rank")]:
        done = run(f"mpirun -n 2 headwise generate llama 'the name' --tensor 2 {more}", room)
        assert done.returncode == 1 and said in done.stderr, done.stderr
    few = run("mpirun -n 3 headwise generate llama 'the name' --tensor 3", room)
    assert few.returncode == 1 and "heads, which 3 ranks cannot share; take fewer" in few.stderr


def test_context_ranks_answer_alike(room):
    """Tokens cut over ranks, joined with heads cut over others; a batch of texts and one text alone."""
    texts = "'the euro' 'ask for a loan to repay my loan rate please' 'card'"
    one = run(f"headwise predict model {texts} --json", room)
    assert one.returncode == 0, one.stderr
    for ranks, words in [(3, "--context 3"), (4, "--tensor 2 --context 2")]:
        done = run(f"mpirun -n {ranks} headwise predict model {texts} --json {words}", room)
        assert done.returncode == 0 and done.stdout == one.stdout, words + done.stderr
    refused = run("headwise predict model hi --context 2", room)
    assert refused.returncode == 1 and "the options ask for 2; start as many: mpirun -n 2" in refused.stderr


def test_context_ranks_leave_the_model_of_one_process(room):
    """Learnt over tokens cut on two and three ranks: the bits of a training without ranks; with heads and data cut too, those of
    one rank of each. A stopped training goes on over other ranks."""
    assert run(f"headwise train bank.tsv --out plainly {TRAIN}", room).returncode == 0
    model = (room / "plainly/model.safetensors").read_bytes()
    for ranks in (2, 3):
        done = run(f"mpirun -n {ranks} headwise train bank.tsv --out tokens{ranks} --context {ranks} {TRAIN}", room)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("of training; try") == 1
        assert (room / f"tokens{ranks}/model.safetensors").read_bytes() == model, ranks
    teams = [(1, "--tensor 1 --context 1 --data 1"), (4, "--tensor 2 --context 2 --data 1"), (8, "--tensor 2 --context 2 --data 2")]
    for ranks, words in teams:
        done = run(f"mpirun -n {ranks} headwise train bank.tsv --out teams{ranks} {words} --heads gqa:heads=4,kv_heads=2,dim=8 {TRAIN}", room)
        assert done.returncode == 0, done.stderr
        assert (room / f"teams{ranks}/model.safetensors").read_bytes() == (room / "teams1/model.safetensors").read_bytes(), words
    for words, said in [("--gates l0=0.01", "not there over context ranks; leave out --gates"), ("--dtype bf16", "over context ranks"),
                        ("--slices", "give --tensor")]:
        refused = run(f"mpirun -n 2 headwise train bank.tsv --out never --context 2 {words} {TRAIN}", room)
        assert refused.returncode == 1 and said in refused.stderr, refused.stderr
    assert not (room / "never").exists()


def test_context_ranks_generate_the_text_of_one(room):
    words = "llama 'the name' 'and the' --max-tokens 30 --temperature 0.8 --seed 4 --json"
    one = run(f"headwise generate {words}", room)
    for ranks, teams in [(2, "--context 2"), (4, "--tensor 2 --context 2")]:
        done = run(f"mpirun -n {ranks} headwise generate {words} {teams}", room)
        assert done.returncode == 0 and done.stdout == one.stdout, done.stderr
    refused = run("mpirun -n 2 headwise generate llama 'the name' --context 2 --stats", room)
    assert refused.returncode == 1 and "--context shares them out; use one rank" in refused.stderr


def served(room, start, words="", model="model", **more):
    """A service, once it says where it listens: the process, the address, the ranks."""
    job = subprocess.Popen(shlex.split(f"{start} headwise serve {model} {words} --no-token --port 0"), cwd=room, env=dict(ENV, **more),
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    late = threading.Timer(200, job.kill)  # a service that says nothing ends the test, not the suite
    late.start()
    line = job.stdout.readline()
    late.cancel()
    found = re.search(r"at (http://\S+)", line)
    if not found or ("2 ranks" in line) != bool(start):
        job.kill()
        pytest.fail(line + job.communicate(timeout=200)[1])
    return job, found[1], ranks_of(job.pid) if start else [job.pid]


def end(job, ranks):
    """Nothing stays behind a test that failed."""
    for rank in ranks:
        if pathlib.Path(f"/proc/{rank}").exists():
            os.kill(rank, signal.SIGKILL)
    job.kill()
    job.communicate(timeout=200)


def asked(address, texts, route="intents"):
    body = json.dumps({"texts": texts}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{address}/v1/{route}", body, {"Content-Type": "application/json"}), timeout=200) as answer:
        return answer.read()


@pytest.fixture(scope="module")
def answer_of_one(room):
    job, address, _ = served(room, "")
    try:
        return asked(address, TEXTS)
    finally:
        job.terminate()
        job.communicate(timeout=200)


@pytest.mark.parametrize("words", ["--tensor 2", "--context 2"])
def test_serving_over_ranks(room, answer_of_one, words):
    """The answers of one process; SIGTERM to rank 0 ends all ranks and loses nothing."""
    job, address, ranks = served(room, "mpirun -n 2", words)
    try:
        assert asked(address, TEXTS) == answer_of_one
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(address, ["hi"], "explain")
        assert 400 <= refused.value.code < 500
        os.kill(ranks[1], signal.SIGTERM)  # not its to hear
        assert asked(address, TEXTS) == answer_of_one
        os.kill(ranks[0], signal.SIGTERM)
        errors = job.communicate(timeout=200)[1]
        assert job.returncode == 0 and "drained: every request was answered" in errors, errors
        assert not any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks)
    finally:
        end(job, ranks)


def completed(address, **body):
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=200) as answer:
        return [choice["text"] for choice in json.load(answer)["choices"]]


@pytest.mark.parametrize("words", ["--tensor 2", "--context 2"])
def test_serving_a_language_model_over_ranks(room, words):
    """Several requests at once, one of them left by its client: every answer is that of one process."""
    asked_for = [dict(prompt="the name", max_tokens=20, temperature=0.9, seed=seed, top_k=40) for seed in range(3)]
    texts = []
    for start, own in (("", ""), ("mpirun -n 2", words)):
        job, address, ranks = served(room, start, own, model="llama")
        try:
            with concurrent.futures.ThreadPoolExecutor() as clients:
                texts.append(list(clients.map(lambda body: completed(address, **body), asked_for)))
            left = urllib.request.Request(f"{address}/v1/completions", json.dumps(dict(asked_for[0], stream=True)).encode(),
                                          {"Content-Type": "application/json"})
            urllib.request.urlopen(left, timeout=200).close()
            assert completed(address, **asked_for[1]) == texts[0][1]
            with pytest.raises(urllib.error.HTTPError) as refused:
                completed(address, prompt="x", max_tokens=100000)
            assert refused.value.code == 400
            if start:  # one rank alone would compute them, and its cache would change alone
                heads = urllib.request.Request(f"{address}/v1/heads", b'{"prompt": "the name"}', {"Content-Type": "application/json"})
                with pytest.raises(urllib.error.HTTPError) as refused:
                    urllib.request.urlopen(heads, timeout=200)
                assert refused.value.code == 400 and "statistics of heads are not there over ranks" in refused.value.read().decode()
                assert completed(address, **asked_for[2]) == texts[0][2]
            os.kill(ranks[0], signal.SIGTERM)
            errors = job.communicate(timeout=200)[1]
            assert job.returncode == 0 and "drained: every request was answered" in errors, errors
            assert not any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks)
        finally:
            end(job, ranks)
    assert texts[0] == texts[1] and len(texts[0]) == 3


def test_a_rank_that_stands_ends_the_service(room):
    job, address, ranks = served(room, "mpirun -n 2", "--tensor 2", HEADWISE_RANK_SECONDS="20")  # a busy machine keeps a rank for some
    try:
        os.kill(ranks[1], signal.SIGSTOP)
        errors = job.communicate(timeout=300)[1]
        assert job.returncode == 75, errors
        assert re.search(r"rank 1 of 2 has not come to rank 0 for 20 s; look why it stands", errors), errors
    finally:
        end(job, ranks)


def test_ranks_that_differ_are_named(room):
    assert run(f"headwise train bank.tsv --out other --seed 2 {TRAIN}", room).returncode == 0
    done = run("mpirun -n 1 headwise predict model hi --tensor 2 : -n 1 headwise predict other hi --tensor 2", room)
    said = [line for line in done.stderr.splitlines() if line.startswith("headwise: ")]
    assert done.returncode == 1 and len(said) == 1, done.stderr
    assert re.fullmatch(r"headwise: ranks: predict: rank 1 has weights with CRC-32C \d+, rank 0 has \d+; "
                        r"start all ranks with the same words", said[0])
    assert done.stdout == ""


def test_refusals(room):
    for line, part in [
        ("headwise predict model hi --tensor 2", "1 rank was started and the options ask for 2; start as many: mpirun -n 2"),
        ("mpirun -n 2 headwise predict model hi", "2 ranks were started and the options ask for 1"),
        ("mpirun -n 3 headwise predict model hi --tensor 3", "8 heads cannot be cut over 3 ranks"),
        ("mpirun -n 2 headwise predict model hi --tensor 2 --order engine", "take order tree"),
        ("headwise predict model hi --order quick", "give one_rank, tree or engine"),
        ("headwise train bank.tsv --out never --data 1 --batch 12", "batch is 12 in 8 parts"),
        ("headwise train bank.tsv --out never --tensor 1 --dtype bf16", "sums over tensor ranks are not there yet"),
        ("headwise train bank.tsv --out never --tensor 1 --gates l0=0.01", "leave out --gates"),
    ]:
        done = run(line, room)
        assert done.returncode != 0 and part in done.stderr, line + done.stderr
    assert not (room / "never").exists()
    assert "no engine" in run("headwise predict model hi --tensor 1", room, HEADWISE_ENGINE="smoke").stderr


@pytest.mark.parametrize("sign, code, seconds", [(signal.SIGKILL, 137, "200"), (signal.SIGSTOP, 75, "20")])
def test_a_rank_that_is_gone_or_stands_ends_the_run(room, sign, code, seconds):
    name = f"gone{code}"
    log = room / f"{name}.run/log.jsonl"
    line = f"mpirun -n 2 headwise train bank.tsv --out {name} --data 2 {TRAIN} --epochs 100000"
    with subprocess.Popen(shlex.split(line.replace("--epochs 2 ", "")), cwd=room, env=dict(ENV, HEADWISE_RANK_SECONDS=seconds),
                          stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as job:
        end = time.monotonic() + 200
        while not (log.exists() and log.stat().st_size > 0) and time.monotonic() < end and job.poll() is None:
            time.sleep(0.1)
        ranks = ranks_of(job.pid)
        assert len(ranks) == 2, job.stderr.read() if job.poll() is not None else ranks
        os.kill(ranks[1], sign)
        try:
            said = job.communicate(timeout=300)[1]
        finally:
            for rank in ranks:
                if pathlib.Path(f"/proc/{rank}").exists():
                    os.kill(rank, signal.SIGKILL)
    assert job.returncode == code, said
    if sign == signal.SIGSTOP:
        assert re.search(r"rank 1 of 2 has not come to rank 0 for 20 s; look why it stands, then start all ranks again", said)


def test_doctor_and_explain(room):
    facts = json.loads(run("headwise doctor --json --no-measure", room).stdout)
    assert [e["name"] for e in facts["engines"]] == ["mpi", "nccl"]
    assert facts["engines"][0] == {"name": "mpi", "purpose": "ranks are processes, on one machine or several", "missing": ""}
    sizes = "--q-tokens 512 --batch 8 --heads 8 --head-dim 64"
    said = json.loads(run(f"headwise explain {sizes} --ranks 4 --json", room).stdout)["ranks"]
    # Heads gathered and own columns gathered: 2 x 3/4 x tokens x model_dim x 4 bytes.
    assert said["travels"][0]["bytes"] == 2 * 3 * 8 * 512 * 512 * 4 // 4 and said["heads_of_a_rank"].startswith("gqa:heads=2,")
    tree = json.loads(run(f"headwise explain {sizes} --ranks 4 --order tree --feed-dim 2048 --backward --json", room).stdout)
    assert [c["what"] for c in tree["ranks"]["travels"]] == ["W_O", "W_2", "dx of W_1", "dx of W_Q, W_K, W_V"]
    assert len({c["bytes"] for c in tree["ranks"]["travels"]}) == 1
    refused = run("headwise explain --heads talking:heads=8 --ranks 2", room)
    assert refused.returncode == 1 and "is cut by sequences over ranks" in refused.stderr


def test_the_cost_model_counts_the_same_bytes():
    model = pathlib.Path(__file__).parents[3] / "benchmarks/ranks/ranks_model.py"
    done = subprocess.run([sys.executable, model, "--check", PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "72 settings, all bytes equal" in done.stdout, done.stderr
