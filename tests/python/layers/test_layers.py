"""Layers against PyTorch's modules: outputs, weights, every gradient, state_dict names; and their refusals."""

import copy

import numpy as np
import pytest
import torch
from oracle import normal

import headwise as hw

HEADS, DIM = "mha:heads=4,dim=8", 32


def judge(what, ours, yardstick, truth):
    """Policy T1: our error against float64 is at most 1.5 times that of the same module in float32, + 2 ulp. The largest of a
    few dozen errors is chance on both sides, so that it may be 2.5 times as large."""
    ours, yardstick, truth = (np.asarray(a.detach() if hasattr(a, "detach") else a, np.float64) for a in (ours, yardstick, truth))
    assert ours.shape == truth.shape, what
    top = np.abs(truth).max(initial=0)
    ulp = 2 * np.spacing(np.float32(top)) if top else 1e-45
    assert np.abs(ours - truth).max(initial=0) <= 2.5 * np.abs(yardstick - truth).max(initial=0) + ulp, what
    norm = np.linalg.norm
    assert norm(ours - truth) <= 1.5 * norm(yardstick - truth) + 2 * np.finfo(np.float32).eps * norm(truth), what


def gradients_in_torch_names(layer, twin):
    twin_values = twin.parameters()
    for name, grad in layer.gradients().items():
        twin_values[name][...] = grad
    return twin.torch_state()


