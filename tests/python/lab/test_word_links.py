"""Word alignment by other means: IBM Model 1 on a toy corpus, merges and error rates of benchmarks/uses/word_links.py, the gold by hand."""
# SPDX-License-Identifier: Apache-2.0
import pathlib
import random
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "benchmarks/uses"))

from word_links import Model1, merge, read_gold, scores, scores_of, split, tags_of  # noqa: E402


def test_model_1_learns_the_toy_corpus_of_the_textbooks():
    pairs = [("the house", "das Haus"), ("the book", "das Buch"), ("a book", "ein Buch")]
    model = Model1([(e.split(), g.split()) for e, g in pairs], rounds=20)
    for english, german in (("the", "das"), ("house", "Haus"), ("book", "Buch"), ("a", "ein")):
        assert model(german, english) == max(model(g, english) for g in model.targets)
    assert model("Haus", "a") == model("Zug", "the") == 0
    # What a source word gives is a distribution over target words.
    for source in model.sources:
        assert sum(model(g, source) for g in model.targets) == pytest.approx(1)


def test_model_1_is_its_formula():
    """Two rounds of EM by loops over the definition."""
    pairs = [("a b", "x y"), ("b", "y"), ("a c", "z x")]
    pairs = [(e.split(), g.split()) for e, g in pairs]
    targets = {g for _, german in pairs for g in german}
    t = {(g, e): 1 / len(targets) for e in "\0abc" for g in targets}
    for _ in range(2):
        counts = dict.fromkeys(t, 0.0)
        for english, german in pairs:
            for g in german:
                for e in ["\0", *english]:
                    counts[g, e] += t[g, e] / sum(t[g, o] for o in ["\0", *english])
        t = {(g, e): c / sum(counts[o, e] for o in targets) for (g, e), c in counts.items()}
    model = Model1(pairs, rounds=2)
    for (g, e), chance in t.items():
        assert model(g, e) == pytest.approx(chance)


@pytest.mark.parametrize(
    ("way", "links"),
    [
        ("argmax", "00 05 11 33 66"),
        ("intersection", "00 33"),
        ("union", "00 05 11 21 33 50 66"),
        ("grow-diag", "00 11 21 33"),
        ("grow-diag-final", "00 05 11 21 33 50 66"),
        ("grow-diag-final-and", "00 11 21 33 66"),
    ],
)
def test_merges_by_hand(way, links):
    """The sets that tests/translation/links_test.cc has too."""
    forward, backward = {(0, 0), (0, 5), (1, 1), (3, 3), (6, 6)}, {(0, 0), (2, 1), (3, 3), (5, 0)}
    assert merge(forward, backward, way) == {(int(link[0]), int(link[1])) for link in links.split()}


def test_error_rates_by_hand():
    gold = read_gold(["# links", "1: 0-0 1-1 2?1", "2: 0-0"])
    got = scores([{(0, 0), (2, 1), (2, 2)}, {(0, 0)}], gold.values())
    assert got == {"aer": pytest.approx(100 * 2 / 7), "precision": pytest.approx(75), "recall": pytest.approx(200 / 3), "links": 4}


def test_gold_is_whole():
    text = (ROOT / "benchmarks/results/multi30k-alignments.txt").read_text()
    gold = read_gold(text.split("\n"))
    assert sorted(n - 1 for n in gold) == sorted(random.Random(35).sample(range(1000), 100))
    assert all(sure and sure <= possible for sure, possible in gold.values())
    assert not any(c.isalpha() for line in text.split("\n") if not line.startswith("#") for c in line)


def test_words():
    assert split("Ein \"U-Bahn\"-Fahrer's, 3 m!?") == ["Ein", '"', "U-Bahn", '"', "-", "Fahrer's", ",", "3", "m", "!", "?"]


def test_nouns_alone():
    tags = tags_of(["# text = The run", "1\tThe\tthe\tDET\t_", "2\trun\trun\tVERB\t_", "2-3\trun\t_\t_", "1\trun\trun\tNOUN\t_", "2\tRun\trun\tNOUN\t_"])
    assert tags == {"the": "DET", "run": "NOUN"}
    gold = [({(0, 0), (1, 1)}, {(0, 0), (1, 1), (1, 2)})]
    got = scores_of([{(0, 1), (1, 1), (1, 2)}], gold, [["the", "run"]], lambda word: tags.get(word) == "NOUN")
    assert got == {"aer": pytest.approx(0), "precision": pytest.approx(100), "recall": pytest.approx(100), "links": 2}
    assert scores_of([{(0, 1), (1, 1)}], gold, [["the", "run"]], lambda word: word == "the")["aer"] == 100
