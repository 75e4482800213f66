"""headwise chat and headwise explain --model: a conversation through a pipe, live heads, and bytes counted by hand."""

import json
import os
import pathlib
import subprocess

import pytest
from tiny_decoder import CHATML, tokenizer_json, write_llama

import headwise as hw

PROGRAM = pathlib.Path(os.environ.get("HEADWISE_CLI") or pathlib.Path(hw.__file__).parents[2] / "headwise/cli/headwise")
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not built beside the module")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tokenizer_json(specials=("<|end|>", "<|im_start|>", "<|im_end|>"))
    return write_llama(tmp_path_factory.mktemp("talk") / "tiny", positions=400, tokenizer=made, chat=CHATML)


def run(*words, said=None):
    done = subprocess.run([PROGRAM, *map(str, words)], input=(said or "").encode(), capture_output=True, timeout=300)
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()  # with every \r
    return done


def test_a_conversation_through_a_pipe(folder):
    done = run("chat", folder, "--max-tokens", 12, "--seed", 5, "--kv-mib", 4, said="the man\nand then\n")
    assert done.returncode == 0, done.stderr
    model = hw.Decoder(folder, kv_mib=4)
    talk, want = [], ""
    for i, line in enumerate(["the man", "and then"]):
        talk.append({"role": "user", "content": line})
        said = model.generate(model.chat_tokens(talk), max_tokens=12, temperature=0.7, top_p=0.95, seed=5 + i).text
        talk.append({"role": "assistant", "content": said})
        want += said + "\n"
    assert done.stdout == want


def test_heads_beside_the_text(folder):
    plain = run("chat", folder, "--max-tokens", 30, "--seed", 5, "--kv-mib", 4, "--no-heads", said="the man\n").stdout
    live = run("chat", folder, "--max-tokens", 30, "--seed", 5, "--kv-mib", 4, "--columns", 60, said="the man\n").stdout
    frames = live.split("\r\x1b[K")[1:]
    assert len(frames) >= 20 and all("│ H " in f and " S " in f for f in frames[1:])
    assert any(c in live for c in "▁▂▃▄▅▆▇█")
    letters = "".join(c for c in plain if c.isalnum())
    shown = "".join(f.split("\x1b")[0] for f in frames if f.endswith("\n"))
    assert letters and letters == "".join(c for c in shown if c.isalnum())
    below = run("chat", folder, "--max-tokens", 3, "--kv-mib", 4, "--heads", said="the\n").stdout
    assert "\nH " in below or below.startswith("H ")


def test_refusals(folder, tmp_path):
    bare = write_llama(tmp_path / "bare")
    assert "template" in run("chat", bare, "--system", "x", said="").stderr
    assert run("chat", bare, "--max-tokens", 4, "--temperature", 0, said="the\n").returncode == 0  # it continues the line
    assert "config.json" in run("chat", tmp_path, said="").stderr
    assert "400 positions" in run("explain", "--model", folder, "--context", 401).stderr


ROOFS = ["--read-gbytes", 10, "--peak-gflops", 100, "--json"]


def test_the_bytes_of_a_step(folder):
    done = run("explain", "--model", folder, "--context", 100, "--batch", 3, "--dtype", "bf16", "--kv-dtype", "i8", *ROOFS)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    attention, feed, logits, norms = 2 * (32 * 64 + 32 * 32), 2 * 3 * 32 * 48, 272 * 32, 32 * 5
    assert said["weights"] == attention + feed + logits + norms
    assert said["weight_bytes"] == 2 * (attention + feed + logits) + 4 * norms
    assert said["kv_bytes_a_token"] == 2 * 2 * (16 + 2 * 4) and said["kv_bytes"] == 300 * said["kv_bytes_a_token"]
    flops = 3 * (2 * (attention + feed + logits) + 2 * 100 * 4 * 32)
    assert said["flops"] == flops
    seconds = max((said["weight_bytes"] + said["kv_bytes"]) / 10e9, flops / 100e9)
    assert abs(said["tokens_a_second"] * seconds - 3) < 1e-9 and said["bound"] == "bytes"
    text = run("explain", "--model", folder, "--context", 100).stdout
    assert "keys, values" in text and "tokens/s" in text and "weights as stored" in text
    stored = json.loads(run("explain", "--model", folder, "--context", 100, *ROOFS).stdout)
    assert stored["weight_bytes"] == 4 * stored["weights"]


def test_windows_bound_the_keys(tmp_path):
    folder = write_llama(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "mistral", "sliding_window": 10}
    (folder / "config.json").write_text(json.dumps(config))
    said = [json.loads(run("explain", "--model", folder, "--context", n, *ROOFS).stdout)["kv_bytes"] for n in (5, 10, 90)]
    assert said[0] * 2 == said[1] == said[2]
