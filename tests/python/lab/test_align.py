"""hw.align and `headwise align`: one set of links, taken from the weights of cross heads."""
# SPDX-License-Identifier: Apache-2.0
import os
import pathlib
import subprocess

import numpy as np
import pytest

import headwise as hw

BUILD = pathlib.Path(hw.__file__).parents[2]
PROGRAM = pathlib.Path(os.environ.get("HEADWISE_CLI") or BUILD / "headwise/cli/headwise")
TRAINER = BUILD / "benchmarks/headwise_translate"
PAIRS = [("the big house", "das große Haus"), ("a book .", "ein Buch ."), ("the house", "das Haus"), ("a big book", "ein großes Buch")]

pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="headwise_translate is not built beside the module")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A translator after three steps: its weights are nearly noise, and every reader must find the same in them."""
    room = tmp_path_factory.mktemp("translator")
    for part in ("train", "val", "test"):
        for place, language in enumerate(("en", "de")):
            (room / f"{part}.{language}").write_text("".join(pair[place] + "\n" for pair in PAIRS), encoding="utf-8")
    small = "dim=16 feed=32 heads=mha:heads=2,dim=8 depth=2 source_depth=1 bpe=280 steps=3 rows=4 test=0"
    done = subprocess.run([TRAINER, room, *small.split(), f"model={room}/model"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return room / "model"


def by_formula(weights):
    """Koehn, Och and Marcu's intersection and union, straight from [target, source]."""
    forth = {(int(row.argmax()), t) for t, row in enumerate(weights)}
    back = {(s, int(column.argmax())) for s, column in enumerate(weights.T)}
    return forth, back


@pytest.mark.parametrize("step", ["writes", "reads"])
def test_links_follow_from_the_weights(model, step):
    found = hw.align(model, PAIRS, step=step, merge="union", threads=1)
    assert [(a.source, a.target) for a in found] == [(s.split(), t.split()) for s, t in PAIRS]
    for pair in found:
        assert pair.heads == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert pair.weights.shape == (4, len(pair.target), len(pair.source)) and pair.weights.dtype == np.float32
        assert (pair.weights >= 0).all() and (pair.weights.sum(-1) <= 1 + 1e-6).all()  # the end of the source has the rest
        forth, back = by_formula(pair.weights.mean(0))
        assert set(pair.links) == forth | back
        forth, back = by_formula(pair.weights[2])
        assert set(pair.of_head(1, 0)) == forth | back
    single = hw.align(model, PAIRS[2:3], step=step, merge="union", heads=[(1, 0)], threads=2)[0]
    np.testing.assert_array_equal(single.weights, found[2].weights)  # whatever stands beside a pair
    assert single.links == found[2].of_head(1, 0)


def shares(weights):
    weights = weights.astype(np.float64)
    weights = weights / weights.sum(0, keepdims=True)
    return weights / weights.sum(1, keepdims=True)


def test_shares_divide_by_column_then_by_row(model):
    for pair in hw.align(model, PAIRS, merge="union", shares=True, threads=1):
        for links, weights in [(pair.links, pair.weights.mean(0)), (pair.of_head(1, 1), pair.weights[3])]:
            forth, back = by_formula(shares(weights))
            assert set(links) == forth | back


def test_the_way_back_gives_each_source_word_its_target(model, tmp_path):
    # Whatever a model was trained for: given the turned pairs, it is the other direction.
    turned = hw.align(model, [(t, s) for s, t in PAIRS], threads=1)
    for merge, join in [("union", set.union), ("intersection", set.intersection)]:
        found = hw.align(model, PAIRS, merge=merge, shares=True, back=model, back_heads=[(0, 1)], threads=1)
        for pair, other in zip(found, turned):
            np.testing.assert_array_equal(pair.back, other.weights[1])
            back = {(s, int(row.argmax())) for s, row in enumerate(shares(other.weights[1]))}
            for links, weights in [(pair.links, pair.weights.mean(0)), (pair.of_head(0, 0), pair.weights[0])]:
                assert set(links) == join(by_formula(shares(weights))[0], back)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join("\t".join(pair) + "\n" for pair in PAIRS), encoding="utf-8")
    done = subprocess.run([PROGRAM, "align", model, pairs, "--merge", "intersection", "--shares", "--back", model, "--back-head", "0.1"],
                          capture_output=True, text=True, timeout=300)
    assert done.stdout.splitlines() == [str(a) for a in found], done.stderr
    done = subprocess.run([PROGRAM, "align", model, pairs, "--back-head", "0.1"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "give its translator with --back" in done.stderr
    with pytest.raises(ValueError, match="give its translator as back"):
        hw.align(model, PAIRS, back_heads=[(0, 1)])


def test_the_program_writes_the_same_links(model, tmp_path):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join("\t".join(pair) + "\n" for pair in PAIRS), encoding="utf-8")
    done = subprocess.run([PROGRAM, "align", model, pairs, "--merge", "intersection"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(a) for a in hw.align(model, PAIRS, merge="intersection")]


def test_what_cannot_be_aligned_is_said(model, tmp_path):
    with pytest.raises(ValueError, match="pair 2 has a sentence without words; give two sentences"):
        hw.align(model, [("a", "ein"), ("a", " ")])
    with pytest.raises(ValueError, match="grow"):
        hw.align(model, PAIRS, merge="grow")
    with pytest.raises(ValueError, match="there is no head 7.0; the model's last one is 1.1"):
        hw.align(model, PAIRS)[0].of_head(7, 0)
    with pytest.raises(Exception, match="none"):
        hw.align(tmp_path / "none", PAIRS)
    assert hw.align(model, []) == []
