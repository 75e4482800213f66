"""hw.torch.MultiHead and hw.torch.Block against hw.MultiHead and hw.Block, torch's modules, and a block written by hand."""
# SPDX-License-Identifier: Apache-2.0

import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import headwise as hw  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def state_of(layer):
    return {name: torch.from_numpy(np.array(x)) for name, x in layer.torch_state().items()}


def near(a, b, most=5e-6):
    a, b = (x.detach().double() if torch.is_tensor(x) else torch.from_numpy(np.array(x)).double() for x in (a, b))
    assert a.shape == b.shape and (a - b).abs().max() <= most * max(1.0, b.abs().max().item())


def same_backward(layer, module, x, mask=None, sources=()):
    """Rows and every gradient of a layer of headwise and of its module."""
    rows = [r.clone().requires_grad_() for r in (x, *sources)]
    want, got = layer.forward(*(r.numpy() for r in (x, *sources)), mask=mask), module(*rows, mask=mask)
    near(got, want)
    dy = normal(9, *got.shape)
    want = layer.backward(dy.numpy())
    got.backward(dy)
    for r, w in zip(rows, want if sources else [want]):
        near(r.grad, w)


HEADS = ["mha:heads=4", "mha:heads=4,dim=8,value_dim=16", "mha:heads=4,dim=8,value_dim=12", "gqa:heads=4,kv_heads=2,dim=8",
         "gqa:heads=4,kv_heads=2,dim=8,value_dim=12", "talking:heads=4", "overlapped:heads=4",
         "overlapped:heads=4,schedule=constant,rim=2", "entmax:heads=4", "mha:heads=4+entmax:alpha=1.5"]  # fmt: skip


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("rope", [False, True])
def test_multi_head_has_the_numbers_of_the_layer(heads, rope):
    if rope and "overlapped" in heads:
        with pytest.raises(ValueError, match="rope cannot turn"):
            hw.torch.MultiHead(heads, 32, rope=True)
        return
    layer, module = hw.MultiHead(heads, 32, rope=rope, seed=3), hw.torch.MultiHead(heads, 32, rope=rope, seed=3)
    own = state_of(layer)
    assert own.keys() == module.state_dict().keys()
    for name, x in module.state_dict().items():
        assert torch.equal(x, own[name]), name
    same_backward(layer, module, normal(1, 2, 7, 32), hw.Mask.causal())
    same_backward(layer, module, normal(1, 2, 7, 32), None, (normal(2, 2, 5, 32),))
    x = normal(1, 2, 7, 32)
    near(module(x, x), layer(x.numpy(), x.numpy()))  # keys that are given are not turned


def test_rows_of_double_are_turned_in_double():
    layer = hw.MultiHead("mha:heads=2", 8, rope=True, dtype="f64", seed=3)
    module = hw.torch.MultiHead("mha:heads=2", 8, rope=True, dtype=torch.float64)
    module.load_state_dict(state_of(layer))
    x = normal(1, 1, 40, 8).double()
    near(module(x), layer(x.numpy()), 1e-13)
    assert torch.autograd.gradcheck(module, x[:, :5].clone().requires_grad_())


def test_multi_head_reads_the_state_of_torchs_module():
    torch.manual_seed(5)
    theirs = nn.MultiheadAttention(32, 4, batch_first=True)
    nn.init.normal_(theirs.in_proj_bias)
    ours = hw.torch.MultiHead("mha:heads=4", 32)
    ours.load_state_dict(theirs.state_dict())
    x, keys, values = (normal(i, 2, t, 32) for i, t in ((1, 6), (2, 9), (3, 9)))
    near(ours(x, keys, values), theirs(x, keys, values)[0])
    near(ours(x), theirs(x, x, x)[0])
    theirs.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("words", [{}, {"norm_first": False}, {"feed": "gelu"}])
