"""hw.torch.MultiheadAttention against torch.nn.MultiheadAttention, and hw.torch.swap inside of models."""
# SPDX-License-Identifier: Apache-2.0

import contextlib
import copy
import functools
import io
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")

import headwise as hw  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pair(**words):
    torch.manual_seed(7)
    theirs = nn.MultiheadAttention(16, 4, **words).eval()
    ours = hw.torch.MultiheadAttention(16, 4, **words).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


BLOCKED = torch.ones(5, 7, dtype=torch.bool).triu(3)
PADDING = torch.tensor([[False] * 7, [False] * 4 + [True] * 3, [True] * 2 + [False] * 5])
CALLS = {
    "plain": {},
    "bool mask": dict(attn_mask=BLOCKED),
    "float mask": dict(attn_mask=normal(1, 5, 7)),
    "mask of heads": dict(attn_mask=normal(2, 12, 5, 7) > 1.0),
    "padding": dict(key_padding_mask=PADDING),
    "float padding": dict(key_padding_mask=torch.zeros(3, 7).masked_fill(PADDING, -torch.inf)),
    "both": dict(key_padding_mask=PADDING, attn_mask=torch.zeros(5, 7).masked_fill(BLOCKED, -torch.inf)),
}
LAYERS = {
    "plain": {},
    "batch first": dict(batch_first=True),
    "no bias": dict(bias=False),
    "other widths": dict(kdim=12, vdim=20),
    "more keys": dict(add_bias_kv=True, add_zero_attn=True),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_outputs_and_weights_are_torchs(layer):
    words = LAYERS[layer]
    theirs, ours = pair(**words)
    q, k, v = normal(3, 3, 5, 16), normal(4, 3, 7, words.get("kdim", 16)), normal(5, 3, 7, words.get("vdim", 16))
    if not words.get("batch_first"):
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    for name, call in CALLS.items():
        for more in (dict(), dict(average_attn_weights=False), dict(need_weights=False)):
            for a, b in zip(ours(q, k, v, **call, **more), theirs(q, k, v, **call, **more)):
                assert (a is None) == (b is None), name
                if a is not None:
                    assert a.shape == b.shape and torch.allclose(a, b, atol=2e-6), name


def test_one_text_without_a_batch():
    theirs, ours = pair()
    x = normal(3, 5, 16)
    for a, b in zip(ours(x, x, x, key_padding_mask=PADDING[1, :5]), theirs(x, x, x, key_padding_mask=PADDING[1, :5])):
        assert a.shape == b.shape and torch.allclose(a, b, atol=2e-6)


def test_gradients_are_torchs():
    x = normal(3, 6, 2, 16)
    blocked = torch.ones(6, 6, dtype=torch.bool).triu(1)
    found = []
    for layer in pair():
        given = x.clone().requires_grad_()
        layer(given, given, given, attn_mask=blocked, need_weights=False, is_causal=True)[0].sin().sum().backward()
        found.append([given.grad, *(p.grad for p in layer.parameters())])
    for a, b in zip(*found):
        assert torch.allclose(a, b, atol=1e-5)


def test_a_row_without_keys_gives_zeros_before_the_projection():
    _, ours = pair()
    x = normal(3, 5, 1, 16)
    out, _ = ours(x, x, x, attn_mask=torch.ones(5, 5, dtype=torch.bool))
    assert torch.allclose(out, ours.out_proj.bias.expand_as(out))


def test_compiled_pickled_and_meta():
    _, ours = pair(batch_first=True)
    x = normal(3, 2, 5, 16)
    want = ours(x, x, x, need_weights=False, key_padding_mask=PADDING[:2, :5])[0]
    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x, x, x, need_weights=False, key_padding_mask=PADDING[:2, :5])[0], want, atol=1e-6)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(again(x, x, x, need_weights=False, key_padding_mask=PADDING[:2, :5])[0], want)
    far = copy.deepcopy(ours).to("meta")
    y = torch.empty(2, 5, 16, device="meta")
    assert far(y, y, y, need_weights=False)[0].shape == want.shape


def test_refusals_are_sentences():
    _, ours = pair()
    x = normal(3, 5, 2, 16)
    with pytest.raises(ValueError, match="is_causal says what attn_mask holds"):
        ours(x, x, x, is_causal=True)
    with pytest.raises(ValueError, match=r"key_padding_mask is \[2, 4\]; give \[2, 5\]"):
        ours(x, x, x, key_padding_mask=torch.zeros(2, 4, dtype=torch.bool))


def attend_here(q, k, v, **words):
    return F.scaled_dot_product_attention(q, k, v, **words)


class Own(nn.Module):
    """Attention that calls torch's function, by way of a method and of a function beside it."""

    def __init__(self, heads=4):
        super().__init__()
        self.heads, self.inner = heads, nn.Linear(16, 48)

    def split(self, x):
        return (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.inner(x).chunk(3, -1))

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        return attend_here(q, k, v, attn_mask=mask, is_causal=mask is None).transpose(1, 2).flatten(2)


