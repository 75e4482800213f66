"""hw.attention against torch and against the formula: dtypes, masks, head layouts, terms, positions, kinds."""

import itertools
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from oracle import attend, close, normal, opened

import headwise as hw

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
MASKS = {
    "none": None,
    "causal": hw.Mask.causal(),
    "window": hw.Mask.window(5, 2),
    "sliding": hw.Mask.causal() & hw.Mask.sliding(7),
    "prefix": hw.Mask.causal() | hw.Mask.prefix(4),
    "lengths": hw.Mask.lengths([3, 29]),
    "documents": hw.Mask.documents([0, 5, 5, 21, 33]),
    "strided": hw.Mask.strided(4) & hw.Mask.causal(),
    "global": hw.Mask.window(2, 2) | hw.Mask.global_tokens([0, 17]),
    "blocks": hw.Mask.blocks(16, 8, [0, 2, 3, 5], [0, 2, 1, 0, 3]),
    "dense": hw.Mask.dense(normal(9, 2, 1, 33, 29) > 0.2),
}


def to_torch(x, dtype):
    return torch.from_numpy(x).to(dtype)


def torch_oracle(q, k, v, open):
    """float64 SDPA of torch on the values as they were rounded; [batch tokens heads dim] in and out."""
    q, k, v = (x.to(torch.float64).transpose(1, 2) for x in (q, k, v))
    attn_mask = None if open is None else torch.from_numpy(open)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask, enable_gqa=True)
    return out.transpose(1, 2).numpy()


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_every_mask_dtype_and_grouping_agrees_with_torch(dtype, kv_heads, mask):
    q, k, v = (
        to_torch(normal(i, *shape), dtype)
        for i, shape in enumerate([(2, 33, 4, 20), (2, 29, kv_heads, 20), (2, 29, kv_heads, 20)])
    )
    chosen = MASKS[mask]
    open = None if chosen is None else opened(chosen, 2, 4, 33, 29)
    out = hw.attention(q, k, v, chosen)
    assert type(out) is torch.Tensor and out.dtype == dtype and out.shape == (2, 33, 4, 20)
    close(out.to(torch.float64).numpy(), torch_oracle(q, k, v, open), name_of(dtype))