def test_block_is_torchs_encoder_layer(words):
    torch.manual_seed(6)
    first, feed = words.get("norm_first", True), words.get("feed", "relu")
    theirs = nn.TransformerEncoderLayer(32, 4, 48, 0.0, feed, batch_first=True, norm_first=first)
    ours = hw.torch.Block("mha:heads=4", 32, 48, **words)
    ours.load_state_dict(theirs.state_dict())
    x = normal(1, 2, 7, 32)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    near(ours(a), theirs(b))
    ours(a).square().sum().backward()
    theirs(b).square().sum().backward()
    near(a.grad, b.grad, 1e-5)
    for (name, p), q in zip(ours.named_parameters(), theirs.parameters()):
        near(p.grad, dict(theirs.named_parameters())[name].grad, 1e-4)
    theirs.load_state_dict(ours.state_dict())


@pytest.mark.parametrize("words", [{"feed": "swiglu", "norm": "rms"}, {"feed": "gelu_tanh", "bias": False}, {"norm_first": False}])
def test_block_has_the_numbers_of_the_layer(words):
    heads = hw.Gqa(heads=4, kv_heads=2, dim=8)
    layer, module = hw.Block(heads, 32, 48, seed=2, **words), hw.torch.Block(heads, 32, 48, **words)
    module.load_state_dict(state_of(layer))
    same_backward(layer, module, normal(1, 2, 7, 32), hw.Mask.causal())
    rope = hw.torch.Block(heads, 32, 48, rope=True, **words)
    rope.load_state_dict(state_of(layer))
    turned = hw.Block(heads, 32, 48, seed=2, positions="rope", **words)
    near(rope(normal(1, 2, 7, 32)), turned(normal(1, 2, 7, 32).numpy()))


def test_block_is_the_one_written_by_hand():
    block = hw.torch.Block("mha:heads=4", 32, 48, feed="swiglu", norm="rms", rope=False)
    w = block.state_dict()

    def rms(x, name):
        return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * w[name]

    x = normal(1, 2, 7, 32)
    q, k, v = F.linear(rms(x, "norm1.weight"), w["self_attn.in_proj_weight"], w["self_attn.in_proj_bias"]).chunk(3, -1)
    q, k, v = (r.unflatten(-1, (4, 8)).transpose(1, 2) for r in (q, k, v))
    a = ((q @ k.transpose(-1, -2)) / 8**0.5).softmax(-1) @ v
    y = x + F.linear(a.transpose(1, 2).flatten(2), w["self_attn.out_proj.weight"], w["self_attn.out_proj.bias"])
    n = rms(y, "norm2.weight")
    inner = F.silu(F.linear(n, w["feed.gate.weight"], w["feed.gate.bias"])) * F.linear(n, w["linear1.weight"], w["linear1.bias"])
    near(block(x), y + F.linear(inner, w["linear2.weight"], w["linear2.bias"]))


def test_modules_are_copied_compiled_and_learn():
    torch.manual_seed(3)
    block = hw.torch.Block("gqa:heads=4,kv_heads=2,dim=8", 32, 48, dropout=0.1, attention_dropout=0.1)
    again = pickle.loads(pickle.dumps(block))
    x = normal(1, 4, 7, 32)
    assert torch.equal(block.eval()(x), again.eval()(x))
    assert not torch.equal(block.train()(x), block(x)) and "gqa:heads=4" in repr(block)
    compiled = torch.compile(block.eval(), backend="aot_eager", fullgraph=True)
    near(compiled(x), block(x))
    wanted, adamw = normal(2, 4, 7, 32), torch.optim.AdamW(block.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        losses.append(F.mse_loss(block(x), wanted))
        adamw.zero_grad()
        losses[-1].backward()
        adamw.step()
    assert losses[-1] < 0.5 * losses[0]


def test_what_no_module_does_is_refused():
    x = normal(1, 1, 3, 32)
    with pytest.raises(ValueError, match="values are given without keys; give both, or keys alone"):
        hw.torch.MultiHead("mha:heads=4", 32)(x, None, x)
    with pytest.raises(ValueError, match="dcmha:heads=4 computes beside attention, which no module does; give one of mha"):
        hw.torch.MultiHead("dcmha:heads=4", 32)
    with pytest.raises(ValueError, match="feed is 'tanh' and norm 'layer'; give one of relu"):
        hw.torch.Block("mha:heads=4", 32, 48, feed="tanh")
