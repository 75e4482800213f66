"""Benchmarks of the recogniser: a run from data to its result file and on from where it stopped, the BiLSTM beside it, the tables."""

import gzip
import importlib
import json
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks/intent"))
import intent_data  # noqa: E402
import intent_run  # noqa: E402
import intent_settings  # noqa: E402
import intent_table  # noqa: E402

PROGRAM = os.environ.get("HEADWISE_CLI", "")
SMALL = ["--epochs", "1", "--model-dim", "16", "--depth", "1", "--vocabulary", "120", "--ngrams", "0"]


@pytest.fixture
def room(tmp_path, monkeypatch):
    """A data folder with a BANKING77 of 48 rows, and rooms of its own for what runs write."""
    rows = [f"my card {i} is lost\tlost_card" for i in range(24)] + [f"the rate for {i} months\trate" for i in range(24)]
    (tmp_path / "unified_tsv").mkdir()
    for part in ("train", "test"):
        with gzip.open(tmp_path / f"unified_tsv/banking77_{part}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(rows) + "\n")
    monkeypatch.setenv("HEADWISE_DATA", str(tmp_path))
    monkeypatch.setattr(intent_data, "ROOM", tmp_path / "room")
    return tmp_path


def test_splits_written_again_cut_no_reader_short(room):
    """Two runs at once: the second used to empty the files under the first."""
    path = intent_data.write_splits("banking77")["train"]
    with open(path, encoding="utf-8") as reader:
        first = reader.readline()
        assert intent_data.write_splits("banking77")["train"].stat().st_ino != os.fstat(reader.fileno()).st_ino
        assert len(first + reader.read()) == path.stat().st_size


def result(data="banking77", setting="scratch", seed=1, exact=90.0, by=None):
    return {"data": data, "setting": setting, "seed": seed, "parameters": 1_500_000, "memory_mb": {"train": 100, "eval": 50},
            "seconds": {"train": 120.0, "eval": 1.0},
            "metrics": {"exact_match": exact, "micro_f1": exact, "exact_match_by_intents": by or {"1": exact}}}


@pytest.mark.skipif(not PROGRAM, reason="HEADWISE_CLI names no program")
def test_a_run_ends_in_a_result_and_a_bilstm_stands_beside_it(room, capsys, monkeypatch):
    words = ["banking77", "scratch", "--seed", "3", "--program", PROGRAM, "--threads", "1", "--out", str(room / "out")]
    intent_run.main([*words, "--", *SMALL])
    saved = json.loads((room / "out/banking77-scratch-s3.json").read_text())
    assert saved["seed"] == 3 and saved["metrics"]["rows"] == 48 and saved["parameters"] > 1000
    assert saved["seconds"]["train"] >= 0 and saved["memory_mb"]["train"] > 0 and saved["config"]["version"] == 1
    assert 0 < saved["weights"]["self_mass"] < 1 and saved["weights"]["heads"] == 8 and len(saved["weights"]["layers"]) == 1
    assert str(room) not in json.dumps(saved), "a result names no folder of the machine it was made on"
    capsys.readouterr()
    intent_run.main([*words, "--", *SMALL])
    assert "done before" in capsys.readouterr().out

    pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    bilstm = importlib.import_module("intent_bilstm")
    like = room / "room/banking77-scratch-s3"
    monkeypatch.setattr(sys, "argv", ["intent_bilstm.py", "banking77", "--like", str(like), "--epochs", "1", "--threads", "1",
                                      "--out", str(room / "out")])
    bilstm.main()
    latency = importlib.import_module("intent_latency")
    monkeypatch.setattr(sys, "argv", ["intent_latency.py", str(like), str(room / "room/data/banking77/test.tsv"), "--rounds", "1",
                                      "--program", PROGRAM, "--bilstm", str(room / "room/banking77-bilstm-s1/model.pt"),
                                      "--threads", "1", "--out", str(room / "out")])
    latency.main()
    quick = json.loads((room / "out/latency.json").read_text())
    assert all(quick[side]["p99_ms"] >= quick[side]["p50_ms"] > 0 for side in ("headwise", "torch", "bilstm"))
    assert quick["apart"] < 2e-5 and "| batch 1, p50 |" in intent_table.latency_table(room / "out")
    rival = json.loads((room / "out/banking77-bilstm-s1.json").read_text())
    assert rival["metrics"].keys() <= saved["metrics"].keys()
    assert abs(rival["parameters"] - saved["parameters"]) < 0.1 * saved["parameters"]


def test_splits_are_apart_and_stay_the_same(room):
    parts = intent_data.splits_of("banking77")
    assert [len(parts[p]) for p in ("train", "dev", "test")] == [46, 2, 48]
    paths = intent_data.write_splits("banking77")
    before = paths["dev"].read_bytes()
    assert intent_data.write_splits("banking77")["dev"].read_bytes() == before
    with pytest.raises(SystemExit, match="is no data set here"):
        intent_data.splits_of("banking78")


def test_figures_count_sets():
    wanted, given = [{"a"}, {"a", "b"}, {"b"}], [{"a"}, {"a"}, {"a", "b"}]
    found = intent_data.figures(wanted, given)
    assert found["exact_match"] == pytest.approx(100 / 3)
    assert found["exact_match_by_intents"] == {"1": 50.0, "2": 0.0}
    assert found["micro_f1"] == pytest.approx(100 * 2 * 3 / (4 + 4))


def test_tables_have_mean_and_spread_and_own_up_to_what_was_not_run(tmp_path):
    for seed, exact in ((1, 90.0), (2, 88.0)):
        (tmp_path / f"banking77-scratch-s{seed}.json").write_text(json.dumps(result(seed=seed, exact=exact)))
    made = intent_table.tables(tmp_path)
    assert "| BANKING77, from scratch | 89.00 (88.00 to 90.00), 2 seeds |" in made
    assert "| 88.3: yes |" in made
    assert "| CrossWOZ user acts, from scratch | not run yet |" in made
    runs = (("eight-heads", 1, 70.0), ("one-head", 1, 66.0), ("bilstm", 1, 60.0), ("eight-heads", 2, 72.0), ("bilstm", 2, 64.0))
    for setting, seed, exact in runs:
        run = result("mixbanking77", setting, seed=seed, exact=exact, by={"1": 80.0, "2": exact})
        (tmp_path / f"mixbanking77-{setting}-s{seed}.json").write_text(json.dumps(run))
    made = intent_table.tables(tmp_path)
    words = "+9.00 points (+8.00 to +10.00 seed by seed) beside the BiLSTM, +5.00 points beside one head (2 seeds)"
    assert words in " ".join(made.split())
    assert "80.0 / 71.0" in made


def test_the_sweep_shows_what_weights_look_like_where_that_was_measured(tmp_path):
    looks = {"texts": 400, "self_mass": 0.125, "entropy": 2.5, "head_distance": 0.25}
    for heads, seed, weights in ((1, 1, {"heads": 1, **looks}), (8, 1, {"heads": 8, **looks}), (8, 2, {"heads": 8, **looks, "entropy": 1.5}),
                                 (16, 1, None)):
        run = result("mixbanking77_10k", f"heads-{heads}", seed=seed, exact=60.0 + heads)
        (tmp_path / f"mixbanking77_10k-heads-{heads}-s{seed}.json").write_text(json.dumps({**run, **({"weights": weights} if weights else {})}))
    made = intent_table.tables(tmp_path)
    assert "| 12.5 | 2.50 |  |" in made, "one head has no distance to another"
    assert "| 12.5 (12.5 to 12.5) | 2.00 (1.50 to 2.50) | 0.250 (0.250 to 0.250) |" in made
    assert "| `heads-16` | 76.00, 1 seed |" in made and "(intent-heads.svg)" in made
    plot = intent_table.sweep_plot(intent_table.read_results(tmp_path))
    assert plot.count("<polyline") == 6 and plot.count("<circle") == 4 * 3 + 3 + 3 + 2
    assert intent_table.sweep_plot({}) is None


def test_every_setting_is_words_of_the_command_line():
    assert intent_settings.words_of("heads-12", None) == ["--heads", "mha:heads=12", "--ngrams", "0", "--model-dim", "192",
                                                               "--depth", "2"]
    assert "--norm-after" in intent_settings.words_of("fusion-layer-after", None)
    with pytest.raises(SystemExit, match="give --minilm"):
        intent_settings.words_of("minilm", None)


def test_the_page_is_up_to_date():
    assert intent_table.main(["--check"]) == 0
