"""Ragged batches: sequences packed without padding give what each of them gives alone, bit by bit."""

import numpy as np
import pytest
import torch
from oracle import normal

import headwise as hw

Q_TOKENS, KV_TOKENS = [5, 0, 33, 1, 64], [7, 3, 33, 0, 300]
Q_AT, KV_AT = (np.concatenate([[0], np.cumsum(n)]) for n in (Q_TOKENS, KV_TOKENS))
MASKS = {
    "none": None,
    "causal": hw.Mask.causal(),
    "window": hw.Mask.causal() & hw.Mask.window(16, 0),
    "per head": [hw.Mask.causal(), hw.Mask(), hw.Mask.window(3, 3), hw.Mask.prefix(2)],
}


@pytest.fixture(scope="module")
def packed():
    def make(seed, tokens, heads, dim):
        return normal(seed, tokens, heads, dim).astype(np.float32)

    return make(1, Q_AT[-1], 4, 16), make(2, KV_AT[-1], 2, 16), make(3, KV_AT[-1], 2, 24)


def alone(packed, b, **words):
    q, k, v = packed
    q = q[Q_AT[b] : Q_AT[b + 1]][None]
    k, v = (x[KV_AT[b] : KV_AT[b + 1]][None] for x in (k, v))
    result = hw.attention(q, k, v, return_lse=True, **words)
    return result.out[0], result.lse[0]


def check(result, packed, **words):
    assert result.out.shape == (Q_AT[-1], 4, 24) and result.lse.shape == (4, Q_AT[-1])
    for b in range(len(Q_TOKENS)):
        out, lse = alone(packed, b, **words)
        rows = slice(Q_AT[b], Q_AT[b + 1])
        assert np.array_equal(np.asarray(result.out[rows]).view(np.uint32), out.view(np.uint32))
        assert np.array_equal(np.asarray(result.lse[:, rows]), lse)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_each_sequence_is_as_if_alone(packed, mask, dtype):
    offsets = dict(q_offsets=Q_AT.astype(dtype), kv_offsets=KV_AT.astype(dtype))
    check(hw.attention(*packed, MASKS[mask], return_lse=True, **offsets), packed, mask=MASKS[mask])


def test_offsets_may_be_lists_or_tensors(packed):
    want = hw.attention(*packed, q_offsets=Q_AT, kv_offsets=KV_AT)
    assert np.array_equal(hw.attention(*packed, q_offsets=Q_AT.tolist(), kv_offsets=KV_AT.tolist()), want)
    tensors = [torch.from_numpy(x) for x in packed]
    at = [torch.tensor(x, dtype=torch.int32) for x in (Q_AT, KV_AT)]
    assert np.array_equal(hw.attention(*tensors, q_offsets=at[0], kv_offsets=at[1]).numpy(), want)


@pytest.mark.parametrize("start", [3, hw.end, [0, 1, -2, 3, hw.end]], ids=str)
def test_each_sequence_has_its_own_start(packed, start):
    mask = hw.Mask.causal()
    result = hw.attention(*packed, mask, q_offsets=Q_AT, kv_offsets=KV_AT, q_start=start, return_lse=True)
    for b in range(len(Q_TOKENS)):
        own = start[b] if isinstance(start, list) else start
        out, lse = alone(packed, b, mask=mask, q_start=own)
        assert np.array_equal(result.out[Q_AT[b] : Q_AT[b + 1]], out)
        assert np.array_equal(result.lse[:, Q_AT[b] : Q_AT[b + 1]], lse)


def test_terms_apply_per_sequence(packed):
    words = dict(softcap=3.0, sinks=np.arange(4, dtype=np.float32), alibi=True, scale=0.2)
    check(hw.attention(*packed, q_offsets=Q_AT, kv_offsets=KV_AT, return_lse=True, **words), packed, **words)


def test_a_gate_has_one_row_per_token(packed):
    gate = normal(5, Q_AT[-1], 4).astype(np.float32)
    plain = hw.attention(*packed, q_offsets=Q_AT, kv_offsets=KV_AT)
    gated = hw.attention(*packed, q_offsets=Q_AT, kv_offsets=KV_AT, gate=gate)
    assert np.allclose(gated, plain * gate[..., None], rtol=1e-6, atol=1e-7)


def test_heads_may_come_first(packed):
    want = hw.attention(*packed, q_offsets=Q_AT, kv_offsets=KV_AT)
    turned = [x.transpose(1, 0, 2) for x in packed]
    for layout in ("bhsd", "hnd"):
        out = hw.attention(*turned, q_offsets=Q_AT, kv_offsets=KV_AT, layout=layout)
        assert np.array_equal(out, want.transpose(1, 0, 2))


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_lists_of_arrays_give_lists_back(packed, kind):
    cuts = zip(packed, (Q_AT, KV_AT, KV_AT))
    lists = [[kind(x[a:b]) for a, b in zip(at, at[1:])] for x, at in cuts]
    result = hw.attention(*lists, hw.Mask.causal(), return_lse=True)
    assert isinstance(result.out, list) and isinstance(result.lse, list)
    for b in range(len(Q_TOKENS)):
        out, lse = alone(packed, b, mask=hw.Mask.causal())
        assert type(result.out[b]) is type(lists[0][b])
        assert np.array_equal(np.asarray(result.out[b]), out) and np.array_equal(
            np.asarray(result.lse[b]), lse
        )
    only = hw.attention(*lists, hw.Mask.causal())
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in zip(only, result.out))


def test_lists_that_do_not_fit_are_refused(packed):
    one = [x[:3] for x in packed]
    with pytest.raises(ValueError) as caught:
        hw.attention([one[0]], [one[1]], [one[2], one[2]])
    assert str(caught.value) == "attention: q is a list of arrays; k and v must be lists of the same length"
    with pytest.raises(ValueError) as caught:
        hw.attention([one[0]], [one[1]], [one[2][:2]])
    assert str(caught.value) == (
        "attention: the arrays of k and v differ in tokens; each pair must have the same number"
    )
    with pytest.raises(ValueError) as caught:
        hw.attention([one[0][0]], [one[1]], [one[2]])
    assert str(caught.value) == "attention: q[0] has 2 axes; an array of a list is [tokens heads dim]"


def test_a_batch_of_no_sequences():
    x = np.zeros((0, 2, 4), np.float32)
    assert hw.attention(x, x, x, q_offsets=[0], kv_offsets=[0]).shape == (0, 2, 4)
