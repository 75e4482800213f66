"""hw.torch: the drop-in function with torch's signature, the registered op under compile, autocast and fake tensors."""

import inspect

import numpy as np
import pytest
import torch
from oracle import attend, close, normal
from torch.nn import functional

import headwise as hw

sdpa = hw.torch.scaled_dot_product_attention


def tensors(*shapes, dtype=torch.float32):
    return [torch.from_numpy(np.asarray(normal(i, *s))).to(dtype) for i, s in enumerate(shapes)]


def agree(*args, dtype="float32", **words):
    """Against torch in float64 on the same values."""
    wide = [x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in args]
    words64 = {
        n: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for n, x in words.items()
    }
    want = functional.scaled_dot_product_attention(*wide, **words64)
    got = sdpa(*args, **words)
    assert got.dtype == args[0].dtype and got.shape == want.shape
    close(got.double().numpy(), want.numpy(), dtype)


def test_the_parameters_are_torchs_own():
    # torch's function is built in: its docstring begins with the signature.
    theirs = functional.scaled_dot_product_attention.__doc__.strip().split(" -> ")[0].replace("\n", " ")
    names = list(inspect.signature(sdpa).parameters)
    assert [
        w.split("=")[0].strip() for w in theirs[theirs.index("(") + 1 : theirs.index(")")].split(",")
    ] == names


SHAPES = [
    ((2, 4, 9, 16), (2, 4, 7, 16), (2, 4, 7, 12)),
    ((4, 9, 16),) * 3,
    ((9, 16),) * 3,
    ((3, 2, 4, 9, 16),) * 3,
]


