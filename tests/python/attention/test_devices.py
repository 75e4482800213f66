"""The device of the tensors decides; a Context may ask for one. Without a GPU: what is said, and what a call keeps."""

import numpy as np
import pytest

import headwise as hw

torch = pytest.importorskip("torch")


def tensors(**kind):
    torch.manual_seed(1)
    return [torch.randn(1, 5, 2, 8, **kind) for _ in range(3)]


def test_a_context_may_ask_for_a_device():
    assert hw.Context().device is None
    assert hw.Context(device="cpu").device == "cpu"
    assert hw.Context(device="cuda").device == "cuda:0"
    assert hw.Context(device=torch.device("cuda", 3)).device == "cuda:3"
    for word in ("cuda:", "cuda:128", "gpu", "cuda:-1", "cuda:1x"):
        with pytest.raises(ValueError, match='context: device is ".*"; give "cpu", "cuda" or "cuda:1"'):
            hw.Context(device=word)


def test_tensors_elsewhere_are_refused_with_both_devices():
    q, k, v = tensors()
    here, there = hw.Context(threads=1, device="cpu"), hw.Context(threads=1, device="cuda:1")
    assert torch.equal(hw.attention(q, k, v, ctx=here), hw.attention(q, k, v))
    said = "attention: q lies on the CPU but the context is for CUDA device 1; bring them together"
    with pytest.raises(ValueError, match=said):
        hw.attention(q, k, v, ctx=there)
    with pytest.raises(ValueError, match=said):
        hw.attention(*(x.numpy() for x in (q, k, v)), ctx=there)
    with pytest.raises(ValueError, match=said):
        hw.explain(q, k, v, ctx=there)


def test_a_list_of_kernels_serves_every_device():
    q, k, v = tensors()
    want = hw.attention(q, k, v, kernels="ref")
    assert torch.equal(hw.attention(q, k, v, kernels="cuda/hopper,ref"), want)
    with pytest.raises(NotImplementedError, match='on the CPU but the list "cuda/hopper" allows no kernel for it; add ref'):
        hw.attention(q, k, v, kernels="cuda/hopper")


def test_torch_hands_on_what_was_given():
    """Every argument reaches the call, given or not, with and without a gradient."""
    q, k, v = tensors()
    mask, bias, sinks = hw.Mask.causal(), torch.randn(1, 2, 5, 5), torch.randn(2)
    table = hw.T5(torch.randn(8, 2), True, 16)
    words = dict(scale=0.3, softcap=5.0, bias=bias, alibi=True, relative=table, sinks=sinks, gate=torch.rand(1, 5, 2),
                 dropout=0.25, seed=7, q_start=2, return_lse=True)  # fmt: skip
    want = hw.attention(q, k, v, mask, **words)
    got = hw.torch.attention(q, k, v, mask, **words)
    assert torch.equal(got.out, want.out) and torch.equal(got.lse, want.lse)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    recorded = hw.torch.attention(*leaves, mask, **words)
    assert torch.equal(recorded.out, want.out) and torch.equal(recorded.lse, want.lse)
    dout = torch.randn_like(want.out)
    recorded.out.backward(dout)
    plain = {name: x for name, x in words.items() if name != "return_lse"}
    grads = hw.attention_backward(dout, q, k, v, want.out, want.lse, mask, wants=["q", "k", "v"], **plain)
    for x, y in zip(leaves, (grads.dq, grads.dk, grads.dv)):
        assert torch.equal(x.grad, y)


def test_gradients_of_terms_reach_them():
    q, k, v = tensors()
    terms = dict(bias=torch.randn(1, 2, 5, 5), alibi=torch.rand(2), sinks=torch.randn(2), scale=torch.tensor([0.4]),
                 gate=torch.rand(1, 5, 2))  # fmt: skip
    learned = {name: x.clone().requires_grad_() for name, x in terms.items()}
    table = torch.randn(8, 2, requires_grad=True)
    out = hw.torch.attention(q, k, v, relative=hw.T5(table, True, 16), **learned)
    dout = torch.randn_like(out)
    out.backward(dout)
    done = hw.attention(q, k, v, relative=hw.T5(table.detach(), True, 16), return_lse=True, **terms)
    want = hw.attention_backward(dout, q, k, v, done.out, done.lse, relative=hw.T5(table.detach(), True, 16), **terms)
    for name, x in {**learned, "relative": table}.items():
        assert torch.equal(x.grad, getattr(want, "d" + name)), name


def test_an_unused_out_has_no_gradient():
    leaves = [x.requires_grad_() for x in tensors()]
    result = hw.torch.attention(*leaves, return_lse=True)
    assert not result.lse.requires_grad
    (leaves[0].sum() + 0 * result.lse.sum()).backward()
    assert torch.equal(leaves[0].grad, torch.ones_like(leaves[0])) and leaves[1].grad is None


def test_numpy_arrays_and_lists_go_through_torch_too():
    arrays = [x.numpy() for x in tensors()]
    assert np.array_equal(hw.torch.attention(*arrays), hw.attention(*arrays))
    lists = [[x[0], x[0, :3]] for x in tensors()]
    for a, b in zip(hw.torch.attention(*lists), hw.attention(*lists)):
        assert torch.equal(a, b)