# Sizes that hide a swapped axis, sizes around tiles, and ones.
SHAPES = [
    (4, 4, 4, 4, 4),
    (3, 3, 7, 3, 5),
    (1, 64, 64, 1, 64),
    (1, 1, 300, 2, 64),
    (2, 65, 257, 2, 16),
    (1, 300, 1, 1, 1),
    (5, 2, 9, 6, 128),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_awkward_sizes_agree_with_torch(dtype, shape):
    batch, q_tokens, kv_tokens, heads, dim = shape
    q, k, v = (
        to_torch(normal(i, batch, n, heads, dim), dtype)
        for i, n in enumerate([q_tokens, kv_tokens, kv_tokens])
    )
    for mask in (None, hw.Mask.causal()):
        open = None if mask is None else opened(mask, batch, heads, q_tokens, kv_tokens)
        close(hw.attention(q, k, v, mask).double().numpy(), torch_oracle(q, k, v, open), name_of(dtype))


@pytest.mark.parametrize("dims", [(64, 1), (1, 64), (20, 33), (40, 128), (192, 128)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_values_may_be_wider_or_narrower_than_keys(dtype, dims):
    q, k, v = (
        normal(i, 2, 17, h, d).astype(dtype)
        for i, (h, d) in enumerate([(4, dims[0]), (2, dims[0]), (1, dims[1])])
    )
    want, _, _ = attend(*(x.astype(np.float64) for x in (q, k, v)))
    out = hw.attention(q, k, v)
    assert isinstance(out, np.ndarray) and out.dtype == dtype
    close(out, want, dtype)


def test_one_key_head_serves_many_value_heads():
    q, k, v = normal(0, 1, 9, 6, 8), normal(1, 1, 9, 1, 8), normal(2, 1, 9, 6, 8)
    want, _, _ = attend(q, np.repeat(k, 6, 2), v)
    close(hw.attention(*(x.astype(np.float32) for x in (q, k, v))), want)


def test_bfloat16_in_numpy_comes_from_ml_dtypes():
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = (normal(i, 1, 40, 2, 32).astype(bfloat16) for i in range(3))
    out = hw.attention(q, k, v)
    assert out.dtype == bfloat16
    as_torch = (torch.from_numpy(x.view(np.uint16).copy()).view(torch.bfloat16) for x in (q, k, v))
    assert np.array_equal(out.view(np.uint16), hw.attention(*as_torch).view(torch.uint16).numpy())


def f32(*arrays):
    return [x.astype(np.float32) for x in arrays]


@pytest.fixture
def qkv():
    return normal(1, 2, 13, 4, 16), normal(2, 2, 11, 2, 16), normal(3, 2, 11, 2, 16)


def test_numpy_and_torch_give_the_same_bits(qkv):
    q, k, v = f32(*qkv)
    a = hw.attention(q, k, v, hw.Mask.causal())
    b = hw.attention(*(torch.from_numpy(x) for x in (q, k, v)), hw.Mask.causal())
    assert np.array_equal(a.view(np.uint32), b.numpy().view(np.uint32))


def test_scale_is_a_number_or_one_per_head(qkv):
    close(hw.attention(*f32(*qkv), scale=0.3), attend(*qkv, scale=0.3)[0])
    each = np.array([0.1, -0.2, 0.5, 0.0])
    for given in (each, each.astype(np.float32), torch.from_numpy(each)):
        close(hw.attention(*f32(*qkv), scale=given), attend(*qkv, scale=np.asarray(given, np.float64))[0])
    close(hw.attention(*f32(*qkv), scale=np.float64(0.25)), attend(*qkv, scale=0.25)[0])


def test_softcap(qkv):
    close(hw.attention(*f32(*qkv), softcap=0.7), attend(*qkv, softcap=0.7)[0])


@pytest.mark.parametrize(
    "shape", [(), (11,), (13, 1), (13, 11), (4, 13, 11), (4, 1, 11), (2, 1, 13, 11), (2, 4, 13, 11)], ids=str
)
def test_bias_broadcasts_from_the_right(qkv, shape):
    bias = normal(5, *shape)
    close(
        hw.attention(*f32(*qkv), bias=np.asarray(bias, np.float32)),
        attend(*qkv, bias=np.asarray(bias, np.float32))[0],
    )


def test_bias_may_be_merged_over_batch_and_heads(qkv):
    bias = normal(5, 2, 4, 13, 11).astype(np.float32)
    a = hw.attention(*f32(*qkv), bias=bias)
    b = hw.attention(*f32(*qkv), bias=bias.reshape(8, 13, 11))
    assert np.array_equal(a, b)
    close(a, attend(*qkv, bias=bias)[0])


def test_a_mask_may_be_merged_over_batch_and_heads(qkv):
    open = normal(6, 2, 4, 13, 11) > 0
    close(
        hw.attention(*f32(*qkv), hw.Mask.dense(open.reshape(8, 13, 11), heads=4)), attend(*qkv, open=open)[0]
    )
    close(hw.attention(*f32(*qkv), hw.Mask.from_blocked(~open)), attend(*qkv, open=open)[0])


def distance(q_tokens, kv_tokens):
    return np.arange(q_tokens)[:, None] - np.arange(kv_tokens)[None, :]


# Published values: powers of two 2^(-8 i / n); 12 heads take those of 8, then every other one of 16.
SLOPES = {
    8: [2.0**-i for i in range(1, 9)],
    1: [2.0**-8],
    3: [2.0**-4, 2.0**-8, 2.0**-2],
    12: [2.0**-i for i in range(1, 9)] + [2.0 ** -(i / 2) for i in (1, 3, 5, 7)],
}


@pytest.mark.parametrize("heads", SLOPES)
def test_alibi_true_takes_the_published_slopes(heads):
    q, k, v = (normal(i, 1, 20, heads, 8) for i in range(3))
    bias = -np.array(SLOPES[heads])[:, None, None] * abs(distance(20, 20))
    close(hw.attention(*f32(q, k, v), alibi=True), attend(q, k, v, bias=bias)[0])
    slopes = np.array(SLOPES[heads], np.float32)
    assert np.array_equal(hw.attention(*f32(q, k, v), alibi=slopes), hw.attention(*f32(q, k, v), alibi=True))
    assert np.array_equal(hw.attention(*f32(q, k, v), alibi=False), hw.attention(*f32(q, k, v)))


def t5_bucket(relative, bidirectional, buckets, max_distance):
    """Raffel et al. 2020: relative = key - query."""
    at = np.zeros_like(relative)
    if bidirectional:
        buckets //= 2
        at += (relative > 0) * buckets
        relative = abs(relative)
    else:
        relative = -np.minimum(relative, 0)
    exact = buckets // 2
    with np.errstate(divide="ignore"):
        far = exact + np.log(relative / exact) / np.log(max_distance / exact) * (buckets - exact)
    far = np.minimum(np.where(relative < exact, 0, far).astype(int), buckets - 1)
    return at + np.where(relative < exact, relative, far)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_relative_buckets_are_those_of_t5(bidirectional):
    q, k, v = (normal(i, 1, 90, 2, 8) for i in range(3))
    table = normal(7, 32, 2)
    bias = table[t5_bucket(-distance(90, 90), bidirectional, 32, 64)].transpose(2, 0, 1)
    out = hw.attention(*f32(q, k, v), relative=hw.T5(table, bidirectional=bidirectional, max_distance=64))
    close(out, attend(q, k, v, bias=bias)[0])


def test_sinks_enter_the_denominator_and_the_lse(qkv):
    sinks = np.array([0.5, -3.0, 2.0, 0.0], np.float32)
    result = hw.attention(*f32(*qkv), sinks=sinks, return_lse=True)
    out, lse, _ = attend(*qkv, sinks=sinks)
    close(result.out, out)
    close(result.lse, lse)


def test_an_empty_row_is_zero_and_its_lse_minus_infinity_or_the_sink(qkv):
    mask = hw.Mask.lengths([0, 11])
    result = hw.attention(*f32(*qkv), mask, return_lse=True)
    assert not result.out[0].any() and np.isneginf(result.lse[0]).all() and np.isfinite(result.lse[1]).all()
    with_sink = hw.attention(*f32(*qkv), mask, sinks=np.full(4, 1.5, np.float32), return_lse=True)
    assert not with_sink.out[0].any() and (with_sink.lse[0] == 1.5).all()


def test_gate_multiplies_each_heads_output(qkv):
    gate = normal(8, 2, 13, 4).astype(np.float32)
    close(hw.attention(*f32(*qkv), gate=gate), attend(*qkv)[0] * gate[..., None])


def test_dropout_keeps_the_mean_and_follows_its_seed():
    q, k = np.zeros((1, 64, 2, 4), np.float32), np.zeros((1, 256, 2, 4), np.float32)
    v = np.ones((1, 256, 2, 1), np.float32)
    a = hw.attention(q, k, v, dropout=0.25, seed=7)
    assert np.array_equal(a, hw.attention(q, k, v, dropout=0.25, seed=7))
    assert not np.array_equal(a, hw.attention(q, k, v, dropout=0.25, seed=8))
    kept = a * 0.75 * 256  # weights are 1/256 each, kept ones divided by 0.75
    assert np.allclose(kept, np.round(kept), atol=1e-3)
    assert abs(a.mean() - 1) < 4 * np.sqrt(0.25 / 0.75 / a.size / 256)


def test_a_seed_may_use_all_64_bits(qkv):
    args = f32(*qkv)
    largest = hw.attention(*args, dropout=0.5, seed=2**64 - 1)
    assert not np.array_equal(largest, hw.attention(*args, dropout=0.5, seed=2**32 - 1))


@pytest.mark.parametrize("start", [0, 3, -4, hw.end])
def test_q_start_places_the_first_query(qkv, start):
    at = 11 - 13 if start == hw.end else start
    open = opened(hw.Mask.causal(), 2, 4, 13, 11, at)
    close(hw.attention(*f32(*qkv), hw.Mask.causal(), q_start=start), attend(*qkv, open=open)[0])


def test_q_start_may_differ_per_sequence(qkv):
    open = opened(hw.Mask.causal(), 2, 4, 13, 11, [5, -2])
    for start in (
        [5, -2],
        np.array([5, -2]),
        np.array([5, -2], np.int32),
        torch.tensor([5, -2]),
        [5, hw.end],
    ):
        close(hw.attention(*f32(*qkv), hw.Mask.causal(), q_start=start), attend(*qkv, open=open)[0])


def test_a_mask_per_head(qkv):
    each = [hw.Mask.causal(), hw.Mask(), hw.Mask.window(1, 1), hw.Mask.prefix(3)]
    open = np.concatenate([opened(m, 2, 1, 13, 11) for m in each], axis=1)
    out = hw.attention(*f32(*qkv), each)
    close(out, attend(*qkv, open=open)[0])
    assert np.array_equal(out, hw.attention(*f32(*qkv), hw.Mask.per_head(each)))


def test_terms_combine_in_the_stated_order(qkv):
    bias, sinks, gate = normal(5, 13, 11), normal(6, 4), normal(7, 2, 13, 4)
    open = opened(hw.Mask.causal(), 2, 4, 13, 11, 2)
    alibi = -np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[:, None, None] * abs(distance(13, 11) + 2)
    want, lse, _ = attend(*qkv, open=open, bias=bias + alibi, scale=0.4, softcap=2.0, sinks=sinks)
    result = hw.attention(
        *f32(*qkv), hw.Mask.causal(), scale=0.4, softcap=2.0, bias=bias, alibi=True, sinks=sinks, gate=gate, q_start=2,
        return_lse=True,
    )  # fmt: skip
    close(result.out, want * gate[..., None])
    close(result.lse, lse)


@pytest.mark.parametrize("empty", range(4))
def test_sizes_of_zero_are_legal(empty):
    batch, q_tokens, kv_tokens, heads = (0 if i == empty else 2 for i in range(4))
    q, k, v = (np.ones((batch, n, heads, 8), np.float32) for n in (q_tokens, kv_tokens, kv_tokens))
    for kind in (np.asarray, torch.from_numpy):
        result = hw.attention(kind(q), kind(k), kind(v), return_lse=True)
        assert tuple(result.out.shape) == (batch, q_tokens, heads, 8) and not np.asarray(result.out).any()
        assert np.isneginf(np.asarray(result.lse)).all()


def test_lse_has_the_shape_and_dtype_that_are_written(qkv):
    result = hw.attention(*f32(*qkv), return_lse=True)
    assert result._fields == ("out", "lse", "probe") and result.probe is None
    assert result.lse.shape == (2, 4, 13) and result.lse.dtype == np.float32
    assert hw.attention(*qkv, return_lse=True).lse.dtype == np.float64
    half = [torch.from_numpy(x).to(torch.bfloat16) for x in qkv]
    assert hw.attention(*half, return_lse=True).lse.dtype == torch.float32


def test_the_result_does_not_depend_on_threads_or_repetition(qkv):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 300, 4, 32)).astype(np.float32) for _ in range(3))
    first = hw.attention(q, k, v, hw.Mask.causal(), ctx=hw.Context(threads=1)).view(np.uint32)
    for threads, _ in itertools.product((1, 2, 3, 7), range(3)):
        again = hw.attention(q, k, v, hw.Mask.causal(), ctx=hw.Context(threads=threads))
        assert np.array_equal(again.view(np.uint32), first)


