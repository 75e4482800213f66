"""Layouts are views: the same numbers in any arrangement of memory give the same bits, and nothing is copied."""

import numpy as np
import pytest
import torch
from oracle import attend, close, normal

import headwise as hw

MASK = hw.Mask.causal()


def f32(seed, *shape):
    return normal(seed, *shape).astype(np.float32)


@pytest.fixture(scope="module")
def qkv():
    return f32(1, 2, 37, 6, 20), f32(2, 2, 41, 3, 20), f32(3, 2, 41, 3, 24)


@pytest.fixture(scope="module")
def want(qkv):
    return hw.attention(*qkv, MASK, return_lse=True)


def same_bits(a, b):
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    assert a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


AXES = {
    "bshd": (0, 1, 2, 3),
    "bsnh": (0, 1, 2, 3),
    "btnh": (0, 1, 2, 3),
    "bmhk": (0, 1, 2, 3),
    "bhsd": (0, 2, 1, 3),
    "bnsh": (0, 2, 1, 3),
    "sbhd": (1, 0, 2, 3),
}


@pytest.mark.parametrize("layout", AXES)
@pytest.mark.parametrize("copied", [False, True], ids=["view", "contiguous"])
@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
def test_a_layout_names_the_axes(qkv, want, layout, copied, kind):
    turned = [x.transpose(AXES[layout]) for x in qkv]
    if copied:
        turned = [np.ascontiguousarray(x) for x in turned]
    result = hw.attention(*(kind(x) for x in turned), MASK, layout=layout, return_lse=True)
    same_bits(result.out, want.out.transpose(AXES[layout]))
    same_bits(result.lse, want.lse)


def test_packed_qkv_is_three_views():
    packed = f32(4, 2, 30, 3, 4, 16)
    q, k, v = (packed[:, :, i] for i in range(3))
    same_bits(hw.attention(q, k, v, MASK), hw.attention(q.copy(), k.copy(), v.copy(), MASK))


def test_any_steps_will_do(qkv, want):
    wide = [np.zeros((*x.shape[:2], x.shape[2] * 2, x.shape[3] * 3), np.float32) for x in qkv]
    for w, x in zip(wide, qkv):
        w[:, :, ::2, 1::3] = x
    same_bits(hw.attention(*(w[:, :, ::2, 1::3] for w in wide), MASK), want.out)


def test_a_step_of_zero_repeats():
    q, k, v = f32(5, 1, 9, 4, 8), f32(6, 1, 9, 1, 8), f32(7, 1, 9, 1, 8)
    spread = [np.broadcast_to(x, (1, 9, 4, 8)) for x in (k, v)]
    same_bits(hw.attention(q, *spread, MASK), hw.attention(q, k, v, MASK))
    tensors = [torch.from_numpy(x).expand(1, 9, 4, 8) for x in (k, v)]
    same_bits(hw.attention(torch.from_numpy(q), *tensors, MASK), hw.attention(q, k, v, MASK))


def test_keys_and_values_may_be_the_same_memory_and_overlap_the_queries():
    x = f32(8, 1, 20, 2, 16)
    same_bits(hw.attention(x, x, x), hw.attention(x, x.copy(), x.copy()))
    same_bits(
        hw.attention(x[..., 4:], x[..., :12], x[..., 2:10]),
        hw.attention(*(y.copy() for y in (x[..., 4:], x[..., :12], x[..., 2:10]))),
    )


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "sbhd"])
def test_out_is_written_in_place_and_returned(qkv, want, layout):
    turned = [x.transpose(AXES[layout]) for x in qkv]
    shape = want.out.transpose(AXES[layout]).shape
    out = np.full((*shape[:3], shape[3] + 5), np.nan, np.float32)
    assert hw.attention(*turned, MASK, layout=layout, out=out[..., 2:-3]) is not None
    same_bits(out[..., 2:-3], want.out.transpose(AXES[layout]))
    assert np.isnan(out[..., :2]).all() and np.isnan(out[..., -3:]).all()
    tensor = torch.empty(shape)
    assert hw.attention(*(torch.from_numpy(x) for x in turned), MASK, layout=layout, out=tensor) is tensor
    same_bits(tensor.numpy(), want.out.transpose(AXES[layout]))


def test_out_may_lie_in_the_same_buffer_as_packed_inputs():
    packed = f32(9, 1, 12, 4, 2, 8)
    q, k, v, out = (packed[:, :, i] for i in range(4))
    expected = hw.attention(q.copy(), k.copy(), v.copy())
    hw.attention(q, k, v, out=out)
    same_bits(out, expected)


def test_a_tensor_subclass_without_the_exchange_table_goes_through_dlpack(qkv, want):
    class Plain(torch.Tensor):
        __dlpack_c_exchange_api__ = None

    result = hw.attention(*(torch.from_numpy(x).as_subclass(Plain) for x in qkv), MASK, return_lse=True)
    assert type(result.out) is Plain
    same_bits(result.out.as_subclass(torch.Tensor).numpy(), want.out)
    same_bits(result.lse.as_subclass(torch.Tensor).numpy(), want.lse)


def test_memory_mapped_files_are_arrays(tmp_path, qkv, want):
    maps = []
    for i, x in enumerate(qkv):
        np.save(tmp_path / f"{i}.npy", x)
        maps.append(np.load(tmp_path / f"{i}.npy", mmap_mode="r"))
    same_bits(hw.attention(*maps, MASK), want.out)


def test_terms_are_views_too(qkv):
    q, k, v = qkv
    bias, gate = f32(10, 41, 37), f32(11, 6, 37, 2)
    out = hw.attention(q, k, v, bias=bias.T, gate=gate.T, sinks=np.arange(12, dtype=np.float32)[::2])
    double = [x.astype(np.float64) for x in qkv]
    close(out, attend(*double, bias=bias.T, sinks=np.arange(0, 12, 2))[0] * gate.T[..., None])
