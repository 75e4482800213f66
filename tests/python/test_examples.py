"""Examples print what stands beside them, word for word."""

import pathlib
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def test_hello():
    done = subprocess.run([sys.executable, EXAMPLES / "hello.py"], capture_output=True, text=True, check=True)
    assert done.stdout == (EXAMPLES / "hello.py.txt").read_text()
    assert len((EXAMPLES / "hello.py").read_text().splitlines()) < 60
