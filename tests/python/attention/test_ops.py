"""hw.rope, hw.rms_norm and hw.l2_norm against their formulas."""

import numpy as np
import pytest
import torch
from oracle import normal

import headwise as hw


def rotate(x, positions, base=10000.0, interleaved=False, rotary_dim=None, factor=1.0):
    """x [batch tokens heads dim] in float64, positions [batch tokens]."""
    n = x.shape[-1] if rotary_dim is None else rotary_dim
    angle = positions[..., None, None] * base ** (-np.arange(0, n, 2) / n) / factor
    a, b = (x[..., 0:n:2], x[..., 1:n:2]) if interleaved else (x[..., : n // 2], x[..., n // 2 : n])
    turned = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    out = x.copy()
    if interleaved:
        out[..., 0:n:2], out[..., 1:n:2] = turned
    else:
        out[..., : n // 2], out[..., n // 2 : n] = turned
    return out


X = normal(1, 2, 9, 3, 16)
X32 = X.astype(np.float32)
EACH = np.random.default_rng(0).integers(-5, 4000, (2, 9))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [None, 6])
def test_rope_turns_pairs_by_position(interleaved, rotary_dim):
    words = dict(interleaved=interleaved, rotary_dim=rotary_dim)
    count = np.broadcast_to(np.arange(9), (2, 9))
    for positions, meant in [
        (0, count),
        (7, count + 7),
        (EACH, EACH),
        (EACH[0], EACH[:1]),
        (EACH[0].tolist(), EACH[:1]),
    ]:
        got = hw.rope(X, positions, **words)
        assert np.allclose(got, rotate(X, meant, **words), atol=1e-12)
        assert np.allclose(hw.rope(X32, positions, **words), rotate(X32, meant, **words), atol=1e-6)
    assert np.allclose(hw.rope(hw.rope(X, EACH, **words), EACH, inverse=True, **words), X, atol=1e-12)


def test_rope_takes_base_scaling_layout_and_kinds():
    count = np.arange(9)[None]
    assert np.allclose(hw.rope(X, base=500.0), rotate(X, count, base=500.0), atol=1e-12)
    linear = hw.rope(X, scaling=hw.RopeScaling.linear(4.0))
    assert np.allclose(linear, rotate(X, count, factor=4.0), atol=1e-12)
    turned = hw.rope(X.transpose(0, 2, 1, 3), layout="bhsd")
    assert np.array_equal(turned, hw.rope(X).transpose(0, 2, 1, 3))
    assert np.array_equal(hw.rope(torch.from_numpy(X)).numpy(), hw.rope(X))
    assert np.array_equal(hw.rope(X[0]), hw.rope(X)[0])
    assert np.array_equal(hw.rope(X, EACH[0].astype(np.int32)), hw.rope(X, EACH[0]))


def test_scalings_change_the_turn():
    scalings = [
        hw.RopeScaling.linear(2.0),
        hw.RopeScaling.ntk(2.0),
        hw.RopeScaling.yarn(4.0, 64, beta_fast=16.0),
        hw.RopeScaling.llama3(8.0, 1.0, 4.0, 64),
    ]
    results = [hw.rope(X, 100), *(hw.rope(X, 100, scaling=s) for s in scalings)]
    for i, a in enumerate(results):
        assert all(not np.allclose(a, b) for b in results[:i])


def test_rope_makes_scores_depend_on_distance_alone():
    q, k = normal(2, 1, 1, 1, 32), normal(3, 1, 1, 1, 32)
    scores = [float((hw.rope(q, p + 13) * hw.rope(k, p)).sum()) for p in (0, 5, 1000)]
    assert np.allclose(scores, scores[0], atol=1e-10)


def test_rms_norm():
    want = X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-6)
    weight = normal(4, 16)
    assert np.allclose(hw.rms_norm(X), want, atol=1e-14)
    assert np.allclose(hw.rms_norm(X, weight), want * weight, atol=1e-14)
    assert np.allclose(hw.rms_norm(X, weight, one_plus=True), want * (1 + weight), atol=1e-14)
    per_head = normal(5, 3, 16)
    assert np.allclose(hw.rms_norm(X32, per_head.astype(np.float32)), want * per_head, atol=1e-6)
    theirs = torch.nn.functional.rms_norm(torch.from_numpy(X), (16,), torch.from_numpy(weight), 0.1)
    assert np.allclose(
        hw.rms_norm(torch.from_numpy(X), torch.from_numpy(weight), eps=0.1).numpy(),
        theirs.numpy(),
        atol=1e-14,
    )


def test_l2_norm():
    want = X / np.linalg.norm(X, axis=-1, keepdims=True)
    assert np.allclose(hw.l2_norm(X), want, atol=1e-14)
    assert np.allclose(
        hw.l2_norm(X, np.array([[2.0], [3.0], [0.5]])), want * np.array([[2.0], [3.0], [0.5]]), atol=1e-14
    )
    assert not hw.l2_norm(np.zeros((2, 4))).any()


@pytest.mark.parametrize("op", [hw.rope, hw.rms_norm, hw.l2_norm])
def test_out_may_be_x_itself(op):
    x = X32.copy()
    want = op(x)
    assert np.array_equal(x, X32)
    assert op(x, out=x) is x and np.array_equal(x, want)
    apart = np.empty_like(x)
    assert op(X32, out=apart, ctx=hw.Context(threads=2)) is apart and np.array_equal(apart, want)


BAD = {
    "kind": (lambda: hw.rope(X, out=torch.empty(2, 9, 3, 16)), TypeError, "rope: x is a numpy.ndarray but out is a torch.Tensor; give arrays of one kind"),
    "positions": (lambda: hw.rope(X, 1.5), TypeError, "rope: positions is a float; give integers, as an int32 or int64 array [n] or a list"),
    "layout": (lambda: hw.rope(X, layout="hsd"), ValueError, 'rope: layout is "hsd"; give "bshd" or "bhsd"'),
    "axes": (lambda: hw.rope(X[0, 0]), ValueError, "rope: x is f64 [3 16]; give [batch tokens heads dim] or [tokens heads dim]"),
    "scaling": (lambda: hw.rope(X, scaling=2.0), TypeError, "rope: scaling is a float; give headwise.RopeScaling.linear, ntk, yarn or llama3"),
    "array": (lambda: hw.rms_norm([1.0]), TypeError, "rms_norm: x is a list; give a NumPy array or a torch tensor (numpy.from_dlpack reads others without a copy)"),
    "ctx": (lambda: hw.l2_norm(X, ctx=2), TypeError, "l2_norm: ctx is an int; give a headwise.Context"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_words(case):
    call, exception, sentence = BAD[case]
    with pytest.raises(exception) as caught:
        call()
    assert str(caught.value) == sentence
