"""Benchmarks: the driver runs, its report says what it measured, verdicts are right at their edges; the tour needs no torch."""

import importlib
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks"))
import measure  # noqa: E402
import report  # noqa: E402
import targets  # noqa: E402


def run(*command, **more):
    return subprocess.run(
        [sys.executable, *map(str, command)], capture_output=True, text=True, timeout=300, **more
    )


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "result.json"
    done = run(ROOT / "benchmarks/attention_bench.py", "--smoke", "--out", out)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text()), out


def test_the_driver_measures_every_smoke_case(result):
    data, out = result
    smoke = measure.read_cases("smoke")
    again = [c for c in smoke if not c.probe][:2]  # their gradients
    decode = [f"{d} packed decode [1 600 4/2 32]" for d in ("f32", "f16", "i8")]
    assert [r["case"] for r in data["rows"]][:-1] == [str(c) for c in smoke + again] + decode
    assert all(r["read"]["median"] > 0 for r in data["rows"] if r["table"] == "decode")
    assert all(r["seconds"]["least"] <= r["seconds"]["median"] <= r["seconds"]["most"] for r in data["rows"])
    forward = data["rows"][0]
    assert len(forward["rounds"]) == len(forward["torch_rounds"]) == 5
    assert data["setting"]["torch"] and data["setting"]["peak_gflops"] > 0
    assert out.with_suffix(".md").read_text() == report.document(data)


def test_readmes_are_filled_between_their_markers(result, tmp_path, monkeypatch):
    readme = tmp_path / "README.md"
    readme.write_text(f"above\n{report.BEGIN}\nold\n{report.END}\nbelow\n")
    monkeypatch.setattr(report, "READMES", [readme])
    report.fill_readme(result[0])
    text = readme.read_text()
    assert text.startswith("above\n") and text.endswith("below\n") and "old" not in text
    assert text.count("| f32 [1 128 2 64] causal |") == 1
    assert all(marker in (ROOT / "README.md").read_text() for marker in (report.BEGIN, report.END))


@pytest.mark.parametrize("value, verdict", [(1.17, "below"), (1.177, "must"), (1.99, "must"), (2.0, "then")])
def test_a_must_counts_within_two_percent(value, verdict):
    assert targets.judge(targets.TARGETS["x86_64"], "torch f32", value)["verdict"] == verdict


@pytest.mark.parametrize(
    "value, verdict", [(0.103, "below"), (0.101, "must"), (0.05, "then"), (-0.01, "then")]
)
def test_upper_bounds_count_the_other_way(value, verdict):
    assert targets.judge(targets.TARGETS["aarch64"], "rows_slower", value)["verdict"] == verdict


def test_every_case_file_parses_and_comes_back():
    for file in sorted((ROOT / "benchmarks/cases").glob("*.txt")):
        if file.stem == "gemm":
            continue
        cases = measure.read_cases(file.stem)
        assert cases and [measure.Case.parse(str(c)) for c in cases] == cases
    with pytest.raises(SystemExit, match="the form is"):
        measure.Case.parse("f32 [1 2 3] causal")


def test_products_parse_and_their_driver_runs(tmp_path):
    import gemm_bench

    cases = gemm_bench.read_products()
    assert cases and [gemm_bench.Product.parse(str(c)) for c in cases] == cases
    assert gemm_bench.Product.parse("bf16 2 3 4").flop == 48
    out = tmp_path / "gemm.json"
    done = run(ROOT / "benchmarks/gemm_bench.py", "--smoke", "--cpu-time", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "| f32 5 7 9 |" in out.with_suffix(".md").read_text()


def test_the_driver_of_layers_runs(tmp_path):
    out = tmp_path / "layers.json"
    done = run(ROOT / "benchmarks/layer_bench.py", "--smoke", "--cpu-time", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "encoder block" in done.stdout and "loop over heads" in out.read_text()


def test_heads_are_measured(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "heads.json"
    done = run(ROOT / "benchmarks/heads_bench.py", "--smoke", "--cpu-time", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "| dcmha backward | f32 [1 48 16 64] causal | as fast as eager |" in out.with_suffix(".md").read_text()


def test_flop_of_a_causal_mask_is_its_triangle():
    assert measure.Case.parse("f32 [2 3 5 7] all").flop == 4 * 2 * 5 * 7 * 9
    assert measure.Case.parse("f32 [2 3 5 7] causal").flop == 4 * 2 * 5 * 7 * 6


def test_a_torch_of_another_version_is_refused_unless_asked_for(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    env = dict(os.environ, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    done = run(ROOT / "benchmarks/attention_bench.py", "--smoke", env=env)
    assert done.returncode == 2 and "torch is none, the rival is 2.13.0" in done.stderr


def test_the_tour_runs_without_torch_and_says_so(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    env = dict(os.environ, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    done = run(ROOT / "examples/tour.py", env=env)
    assert done.returncode == 0, done.stderr
    assert "same bits as in the batch: yes" in done.stdout and "cpu/online  chosen" in done.stdout
    assert "torch is not installed here" in done.stdout and "times torch" not in done.stdout


def test_the_peak_is_measured_and_its_arguments_are_checked():
    assert measure.hw._core.measure_peak(1, windows=1, window_ms=1) > 0
    for bad in (dict(threads=0), dict(threads=1, windows=0), dict(threads=1, window_ms=0)):
        with pytest.raises(
            ValueError, match="give threads from 1 to 1024, at least one window and a length above 0"
        ):
            measure.hw._core.measure_peak(**bad)


def test_unknown_dtypes_are_refused():
    done = run(ROOT / "benchmarks/attention_bench.py", "--dtypes", "f32,f8")
    assert done.returncode == 2 and "no dtype f8; there are f32 bf16 f16 i8" in done.stderr


def test_two_builds_are_compared(monkeypatch):
    """benchmarks/compare: names are unique, fields are known, and a loss counts only beyond 2 % and the spread."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks/compare"))
    cases, compare = importlib.import_module("cases"), importlib.import_module("compare")
    for made in (cases.gpu_times(), cases.cpu_times(), cases.digests("cpu"), cases.digests("cuda")):
        names = [(c["group"], c["name"], c["dir"]) for c in made]
        assert len(set(names)) == len(names) > 30
    with pytest.raises(AssertionError, match="no such field"):
        cases.case("forward", "x", tokens=3)
    steady, noisy = [1.0, 1.001, 0.999] * 3, [1.0, 1.2, 0.9] * 3
    assert compare.judge(steady, [1.03 * x for x in steady])["slower"]
    assert not compare.judge(steady, [1.01 * x for x in steady])["slower"]
    assert not compare.judge(noisy, [1.03 * x for x in noisy])["slower"]