class Decorated(Own):
    forward = functools.wraps(Own.forward)(lambda self, x, mask=None: Own.forward(self, x, mask))


class Softmax(nn.Module):
    def forward(self, x):
        return (x @ x.transpose(-1, -2)).softmax(-1) @ x


class SoftmaxAttention(Softmax):
    pass


@contextlib.contextmanager
def counted(where, name):
    """Counts the calls of a function by the name under which its users know it."""
    calls, real = [], getattr(where, name)
    setattr(where, name, lambda *a, **w: calls.append(1) or real(*a, **w))
    try:
        yield calls
    finally:
        setattr(where, name, real)


class Theirs(TorchFunctionMode):
    """Counts calls that reach torch's own attention."""

    count = 0

    def __torch_function__(self, func, kinds, args=(), kwargs=None):
        self.count += func is F.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def test_swap_replaces_in_place_and_says_so():
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), Own(), Softmax(), SoftmaxAttention()).eval()
    x = normal(3, 2, 5, 16)
    with torch.no_grad():
        want = model(x)
        state = {name: value.clone() for name, value in model.state_dict().items()}
        done = hw.torch.swap(model)
        assert done.replaced == ["0.layers.0.self_attn", "0.layers.1.self_attn", "1"]
        assert done.kept == {"3": "SoftmaxAttention takes a softmax by itself; give its q, k and v to hw.torch.attention there"}
        assert "replaced: 0.layers.0.self_attn" in str(done) and "kept: 3: Softmax" in str(done)
        assert state.keys() == model.state_dict().keys()
        with counted(hw._torch.modules, "attention") as modules, Theirs() as theirs:
            assert torch.allclose(model(x), want, atol=1e-5)
        assert len(modules) == 2 and not theirs.count  # also in eval mode, where torch has a kernel of its own
    again = hw.torch.swap(model)
    assert not again.replaced and "already" in again.kept["0.layers.0.self_attn"] and "already" in again.kept["1"]
    assert isinstance(model[1], Own) and repr(model[1]).startswith("Own(")


def test_a_forward_set_on_a_module_is_left():
    own = Own()
    own.forward = lambda x: x
    assert hw.torch.swap(own).kept == {"Own": "its forward was set on the module; take that away first"}


@pytest.mark.parametrize("kind", [Own, Decorated])
@pytest.mark.parametrize("mask", [None, BLOCKED[:, :5].logical_not(), normal(1, 5, 5)])
def test_swapped_calls_learn(mask, kind):
    x, found = normal(3, 2, 5, 16), []
    plain = kind()
    ours = copy.deepcopy(plain)
    assert hw.torch.swap(ours).replaced == [kind.__name__]
    for model, calls in ((plain, 1), (ours, 0)):
        given = x.clone().requires_grad_()
        with Theirs() as theirs:
            model(given, mask).sin().sum().backward()
        assert theirs.count == calls
        found.append([given.grad, *(p.grad for p in model.parameters())])
    for a, b in zip(*found):
        assert torch.allclose(a, b, atol=1e-5)


def test_swapped_calls_compiled_pickled_copied_and_meta():
    ours = Own().eval()
    x = normal(3, 2, 5, 16)
    want = ours(x)
    hw.torch.swap(ours)
    found = ours(x)
    assert torch.allclose(found, want, atol=1e-6)
    torch.compiler.reset()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), found)
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    for again in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(ours)), copy.deepcopy(ours)):
        assert type(again) is type(ours)
        with Theirs() as theirs:
            assert torch.equal(again(x), found)
        assert not theirs.count
    far = copy.deepcopy(ours).to("meta")
    assert far(torch.empty(2, 5, 16, device="meta")).shape == want.shape


def test_a_swapped_call_of_a_ragged_tensor_stays_torchs():
    ours = Own()
    hw.torch.swap(ours)
    x = torch.nested.nested_tensor([normal(1, 3, 16), normal(2, 5, 16)], layout=torch.jagged)
    with torch.no_grad(), Theirs() as theirs, contextlib.suppress(RuntimeError):  # torch has no way on some CPUs
        ours(x)
    assert theirs.count == 1


def test_scripted_and_traced_modules_stop_no_swap():
    for other in (torch.jit.script(nn.Linear(16, 16)), torch.fx.symbolic_trace(nn.Sequential(nn.Linear(16, 16)))):
        model = nn.Sequential(Own(), other, Own()).eval()
        x = normal(3, 2, 5, 16)
        want = model(x)
        done = hw.torch.swap(model)
        assert done.replaced == ["0", "2"] and not done.kept
        with Theirs() as theirs:
            assert torch.allclose(model(x), want, atol=1e-5)
        assert not theirs.count


class Unreadable(type(nn.Module)):
    def __getattribute__(cls, name):
        if name == "forward":
            raise RuntimeError("not to be read")
        return super().__getattribute__(name)


class NoSubclass(Own):
    def __init_subclass__(cls):
        raise TypeError("no subclass")