def test_a_kernel_can_be_named(qkv):
    args = f32(*qkv)
    close(hw.attention(*args, kernels="ref"), attend(*qkv)[0])
    assert np.array_equal(
        hw.attention(*args, kernels="ref"), hw.attention(*args, ctx=hw.Context(kernels=["ref"]))
    )
    assert np.array_equal(hw.attention(*args, kernels=["cpu/online"]), hw.attention(*args))


def test_explain_names_the_kernel_and_the_refusals(qkv):
    q, k, v = f32(*qkv)
    # More queries than cpu/decode takes: with few, which kernel is chosen depends on the CPU.
    text = hw.explain(np.concatenate([q, q, q], axis=1), k, v, hw.Mask.causal())
    assert re.search(r"cpu/online\s+chosen", text) and "FLOP" in text
    text = hw.explain(*qkv)
    assert re.search(r"cpu/online\s+refused: .*f64", text) and re.search(r"cpu/f64\s+chosen", text)


def test_importing_headwise_does_not_import_torch():
    code = "import sys, headwise; assert 'torch' not in sys.modules; headwise.torch.attention; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_version_is_that_of_the_build():
    cmake = (pathlib.Path(__file__).parents[3] / "CMakeLists.txt").read_text()
    assert hw.__version__ == re.search(r"project\(headwise VERSION ([0-9.]+)", cmake).group(1)