@pytest.mark.parametrize("shapes", SHAPES, ids=lambda s: f"{len(s[0])} axes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_any_number_of_batch_axes(shapes, dtype):
    name = str(dtype).removeprefix("torch.")
    args = tensors(*shapes, dtype=dtype)
    agree(*args, dtype=name)
    agree(*args, dtype=name, is_causal=True)
    agree(*args, dtype=name, scale=0.3)


MASKS = [(9, 7), (7,), (1, 7), (4, 9, 7), (2, 1, 9, 7), (2, 4, 9, 7), (2, 1, 1, 7), (1, 4, 9, 1)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_masks_broadcast_as_in_torch(shape):
    args = tensors((2, 4, 9, 16), (2, 4, 7, 16), (2, 4, 7, 12))
    mask = torch.from_numpy(normal(5, *shape))
    if len(shape) > 1:
        agree(*args, attn_mask=mask.float())
        agree(*args, attn_mask=mask > 0)
        agree(*args, attn_mask=torch.where(mask > 0, 0.0, float("-inf")).float())
    else:
        agree(*args, attn_mask=mask.float().expand(9, 7))


def test_shared_heads_and_a_causal_mask_from_the_top_left():
    args = tensors((2, 6, 9, 16), (2, 3, 12, 16), (2, 3, 12, 16))
    agree(*args, enable_gqa=True)
    agree(*args, enable_gqa=True, is_causal=True)
    with pytest.raises(ValueError) as caught:
        sdpa(*args)
    assert str(caught.value) == (
        "scaled_dot_product_attention: query has 6 heads, key 3 and value 3; share heads with enable_gqa=True"
    )


def test_batch_axes_of_one_repeat():
    agree(*tensors((2, 4, 9, 16), (1, 4, 9, 16), (1, 4, 9, 16)))
    agree(*tensors((2, 4, 9, 16), (4, 9, 16), (4, 9, 16)))


def test_what_torch_refuses_is_refused():
    q, k, v = tensors(*[(1, 1, 4, 8)] * 3)
    with pytest.raises(ValueError) as caught:
        sdpa(q, k, v, torch.zeros(4, 4), is_causal=True)
    assert str(caught.value) == (
        "scaled_dot_product_attention: attn_mask and is_causal were both given; give one of them"
    )
    with pytest.raises(TypeError) as caught:
        sdpa(q, k, v, torch.zeros(4, 4, dtype=torch.int64))
    assert str(caught.value) == (
        "scaled_dot_product_attention: attn_mask holds torch.int64; give bool (true = may attend) or floats"
    )


WIDE = (2, 3, 4, 5, 8), (2, 3, 4, 7, 8)
# (query, key, value, mask)
BROADCAST = [
    ((2, 3, 5, 8), (2, 1, 7, 8), (2, 1, 7, 8), None),
    ((2, 1, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), None),
    ((2, 3, 5, 8), (2, 1, 7, 8), (2, 3, 7, 8), (3, 5, 7)),
    ((2, 1, 5, 8), (1, 3, 7, 8), (1, 1, 7, 8), (2, 3, 5, 7)),
    ((5, 8), (2, 3, 7, 8), (2, 3, 7, 8), None),
    ((5, 8), (3, 7, 8), (3, 7, 8), (3, 5, 7)),
    ((3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), (2, 3, 5, 7)),
    ((1, 3, 5, 8), (1, 3, 7, 8), (2, 3, 7, 8), (5, 7)),
    ((1, 3, 5, 8), (1, 3, 7, 8), (2, 3, 7, 8), (2, 3, 5, 7)),
    ((1, 1, 5, 8), (1, 1, 7, 8), (1, 3, 7, 8), (3, 5, 7)),
    ((3, 1, 4, 5, 8), (3, 1, 4, 7, 8), (3, 1, 4, 7, 8), (3, 4, 5, 7)),
    *((WIDE[0], WIDE[1], WIDE[1], mask) for mask in [
        (5, 7), (4, 5, 7), (3, 1, 5, 7), (1, 4, 5, 7), (3, 4, 1, 7), (2, 1, 1, 5, 7), (1, 3, 4, 5, 1), (6, 4, 5, 7),
        (2, 4, 5, 7), (12, 5, 7),
    ]),
    *(((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), mask) for mask in [
        (6, 5, 7), (2, 5, 7), (5, 6), (1, 2, 3, 5, 7), (2, 1, 5, 1), (5, 1), (3, 1, 1),
    ]),
    *(((3, 5, 8), (3, 7, 8), (3, 7, 8), mask) for mask in [(3, 5, 7), (1, 3, 5, 7)]),
    *(((5, 8), (7, 8), (7, 8), mask) for mask in [(5, 7), (1, 5, 7)]),
    ((3, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), None),
    ((2, 4, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), None),
]  # fmt: skip


@pytest.mark.parametrize("case", BROADCAST, ids=str)
def test_shapes_are_taken_and_refused_as_torch_does(case):
    *shapes, mask = case
    args = tensors(*shapes)
    masks = [None] if mask is None else [torch.from_numpy(normal(5, *mask)).float()]
    masks += [] if mask is None else [masks[0] > -1]
    for mask in masks:
        try:
            functional.scaled_dot_product_attention(*args, mask)
        except RuntimeError:
            with pytest.raises(ValueError, match="^scaled_dot_product_attention: [^\n]*; (give|share) "):
                sdpa(*args, mask)
        else:
            agree(*args, attn_mask=mask)


def test_shared_heads_broadcast_masks_over_batch_axes():
    args = tensors((3, 2, 6, 5, 8), (3, 2, 3, 7, 8), (3, 2, 3, 7, 8))
    agree(*args, enable_gqa=True, attn_mask=torch.from_numpy(normal(5, 2, 1, 5, 7)).float())


def test_a_mask_that_does_not_fit_is_refused_with_both_shapes():
    with pytest.raises(ValueError) as caught:
        sdpa(*tensors((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)), torch.zeros(5, 6))
    assert str(caught.value) == (
        "scaled_dot_product_attention: attn_mask is [5, 6] but the scores are [2, 3, 5, 7]; "
        "give it axes of these sizes or 1, counted from the last"
    )


def test_dropout_follows_torchs_generator():
    q, k, v = tensors((1, 2, 64, 8), (1, 2, 128, 8), (1, 2, 128, 8))
    torch.manual_seed(3)
    a = sdpa(q, k, v, dropout_p=0.4)
    torch.manual_seed(3)
    assert torch.equal(a, sdpa(q, k, v, dropout_p=0.4))
    assert not torch.equal(a, sdpa(q, k, v, dropout_p=0.4))


def test_a_tensor_that_requires_grad_is_refused_where_nothing_records():
    q, k, v = tensors(*[(1, 4, 2, 8)] * 3)
    k.requires_grad_()
    with pytest.raises(NotImplementedError) as caught:
        hw.attention(q, k, v)
    assert str(caught.value) == (
        "attention: k requires grad, which headwise.attention does not record; "
        "call headwise.torch.attention or pass k.detach()"
    )
    with torch.no_grad():
        assert hw.attention(q, k, v).shape == q.shape
    with pytest.raises(NotImplementedError) as caught:
        hw.attention(q, k.detach(), v, sinks=torch.zeros(2, requires_grad=True))
    assert str(caught.value).startswith("attention: sinks requires grad")
    with pytest.raises(NotImplementedError) as caught:
        hw.rms_norm(k)
    assert str(caught.value) == (
        "rms_norm: x requires grad, which headwise.rms_norm does not record; pass x.detach()"
    )


def test_a_parameter_is_a_tensor():
    q, k, v = (torch.nn.Parameter(x) for x in tensors(*[(1, 4, 2, 8)] * 3))
    with torch.no_grad():
        assert torch.equal(hw.torch.attention(q, k, v), hw.attention(q.detach(), k.detach(), v.detach()))


def test_attention_takes_everything_headwise_takes():
    q, k, v = tensors((2, 5, 4, 8), (2, 7, 2, 8), (2, 7, 2, 8))
    words = dict(mask=hw.Mask.causal(), softcap=2.0, sinks=torch.zeros(4), q_start=hw.end, return_lse=True)
    ours, plain = hw.torch.attention(q, k, v, **words), hw.attention(q, k, v, **words)
    assert torch.equal(ours.out, plain.out) and torch.equal(ours.lse, plain.lse)
    out = torch.empty_like(q)
    assert hw.torch.attention(q, k, v, out=out, ctx=hw.Context(threads=1)) is out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_computes_in_its_dtype(dtype):
    q, k, v = tensors((1, 6, 2, 8), (1, 6, 2, 8), (1, 6, 2, 8))
    with torch.autocast("cpu", dtype=dtype):
        out, drop_in = hw.torch.attention(q, k, v), sdpa(q, k, v)
        assert hw.torch.attention(*(x.double() for x in (q, k, v))).dtype == torch.float64
    assert out.dtype == dtype and drop_in.dtype == dtype
    assert torch.equal(out, hw.attention(*(x.to(dtype) for x in (q, k, v))))
    off = hw.torch.attention(q, k, v)
    assert off.dtype == torch.float32


def test_fake_tensors_give_shapes_without_computing():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.empty(2, 5, 4, 8), torch.empty(2, 7, 2, 8), torch.empty(2, 7, 2, 12))
        result = hw.torch.attention(q, k, v, return_lse=True)
        assert result.out.shape == (2, 5, 4, 12) and result.lse.shape == (2, 4, 5)
        with pytest.raises(ValueError, match="^attention: q has no memory behind it"):
            hw.attention(q, k, v)


@pytest.mark.parametrize("layout", "bshd bhsd sbhd btnh bsnh bmhk bnsh thd nhd htd hnd".split())
def test_fake_tensors_have_the_shapes_of_every_layout(layout):
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(2, 3, 5, 8)
    truth = hw.torch.attention(x, x, x, layout=layout, return_lse=True)
    with FakeTensorMode() as fake:
        found = hw.torch.attention(*[fake.from_tensor(x)] * 3, layout=layout, return_lse=True)
    assert found.out.shape == truth.out.shape and found.lse.shape == truth.lse.shape


CAUSAL = hw.Mask.causal() & hw.Mask.window(3, 0)


def test_a_module_can_call_it():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.project = torch.nn.Linear(16, 48)

        def forward(self, x):
            q, k, v = self.project(x).reshape(*x.shape[:2], 3, 2, 8).unbind(2)
            return hw.torch.attention(q, k, v, CAUSAL).flatten(2)

    layer, x = Layer(), tensors((2, 6, 16))[0]
    with torch.no_grad():
        eager = layer(x)
        q, k, v = (y.double().numpy() for y in layer.project(x).reshape(2, 6, 3, 2, 8).unbind(2))
        open = np.tril(np.ones((6, 6), bool)) & ~np.tril(np.ones((6, 6), bool), -4)
        close(eager.numpy(), attend(q, k, v, open=open)[0].reshape(2, 6, 16))
        torch._dynamo.reset()
        assert torch.allclose(torch.compile(layer, fullgraph=True, backend="aot_eager")(x), eager)


def test_meta_tensors_have_sizes():
    q, k = torch.empty(2, 5, 4, 8, device="meta"), torch.empty(2, 7, 2, 8, device="meta")
    out = hw.torch.attention(q, k, k, hw.Mask.causal())
    assert out.is_meta and out.shape == (2, 5, 4, 8)
    result = hw.torch.attention(q, k, k, return_lse=True)
    assert result.lse.is_meta and result.lse.shape == (2, 4, 5)
    turned = sdpa(q.transpose(1, 2), k.transpose(1, 2), k.transpose(1, 2), is_causal=True, enable_gqa=True)
    assert turned.is_meta and turned.shape == (2, 4, 5, 8)
    with pytest.raises(ValueError, match="on meta"):
        hw.attention(q, k, k)


def test_gradients_that_no_cuda_kernel_has_are_refused_before_the_forward():
    class OnCuda(torch.Tensor):
        is_cuda = True

    q, slope = torch.ones(1).as_subclass(OnCuda), torch.ones(1, requires_grad=True)
    for name in ("alibi", "relative", "scale"):
        with pytest.raises(NotImplementedError, match=f"attention: {name} wants a gradient, which exists on the CPU only"):
            hw.torch._check_gradients(q, **{name: slope})
        hw.torch._check_gradients(q, **{name: slope.detach()})
        hw.torch._check_gradients(torch.ones(1), **{name: slope})