@pytest.mark.parametrize("kind", [Unreadable("Unread", (nn.Module,), {}), NoSubclass])
@pytest.mark.parametrize("action", ["default", "error"])
def test_what_cannot_be_read_or_made_leaves_no_model_half_swapped(kind, action):
    hw._torch.calls._sort.cache_clear()
    model = nn.Sequential(Own(), kind(), Own())
    with warnings.catch_warnings():
        warnings.simplefilter(action)
        assert hw.torch.swap(model).replaced == ["0", "2"]
    assert type(model[1]) is kind


def textbook(q, k, v):
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v


class OwnMethod(Own):
    def scaled_dot_product_attention(self, q, k, v):
        return textbook(q, k, v)

    def forward(self, x):
        return self.scaled_dot_product_attention(*self.split(x)).transpose(1, 2).flatten(2)


class OfParent(OwnMethod):
    def scaled_dot_product_attention(self, q, k, v):
        return super().scaled_dot_product_attention(q, k, v)


class OfChild(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = OwnMethod()

    def forward(self, x):
        inner = self.inner
        y = self.inner.scaled_dot_product_attention(*inner.split(x)) + inner.scaled_dot_product_attention(*inner.split(x))
        return y.transpose(1, 2).flatten(2)


# Files of their own: what a name stands for is a question of a file's globals.
WRITTEN = """
import torch
from torch import nn
{above}

class Written(nn.Module):
    def forward(self, x):
        {inside}
        return {call}(x, x, x)
"""
FUNCTION = """
def scaled_dot_product_attention(q, k, v):
    return (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v
"""
SAME = "scaled_dot_product_attention"
TORCHS = {  # above the class, in forward, what is called
    "by name": (f"from torch.nn.functional import {SAME}", "", SAME),
    "by another name": (f"from torch.nn.functional import {SAME} as attend", "", "attend"),
    "torch.nn": ("", "", f"torch.nn.functional.{SAME}"),
    "nn": ("", "", f"nn.functional.{SAME}"),
    "F": ("import torch.nn.functional as F", "", f"F.{SAME}"),
    "variable": ("", "f = nn.functional", f"f.{SAME}"),
    "lambda": ("", "f = nn.functional", f"(lambda *y: f.{SAME}(*y))"),
    "built in": ("", "", f"torch._C._nn.{SAME}"),
    "name inside": ("", f"from torch.nn.functional import softmax, {SAME}", SAME),
    "module inside": ("", "import torch.nn.functional as F", f"F.{SAME}"),
    "package inside": ("", "import torch.nn.functional", f"torch.nn.functional.{SAME}"),
    "many names": ("", "; ".join(f"x.n{i} = 0" for i in range(300)), f"nn.functional.{SAME}"),
}
NOT_TORCHS = {
    "function": (FUNCTION, "", SAME),
    "class": (f"class Ops:\n    @staticmethod\n    {FUNCTION.strip()}".replace("    return", "        return"), "", f"Ops.{SAME}"),
    "argument": (f"import types\n{FUNCTION}\nops = types.SimpleNamespace({SAME}={SAME})", "f = ops", f"f.{SAME}"),
    "module": (f"import types\n{FUNCTION}\nops = types.ModuleType('ops')\nops.{SAME} = {SAME}", "", f"ops.{SAME}"),
}


def written(above, inside, call):
    scope = {"__name__": "written_here"}
    exec(WRITTEN.format(above=above, inside=inside or "pass", call=call), scope)
    return scope["Written"]()


@pytest.mark.parametrize("way", TORCHS)
def test_torchs_function_is_found_by_what_it_is(way):
    model, x = written(*TORCHS[way]), normal(3, 2, 4, 5, 16)
    want = model(x)
    assert hw.torch.swap(model).replaced == ["Written"]
    with Theirs() as theirs, counted(hw._torch.calls, "scaled_dot_product_attention") as ours:
        assert torch.allclose(model(x), want, atol=1e-5)
    assert len(ours) == 1
    assert not theirs.count or way in ("built in", "name inside", "module inside", "package inside")  # a mode answers those


@pytest.mark.parametrize("way", NOT_TORCHS)
def test_a_function_of_that_name_that_is_not_torchs_is_left(way):
    model = written(*NOT_TORCHS[way])
    done = hw.torch.swap(model)
    assert not done.replaced and not hw._torch.calls.is_attending(model)
    assert way != "function" or "takes a softmax by itself" in done.kept["Written"]


@pytest.mark.parametrize("kind", [OwnMethod, OfParent, OfChild])
def test_a_method_of_that_name_is_left(kind):
    model = kind()
    done = hw.torch.swap(model)
    assert not done.replaced and all(not hw._torch.calls.is_attending(x) for x in model.modules())
    names = {OwnMethod: ["OwnMethod"], OfParent: [], OfChild: ["inner"]}[kind]  # what super() reaches is not read
    assert [*done.kept] == names and all("takes a softmax by itself" in why for why in done.kept.values())