def shaken(module, seed=5):
    """Biases and norms start at 0 and 1, where a wrong term hides."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=draws))
    return module.eval()


def compare(module, make, inputs, words, ours_words):
    """One forward and backward of a torch module in both precisions and of ours."""
    layer, twin = make(), make()
    state = {k: v.numpy() for k, v in module.state_dict().items()}
    layer.load_torch_state(state)
    runs = []
    for dtype in (torch.float32, torch.float64):
        twin_module = copy.deepcopy(module).to(dtype)
        leaves = [torch.from_numpy(a).to(dtype).requires_grad_() for a in inputs]
        cast = {k: v.to(dtype) if torch.is_tensor(v) and v.is_floating_point() else v for k, v in words.items()}
        out = twin_module(*leaves, **cast)
        out = out[0] if isinstance(out, tuple) else out
        dy = torch.from_numpy(normal(77, *out.shape).astype(np.float32)).to(dtype)
        out.backward(dy)
        runs.append((out, [x.grad for x in leaves], {k: p.grad for k, p in twin_module.named_parameters()}))
    (y32, dx32, dp32), (y64, dx64, dp64) = runs
    y = layer.forward(*inputs, **ours_words)
    judge("out", y, y32, y64)
    dx = layer.backward(normal(77, *y.shape).astype(np.float32))
    dx = dx if isinstance(dx, tuple) else (dx,)
    for i, (a, b, c) in enumerate(zip(dx, dx32, dx64, strict=True)):
        judge(f"gradient of input {i}", a, b, c)
    grads = gradients_in_torch_names(layer, twin)
    assert set(grads) == set(dp64)
    for name in dp64:
        judge(f"gradient of {name}", grads[name], dp32[name], dp64[name])
    assert np.array_equal(y, layer(*inputs, **ours_words))
    written = layer.torch_state()
    assert set(written) == set(state) and all(np.array_equal(written[k], state[k]) for k in state)


class SelfAttention(torch.nn.MultiheadAttention):
    def forward(self, x, **words):
        return super().forward(x, x, x, need_weights=False, **words)


def blocked(seed, *shape):
    closed = np.random.default_rng(seed).random(shape) < 0.3
    closed[..., 0] = False
    return closed


X, Y, Z = (normal(i, 3, n, d).astype(np.float32) for i, n, d in ((1, 7, DIM), (2, 5, DIM), (3, 5, 24)))
CLOSED, HEADWISE, PADDING = blocked(4, 7, 7), blocked(5, 12, 7, 7), blocked(6, 3, 7)
SELF = {
    "plain": ({}, {}),
    "blocked": ({"attn_mask": torch.from_numpy(CLOSED)}, {"mask": hw.Mask.from_blocked(CLOSED)}),
    "open": ({"attn_mask": torch.from_numpy(CLOSED)}, {"mask": hw.Mask.dense(~CLOSED)}),
    "per head": ({"attn_mask": torch.from_numpy(HEADWISE)}, {"mask": hw.Mask.from_blocked(HEADWISE, heads=4)}),
    "padding": ({"key_padding_mask": torch.from_numpy(PADDING)}, {"mask": hw.Mask.from_blocked(np.repeat(PADDING[:, None, None, :], 7, 2))}),
    "causal": ({"attn_mask": torch.nn.Transformer.generate_square_subsequent_mask(7)}, {"mask": hw.Mask.causal()}),
    "float": ({"attn_mask": torch.from_numpy(normal(8, 7, 7).astype(np.float32))}, {"bias": normal(8, 7, 7).astype(np.float32)[None, None]}),
}  # fmt: skip


@pytest.mark.parametrize("case", SELF)
@pytest.mark.parametrize("bias", [True, False])
def test_multi_head_is_torchs_self_attention(case, bias):
    words, ours = SELF[case]
    module = shaken(SelfAttention(DIM, 4, bias=bias, batch_first=True))
    compare(module, lambda: hw.MultiHead(HEADS, DIM, bias=bias), [X], words, ours)


def test_multi_head_is_torchs_cross_attention_with_kdim_and_vdim():
    module = shaken(torch.nn.MultiheadAttention(DIM, 4, kdim=DIM, vdim=24, batch_first=True))
    make = lambda: hw.MultiHead(HEADS, DIM, key_model_dim=DIM, value_model_dim=24)  # noqa: E731
    compare(module, make, [X, Y, Z], {"need_weights": False}, {})


def test_weights_per_head_and_averaged():
    module = shaken(torch.nn.MultiheadAttention(DIM, 4, batch_first=True))
    layer = hw.MultiHead(HEADS, DIM)
    layer.load_torch_state({k: v.numpy() for k, v in module.state_dict().items()})
    _, weights = layer(X, Y, weights=True)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    double = torch.nn.MultiheadAttention(DIM, 4, batch_first=True, dtype=torch.float64)
    double.load_state_dict(module.state_dict())
    for average, ours in ((False, weights), (True, weights.mean(1))):
        yardstick = module(x, y, y, average_attn_weights=average)[1]
        judge("weights", ours, yardstick, double(x.double(), y.double(), y.double(), average_attn_weights=average)[1])
    assert weights.shape == (3, 4, 7, 5)


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_block_is_torchs_encoder_layer(norm_first, activation):
    words = {"norm_first": norm_first}
    module = shaken(torch.nn.TransformerEncoderLayer(DIM, 4, 48, 0.0, activation, batch_first=True, **words))
    make = lambda: hw.Block(HEADS, DIM, 48, feed=activation, **words)  # noqa: E731
    compare(module, make, [X], {"src_mask": torch.from_numpy(CLOSED)}, {"mask": hw.Mask.from_blocked(CLOSED)})


@pytest.mark.parametrize("norm_first", [True, False])
def test_block_is_torchs_decoder_layer(norm_first):
    module = shaken(torch.nn.TransformerDecoderLayer(DIM, 4, 48, 0.0, batch_first=True, norm_first=norm_first))
    make = lambda: hw.Block(HEADS, DIM, 48, cross="attention", norm_first=norm_first)  # noqa: E731
    causal = torch.nn.Transformer.generate_square_subsequent_mask(7)
    compare(module, make, [X, Y], {"tgt_mask": causal}, {"mask": hw.Mask.causal()})


def test_stack_is_torchs_encoder():
    layer = torch.nn.TransformerEncoderLayer(DIM, 4, 48, 0.0, batch_first=True)
    module = shaken(torch.nn.TransformerEncoder(layer, 3, torch.nn.LayerNorm(DIM), enable_nested_tensor=False))
    compare(module, lambda: hw.Stack(HEADS, DIM, 48, 3, norm_first=False), [X], {}, {})


def test_ragged_rows_have_the_bits_of_padded_ones():
    layer = hw.MultiHead("gqa:heads=4,kv_heads=2,dim=8", DIM, rope=True)
    rows = np.concatenate([X[0, :4], X[1], X[2, :2]])
    got = layer(rows, mask=hw.Mask.causal(), offsets=[0, 4, 11, 13])
    want = [layer(X[i : i + 1, :n], mask=hw.Mask.causal())[0] for i, n in enumerate((4, 7, 2))]
    assert np.array_equal(got, np.concatenate(want))


def test_torch_tensors_and_double_work():
    layer = hw.Block("gqa:heads=4,kv_heads=2,dim=8", DIM, 48, dtype="f64")
    x = torch.from_numpy(X).double()
    y = layer.forward(x)
    assert isinstance(y, torch.Tensor) and y.dtype == torch.float64
    assert layer.backward(torch.ones_like(y)).shape == x.shape
    layer.zero_gradients()
    assert all(not g.any() for g in layer.gradients().values())


def test_parameters_are_the_layers_own():
    layer = hw.MultiHead(HEADS, DIM)
    before = layer(X)
    layer.parameters()["attention.out.bias"][...] += 1
    assert np.allclose(layer(X), before + 1, atol=1e-6)


def test_a_head_is_text_or_a_record():
    for make in (
        lambda head: hw.MultiHead(head, DIM),
        lambda head: hw.Block(head, DIM, 48),
        lambda head: hw.Stack(head, DIM, 48, 2),
    ):
        assert np.array_equal(make("gqa:heads=4,kv_heads=2,dim=8")(X), make(hw.Gqa(heads=4, kv_heads=2, dim=8))(X))


@pytest.mark.parametrize("head", ["dcmha:heads=4,dim=8", "collaborative:heads=4,dim=8"])
def test_keys_of_another_width_in_heads_that_read_them(head):
    # Keys of 24 columns are keys of 32 whose last 8 are 0, with weights cut to match.
    wide, narrow = hw.MultiHead(head, DIM, dtype="f64"), hw.MultiHead(head, DIM, key_model_dim=24, dtype="f64")
    ours, theirs = narrow.parameters(), wide.parameters()
    for name, value in ours.items():
        value[...] = 3 * theirs[name][tuple(map(slice, value.shape))]
        theirs[name][...] *= 3
    x, keys, dy = X.astype(np.float64), Z.astype(np.float64), normal(9, *X.shape)
    padded = np.pad(keys, ((0, 0), (0, 0), (0, 8)))
    assert np.allclose(narrow.forward(x, keys), wide.forward(x, padded), atol=1e-12)
    (dx, dkeys), (dx_wide, dkeys_wide) = narrow.backward(dy), wide.backward(dy)
    assert np.allclose(dx, dx_wide, atol=1e-12) and np.allclose(dkeys, dkeys_wide[..., :24], atol=1e-12)
    for name, grad in narrow.gradients().items():
        assert np.allclose(grad, wide.gradients()[name][tuple(map(slice, grad.shape))], atol=1e-12), name


def test_talking_heads_with_fewer_key_heads_have_slopes_for_each_softmax():
    layer = hw.MultiHead("talking:heads=4,key_heads=2,dim=8", DIM, alibi=True)
    plain = hw.MultiHead("talking:heads=4,key_heads=2,dim=8", DIM)
    assert layer(X).shape == X.shape and not np.allclose(layer(X), plain(X))


def authors_balance(x, router, k):
    """The lines of the authors' training code (SkyworkAI/MoH), written again: me, ce and l_aux of one layer."""
    gates = torch.softmax(x.reshape(-1, x.shape[-1]) @ router.T, 1)
    chosen = torch.zeros_like(gates).scatter(1, gates.topk(k, 1).indices, 1.0)
    return (gates.mean(0) * chosen.mean(0)).mean() * gates.shape[1] ** 2


