"""examples/words_and_pictures.py: its scenes hold out what they say, its step learns, and with time its words find their patches."""
import os
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "examples"))
import words_and_pictures as example


def pairs_in(phrases):
    return {(int(c), int(s) - 6) for c, s in phrases[:, :, :2].reshape(-1, 2)}


def test_scenes_hold_out_their_pairs():
    rng = np.random.default_rng(0)
    patches, phrases, places = example.scenes(200, example.SEEN, rng)
    assert patches.shape == (200, 49, 192) and not pairs_in(phrases) & example.HELD_OUT and len(pairs_in(phrases)) == 30
    assert pairs_in(example.scenes(60, sorted(example.HELD_OUT), rng)[1]) == example.HELD_OUT
    for scene in phrases:  # a word of colour or shape names one thing
        assert len(set(scene[:, 0])) == len(set(scene[:, 1])) == 3
    strong = np.abs(patches).max(-1)
    assert all(set(np.argsort(-strong[n])[:3]) == set(places[n]) for n in range(200))


def test_a_step_goes_down_the_slope():
    rng = np.random.default_rng(1)
    model = example.Finder(0)
    patches, phrases, _ = example.scenes(8, example.SEEN, rng)
    before = model.own["out"].copy()
    first = model.learn(patches, phrases, 0.0)
    assert np.array_equal(model.own["out"], before)
    losses = [model.learn(patches, phrases, 3e-3) for _ in range(25)]
    assert losses[0] == first and losses[-1] < 0.6 * first
    if os.environ.get("HEADWISE_SLOW") == "1":
        sys.argv = ["words_and_pictures"]
        assert example.main() >= 0.94
