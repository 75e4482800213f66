"""The benchmark of language models: it completes, keeps each figure, and goes on where it was cut."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks/decoders"))
import decoder_bench  # noqa: E402

DATA = os.environ.get("HEADWISE_DATA")


def run(out):
    model = pathlib.Path(DATA) / "weights_stories260K/stories260K.bin"
    words = [model, "--out", out, "--ids", "3,500", "--rounds", "1", "--contexts", "8", "--batches", "2", "--engines", "headwise f32"]
    program = ROOT / "benchmarks/decoders/decoder_bench.py"
    return subprocess.run([sys.executable, *map(str, [program, *words])], capture_output=True, text=True, timeout=300)


@pytest.mark.skipif(not DATA, reason="HEADWISE_DATA is not set: no model to measure")
def test_a_run_that_was_cut_goes_on(tmp_path):
    out = tmp_path / "result.json"
    done = run(out)
    assert done.returncode == 0, done.stderr
    whole = json.loads(out.read_text())
    figures = {case: f for r in whole["rounds"] for case, f in r["figures"].items()}
    assert list(figures) == ["prefill 8", "decode 8", "batch 2", "decode 64, heads watched"]
    assert all(clock > 0 for f in figures.values() for clock in f)
    assert out.with_suffix(".md").read_text() == decoder_bench.page(whole)

    out.write_text(json.dumps(whole | {"rounds": whole["rounds"][:1]}))
    again = run(out)
    assert [line for line in again.stdout.splitlines() if line.startswith("round")] == [
        "round 1, headwise f32: batch 2",
        "round 1, headwise f32: decode 64, heads watched",
    ]
    assert json.loads(out.read_text())["rounds"][0] == whole["rounds"][0]


def test_the_table_has_medians_and_multiples_of_cpu_time():
    def line(engine, number, figure, **more):
        return {"engine": engine, "round": number, "figures": {"decode 64": figure}, "weights": None, "token": None} | more

    own = [line("headwise f32", n, [5, x], weights=100, token=1) for n, x in enumerate((8, 6, 40))]
    rows = decoder_bench.table({"bandwidth": {"cpu": 1640}, "rounds": [*own, line("transformers f32", 0, [9, 4])]})
    assert rows[0]["cpu"] == 8 and (rows[0]["lowest"], rows[0]["highest"]) == (6, 40)
    assert rows[0]["times"] == {"transformers f32": 2} and "times" not in rows[1]
    assert rows[0]["share of the roof"] == 8 * (100 + 64) / 1640
