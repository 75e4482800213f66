"""headwise.flash_attn against the formulas of flash_attn's documentation, written out in float64."""
# SPDX-License-Identifier: Apache-2.0

import itertools

import pytest

torch = pytest.importorskip("torch")

import headwise as hw  # noqa: E402

fa = hw.flash_attn


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def formula(q, k, v, *, scale=None, causal=False, window=(-1, -1), softcap=0.0, slopes=None):
    """One text: q [tokens heads dim]. The last query stands at the last key. (out, lse), both float64."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    i = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0]
    j = torch.arange(k.shape[0])[None]
    if slopes is not None:
        s = s - slopes.double()[:, None, None] * (i - j).abs()
    left, right = window[0], 0 if causal else window[1]
    shut = torch.zeros(q.shape[0], k.shape[0], dtype=torch.bool)
    shut |= (j > i + right) if right >= 0 else shut
    shut |= (j < i - left) if left >= 0 else shut
    s = s.masked_fill(shut, -torch.inf)
    empty = shut.all(1)
    weights = torch.softmax(s, -1).masked_fill(empty[:, None], 0.0)
    lse = torch.logsumexp(s, -1).masked_fill(empty, torch.inf)
    return torch.einsum("hqk,khd->qhd", weights, v), lse


def near(found, want, most=2e-6):
    assert found.shape == want.shape
    same = (found.double() == want.double()) | ((found.double() - want.double()).abs() <= most * max(1.0, want[want.isfinite()].abs().max()))
    assert same.all()


SIZES = [(5, 9), (9, 5), (1, 12), (8, 8)]
WORDS = [
    {},
    dict(causal=True),
    dict(causal=True, window=(3, 5)),
    dict(window=(2, 1)),
    dict(window=(-1, 0)),
    dict(window=(4, -1), softcap=0.7),
    dict(causal=True, slopes=torch.tensor([0.5, 0.25, 0.125, 0.0625]), scale=0.2),
]


def spell(words):
    names = {"scale": "softmax_scale", "window": "window_size", "slopes": "alibi_slopes"}
    return {names.get(word, word): x for word, x in words.items()}


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words) or "plain")
def test_func_gives_out_and_lse_of_the_formula(sizes, words):
    q, k, v = normal(1, 2, sizes[0], 4, 8), normal(2, 2, sizes[1], 2, 8), normal(3, 2, sizes[1], 2, 8)
    out, lse, third = fa.flash_attn_func(q, k, v, **spell(words), return_attn_probs=True)
    assert third is None and lse.dtype == torch.float32 and list(lse.shape) == [2, 4, sizes[0]]
    for b in range(2):
        want, rows = formula(q[b], k[b], v[b], **words)
        near(out[b], want)
        near(lse[b], rows)
    assert torch.equal(out, fa.flash_attn_func(q, k, v, **spell(words)))


@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words) or "plain")
def test_varlen_runs_each_text_alone(words):
    q_sizes, k_sizes = [5, 0, 9, 1], [9, 3, 5, 12]
    q, k, v = normal(1, 15, 4, 8), normal(2, 29, 2, 8), normal(3, 29, 2, 8)
    cu_q, cu_k = (torch.tensor([0, *itertools.accumulate(x)], dtype=torch.int32) for x in (q_sizes, k_sizes))
    out, lse, _ = fa.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 9, 12, **spell(words), return_attn_probs=True)
    assert list(lse.shape) == [4, 15]
    for b in (0, 2, 3):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        want, want_lse = formula(q[rows], k[keys], v[keys], **words)
        near(out[rows], want)
        near(lse[:, rows], want_lse)


def test_offsets_may_lie_where_q_lies():
    """flash_attn wants cu_seqlens on the device; headwise reads them on the CPU."""

    class OnDevice:
        def __init__(self, x):
            self.x = x

        def to(self, place):
            assert place == "cpu"
            return self.x

    q, cu = normal(1, 7, 4, 8), torch.tensor([0, 3, 7], dtype=torch.int32)
    found = fa.flash_attn_varlen_func(q, q, q, OnDevice(cu), OnDevice(cu), 4, 4, causal=True)
    assert torch.equal(found, fa.flash_attn_varlen_func(q, q, q, cu, cu, 4, 4, causal=True))


def test_packed_forms_are_the_same():
    qkv, cu = normal(4, 2, 7, 3, 4, 8), torch.tensor([0, 3, 7], dtype=torch.int32)
    plain = fa.flash_attn_func(*qkv.unbind(2), causal=True)
    assert torch.equal(fa.flash_attn_qkvpacked_func(qkv, causal=True), plain)
    assert torch.equal(fa.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True), plain)
    one = qkv[0]
    want = fa.flash_attn_varlen_func(*one.unbind(1), cu, cu, 4, 4, causal=True)
    assert torch.equal(fa.flash_attn_varlen_qkvpacked_func(one, cu, 4, causal=True), want)
    assert torch.equal(fa.flash_attn_varlen_kvpacked_func(one[:, 0], one[:, 1:], cu, cu, 4, 4, causal=True), want)


def test_gradients_are_those_of_the_formula():
    words = dict(causal=True, window=(3, 0), softcap=0.9)
    given = [normal(1, 1, 5, 4, 8), normal(2, 1, 9, 2, 8), normal(3, 1, 9, 2, 8)]
    ours = [x.clone().requires_grad_() for x in given]
    theirs = [x.double().requires_grad_() for x in given]
    fa.flash_attn_func(*ours, **spell(words)).sin().sum().backward()
    formula(*(x[0] for x in theirs), **words)[0].sin().sum().backward()
    for a, b in zip(ours, theirs):
        near(a.grad, b.grad, 1e-5)


def test_slopes_for_each_text():
    q, k, v = normal(1, 2, 5, 4, 8), normal(2, 2, 9, 2, 8), normal(3, 2, 9, 2, 8)
    slopes = normal(4, 2, 4).abs()
    out, lse, _ = fa.flash_attn_func(q, k, v, causal=True, alibi_slopes=slopes, return_attn_probs=True)
    for b in range(2):
        want, rows = formula(q[b], k[b], v[b], causal=True, slopes=slopes[b])
        near(out[b], want)
        near(lse[b], rows)


def turn(x, cos, sin, places, interleaved):
    """x [tokens heads dim], one pair of columns after another."""
    out = x.double().clone()
    half = cos.shape[1]
    for p in range(half):
        a, b = (2 * p, 2 * p + 1) if interleaved else (p, p + half)
        c, s = (t[places, p].double()[:, None] for t in (cos, sin))
        out[..., a], out[..., b] = x[..., a] * c - x[..., b] * s, x[..., b] * c + x[..., a] * s
    return out


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("paged", [False, True])
def test_kvcache_writes_turns_and_attends(causal, interleaved, paged):
    """Two texts of 11 and 0 tokens get 3 more, in rows 2 and 0 of the cache, or in pages."""
    old, new, heads, dim = [11, 0], 3, 2, 12
    table = torch.tensor([[3, 1], [0, 2]], dtype=torch.int32)
    rows = torch.tensor([2, 0])
    caches = [normal(seed, *((4, 8) if paged else (3, 16)), heads, dim) for seed in (1, 2)]
    before = [c.clone() for c in caches]
    q, k, v = normal(3, 2, new, 4, dim), normal(4, 2, new, heads, dim), normal(5, 2, new, heads, dim)
    angles = torch.arange(16)[:, None] * torch.tensor([1.0, 0.3, 0.1, 0.01])
    cos, sin = angles.cos(), angles.sin()  # 8 of 12 columns turn
    place = dict(block_table=table) if paged else dict(cache_batch_idx=rows)
    out, lse = fa.flash_attn_with_kvcache(
        q, *caches, k, v, rotary_cos=cos, rotary_sin=sin, cache_seqlens=torch.tensor(old, dtype=torch.int32), causal=causal,
        rotary_interleaved=interleaved, return_softmax_lse=True, **place,
    )  # fmt: skip

    def text(cache, b):
        return torch.cat([cache[p] for p in table[b].tolist()]) if paged else cache[rows[b]]

    for b in range(2):
        places = old[b] + torch.arange(new)
        keys, values = (text(c, b)[: old[b]].double() for c in before)
        keys = torch.cat([keys, turn(k[b], cos, sin, places, interleaved)])
        values = torch.cat([values, v[b].double()])
        turned = turn(q[b], cos, sin, places if causal else torch.full((new,), old[b]), interleaved)
        want, want_lse = formula(turned, keys, values, causal=causal)
        near(out[b], want, 1e-5)
        near(lse[b], want_lse, 1e-5)
        near(text(caches[0], b)[: old[b] + new], keys)
        near(text(caches[1], b)[: old[b] + new], values)
        assert torch.equal(text(caches[0], b)[old[b] + new :], text(before[0], b)[old[b] + new :])
    if not paged:
        assert torch.equal(caches[0][1], before[0][1])


def test_kvcache_without_new_tokens():
    q, k, v = normal(1, 2, 1, 4, 8), normal(2, 2, 10, 2, 8), normal(3, 2, 10, 2, 8)
    out = fa.flash_attn_with_kvcache(q, k, v, cache_seqlens=7, window_size=(3, 0), softcap=2.0)
    for b in range(2):
        near(out[b], formula(q[b], k[b, :7], v[b, :7], window=(3, 0), softcap=2.0)[0])


def test_refusals_are_sentences():
    q, k = normal(1, 2, 3, 4, 8), normal(2, 2, 10, 2, 8)
    with pytest.raises(ValueError, match=r"9 \+ 3 tokens do not fit 10 rows"):
        fa.flash_attn_with_kvcache(q, k, k, k[:, :3], k[:, :3], cache_seqlens=9)
    with pytest.raises(ValueError, match="give both or none"):
        fa.flash_attn_with_kvcache(q, k, k, k[:, :3], cache_seqlens=3)
    with pytest.raises(NotImplementedError, match="cache_leftpad"):
        fa.flash_attn_with_kvcache(q, k, k, cache_leftpad=torch.zeros(2, dtype=torch.int32))
    with pytest.raises(ValueError, match=r"qkv is \[2, 3, 4, 8\]"):
        fa.flash_attn_qkvpacked_func(q)
    with pytest.raises(NotImplementedError, match="block_table"):
        fa.flash_attn_varlen_func(q[0], k[0], k[0], [0, 3], [0, 10], 3, 10, block_table=torch.zeros(1, 1))
