"""hw.attention with pages=: the bits of k and v in one piece, and tables that are refused in words."""
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

import headwise as hw


def paged(x, lengths, size, layout):
    """x [batch tokens heads ...] in pages of `size` tokens in a shuffled order, NaN (int8: 99) where no token lies."""
    batch, tokens = x.shape[:2]
    each = -(-tokens // size)
    order = np.random.default_rng(size).permutation(batch * each + 2)
    pool = np.full((batch * each + 2, size, *x.shape[2:]), 99 if x.dtype == np.int8 else np.nan, x.dtype)
    table = np.full((batch, each), -1, np.int32)
    for b, length in enumerate(lengths):
        for i in range(-(-length // size)):
            n = min(size, length - i * size)
            table[b, i] = order[b * each + i]
            pool[table[b, i], :n] = x[b, i * size : i * size + n]
    return (np.ascontiguousarray(pool.swapaxes(1, 2)) if layout == "bhsd" else pool), table


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("size", [8, 64])
def test_bits_of_one_piece(layout, size):
    rng = np.random.default_rng(1)
    lengths = [70, 3]
    q, k, v = (rng.standard_normal((2, n, h, 16), np.float32) for n, h in ((1, 4), (70, 2), (70, 2)))
    want = hw.attention(q, k, v, hw.Mask.lengths(lengths), return_lse=True)
    (pk, table), (pv, _) = paged(k, lengths, size, layout), paged(v, lengths, size, layout)
    turned = q.transpose(0, 2, 1, 3) if layout == "bhsd" else q
    got = hw.attention(turned, pk, pv, pages=hw.Pages(table, lengths), layout=layout, return_lse=True)
    out = got.out.transpose(0, 2, 1, 3) if layout == "bhsd" else got.out
    assert np.array_equal(out, want.out) and np.array_equal(got.lse, want.lse)
    assert "cpu/decode  chosen" in hw.explain(turned, pk, pv, pages=hw.Pages(table, lengths), layout=layout)


@pytest.mark.parametrize("dtype", ["int8", "e4m3"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_eight_bits_have_the_bits_of_one_piece(layout, dtype):
    pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(2)
    lengths = [70, 21]
    q, k, v = (rng.standard_normal((2, n, h, 16), np.float32) for n, h in ((1, 4), (70, 2), (70, 2)))
    k8, ks, v8, vs = *hw.quantize_kv(k, dtype=dtype), *hw.quantize_kv(v, dtype=dtype)
    want = hw.attention(q, k8, v8, hw.Mask.lengths(lengths), k_scale=ks, v_scale=vs)
    pk, pks, pv, pvs = (paged(x, lengths, 16, layout)[0] for x in (k8, ks, v8, vs))
    pages = hw.Pages(paged(k8, lengths, 16, layout)[1], lengths)
    turned = q.swapaxes(1, 2) if layout == "bhsd" else q
    got = hw.attention(turned, pk, pv, k_scale=pks, v_scale=pvs, pages=pages, layout=layout)
    assert np.array_equal(got.swapaxes(1, 2) if layout == "bhsd" else got, want)
    with pytest.raises(ValueError, match=r"k_scale is f32 \[2 70 2\] but f32 .* is needed, \[pages page_size kv_heads\]"):
        hw.attention(q, paged(k8, lengths, 16, "bshd")[0], paged(v8, lengths, 16, "bshd")[0], k_scale=ks, v_scale=vs, pages=pages)


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    import headwise.torch as hwt

    q, pool = torch.randn(1, 1, 2, 8), torch.randn(3, 8, 2, 8)
    pages = hw.Pages(torch.tensor([[2, 0]], dtype=torch.int32), [13])
    want = hwt.attention(q, pool[[2, 0]].reshape(1, 16, 2, 8)[:, :13], pool[[2, 0]].reshape(1, 16, 2, 8)[:, :13])
    assert torch.equal(hwt.attention(q, pool, pool, pages=pages), want)
    with pytest.raises(NotImplementedError, match="pages, which have no gradient"):
        hwt.attention(q.requires_grad_(), pool, pool, pages=pages)


def test_bad_tables_are_refused_in_words():
    q, pool = np.zeros((1, 1, 2, 8), np.float32), np.zeros((3, 8, 2, 8), np.float32)
    table = np.array([[2, 5]], np.int32)
    with pytest.raises(ValueError, match="page 1 of sequence 0 is 5 but there are 3 pages"):
        hw.attention(q, pool, pool, pages=hw.Pages(table, [16]))
    with pytest.raises(ValueError, match="sequence 0 has 17 tokens but its row of the page table names 2 pages of 8 tokens"):
        hw.attention(q, pool, pool, pages=hw.Pages(table, [17]))
    with pytest.raises(ValueError, match="a page has 7 tokens; it may have 8, 16, 32, 64, 128 or 256"):
        hw.attention(q, pool[:, :7], pool[:, :7], pages=hw.Pages(table, [5]))
    with pytest.raises(TypeError, match="page table is i64"):
        hw.attention(q, pool, pool, pages=hw.Pages(table.astype(np.int64), [5]))
    with pytest.raises(ValueError, match="pages is no hw.Pages"):
        hw.attention(q, pool, pool, pages=[table, [5]])
