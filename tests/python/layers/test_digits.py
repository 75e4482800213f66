"""examples/digits.py: its splits share no picture, its step follows the slope, its page shows every layer."""
import json
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples"))
import digits as example


def test_splits_share_nothing_and_hold_all():
    (x, y), (x_judge, y_judge) = example.digits(3)
    assert x.shape == (1198, 16, 4) and x_judge.shape == (599, 16, 4) and len(y) == 1198 and len(y_judge) == 599
    from sklearn.datasets import load_digits
    images = np.concatenate([x, x_judge]).reshape(-1, 4, 4, 2, 2).transpose(0, 1, 3, 2, 4).reshape(-1, 64)
    given = load_digits().data.astype(np.float32) / 8 - 1
    assert np.array_equal(np.sort(images.view("V256").ravel()), np.sort(given.view("V256").ravel()))


def test_a_step_goes_down_the_slope_of_every_own_parameter():
    (x, y), _ = example.digits(0)
    model = example.Reader(example.KINDS["overlapped, rim 1"], 0)
    model.stack = example.hw.Stack(example.KINDS["overlapped, rim 1"], example.WIDTH, 2 * example.WIDTH, 1, feed="gelu", seed=0)  # no dropout
    before = {name: value.copy() for name, value in model.parameters().items()}
    seen = {}
    model.adam.step = lambda parameters, gradients, rate: seen.update(gradients)
    first = model.learn(x[:32], y[:32], 1e-3)
    assert all(np.array_equal(before[name], value) for name, value in model.parameters().items())
    rng = np.random.default_rng(1)
    for name, value in model.own.items():  # a central difference along a random direction
        way = rng.normal(size=value.shape).astype(np.float32)
        losses = []
        for sign in (1, -1):
            value += sign * 1e-2 * way
            losses.append(model.learn(x[:32], y[:32], 0))
            value -= sign * 1e-2 * way
        slope = (losses[0] - losses[1]) / 2e-2
        model.learn(x[:32], y[:32], 0)
        assert abs(slope - float((seen[name] * way).sum())) < 2e-2 * max(1, abs(slope)), name
    assert first > 1


def test_the_command_writes_its_table_and_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(example, "KINDS", {"plain": example.KINDS["plain"]})
    monkeypatch.setattr(sys, "argv", ["digits", "--seeds", "1", "--epochs", "2", "--out", str(tmp_path / "d.json"), "--page", str(tmp_path / "d.html")])
    table = example.main()
    assert json.loads((tmp_path / "d.json").read_text())["kinds"] == table and table["plain"]["accuracy"][0] > 0.3
    assert "plain: " in capsys.readouterr().out and "patches of a digit" in (tmp_path / "d.html").read_text()


def test_the_page_shows_the_results_that_are_kept():
    root = pathlib.Path(__file__).parents[3]
    page = (root / "docs/words-and-pictures.md").read_text()
    for name, row in json.loads((root / "benchmarks/results/digits.json").read_text())["kinds"].items():
        seen = [100 * a for a in row["accuracy"]]
        assert row["heads"] == example.KINDS[name] and len(seen) == 5
        assert f"| {name}: `{row['heads']}` | {row['parameters']:,} | {np.mean(seen):.2f} % | {min(seen):.2f} | {max(seen):.2f} |" in page
