"""Calls of hw.torch.attention that torch records with its own C++ node."""

import inspect

import pytest
import torch

import headwise as hw
from headwise._torch import node

NODE = "ScaledDotProductFusedAttentionOverrideableBackward0"


def leaves(*shapes, dtype=torch.float32):
    torch.manual_seed(5)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def gradients(out, inputs):
    return torch.autograd.grad(out, inputs, torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out))


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"mask": hw.Mask.causal()},
        {"mask": hw.Mask.causal() & hw.Mask.window(3, 0), "scale": 0.3},
        {"layout": "bhsd", "softcap": 5.0},
        {"alibi": True, "mask": hw.Mask.causal()},
        {"q_start": 2, "mask": hw.Mask.causal()},
        {"kernels": "cpu/online"},
    ],
)
def test_torch_records_it_and_gradients_are_those_of_the_python_way(words, monkeypatch):
    q, k, v = leaves(*[(2, 6, 4, 8)] * 3)
    out = hw.torch.attention(q, k, v, **words)
    assert type(out.grad_fn).__name__ == NODE
    monkeypatch.setattr(node, "_op", None)
    monkeypatch.setattr(hw.torch, "_attend", lambda *_: NotImplemented)
    other = hw.torch.attention(q, k, v, **words)
    assert type(other.grad_fn).__name__ != NODE and torch.equal(out, other)
    for mine, theirs in zip(gradients(out, (q, k, v)), gradients(other, (q, k, v))):
        assert torch.equal(mine, theirs)


def test_a_bias_and_lse_come_along():
    q, k, v, bias = leaves(*[(2, 6, 4, 8)] * 3, (4, 6, 6))
    result = hw.torch.attention(q, k, v, bias=bias, return_lse=True)
    assert type(result.out.grad_fn).__name__ == NODE and not result.lse.requires_grad
    dbias = gradients(result.out, (bias,))[0]
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=bias).transpose(1, 2)
    torch.testing.assert_close(dbias, gradients(theirs, (bias,))[0], atol=1e-5, rtol=1e-4)


def test_only_what_wants_a_gradient_gets_one():
    q, k, v = leaves(*[(1, 5, 2, 8)] * 3)
    out = hw.torch.attention(q.detach(), k, v.detach())
    assert type(out.grad_fn).__name__ == NODE
    (dk,) = gradients(out, (k,))
    assert torch.equal(dk, gradients(hw.torch.attention(q, k, v), (k,))[0])


def test_masks_that_hold_arrays_are_not_kept():
    q, k, v = leaves(*[(1, 4, 2, 8)] * 3)
    before = len(node._places)
    for bits in range(3):
        open_pairs = torch.arange(16).view(4, 4) % 4 >= bits
        hw.torch.attention(q, k, v, hw.Mask.dense(open_pairs), softcap=2.0).sum().backward()
    assert len(node._places) == before


def test_saved_tensors_may_be_packed_and_changed_ones_are_noticed():
    q, k, v = leaves(*[(1, 4, 2, 8)] * 3)
    expected = gradients(hw.torch.attention(q, k, v), (q, k, v))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x):
        out = hw.torch.attention(q, k, v)
    assert all(torch.equal(a, b) for a, b in zip(gradients(out, (q, k, v)), expected))
    out = hw.torch.attention(q, k, v)
    with torch.no_grad():
        k += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_every_other_argument_takes_the_whole_way(monkeypatch):
    seen = []
    monkeypatch.setattr(hw.torch, "_attend", lambda *_: seen.append(1) or NotImplemented)
    monkeypatch.setattr(hw.torch, "_eager", lambda words: words)
    x = torch.ones(1, 2, 1, 4)
    hw.torch.attention(x, x, x, scale=1.0, layout="bshd")
    assert len(seen) == 1
    short = {"q", "k", "v", "mask", "scale", "layout"}
    for word in set(inspect.signature(hw.torch.attention).parameters) - short:
        assert word in hw.torch.attention(x, x, x, **{word: True if word == "return_lse" else 7})
    assert len(seen) == 1


def test_the_op_itself_is_refused_in_words():
    x = torch.ones(1, 2, 3, 4)
    with pytest.raises(NotImplementedError, match="overridable attention was called on plain tensors"):
        torch.ops.aten._scaled_dot_product_fused_attention_overrideable(x, x, x)


def test_a_layer_reads_heads_first_and_writes_tokens_first():
    """The way of transformers' layers: the same bits as by views, in memory of its own order."""
    q, k, v = (torch.randn(2, heads, 9, 8) for heads in (4, 2, 2))
    attend = hw._core._node_layer
    with torch.no_grad():
        out = attend(q, k, v, hw.Mask.causal(), 0.3)
    want = hw.attention(*(x.transpose(1, 2) for x in (q, k, v)), hw.Mask.causal(), scale=0.3)
    assert torch.equal(out, want) and out.is_contiguous()
    spread = [x.expand(2, -1, -1, -1).transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(attend(*spread, hw.Mask.causal(), 0.3), want)


def test_a_layer_leaves_what_is_watched_to_others():
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    attend = hw._core._node_layer
    assert attend(q, k, v.clone().requires_grad_(), None, None) is NotImplemented
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(q, k, v, None, None) is NotImplemented
    assert attend(q.to("meta"), k, v, None, None) is NotImplemented
    assert attend(q, k, v, None, torch.tensor(0.3)) is NotImplemented
    with torch.autograd.forward_ad.dual_level():
        assert attend(q, k, v, None, None) is NotImplemented
    seen = []
    torch.func.vmap(lambda x: seen.append(attend(x, k, v, None, None)) or x)(q[None])
    assert seen == [NotImplemented]
    negative = torch.complex(torch.zeros_like(q), q).conj().imag
    with pytest.raises(ValueError, match="lazily negated"):
        attend(negative, k, v, None, None)
