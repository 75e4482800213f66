"""Layers of transformers that leave out padding: each packs the tokens of a batch into one row, works, and unpacks."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from .mask import Open
from .wishes import recorded, wants_weights

_HOOKS = "_headwise_pack_hooks"
_PACKED_WORDS = {"position_embeddings", "position_ids"}  # one row a token
_SKIPPED_WORDS = {"cache_position"}  # belongs to a cache, and there is none


@dataclass(frozen=True, eq=False)
class Packed:
    """The mask of a packed row: an Open whose padding is gone. offsets: where texts begin and end in the row."""

    seen: Open

    @functools.cached_property
    def offsets(self) -> list[int]:
        offsets = [0]
        for count in self.seen.counts or ():
            offsets.append(offsets[-1] + count)
        return offsets

    @functools.cached_property
    def tokens(self) -> Tensor:
        """The places in [batch * tokens] that hold a token."""
        assert self.seen.padding is not None
        return torch.nonzero(self.seen.padding.flatten()).flatten()


def pack(model: torch.nn.Module) -> torch.nn.Module:
    """From now on the layers of this model compute no padding: the same numbers at the tokens, zeros at the padding.

    It needs attn_implementation="headwise". A call that has a cache, wants weights or is compiled runs as before.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise TypeError(
            f"headwise.transformers.pack: {type(model).__name__} has no layers of transformers' own kind "
            "(GradientCheckpointingLayer); give it a model of transformers 5"
        )
    if not (layers := [layer for layer in layers if not _has_own_bias(layer)]):
        raise TypeError(
            f"headwise.transformers.pack: the layers of {type(model).__name__} make a bias from the places of the padded "
            "batch (T5's relative attention), so they need the padding; leave this model as it is"
        )
    for layer in layers:
        if _HOOKS not in layer.__dict__:
            hooks = (
                layer.register_forward_pre_hook(_before, with_kwargs=True),
                layer.register_forward_hook(_after, with_kwargs=True),
            )
            layer.__dict__[_HOOKS] = hooks
    return model


def _has_own_bias(layer: torch.nn.Module) -> bool:
    return any(hasattr(module, "has_relative_attention_bias") for module in layer.modules())


def unpack(model: torch.nn.Module) -> torch.nn.Module:
    """Takes back what pack did."""
    for module in model.modules():
        for hook in module.__dict__.pop(_HOOKS, ()):
            hook.remove()
    return model


class _Gather(torch.autograd.Function):  # type: ignore[misc]
    """Rows of x by their places, which are all different: so the gradient is a copy and not a sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = x.shape[0]
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _scattered(gradients[0], ctx.saved_tensors[0], ctx.rows), None


def _scattered(x: Tensor, places: Tensor, rows: int) -> Tensor:
    return x.new_zeros(rows, *x.shape[1:]).index_copy(0, places, x)


def _gathered(x: Tensor, packed: Packed) -> Tensor | None:
    """[batch tokens ...] or [1 tokens ...] as [1 packed ...]; None: x is no such thing."""
    batch, tokens = packed.seen.padding.shape  # type: ignore[union-attr]
    if x.dim() < 2 or x.shape[0] not in (1, batch) or x.shape[1] != tokens:
        return None
    places = packed.tokens
    if x.shape[0] != batch:
        places = places.remainder(tokens)
        return x[0].index_select(0, places)[None]
    gathered: Tensor = _Gather.apply(x.flatten(0, 1), places)
    return gathered[None]


def _word(name: str, value: Any, packed: Packed) -> Any:
    """A word of the call as the packed layer wants it; NotImplemented: unknown here."""
    if value is None or isinstance(value, (bool, int, float, str)) or name in _SKIPPED_WORDS:
        return value
    if isinstance(value, Open):
        return packed if value is packed.seen else NotImplemented
    if name in _PACKED_WORDS and isinstance(value, Tensor):
        found = _gathered(value, packed)
        return NotImplemented if found is None else found
    if name in _PACKED_WORDS and isinstance(value, tuple):
        found = [_word(name, each, packed) for each in value]
        return NotImplemented if any(each is NotImplemented for each in found) else tuple(found)
    return NotImplemented


def _can_pack(seen: Open, hidden: Any) -> bool:
    padded = seen.padding is not None and seen.counts is not None and seen.band.ids is None
    whole = type(seen.q_start) is int and seen.q_start == 0 and seen.q_tokens == seen.kv_tokens
    return padded and whole and isinstance(hidden, Tensor) and hidden.shape[:2] == seen.padding.shape  # type: ignore[union-attr]


def _before(layer: torch.nn.Module, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
    if torch.compiler.is_compiling():
        return None
    masks = [x for x in (*args, *words.values()) if type(x) is Open]
    hidden = args[0] if args else words.get("hidden_states")
    if len(masks) != 1 or not _can_pack(masks[0], hidden) or recorded() or wants_weights(layer, words):
        return None
    packed = _packed_of(masks[0])
    row = _gathered(hidden, packed)
    rest = [_word("", x, packed) for x in args[1:]]
    named = {name: _word(name, x, packed) for name, x in words.items() if name != "hidden_states"}
    if any(x is NotImplemented for x in (*rest, *named.values())):
        return None
    if args:
        return (row, *rest), named
    return (), {"hidden_states": row, **named}


def _packed_of(seen: Open) -> Packed:
    """One for all layers of a call."""
    found = seen.__dict__.get("packed")
    if found is None:
        found = seen.__dict__["packed"] = Packed(seen)
    return found


def _after(layer: torch.nn.Module, args: tuple[Any, ...], words: dict[str, Any], out: Any) -> Any:
    packed = next((x for x in (*args, *words.values()) if type(x) is Packed), None)
    if packed is None:
        return None
    rows = packed.seen.padding.shape  # type: ignore[union-attr]

    def whole(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return _scattered(x.flatten(0, 1), packed.tokens, rows.numel()).view(*rows, *x.shape[2:])

    return tuple(whole(x) for x in out) if isinstance(out, tuple) else whole(out)

