"""attention and its gradient as torch sees them: two registered ops for graphs, one autograd function for everything else."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core
from .._core import Mask
from .._types import T5, AttentionGradients

_HEADS_FIRST = ("bhsd", "bnsh", "htd", "hnd")  # before tokens
_kept: list[Mask] = []
_KEPT = "kept "


def _kept_mask(at: int) -> Mask:
    return _kept[at]


def _mask_text(mask: Mask) -> str:
    # How a compiled graph spells this mask. Dense bits have no text: such a mask stays here as long as its graph may.
    try:
        if Mask.parse(str(mask)) == mask:
            return str(mask)
    except ValueError:
        pass
    if mask not in _kept:
        _kept.append(mask)
    return f"{_KEPT}{_kept.index(mask)}"


def _mask_of(given: Mask | str | None) -> Mask | None:
    if not isinstance(given, str):
        return given
    return _kept_mask(int(given.removeprefix(_KEPT))) if given.startswith(_KEPT) else Mask.parse(given)


def _mask_words(self: Mask) -> tuple[str, dict[str, Any]]:
    text = _mask_text(self)
    if text.startswith(_KEPT):
        return f"_kept_mask({text.removeprefix(_KEPT)})", {"_kept_mask": _kept_mask}
    return f"Mask.parse({text!r})", {"Mask": Mask}


try:
    from torch._library.opaque_object import get_opaque_type_name, register_opaque_type

    setattr(Mask, "__fx_repr__", _mask_words)
    register_opaque_type(Mask, typ="value")
    MASK_TYPE: str | None = get_opaque_type_name(Mask)
except (
    ImportError,
    AttributeError,
    TypeError,
):  # torch before opaque values, or (2.11) with values of its own classes alone: a graph holds a mask's text
    MASK_TYPE = None
    try:
        torch.utils._pytree.register_constant(Mask)
    except (AttributeError, TypeError, ValueError):  # graphs break at a mask
        pass


mask_text: Any = torch.compiler.assume_constant_result(_mask_text)

TWICE = (
    "attention: a second derivative was asked for, and headwise differentiates attention once; "
    "take it from torch.nn.functional.scaled_dot_product_attention, or detach the first gradient"
)

TANGENT = (
    "attention: an input carries a tangent, and headwise has no forward-mode derivatives; "
    "take gradients backward, or detach it"
)

# What has a gradient, in the order of hw.AttentionGradients, and the same as arguments of the registered ops.
WORDS = tuple(field.removeprefix("d") for field in AttentionGradients._fields[:-1])
_BY_OTHER_NAMES = {"alibi": "slopes", "relative": "table", "scale": "scales"}
_DIFFERENTIABLE = tuple(_BY_OTHER_NAMES.get(word, word) for word in WORDS)
# Terms that are one tensor; the ops spell the others.
_TENSOR_TERMS = tuple(word for word in WORDS if word not in ("q", "k", "v", "bias", *_BY_OTHER_NAMES))
COEFFICIENTS = ("mix_before", "mix_after", "mix_q", "mix_k", "alpha")

_INPUTS = (
    "Tensor q, Tensor k, Tensor v, "
    + (f"{MASK_TYPE}? mask, " if MASK_TYPE else "str? mask, ")
    + "Tensor? open, "
    "float? scale, Tensor? scales, float? softcap, Tensor? bias, bool alibi, Tensor? slopes, Tensor? table, "
    "bool bidirectional, int max_distance, "
    + "".join(f"Tensor? {name}, " for name in _TENSOR_TERMS)
    + "float dropout, int seed, int[] q_start, "
    "Tensor? q_starts, Tensor? q_offsets, Tensor? kv_offsets, str layout, str? head, "
    + "".join(f"Tensor? {name}, " for name in COEFFICIENTS)
    + "Tensor? row_offsets, Tensor? row_index, "
)
NAMES = [part.split()[-1] for part in _INPUTS.split(", ") if part]


def _call_words(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an op as hw.attention takes them."""
    g = given
    return dict(
        mask=Mask.dense(g["open"]) if g["open"] is not None else _mask_of(g["mask"]),
        scale=g["scale"] if g["scales"] is None else g["scales"],
        softcap=g["softcap"],
        bias=g["bias"],
        alibi=g["slopes"] if g["slopes"] is not None else g["alibi"],
        relative=None if g["table"] is None else T5(g["table"], g["bidirectional"], g["max_distance"]),
        **{name: g[name] for name in _TENSOR_TERMS},
        dropout=g["dropout"],
        seed=g["seed"] % 2**64,
        q_start=g["q_start"] if g["q_starts"] is None else g["q_starts"],
        q_offsets=g["q_offsets"],
        kv_offsets=g["kv_offsets"],
        layout=g["layout"],
        head=g["head"],
        coefficients=_coefficients(g),
    )


