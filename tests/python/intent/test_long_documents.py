"""benchmarks/intent/long_documents.py: what its documents hold, that a way runs to its figures, and what is drawn of them."""
# SPDX-License-Identifier: Apache-2.0
import gzip
import json
import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks/intent"))
import long_documents  # noqa: E402

PROGRAM = os.environ.get("HEADWISE_CLI", "")


@pytest.fixture
def data(tmp_path):
    """Two intents of one domain, sentences that name their part."""
    folder = tmp_path / "data"
    for name in ("unified_tsv", "clinc150", "ud_en_ewt"):
        (folder / name).mkdir(parents=True)

    def put(name, text):
        with gzip.open(folder / name, "wt", encoding="utf-8") as file:
            file.write(text)

    put("clinc150/domains.json.gz", json.dumps({"banking": ["lost", "rate"], "home": ["song"]}))
    for part in ("train", "val", "test"):
        put(f"unified_tsv/clinc150_{part}.tsv.gz", "".join(f"my {part} card {i} is lost\tlost\nwhat {part} rate has {i}\trate\nplay {i}\tsong\n" for i in range(8)))
        put(f"unified_tsv/clinc150_oos_{part}.tsv.gz", f"what {part} wipers fit\toos\n")
        name = "train.rebuilt" if part == "train" else part
        put(f"ud_en_ewt/en_ewt-ud-{name}.conllu.gz", "".join(f"# text = The {part} sentence has number {i} .\n1\tThe\n# text = {i}\n" for i in range(30)))
    return folder


def rows(path):
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_documents_hold_their_utterance_among_sentences_nobody_learnt(data, tmp_path):
    documents = long_documents.Documents(data, tmp_path / "room", [6, 5, 4, 3], smoke=False)
    alone = dict(rows(documents["alone"]))
    assert set(alone.values()) == {"lost", "rate"}
    for length, count in zip(long_documents.LENGTHS, (6, 5, 4, 3)):
        found = rows(documents[str(length)])
        assert len(found) == count
        for (text, label), (beginning, _) in zip(found, rows(documents[f"{length}-first"])):
            assert [a for a in alone if a in text] and all(alone[a] == label for a in alone if a in text)
            assert length - 10 < long_documents.size_of(text) <= length and "train" not in text and "sentence has" in text
            assert text.startswith(beginning) and long_documents.size_of(beginning) == 512
    assert not any("test" in text for text, _ in rows(documents["train"]))
    fewer = long_documents.Documents(data, tmp_path / "fewer", [2, 1, 1, 1], smoke=False)
    assert rows(fewer["2048"]) == rows(documents["2048"])[:2], "the same documents however many are judged"


@pytest.mark.skipif(not PROGRAM, reason="HEADWISE_CLI names no program")
def test_a_way_runs_to_its_figures(data, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.json"
    words = [PROGRAM, data, "--room", tmp_path / "room", "--out", out, "--ways", "scales", "--threads", "1", "--smoke"]
    monkeypatch.setattr(sys, "argv", ["long_documents.py", *map(str, words)])
    assert long_documents.main() == 0
    way = json.loads(out.read_text())["ways"]["scales"]
    assert way["alone"]["rows"] == 16 and way["2048"]["rows"] == 16 and way["2048"]["cpu_seconds_a_document"] > 0
    config = json.loads((tmp_path / "room/scales/config.json").read_text())
    assert config["positions"] == "none" and config["heads"].endswith("+reach:near=32,near_heads=1,middle_heads=1,middle=256")
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["long_documents.py", "--plot", str(tmp_path / "plot.svg"), str(out)])
    assert long_documents.main() == 0
    assert "| scales |" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["long_documents.py", *map(str, words[:5]), tmp_path / "read.json", "--read", str(tmp_path / "room/scales"), "--smoke"])
    monkeypatch.setattr(sys, "argv", list(map(str, sys.argv)))
    assert long_documents.main() == 0
    ways = json.loads((tmp_path / "read.json").read_text())["ways"]
    assert list(ways) == ["scales", "full", "sparse", "chunks", "first 512"] and ways["scales"]["alone"] == way["alone"]
    drawn = (tmp_path / "plot.svg").read_text()
    assert drawn.count("<polyline") == 3 and drawn.endswith("</svg>\n")
