"""Types: the stub is what the module says of itself, and checkers accept both."""

import pathlib
import subprocess
import sys

import pytest

import headwise as hw

ROOT = pathlib.Path(__file__).parents[3]
STUB = ROOT / "python/headwise/_core.pyi"


def test_the_stub_is_up_to_date(tmp_path):
    made = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "headwise._core"]
    subprocess.run([*command, "-p", ROOT / "python/stub.patterns", "-o", made], check=True)
    assert made.read_text() == STUB.read_text(), "run the command of docs/python.md, section Stubs"


def test_the_package_says_that_it_is_typed():
    here = pathlib.Path(hw.__file__).parent
    assert (here / "py.typed").exists() and (here / "_core.pyi").read_text() == STUB.read_text()


def test_every_public_name_exists():
    assert all(hasattr(hw, name) for name in hw.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fast'"):
        hw.fast  # noqa: B018


USER = """
import numpy as np
import headwise as hw

x = np.ones((1, 2, 3, 4), np.float32)
plain = hw.attention(x, x, x, hw.Mask.causal() & hw.Mask.window(3, 0))
plain.reshape(-1)
whole = hw.attention(x, x, x, return_lse=True, probe=hw.Probe(rows=True))
assert isinstance(whole, hw.AttentionResult)
whole.lse
hw.attention(x, x, x, relative=hw.T5(x[0, 0], bidirectional=False), q_start=hw.end)
hw.explain(x, x, x).splitlines()
hw.rope(hw.rms_norm(x), positions=3, scaling=hw.RopeScaling.linear(2.0)).sum()
"""
WRONG = """
import numpy as np
import headwise as hw
x = np.ones((1, 2, 3, 4), np.float32)
hw.attention(x, x, x, mask=True)
hw.Mask.window("3", 0)
hw.attention(x, x, x, speed=9)
"""


def check(tmp_path, code):
    file = tmp_path / "user.py"
    file.write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", file]
    return subprocess.run(
        command, capture_output=True, text=True, env={"MYPYPATH": str(ROOT / "python"), "PATH": ""}
    )


def test_mypy_accepts_right_use_and_finds_wrong_use(tmp_path):
    pytest.importorskip("mypy")
    right = check(tmp_path, USER)
    assert right.returncode == 0, right.stdout
    wrong = check(tmp_path, WRONG)
    for line in (5, 6, 7):
        assert f"user.py:{line}: error" in wrong.stdout, wrong.stdout


def test_mypy_accepts_the_package(tmp_path):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout


LAZY = """
import sys, threading
before = set(sys.modules)  # what the machine's own start files import
import headwise as hw
early = {"json", "torch", "numpy", "headwise.lab", "headwise._heads", "headwise._view"} & set(sys.modules) - before
assert not early, early
made, gate = [], threading.Barrier(8)
def ask():
    gate.wait()
    made.append(hw.Gqa)
threads = [threading.Thread(target=ask) for _ in range(8)]
[t.start() for t in threads], [t.join() for t in threads]
assert len({id(x) for x in made}) == 1 and "Gqa" in dir(hw) and isinstance(hw.Gqa(heads=4, kv_heads=2), hw.Head)
names = {}
exec("from headwise import *", names)
assert names["Gqa"] is hw.Gqa and names["view"] is hw.view and names["lab"] is hw.lab
"""


def test_what_an_import_leaves_for_later_comes_when_it_is_asked_for():
    subprocess.run([sys.executable, "-c", LAZY], check=True)


ALONE = """
import inspect, pydoc, sys
sys.modules.update(dict.fromkeys(("torch", "jax", "transformers")))  # as if they were not installed
import headwise as hw
names = {}
exec("from headwise import *", names)
assert names["Gqa"] is hw.Gqa and "torch" not in names
assert "attention" in dict(inspect.getmembers(hw))
assert "attention_backward" in pydoc.plain(pydoc.render_doc(hw))
try:
    hw.torch
except ModuleNotFoundError as missing:
    assert missing.name == "torch"
else:
    raise AssertionError("hw.torch came without torch")
"""


def test_everything_of_the_package_can_be_looked_at_without_its_guests():
    subprocess.run([sys.executable, "-c", ALONE], check=True)