@pytest.mark.parametrize("weight", [0.01, 0.5])
def test_the_balance_loss_is_the_authors(weight):
    layer = hw.MultiHead(hw.Moh(heads=4, shared=1, k=2, dim=8, weight=weight), DIM, dtype="f64")
    x = torch.from_numpy(X).double().requires_grad_()
    router = torch.from_numpy(layer.parameters()["attention.router_routed"]).requires_grad_()
    loss = weight * authors_balance(x, router, 2)
    loss.backward()
    y = layer.forward(x.detach())
    assert abs(layer.loss - loss.item()) < 1e-14 and loss.item() > 1.5 * weight
    dx = layer.backward(torch.zeros_like(y))  # nothing but the loss of the head
    assert np.allclose(layer.gradients()["attention.router_routed"], router.grad, atol=1e-15)
    assert torch.allclose(dx, x.grad, atol=1e-15)
    layer.zero_gradients()
    layer.forward(x.detach())
    layer.backward(torch.zeros_like(y), loss_weight=0)
    assert not layer.gradients()["attention.router_routed"].any()
    layer(x.detach())
    assert abs(layer.loss - loss.item()) < 1e-14
    assert hw.MultiHead(HEADS, DIM).loss == 0.0


def test_a_stack_has_the_mean_of_its_layers_losses():
    head, x = "moh:heads=4,shared=1,k=2,dim=8", X.astype(np.float64)
    stack = hw.Stack(head, DIM, 48, 2, dtype="f64")
    losses, y = [], x
    for i in range(2):
        block = hw.Block(head, DIM, 48, dtype="f64")
        for name, value in block.parameters().items():
            value[...] = stack.parameters()[name.replace("block.", f"stack.layers.{i}.")]
        y = block(y)
        losses.append(block.loss)
    stack.forward(x)
    assert abs(stack.loss - np.mean(losses)) < 1e-14 and losses[0] != losses[1]
    stack.backward(np.zeros_like(x))
    name = "stack.layers.1.attention.router_routed"
    slope, router, before = stack.gradients()[name][1, 3], stack.parameters()[name], stack.loss
    router[1, 3] += 1e-6  # the last layer: what it chooses moves no other loss
    stack(x)
    assert abs((stack.loss - before) / 1e-6 - slope) < 1e-6 * abs(slope) + 1e-10


