"""The C interface of decoders: the example's text is hw.Decoder's, and it refuses in sentences."""

import os
import pathlib
import subprocess

import pytest
from tiny_decoder import write_llama

import headwise as hw

BUILD = pathlib.Path(os.environ["HEADWISE_CLI"]).parents[2] if os.environ.get("HEADWISE_CLI") else pathlib.Path(hw.__file__).parents[2]
PROGRAM = BUILD / "examples/example_generate"
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason="the example is not built beside the module")
DATA = os.environ.get("HEADWISE_DATA", "")


def run(*words):
    return subprocess.run([PROGRAM, *words], capture_output=True, encoding="utf-8", timeout=300)


def test_a_tiny_model(tmp_path):
    folder = write_llama(tmp_path / "tiny")
    want = hw.Decoder(folder, kv_mib=1).generate("the man", max_tokens=30, stop="\n\n")
    got = run(folder, "the man", "30")
    assert got.returncode == 0, got.stderr
    assert got.stdout == want.text and f"ended by {want.finish}" in got.stderr


@pytest.mark.skipif(not DATA, reason="HEADWISE_DATA names no folder")
def test_stories():
    got = run(pathlib.Path(DATA) / "weights_stories260K/stories260K.bin", "Once upon a time", "20")
    assert got.stdout.startswith(", there was a little girl named Lily."), got


def test_refusals(tmp_path):
    folder = write_llama(tmp_path / "tiny")
    assert "decoder" in run(tmp_path / "nothing", "x").stderr
    long = run(folder, "the", "4000")
    assert long.returncode == 1 and "do not fit the model's 96" in long.stderr and long.stdout == ""
    assert "the prompt has no token" in run(folder, "").stderr
    assert run(folder).returncode == 2


def test_the_example_is_short():
    lines = (pathlib.Path(__file__).parents[3] / "examples/generate.c").read_text().splitlines()
    assert len(lines) < 60