def _coefficients(given: dict[str, Any]) -> dict[str, Any] | None:
    found = {name: given[name] for name in COEFFICIENTS if given[name] is not None}
    if given["row_offsets"] is not None:
        found["rows"] = (given["row_offsets"], given["row_index"])
    return found or None


def _head_counts(given: dict[str, Any], q: Tensor, v: Tensor) -> tuple[Any, Any, Any]:
    """Heads of the normalizer, and heads and columns of the output."""
    axis = -3 if given["layout"] in _HEADS_FIRST else -2
    heads = q.shape[axis]
    if given["head"] is not None:
        attends: tuple[int, int, int] = _core.head_info(given["head"], int(heads * q.shape[-1]))["attends"]
        return attends
    if given["mix_before"] is not None:
        heads = given["mix_before"].shape[1]
    return heads, heads if given["mix_after"] is None else given["mix_after"].shape[1], v.shape[-1]


@torch.library.custom_op(
    "headwise::attention",
    mutates_args=(),
    schema=f"({_INPUTS}bool lse, str? kernels) -> (Tensor, Tensor)",
)
def attention_op(q, k, v, *rest):
    given = dict(zip(NAMES, (q, k, v, *rest)))
    lse, kernels = rest[-2:]
    result = _core.attention(q, k, v, return_lse=lse, kernels=kernels, **_call_words(given))
    return (result.out, result.lse) if lse else (result, q.new_empty(0, dtype=torch.float32))


@attention_op.register_fake
def _(q, k, v, *rest):
    given = dict(zip(NAMES, (q, k, v, *rest)))
    layout, lse = given["layout"], rest[-2]
    normal, heads, dim = _head_counts(given, q, v)
    if layout in _HEADS_FIRST:
        out = q.new_empty((*q.shape[:-3], heads, q.shape[-2], dim))
    else:
        out = q.new_empty((*q.shape[:-2], heads, dim))
    if not lse:
        return out, q.new_empty(0, dtype=torch.float32)
    batch, tokens = (0, 2) if layout in _HEADS_FIRST else (1, 0) if layout == "sbhd" else (0, 1)
    if given["q_offsets"] is None:
        sizes = [q.shape[batch], normal, q.shape[tokens]]
    else:
        sizes = [normal, q.shape[1 if layout in _HEADS_FIRST else 0]]
    return out, q.new_empty(sizes, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def _dense(dout: Tensor) -> Tensor:
    """A gradient that autograd spread by steps of 0 would keep the tiles of a GPU from reading it."""
    return dout.contiguous() if dout.is_cuda else dout


@torch.library.custom_op(
    "headwise::attention_backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor out, Tensor lse, {_INPUTS}str[] wants) -> Tensor[]",
)
def attention_backward_op(dout, out, lse, q, k, v, *rest):
    given = dict(zip(NAMES, (q, k, v, *rest)))
    wants = rest[-1]
    found = _core.attention_backward(
        _dense(dout), q=q, k=k, v=v, out=out, lse=lse, wants=wants, **_call_words(given)
    )
    terms: list[Any] = [gradient for gradient in found[: len(WORDS)] if gradient is not None]
    # A head of rows turns axes, and a graph was promised dense gradients.
    return [x.contiguous() for x in terms] + [found[-1][name] for name in COEFFICIENTS if name in wants]


@attention_backward_op.register_fake
def _(dout, out, lse, q, k, v, *rest):
    given = dict(zip(NAMES, (q, k, v, *rest)))
    names = dict(zip((*WORDS, *COEFFICIENTS), (*_DIFFERENTIABLE, *COEFFICIENTS)))
    asked = [given[names[word]] for word in rest[-1]]
    return [x.new_empty(x.shape) for x in asked]


def _keep(ctx, inputs, output):
    given = dict(zip(NAMES, inputs))
    ctx.tensors = [name for name in NAMES if isinstance(given[name], Tensor)]
    ctx.plain = {name: given[name] for name in NAMES if name not in ctx.tensors}
    ctx.arguments = len(inputs)
    ctx.save_for_backward(*output, *(given[name] for name in ctx.tensors))
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx, dout, _):
    out, lse, *tensors = ctx.saved_tensors
    given = {**ctx.plain, **dict(zip(ctx.tensors, tensors))}
    words, names = (*WORDS, *COEFFICIENTS), (*_DIFFERENTIABLE, *COEFFICIENTS)
    at = {name: NAMES.index(name) for name in names}
    pairs = [pair for pair in zip(words, names) if ctx.needs_input_grad[at[pair[1]]]]
    inputs = {name: given[name] for name in NAMES}
    found = attention_backward_op(dout, out, lse, **inputs, wants=[word for word, _ in pairs])
    gradients: list[Tensor | None] = [None] * ctx.arguments
    for (_, name), gradient in zip(pairs, found):
        gradients[at[name]] = gradient
    return tuple(gradients)