BAD = {
    "dtype": (lambda: hw.MultiHead(HEADS, DIM)(X.astype(np.float64)), "multi_head: x is f64 [3 7 32] but the layer holds f32"),
    "steps": (lambda: hw.MultiHead(HEADS, DIM)(X.transpose(1, 0, 2)), "with steps of its own; make it contiguous first"),
    "width": (lambda: hw.MultiHead(HEADS, DIM)(Z), "multi_head: x is f32 [15 24]; give [tokens 32]"),
    "values": (lambda: hw.MultiHead(HEADS, DIM)(X, None, X), "multi_head: values are given without keys; give both, or keys alone"),
    "backward": (lambda: hw.MultiHead(HEADS, DIM).backward(X), "there is no forward to differentiate"),
    "offsets": (lambda: hw.MultiHead(HEADS, DIM)(X[0], offsets=[0, 3]), "offsets go from 0 to 3 but x has 7 rows"),
    "head": (lambda: hw.MultiHead("mhha", DIM), 'there is no head "mhha"'),
    "feed": (lambda: hw.Block(HEADS, DIM, 48, feed="elu"), 'block: feed is "elu"; give one of relu, gelu, gelu_tanh, swiglu'),
    "source": (lambda: hw.Block(HEADS, DIM, 48, cross="attention")(X), "needs source rows"),
    "state": (lambda: hw.MultiHead(HEADS, DIM).load_torch_state({}), "in_proj_weight is missing"),
    "sizes": (lambda: hw.MultiHead(HEADS, DIM).load_torch_state(hw.MultiHead("mha:heads=2,dim=8", DIM).torch_state()), "in_proj_weight is f32 [48 32] but 96 rows"),
    "share": (lambda: hw.Stack(HEADS, DIM, 48, 3, share_layers=2), "depth (3) must be a multiple of share_layers (2)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_words(case):
    call, sentence = BAD[case]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert sentence in str(caught.value)


def test_suggest_heads():
    assert [hw.suggest_heads(d)[:2] for d in (512, 768, 1024, 4096)] == [(8, 64), (12, 64), (16, 64), (32, 128)]
