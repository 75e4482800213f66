"""Gradients of heads and their coefficients, by hw.attention_backward and through autograd."""
# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest

import headwise as hw

torch = pytest.importorskip("torch")
import headwise.torch  # noqa: E402

HEADS, TOKENS, DIM, RANK = 3, 5, 4, 2


def normal(seed: int, *sizes: int, dtype=torch.float64, by: float = 1.0) -> "torch.Tensor":
    x = by * torch.randn(sizes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(dtype).requires_grad_()


def qkv(dtype=torch.float64, tokens: int = TOKENS):
    return [normal(i, 1, tokens, HEADS, DIM, dtype=dtype) for i in range(3)]


CASES = {
    "talking": lambda: {"mix_before": normal(5, HEADS, HEADS), "mix_after": normal(6, HEADS, HEADS)},
    "dcmha": lambda: {name: normal(7 + i, 1, TOKENS, 2 * (2 * RANK + 1), HEADS, by=0.3)
                      for i, name in enumerate(("mix_q", "mix_k"))},
    "entmax": lambda: {"alpha": torch.tensor([1.2, 1.5, 1.8], dtype=torch.float64, requires_grad=True)},
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_autograd_agrees_with_differences(name):
    words = CASES[name]()

    def attend(q, k, v, *coefficients):
        given = dict(zip(words, coefficients))
        return hw.torch.attention(q, k, v, hw.Mask.causal(), coefficients=given)

    assert torch.autograd.gradcheck(attend, (*qkv(), *words.values()), eps=1e-6, atol=1e-7, rtol=1e-6)


def test_backward_gives_coefficients_by_name():
    q, k, v = qkv(torch.float32, tokens=40)
    words = {name: x.detach().float() for name, x in CASES["talking"]().items()}
    dout = normal(9, 1, 40, HEADS, DIM, dtype=torch.float32).detach()
    out, lse, _ = hw.attention(q.detach(), k.detach(), v.detach(), return_lse=True, coefficients=words)
    found = hw.attention_backward(
        dout, q.detach(), k.detach(), v.detach(), out, lse, coefficients=words, kernels="cpu/mixed_backward"
    )
    some = hw.attention_backward(
        dout, q.detach(), k.detach(), v.detach(), out, lse, coefficients=words, wants=["mix_after"]
    )
    assert set(some.dcoefficients) == {"mix_after"} and some.dq is None
    for x in words.values():
        x.requires_grad_()
    hw.torch.attention(q, k, v, coefficients=words).backward(dout)
    assert set(found.dcoefficients) == {"mix_before", "mix_after"}
    for name, x in words.items():
        assert torch.equal(found.dcoefficients[name], x.grad)
    assert torch.equal(found.dq, q.grad) and torch.equal(found.dk, k.grad) and torch.equal(found.dv, v.grad)


def test_head_with_rows_of_all_heads():
    """The overlapped head reads one row of all heads, and its gradient has the shape of what was given."""
    head = hw.Overlapped(heads=2, schedule="constant", rim=1)
    q, k, v = (normal(20 + i, 1, 6, 2, 4) for i in range(3))
    assert torch.autograd.gradcheck(
        lambda *x: hw.torch.attention(*x, hw.Mask.causal(), head=head), (q, k, v), eps=1e-6, atol=1e-7
    )


def test_rows_not_listed_do_no_work():
    rng = np.random.default_rng(0)
    q, k, v, dout = (rng.standard_normal((1, 40, 2, 8)).astype(np.float32) for _ in range(4))
    listed = np.arange(0, 40, 3)
    rows = (np.array([0, 40, 40 + len(listed)]), np.concatenate([np.arange(40), listed]))
    out, lse, _ = hw.attention(q, k, v, return_lse=True, coefficients={"rows": rows})
    found = hw.attention_backward(dout, q, k, v, out, lse, coefficients={"rows": rows})
    rest = np.setdiff1d(np.arange(40), listed)
    assert (out[0, rest, 1] == 0).all() and np.isneginf(lse[0, 1, rest]).all()
    assert (found.dq[0, rest, 1] == 0).all() and found.dcoefficients == {}
    whole = hw.attention(q, k, v)
    assert np.array_equal(out[0, :, 0], whole[0, :, 0]) and np.array_equal(out[0, listed, 1], whole[0, listed, 1])


WORDS = ", ".join(field.removeprefix("d") for field in hw.AttentionGradients._fields[:-1])
REFUSED = {
    "no pair": (
        {"coefficients": {"rows": [1, 2, 3]}},
        "attention: rows of coefficients is not a pair; give (offsets, index): the query rows of each sequence and "
        "head, one list after the other",
    ),
    "wants rows": (
        {"coefficients": {"rows": ([0, 0, 0], [])}, "wants": ["rows"]},
        f'attention_backward: wants names "rows"; gradients exist for {WORDS} and the given coefficients but rows',
    ),
    "wants what is not given": (
        {"wants": ["mix_q"]},
        f'attention_backward: wants names "mix_q"; gradients exist for {WORDS} and the given coefficients but rows',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_in_one_sentence(name):
    words, sentence = REFUSED[name]
    x = np.zeros((1, 2, 2, 4), np.float32)
    with pytest.raises(ValueError) as caught:
        hw.attention_backward(x, x, x, x, x, np.zeros((1, 2, 2), np.float32), **words)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("compiled", [False, True])
def test_overlapped_heads_have_gradients_in_every_layout(compiled):
    head = hw.Overlapped(heads=4, schedule="constant", rim=2)
    plain = [normal(i, 2, 10, 4, 8, dtype=torch.float32) for i in range(3)]
    dout = normal(9, 2, 10, 4, 12, dtype=torch.float32).detach()  # 8 own columns and a rim of 2 on either side
    truth = torch.autograd.grad(hw.torch.attention(*plain, head=head), plain, dout)
    attend = torch.compile(hw.torch.attention, fullgraph=True, backend="aot_eager") if compiled else hw.torch.attention
    for layout, axes in (("bhsd", (1, 2)), ("sbhd", (0, 1))):
        turned = [x.transpose(*axes) for x in plain]
        if layout == "sbhd":
            turned = [x.contiguous() for x in turned]
        out = attend(*turned, head=head, layout=layout)
        for a, b in zip(truth, torch.autograd.grad(out, plain, dout.transpose(*axes))):
            assert torch.equal(a, b), layout


def test_overlapped_heads_have_gradients_of_ragged_batches_with_heads_first():
    head, words = hw.Overlapped(heads=4, schedule="constant", rim=2), dict(q_offsets=[0, 4, 10], kv_offsets=[0, 4, 10])
    x = normal(1, 10, 4, 8, dtype=torch.float32)
    (truth,) = torch.autograd.grad(hw.torch.attention(x, x, x, head=head, **words).square().sum(), x)
    y = x.transpose(0, 1)
    out = hw.torch.attention(y, y, y, head=head, layout="htd", **words)
    (found,) = torch.autograd.grad(out.square().sum(), x)
    assert torch.allclose(found, truth, rtol=1e-6, atol=1e-6)


def test_overlapped_heads_take_a_bias_of_batch_and_heads_merged():
    head = hw.Overlapped(heads=4, schedule="constant", rim=2)
    q, k, v, dout = (normal(i, 2, 10, 4, 12 if i == 3 else 8, dtype=torch.float32).detach() for i in range(4))
    bias = normal(5, 2, 4, 10, 10, dtype=torch.float32).detach()
    found = []
    for b in (bias, bias.flatten(0, 1)):
        out, lse, _ = hw.attention(q, k, v, bias=b, head=head, return_lse=True)
        found.append(hw.attention_backward(dout, q, k, v, out, lse, bias=b, head=head))
    whole, merged = found
    assert torch.equal(whole.dq, merged.dq) and torch.equal(whole.dbias.flatten(0, 1), merged.dbias)
