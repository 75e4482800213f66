"""hw.onnx.attention, opsets 23 to 25, against a NumPy reading of the standard."""

import numpy as np
import pytest
from oracle import normal

import headwise as hw


def split_heads(x, heads):
    """[batch tokens heads*dim] to [batch heads tokens dim]; four axes stay."""
    if x.ndim == 4:
        assert heads is None, "four axes must not carry a number of heads"
        return x
    return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)


adapter = hw.onnx.attention


def standard(
    q, k, v, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *, is_causal=0, scale=None, softcap=0.0,
    q_num_heads=None, kv_num_heads=None, qk_matmul_output_mode=None, left_window_size=-1, right_window_size=-1,
):  # fmt: skip
    """The standard's text in float64."""
    packed, dtype = q.ndim == 3, q.dtype
    q, k, v = split_heads(q, q_num_heads), split_heads(k, kv_num_heads), split_heads(v, kv_num_heads)
    past = 0
    if past_key is not None:
        past = past_key.shape[2]
        k, v = np.concatenate([past_key, k], 2), np.concatenate([past_value, v], 2)
    present_key, present_value = k, v
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    batch, heads, s_q, s_k = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    modes = [q @ k.swapaxes(2, 3) * (1 / np.sqrt(q.shape[3]) if scale is None else scale)]
    modes.append(softcap * np.tanh(modes[0] / softcap) if softcap else modes[0])
    bias = np.zeros((batch, heads, s_q, s_k))
    offset = np.full(batch, past)
    if nonpad_kv_seqlen is not None:
        offset = nonpad_kv_seqlen - s_q
        bias += np.where(np.arange(s_k) < nonpad_kv_seqlen[:, None], 0, -np.inf)[:, None, None, :]
    if attn_mask is not None:
        closed = np.full((*attn_mask.shape[:-1], s_k - attn_mask.shape[-1]), -np.inf)
        added = np.where(attn_mask, 0, -np.inf) if attn_mask.dtype == bool else attn_mask.astype(np.float64)
        bias = bias + np.concatenate([added, closed], -1)
    i = np.arange(s_q)[None, :, None] + offset[:, None, None]
    j = np.arange(s_k)[None, None, :]
    shut = np.zeros((batch, s_q, s_k), bool)
    if is_causal:
        shut |= j > i
    if left_window_size >= 0:
        shut |= j < i - left_window_size
    if right_window_size >= 0:
        shut |= j > i + right_window_size
    bias = bias + np.where(shut, -np.inf, 0)[:, None]
    modes.append(modes[1] + bias)
    top = modes[2].max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(modes[2] - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    modes.append(np.divide(weights, total, out=np.zeros_like(weights), where=total > 0))
    y = modes[3] @ v
    if packed:
        y = y.transpose(0, 2, 1, 3).reshape(batch, s_q, -1)
    scores = None if qk_matmul_output_mode is None else modes[qk_matmul_output_mode].astype(dtype)
    return y.astype(dtype), present_key, present_value, scores


def tensor(seed, *shape):
    return normal(seed, *shape).astype(np.float32)


Q, K, V = tensor(1, 2, 6, 5, 8), tensor(2, 2, 3, 9, 8), tensor(3, 2, 3, 9, 10)
PAST = dict(past_key=tensor(4, 2, 3, 4, 8), past_value=tensor(5, 2, 3, 4, 10))
BOOL = normal(6, 2, 1, 5, 9) > -0.3
BOOL[1, 0, 2] = False  # a fully masked row

CASES = {
    "plain": {},
    "scale": dict(scale=0.07),
    "softcap": dict(softcap=1.5),
    "causal": dict(is_causal=1),
    "bool 4d": dict(attn_mask=BOOL),
    "bool 2d": dict(attn_mask=BOOL[0, 0]),
    "bool 3d is heads": dict(attn_mask=normal(7, 6, 5, 9) > 0),
    "bool short": dict(attn_mask=BOOL[..., :6]),
    "float 2d": dict(attn_mask=tensor(8, 5, 9)),
    "float 3d is heads": dict(attn_mask=tensor(8, 6, 5, 9)),
    "float 4d": dict(attn_mask=tensor(8, 2, 1, 5, 9)),
    "float 4d, one key row": dict(attn_mask=tensor(8, 2, 6, 1, 9)),
    "float short": dict(attn_mask=tensor(8, 5, 6)),
    "float with -inf": dict(attn_mask=np.where(BOOL, 0, -np.inf).astype(np.float32)),
    "past": PAST,
    "past causal": dict(is_causal=1, **PAST),
    "past causal mask softcap": dict(is_causal=1, softcap=2.0, attn_mask=tensor(9, 5, 13), **PAST),
    "nonpad": dict(nonpad_kv_seqlen=np.array([9, 4])),
    "nonpad causal": dict(nonpad_kv_seqlen=np.array([9, 6]), is_causal=1),
    "nonpad below q is empty rows": dict(nonpad_kv_seqlen=np.array([2, 0]), is_causal=1),
    "window": dict(left_window_size=2, right_window_size=1),
    "window left": dict(left_window_size=3),
    "window right": dict(right_window_size=0),
    "window causal": dict(left_window_size=2, right_window_size=3, is_causal=1),
    "window past": dict(left_window_size=2, right_window_size=0, **PAST),
    "window nonpad": dict(left_window_size=1, right_window_size=1, nonpad_kv_seqlen=np.array([9, 7])),
    "window mask": dict(left_window_size=4, right_window_size=0, attn_mask=tensor(10, 1, 6, 5, 9)),
}


def compare(got, want, atol=2e-6):
    for a, b in zip(got, want):
        assert (a is None) == (b is None)
        if a is not None:
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mode", [None, 0, 1, 2, 3])
def test_the_operator(case, mode):
    words = dict(CASES[case], qk_matmul_output_mode=mode)
    compare(adapter(Q, K, V, **words), standard(Q, K, V, **words))


def test_three_axes_carry_the_heads():
    q, k, v = tensor(1, 2, 5, 6 * 8), tensor(2, 2, 9, 3 * 8), tensor(3, 2, 9, 3 * 10)
    words = dict(q_num_heads=6, kv_num_heads=3, is_causal=1, qk_matmul_output_mode=3)
    y, *rest = adapter(q, k, v, **words)
    assert y.shape == (2, 5, 60)
    compare((y, *rest), standard(q, k, v, **words))


@pytest.mark.parametrize("mode", range(4))
def test_float16(mode):
    q, k, v = (x.astype(np.float16) for x in (Q, K, V))
    words = dict(is_causal=1, attn_mask=BOOL, qk_matmul_output_mode=mode)
    compare(adapter(q, k, v, **words), standard(q, k, v, **words), atol=2e-3)


def test_a_fully_masked_row_is_zero_in_y_and_in_mode_3():
    y, _, _, scores = adapter(Q, K, V, BOOL, qk_matmul_output_mode=3)
    assert not y[1, :, 2].any() and not scores[1, :, 2].any() and y[1, :, 1].any()


def test_present_is_past_and_new_joined():
    _, present_key, present_value, _ = adapter(Q, K, V, **PAST)
    assert np.array_equal(present_key[:, :, :4], PAST["past_key"]) and np.array_equal(
        present_key[:, :, 4:], K
    )
    assert np.array_equal(present_value[:, :, :4], PAST["past_value"]) and np.array_equal(
        present_value[:, :, 4:], V
    )
