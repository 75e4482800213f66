"""Gradients: torch's own as the oracle, gradcheck in float64, graphs and autocast, refusals in words."""

import numpy as np
import pytest

import headwise as hw

torch = pytest.importorskip("torch")

F = torch.nn.functional.scaled_dot_product_attention


def leaves(*shapes, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in shapes]


def expected(q, k, v, dout, *, bias=None, open=None, group=1, scale=None):
    """Gradients from torch's math path in float64."""
    q, k, v = (x.detach().double().requires_grad_() for x in (q, k, v))
    given = [q, k, v]
    mask = open
    if bias is not None:
        bias = bias.detach().double().requires_grad_()
        given.append(bias)
        mask = bias if open is None else bias.masked_fill(~open, -torch.inf)
    heads = (k.repeat_interleave(group, 2), v.repeat_interleave(group, 2))
    out = F(*(x.transpose(1, 2) for x in (q, *heads)), attn_mask=mask, scale=scale).transpose(1, 2)
    return torch.autograd.grad(out, given, dout.double())


def distance(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("group", [1, 2])
def test_all_four_gradients_match_torch(dtype, bound, causal, group):
    q, k, v, bias = leaves((2, 70, 4, 24), (2, 81, 4 // group, 24), (2, 81, 4 // group, 24), (1, 4, 70, 81), dtype=dtype)
    dout = torch.randn(2, 70, 4, 24, generator=torch.Generator().manual_seed(9)).to(dtype)
    out = hw.torch.attention(q, k, v, hw.Mask.causal() if causal else None, bias=bias)
    got = torch.autograd.grad(out, (q, k, v, bias), dout)
    open = torch.ones(70, 81, dtype=torch.bool).tril() if causal else None
    for name, a, b in zip("q k v bias".split(), got, expected(q, k, v, dout, bias=bias, open=open, group=group)):
        assert a.dtype == dtype
        assert distance(a, b) < bound, name


def test_gradcheck_over_every_term():
    q, k, v = leaves((2, 5, 4, 3), (2, 6, 2, 3), (2, 6, 2, 2))
    bias, slopes, table, sinks, scale, gate = leaves((1, 4, 1, 6), (4,), (8, 4), (4,), (4,), (2, 5, 4), seed=1)

    def call(q, k, v, bias, slopes, table, sinks, scale, gate):
        return hw.torch.attention(
            q, k, v, hw.Mask.causal() | hw.Mask.window(1, 1), bias=bias, alibi=slopes, relative=hw.T5(table, True, 16),
            sinks=sinks, scale=scale, gate=gate, softcap=3.0, dropout=0.3, seed=5,
        )  # fmt: skip

    assert torch.autograd.gradcheck(call, (q, k, v, bias, slopes, table, sinks, scale, gate), eps=1e-6, atol=1e-7)


def test_gradcheck_of_a_ragged_batch_given_as_lists():
    parts = leaves((3, 2, 4), (1, 2, 4), (4, 2, 4), (2, 2, 4), (4, 2, 3), (2, 2, 3))

    def call(q0, q1, k0, k1, v0, v1):
        return hw.torch.attention([q0, q1], [k0, k1], [v0, v1], hw.Mask.causal(), q_start=hw.end)

    assert torch.autograd.gradcheck(call, parts, eps=1e-6, atol=1e-7)


def test_gradcheck_of_scaled_dot_product_attention():
    q, k, v, bias = leaves((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 4), (5, 6))
    sdpa = hw.torch.scaled_dot_product_attention
    assert torch.autograd.gradcheck(lambda *x: sdpa(*x[:3], attn_mask=x[3]), (q, k, v, bias), eps=1e-6, atol=1e-7)
    assert torch.autograd.gradcheck(lambda *x: sdpa(*x, is_causal=True), (q, k, v), eps=1e-6, atol=1e-7)


@pytest.mark.parametrize("words", [{}, {"sinks": 1}, {"bias": 1, "gate": 1}])
def test_a_compiled_layer_trains_with_the_same_bits(words):
    mask = hw.Mask.causal()
    q, k, v = leaves((2, 16, 4, 8), (2, 16, 2, 8), (2, 16, 2, 8), dtype=torch.float32)
    shapes = {"sinks": (4,), "bias": (4, 16, 16), "gate": (2, 16, 4)}
    terms = leaves(*(shapes[name] for name in words), dtype=torch.float32, seed=2)

    def layer(q, k, v, *terms):
        return hw.torch.attention(q, k, v, mask, **dict(zip(words, terms))).square().sum()

    plain = torch.autograd.grad(layer(q, k, v, *terms), (q, k, v, *terms))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for a, b in zip(plain, torch.autograd.grad(compiled(q, k, v, *terms), (q, k, v, *terms))):
        assert torch.equal(a, b)


def test_autocast_gives_gradients_in_the_parameters_dtype():
    q, k, v = leaves(*[(1, 8, 2, 16)] * 3, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = hw.torch.attention(q, k, v)
    assert out.dtype == torch.bfloat16
    out.float().sum().backward()
    assert q.grad.dtype == torch.float32 and float(v.grad.abs().sum()) > 0


def test_only_what_is_asked_is_computed_and_lse_is_no_leaf():
    q, k, v = leaves(*[(1, 8, 2, 16)] * 3, dtype=torch.float32)
    result = hw.torch.attention(q, k.detach(), v, return_lse=True, probe=hw.Probe(rows=True))
    assert result.out.requires_grad and not result.lse.requires_grad and result.probe.entropy is not None
    result.out.sum().backward()
    assert q.grad is not None and k.grad is None and v.grad is not None


def test_a_second_derivative_is_refused_in_words():
    q, k, v = leaves(*[(1, 4, 1, 4)] * 3)
    for call in (hw.torch.attention, torch.compile(hw.torch.attention, backend="aot_eager")):
        with pytest.raises((NotImplementedError, RuntimeError)) as caught:
            (first,) = torch.autograd.grad(call(q, k, v).square().sum(), q, create_graph=True)
            first.sum().backward()
        if call is hw.torch.attention:
            assert str(caught.value) == (
                "attention: a second derivative was asked for, and headwise differentiates attention once; "
                "take it from torch.nn.functional.scaled_dot_product_attention, or detach the first gradient"
            )


def test_a_gradient_may_be_recorded_and_never_differentiated():
    q, k, v = leaves(*[(1, 4, 1, 4)] * 3)
    (first,) = torch.autograd.grad(hw.torch.attention(q, k, v).sum(), v, create_graph=True)
    assert first.requires_grad


def test_numpy_and_torch_agree():
    rng = np.random.default_rng(3)
    q, k, v, dout = (rng.standard_normal((2, 9, 3, 8)).astype(np.float32) for _ in range(4))
    out, lse, _ = hw.attention(q, k, v, hw.Mask.causal(), return_lse=True)
    found = hw.attention_backward(dout, q, k, v, out, lse, hw.Mask.causal())
    assert isinstance(found.dq, np.ndarray) and found.dbias is None and found.dgate is None
    tensors = [torch.from_numpy(x).requires_grad_() for x in (q, k, v)]
    got = torch.autograd.grad(hw.torch.attention(*tensors, hw.Mask.causal()), tensors, torch.from_numpy(dout))
    for a, b in zip(found, got):
        assert a.tobytes() == b.numpy().tobytes()


def test_layouts_are_views_of_the_same_gradients():
    q, k, v = leaves((2, 6, 4, 8), (2, 7, 2, 8), (2, 7, 2, 8), dtype=torch.float32)
    dout = torch.randn(2, 6, 4, 8)
    plain = torch.autograd.grad(hw.torch.attention(q, k, v), (q, k, v), dout)
    turned = [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in (q, k, v)]
    out = hw.torch.attention(*turned, layout="bhsd")
    for a, b in zip(plain, torch.autograd.grad(out, turned, dout.transpose(1, 2))):
        assert torch.equal(a, b.transpose(1, 2))


def test_a_bias_of_one_row_gets_the_sum():
    q, k, v, bias = leaves((2, 6, 4, 8), (2, 7, 4, 8), (2, 7, 4, 8), (7,))
    whole = bias.detach().expand(2, 4, 6, 7).contiguous().requires_grad_()
    (small,) = torch.autograd.grad(hw.torch.attention(q, k, v, bias=bias).square().sum(), bias)
    (full,) = torch.autograd.grad(hw.torch.attention(q, k, v, bias=whole).square().sum(), whole)
    assert torch.allclose(small, full.sum((0, 1, 2)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_scale_of_16_bits_trains(dtype):
    q, k, v = (x.detach() for x in leaves(*[(2, 6, 4, 8)] * 3, dtype=dtype))

    def gradient(scale, attend=hw.torch.attention):
        return torch.autograd.grad(attend(q, k, v, scale=scale).float().square().sum(), scale)[0]

    narrow = torch.tensor(0.5, dtype=dtype, requires_grad=True)
    found = gradient(narrow)
    assert found.dtype == dtype and found.shape == ()
    assert torch.equal(found, gradient(torch.tensor(0.5, requires_grad=True)).to(dtype))
    compiled = torch.compile(hw.torch.attention, fullgraph=True, backend="aot_eager")
    assert torch.equal(found, gradient(narrow, compiled))


def test_a_scale_of_numpy_has_a_gradient_where_it_holds_floats():
    x = np.random.default_rng(3).standard_normal((1, 4, 2, 8)).astype(np.float32)
    for scale, dtype in ((np.array(2), None), (np.array(2.0, np.float16), np.float16), (np.array(2.0), np.float64)):
        out, lse, _ = hw.attention(x, x, x, scale=scale, return_lse=True)
        found = hw.attention_backward(x, x, x, x, out, lse, scale=scale)
        assert (found.dscale is None) if dtype is None else (found.dscale.dtype == dtype and found.dscale.shape == ())


X = np.ones((1, 4, 2, 8), np.float32)
LSE = np.zeros((1, 2, 4), np.float32)
WORDS = ", ".join(field.removeprefix("d") for field in hw.AttentionGradients._fields[:-1])
REFUSALS = {
    "name": (dict(wants=["w"]), ValueError, f'attention_backward: wants names "w"; gradients exist for {WORDS} and the given coefficients but rows'),
    "absent": (dict(wants=["sinks"]), ValueError, "attention_backward: wants the gradient of sinks, which was not given as an array of floats; give it, or leave it out of wants"),
    "number": (dict(scale=0.5, wants=["scale"]), ValueError, "attention_backward: wants the gradient of scale, which was not given as an array of floats; give it, or leave it out of wants"),
    "integer": (dict(scale=np.array(2), wants=["scale"]), ValueError, "attention_backward: wants the gradient of scale, which was not given as an array of floats; give it, or leave it out of wants"),
    "word": (dict(wants="q"), TypeError, "attention_backward: wants is a str; give a list of argument names, or None for every array given"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals(case):
    words, exception, sentence = REFUSALS[case]
    with pytest.raises(exception) as caught:
        hw.attention_backward(X, X, X, X, X, LSE, **words)
    assert str(caught.value) == sentence


def test_a_saved_lse_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="lse is .* but "):
        hw.attention_backward(X, X, X, X, X, LSE[:, :1])


def test_gradients_of_integers_are_refused():
    with pytest.raises(TypeError) as caught:
        hw.attention_backward(X, *[X.astype(np.int32)] * 3, X, LSE)
    assert str(caught.value) == (
        "attention_backward: gradients asked of integer inputs: q, k and v are i32; use f32, bf16, f16 or f64"
    )


def test_out_and_recording_do_not_go_together():
    q, k, v = leaves(*[(1, 4, 2, 8)] * 3, dtype=torch.float32)
    with pytest.raises(ValueError) as caught:
        hw.torch.attention(q, k, v, out=torch.empty(1, 4, 2, 8))
    assert str(caught.value) == (
        "attention: out was given and a gradient is recorded; autograd makes its own out, leave it away"
    )


def test_packed_keys_have_no_gradient():
    q, k, v = leaves(*[(1, 4, 2, 8)] * 3, dtype=torch.float32)
    with pytest.raises(NotImplementedError) as caught:
        hw.torch.attention(q, hw.pack_keys(k.detach()), v.detach())
    assert str(caught.value) == (
        "attention: k is packed, which has no gradient; give plain keys (headwise.unpack_keys), or call it under "
        "torch.no_grad()"
    )


@pytest.mark.parametrize("attend", [hw.attention, hw.torch.attention])
def test_a_tangent_is_refused(attend):
    x = torch.ones(1, 4, 2, 8)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError) as caught:
            attend(dual, x, x)
        assert str(caught.value) == (
            "attention: q carries a tangent, and headwise has no forward-mode derivatives; take gradients backward "
            "(headwise.torch.attention), or pass q.detach()"
        )
        assert attend(dual.detach(), x, x).shape == x.shape


def test_a_tangent_beside_a_gradient_is_refused():
    x = torch.ones(1, 4, 2, 8)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(NotImplementedError) as caught:
            hw.torch.attention(dual, x.clone().requires_grad_(), x)
        assert str(caught.value) == (
            "attention: an input carries a tangent, and headwise has no forward-mode derivatives; "
            "take gradients backward, or detach it"
        )