def _refuse_twice(ctx, *_):
    raise NotImplementedError(TWICE)


attention_op.register_autograd(_differentiate, setup_context=_keep)
attention_backward_op.register_autograd(_refuse_twice)


class _Once(torch.autograd.Function):
    """First gradients as they are; whoever differentiates them is told that it cannot be done."""

    @staticmethod
    def forward(ctx, count, *tensors):
        return tensors[:count]

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError(TWICE)


def once(gradients: tuple[Tensor | None, ...], inputs: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """`gradients` of `inputs`, which cannot be differentiated again."""
    some = [x for x in gradients if x is not None]
    made = iter(_Once.apply(len(some), *some, *(x for x in inputs if x is not None)))
    return tuple(None if x is None else next(made) for x in gradients)


_PLACES = {word: place for place, word in enumerate(WORDS)}


class Call:
    """One call outside of a graph: what has no gradient, and the probe's answer on its way around autograd."""

    __slots__ = ("mask", "words", "terms", "probe", "probe_result")

    def __init__(self, mask: Any, words: dict[str, Any]) -> None:
        """Takes the tensors that have a gradient out of `words`, arguments of hw.attention without defaults."""
        self.mask, self.words, self.probe, self.probe_result = mask, words, words.pop("probe", None), None
        self.terms: dict[str, Tensor] = {}  # by the words of hw.attention_backward
        if words:
            self._take_terms()

    def _take_terms(self) -> None:
        for word in WORDS[3:]:
            x = self.words.get(word)
            if isinstance(x, Tensor):
                self.terms[word] = self.words.pop(word)
            elif isinstance(x, T5):
                self.terms[word] = x.table
        given = self.words.get("coefficients")
        if given:
            self.words["coefficients"] = {name: x for name, x in given.items() if not isinstance(x, Tensor)}
            self.terms.update((name, x) for name, x in given.items() if isinstance(x, Tensor))

    def spell(self, terms: tuple[Tensor, ...]) -> dict[str, Any]:
        if not terms:
            return self.words
        words = dict(self.words)
        for word, x in zip(self.terms, terms):
            if word == "relative":
                words[word] = T5(x, self.words[word].bidirectional, self.words[word].max_distance)
            elif word in _PLACES:
                words[word] = x
            else:
                words["coefficients"] = {**words["coefficients"], word: x}
        return words


class Attention(torch.autograd.Function):
    """apply(call, q, k, v, *call.terms.values()) -> out, lse"""

    @staticmethod
    def forward(ctx, call, q, k, v, *terms):
        words = call.spell(terms)
        out, lse, call.probe_result = _core.attention(q, k, v, mask=call.mask, return_lse=True, probe=call.probe, **words)
        ctx.call, ctx.words = call, tuple(call.terms)
        call.terms = dict.fromkeys(call.terms)  # what is saved may be freed; this would hold it
        ctx.save_for_backward(q, k, v, out, lse, *terms)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx, dout, _):
        if dout is None:
            return (None,) * len(ctx.needs_input_grad)
        q, k, v, out, lse, *terms = ctx.saved_tensors
        names, call = ("q", "k", "v", *ctx.words), ctx.call
        wants = [word for word, needed in zip(names, ctx.needs_input_grad[1:]) if needed]
        words = call.spell(terms)
        if "kernels" in words:
            words = {word: x for word, x in words.items() if word != "kernels"}
        if not torch.is_grad_enabled():
            found = _core.attention_backward(
                _dense(dout), q=q, k=k, v=v, out=out, lse=lse, mask=call.mask, wants=wants, **words
            )
            return (None, *_gradients(found, names))
        with torch.no_grad():
            found = _core.attention_backward(
                _dense(dout), q=q, k=k, v=v, out=out, lse=lse, mask=call.mask, wants=wants, **words
            )
        return (None, *once(tuple(_gradients(found, names)), (dout, q, k, v, *terms)))

    @staticmethod
    def jvp(ctx, *_):
        raise NotImplementedError(TANGENT)


def _gradients(found: Any, names: tuple[str, ...]) -> list[Tensor | None]:
    return [found[_PLACES[word]] if word in _PLACES else found[-1].get(word) for word in names]
