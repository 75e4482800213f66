"""hw.Mask as a value: what each term opens, & and |, text and back, equality."""

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import attend, close, normal, opened

import headwise as hw

M = hw.Mask
Q, K = np.arange(12)[:, None], np.arange(14)[None, :]
BITS = normal(0, 12, 14) > 0
TERMS = {
    "all": (M(), np.ones((12, 14), bool)),
    "causal": (M.causal(), K <= Q),
    "window": (M.window(back=2, ahead=1), (K >= Q - 2) & (K <= Q + 1)),
    "sliding": (M.sliding(3), (K > Q - 3) & (K <= Q)),
    "prefix": (M.prefix(4), (K < 4) & (Q >= 0)),
    "lengths": (M.lengths([9]), (K < 9) & (Q >= 0)),
    "documents": (M.documents([0, 3, 3, 10, 14]), np.digitize(Q, [3, 10]) == np.digitize(K, [3, 10])),
    "blocks": (
        M.blocks(4, 7, [0, 1, 1, 3], [1, 0, 1]),
        np.array([[0, 1], [0, 0], [1, 1]])[Q // 4, K // 7] == 1,
    ),
    "strided": (M.strided(5, 2), abs(Q - K) % 5 < 2),
    "global": (M.global_tokens([11, 0]), np.isin(Q, [0, 11]) | np.isin(K, [0, 11])),
    "dense": (M.dense(BITS), BITS),
    "from_blocked": (M.from_blocked(~BITS), BITS),
    "and": (M.causal() & M.window(3, 0), (K <= Q) & (K >= Q - 3)),
    "or": (M.causal() | M.prefix(6), (K <= Q) | (K < 6)),
    "both": (M.causal() & M.window(3, 0) | M.prefix(2), (K <= Q) & (K >= Q - 3) | (K < 2)),
}


@pytest.mark.parametrize("term", TERMS)
def test_a_term_opens_what_it_says(term):
    mask, want = TERMS[term]
    assert np.array_equal(opened(mask, 1, 1, 12, 14)[0, 0], want)
    q, k, v = normal(1, 1, 12, 1, 8), normal(2, 1, 14, 1, 8), normal(3, 1, 14, 1, 8)
    close(hw.attention(*(x.astype(np.float32) for x in (q, k, v)), mask), attend(q, k, v, open=want)[0])


@pytest.mark.parametrize("term", sorted(set(TERMS) - {"dense", "from_blocked"}))
def test_text_and_back(term):
    mask = TERMS[term][0]
    assert M.parse(str(mask)) == mask and hash(M.parse(str(mask))) == hash(mask)
    assert eval(repr(mask), {"Mask": M}) == mask


WIDE = np.broadcast_to(BITS[None, None], (2, 3, 12, 14))


@pytest.mark.parametrize(
    "mask",
    [*(mask for mask, _ in TERMS.values()), M.dense(WIDE), M.dense(BITS[:1]), M.dense(BITS) & M.dense(~BITS) | M.causal(),
     M.per_head([M.dense(BITS), M(), M.causal() & M.dense(~BITS)]), M.dense(np.zeros((2, 0, 3), bool))],
    ids=str,
)  # fmt: skip
def test_pickle_and_copies_keep_a_mask(mask):
    for again in (pickle.loads(pickle.dumps(mask)), copy.deepcopy(mask), copy.copy(mask)):
        assert again == mask and str(again) == str(mask) and again is not mask
    module = torch.nn.Identity()
    module.mask = mask
    assert copy.deepcopy(module).mask == mask


def test_a_damaged_pickle_is_refused():
    text, dense = M.dense(BITS).__getstate__()
    for state in ((text, ()), (text, ((dense[0][0], dense[0][1], b"short"),)), (text, (((1, 1, 12, 1 << 62), (1, 1, 12), b""),)),
                  (text, (((1, 1, -3, 14), (1, 1, -3), b""),)), ("caus", ())):  # fmt: skip
        with pytest.raises(ValueError):
            M.__new__(M).__setstate__(state)


@pytest.mark.parametrize("shape", [(3, 1, 1, 9), (1, 1, 1, 9), (3, 2, 1, 9), (3, 1, 7, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_size_of_a_dense_mask_repeats(shape, dtype):
    bits = normal(4, *shape) > -0.5
    q, k, v = (normal(i, 3, n, 2, 8).astype(dtype) for i, n in enumerate((7, 9, 9)))
    want = hw.attention(q, k, v, M.dense(np.broadcast_to(bits, (3, 2, 7, 9)).copy()))
    assert np.array_equal(hw.attention(q, k, v, M.dense(bits)), want)


def test_text_as_written():
    assert str(M.causal() & M.window(256, 0)) == "causal & window(256, 0)"
    assert str(M.dense(BITS)) == "dense[1 1 12 14]" and repr(M.dense(BITS)) == "<Mask dense[1 1 12 14]>"


def test_equality_is_of_the_expression():
    assert M.causal() == M.causal() and M.causal() != M.window(3, 0) and M.causal() != "causal"
    assert M.dense(BITS) == M.dense(BITS.copy()) and M.dense(BITS) != M.dense(~BITS)
    assert len({M.causal(), M.causal(), M.prefix(2)}) == 2


def test_numbers_come_in_any_form():
    for form in (list, tuple, np.array, lambda x: np.array(x, np.int32), torch.tensor):
        assert M.lengths(form([3, 7])) == M.lengths([3, 7])
    assert M.window(np.int64(3), torch.tensor(1)) == M.window(3, 1)


def test_dense_forms_and_sources():
    many = normal(4, 2, 3, 12, 14) > 0
    tensor = torch.from_numpy(many)
    assert (
        M.dense(many)
        == M.dense(tensor)
        == M.dense(many.view(np.uint8))
        == M.dense(many.reshape(6, 12, 14), heads=3)
    )
    assert np.array_equal(opened(M.dense(many), 2, 3, 12, 14), many)
    turned = np.ascontiguousarray(many.transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
    assert M.dense(turned) == M.dense(many)


def test_a_dense_mask_keeps_its_own_copy():
    bits = BITS.copy()
    mask = M.dense(bits)
    bits[:] = False
    assert mask == M.dense(BITS)


def test_per_head_counts_its_masks():
    assert M.per_head([M.causal(), M(), M.prefix(1)]).heads == 3 and M.causal().heads == 1


terms = st.sampled_from(
    [M.causal(), M.window(2, 1), M.prefix(3), M.lengths([6]), M.strided(3), M.global_tokens([1])]
)
masks = st.recursive(
    terms,
    lambda m: st.tuples(m, m, st.booleans()).map(lambda t: t[0] & t[1] if t[2] else t[0] | t[1]),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(masks, masks, st.integers(-4, 4))
def test_algebra_is_that_of_sets(a, b, start):
    opens = [opened(m, 1, 1, 5, 8, start)[0, 0] for m in (a, b, a & b, a | b)]
    assert np.array_equal(opens[2], opens[0] & opens[1]) and np.array_equal(opens[3], opens[0] | opens[1])
    assert M.parse(str(a & b)) == a & b and M.parse(str(a | b)) == a | b


@settings(max_examples=60, deadline=None)
@given(masks, st.integers(1, 40), st.integers(1, 40), st.sampled_from([0, 3, -2, hw.end]))
def test_random_expressions_agree_with_the_formula(mask, q_tokens, kv_tokens, start):
    q, k, v = (normal(i, 1, n, 2, 8) for i, n in enumerate([q_tokens, kv_tokens, kv_tokens]))
    at = kv_tokens - q_tokens if start == hw.end else start
    want, lse, _ = attend(q, k, v, open=opened(mask, 1, 2, q_tokens, kv_tokens, at))
    got = hw.attention(*(x.astype(np.float32) for x in (q, k, v)), mask, q_start=start, return_lse=True)
    close(got.out, want, "float32")
    assert np.array_equal(np.isneginf(got.lse), np.isneginf(lse))
