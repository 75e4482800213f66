"""Faults that other engines have had, at their edges: ends before min_tokens, ids past the tokenizer."""

import pytest
from tiny_decoder import write_llama

import headwise as hw


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return hw.Decoder(write_llama(tmp_path_factory.mktemp("faults") / "tiny", vocabulary=288), kv_mib=4)


@pytest.mark.parametrize("least", [0, 1, 2, 7])
def test_an_end_waits_for_min_tokens_exactly(model, least):
    """The end is by far the likeliest token: a text ends as soon as it may."""
    (end,) = model.end_tokens
    made = model.generate([5, 6, 7], max_tokens=20, min_tokens=least, logit_bias={end: 100.0})
    assert len(made.tokens) == least and made.finish == "stop" and end not in made.tokens


def test_min_tokens_as_long_as_the_text(model):
    (end,) = model.end_tokens
    made = model.generate([5], max_tokens=4, min_tokens=9, logit_bias={end: 100.0})
    assert len(made.tokens) == 4 and made.finish == "length"


def test_ids_past_the_tokenizer_are_never_drawn(model):
    """The table of the model is padded: 288 rows for a tokenizer of fewer ids, all nearly as likely at this heat."""
    known = 256 + 10 + 2
    assert model.logits([5]).shape == (1, 288)
    drawn = [t for seed in range(8) for t in model.generate([5, 6], max_tokens=40, temperature=100.0, seed=seed, ignore_end=True).tokens]
    assert len(drawn) == 320 and max(drawn) < known and len(set(drawn)) > known // 3
    biased = model.generate([5], max_tokens=3, logit_bias={287: 1000.0})
    assert all(t < known for t in biased.tokens)

