"""hw.linear against torch and NumPy."""

import numpy as np
import pytest
import torch
from oracle import normal

import headwise as hw

X, W, B = normal(1, 3, 5, 24), normal(2, 40, 24), normal(3, 40)
X32, W32, B32 = (a.astype(np.float32) for a in (X, W, B))
FORMS = {
    None: lambda x: x,
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
    "sigmoid": torch.sigmoid,
}


@pytest.mark.parametrize("activation", FORMS)
def test_linear_is_torchs(activation):
    x, w, b = (torch.from_numpy(a) for a in (X, W, B))
    want = FORMS[activation](torch.nn.functional.linear(x, w, b))
    got = hw.linear(x, w, b, activation=activation)
    assert got.shape == (3, 5, 40) and torch.allclose(got, want, atol=1e-12)
    residual = torch.from_numpy(normal(4, 3, 5, 40))
    assert torch.allclose(
        hw.linear(x, w, b, activation=activation, residual=residual), want + residual, atol=1e-12
    )
    assert np.allclose(hw.linear(X32, W32, B32, activation=activation), want.numpy(), atol=2e-5)
    for dtype, near in ((torch.bfloat16, 0.05), (torch.float16, 0.01)):
        half = hw.linear(x.to(dtype), w.to(dtype), b, activation=activation)
        assert half.dtype == dtype and torch.allclose(half.double(), want, atol=near, rtol=near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_weights_and_rows_keep_their_bits(dtype):
    x, w = torch.from_numpy(X).to(dtype), torch.from_numpy(W).to(dtype)
    packed = hw.PackedWeight(w)
    assert packed.shape == (40, 24) and packed.nbytes > 0
    want = hw.linear(x, w)
    assert torch.equal(hw.linear(x, packed), want)
    assert torch.equal(hw.linear(x[1:2, 3:4], packed), want[1:2, 3:4])
    assert torch.equal(hw.linear(x, packed, ctx=hw.Context(threads=3)), want)


def test_heads_are_read_and_written_where_they_lie():
    want = hw.linear(X32, W32)
    heads_first = np.ascontiguousarray(X32.reshape(3, 5, 4, 6).transpose(0, 2, 1, 3))
    assert np.array_equal(hw.linear(heads_first.transpose(0, 2, 1, 3), W32), want)
    q = np.empty((3, 8, 5, 5), np.float32)  # [batch heads tokens dim]
    seen = q.transpose(0, 2, 1, 3)
    assert hw.linear(X32, W32, out=seen) is seen
    assert np.array_equal(q.transpose(0, 2, 1, 3).reshape(3, 5, 40), want)


BAD = {
    "activation": (lambda: hw.linear(X, W, activation="elu"), ValueError, 'linear: activation is "elu"; give relu, gelu, gelu_tanh, silu, sigmoid or None'),
    "weight": (lambda: hw.linear(X, B), ValueError, "linear: weight is f64 [40]; give [out in]"),
    "kind": (lambda: hw.linear(X, torch.from_numpy(W)), TypeError, "linear: x is a numpy.ndarray but weight is a torch.Tensor; give arrays of one kind"),
    "columns": (lambda: hw.linear(X[..., :7], W), ValueError, "projection: x is f64 [3 5 7] but its last axis, or its last two multiplied, must be 24"),
    "packed": (lambda: hw.linear(X32.astype(np.float64), hw.PackedWeight(W32)), NotImplementedError, "f64 was given"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_words(case):
    call, exception, sentence = BAD[case]
    with pytest.raises(exception) as caught:
        call()
    assert sentence in str(caught.value)
