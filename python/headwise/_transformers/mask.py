"""What a model of transformers asks of its mask, kept as a band, lengths and documents instead of a matrix of pairs."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from transformers import masking_utils

from .._core import Mask

_is_compiling = torch.compiler.is_compiling


class Band(NamedTuple):
    """Keys from q - back to q + ahead; None: no bound. ids: tokens of one text hold one number, [1 tokens]."""

    back: int | None = None
    ahead: int | None = None
    ids: Tensor | None = None

    def and_(self, other: Band) -> Band | None:
        if self.ids is not None and other.ids is not None:
            return None
        least = [min((x for x in pair if x is not None), default=None) for pair in zip(self[:2], other[:2])]
        return Band(least[0], least[1], self.ids if self.ids is not None else other.ids)


@functools.lru_cache(maxsize=64)
def _band_mask(back: int | None, ahead: int | None) -> Mask | None:
    text = _band_text(back, ahead)
    return None if text is None else Mask.parse(text)


def _band_text(back: int | None, ahead: int | None) -> str | None:
    if back is None and ahead is None:
        return None
    if back is None and ahead == 0:
        return "causal"
    far = 2**40
    return f"window({far if back is None else back}, {far if ahead is None else ahead})"


def _parts(function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """The name of a mask function of transformers, and what it holds."""
    cells = getattr(function, "__closure__", None) or ()
    names = function.__code__.co_freevars if hasattr(function, "__code__") else ()
    return getattr(function, "__qualname__", ""), {name: cell.cell_contents for name, cell in zip(names, cells)}


def band_of(function: Callable[..., Any]) -> Band | None:
    """The band that a mask function describes, or None where it describes something else."""
    if function is masking_utils.causal_mask_function:
        return Band(ahead=0)
    if function is masking_utils.bidirectional_mask_function:
        return Band()
    if _is_compiling():  # closures cannot be read there
        return None
    name, held = _parts(function)
    if name == "sliding_window_overlay.<locals>.inner_mask":
        return Band(back=held["sliding_window"] - 1)
    if name == "sliding_window_bidirectional_overlay.<locals>.inner_mask":
        return Band(held["sliding_window"], held["sliding_window"])
    if name == "packed_sequence_mask_function.<locals>.inner_mask":
        ids = held["packed_sequence_mask"]
        return Band(ids=ids) if ids.shape[0] == 1 else None
    if name == "remap_positions_for_packed_sequence.<locals>.inner_mask":
        return band_of(held["mask_function"])  # inside one text positions are as far apart as tokens
    if name == "and_masks.<locals>.and_mask":
        found: Band | None = Band()
        for part in held["mask_functions"]:
            other = band_of(part)
            found = None if found is None or other is None else found.and_(other)
        return found
    return None


@dataclass(frozen=True, eq=False)
class Open:
    """Which keys the queries of one forward pass may see; a layer reads it, nobody turns it into a matrix.

    padding: [batch kv] where some key is padding, True = a token. starts and counts: where each row's tokens lie if they
    stand together, found once for all layers; None while a graph is compiled.
    """

    band: Band
    q_start: Any
    q_tokens: Any
    kv_tokens: Any
    padding: Tensor | None = None
    starts: tuple[int, ...] | None = None
    counts: tuple[int, ...] | None = None
    alone: bool = False  # `made` is all that a layer needs: no padding, and the first query stands at key 0 or sees all
    made: Mask | None = None

    def mask(self) -> Mask | None:
        """The band as a mask, without what closes nothing here."""
        back, ahead, ids = self.band
        if _is_compiling():
            text = _band_text(back, ahead)
            return None if text is None else Mask(text)
        if isinstance(self.q_start, int):
            if back is not None and self.q_start + self.q_tokens - 1 <= back:
                back = None
            if ahead is not None and self.kv_tokens - 1 - self.q_start <= ahead:
                ahead = None
        mask = _band_mask(back, ahead)
        return mask if ids is None else _documents(ids) if mask is None else _documents(ids) & mask

    def padding_bias(self, dtype: torch.dtype) -> Tensor | None:
        """[batch 1 1 kv]: -inf on padding."""
        if self.padding is None:
            return None
        closed = self.padding.logical_not()[:, None, None, :]
        return torch.zeros((), dtype=dtype, device=closed.device).masked_fill(closed, -torch.inf)

    def _refuse(self, *_: Any) -> Any:
        raise NotImplementedError(
            'headwise.transformers: this model computes with its mask itself instead of asking attn_implementation="headwise"; '
            'call hw.torch.swap(model), which exchanges its layers where it can, or load it with attn_implementation="eager"'
        )

    __add__ = __radd__ = __mul__ = __rmul__ = __rsub__ = __getitem__ = _refuse


def _documents(ids: Tensor) -> Mask:
    cuts = torch.nonzero(torch.diff(ids[0])).flatten() + 1
    return Mask.documents([0, *cuts.tolist(), ids.shape[1]])


def _token_runs(padding: Tensor) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Start and count of the tokens of each row, or None where padding stands between tokens."""
    counts = padding.sum(1)
    starts = padding.to(torch.uint8).argmax(1)
    places = torch.arange(padding.shape[1], device=padding.device)
    inside = (places >= starts[:, None]) & (places < (starts + counts)[:, None])
    if not torch.equal(inside, padding):
        return None, None
    return tuple(starts.tolist()), tuple(counts.tolist())


_BY_PLACES = "cache_position" in inspect.signature(masking_utils.sdpa_mask).parameters  # before 5.4


def make_mask(
    batch_size: int, q_length: Any = None, kv_length: int | None = None, q_offset: Any = 0, kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function, attention_mask: Tensor | None = None,
    cache_position: Tensor | None = None, **words: Any,
) -> Any:  # fmt: skip
    """transformers' mask interface: an Open, or a bool tensor [batch 1 q kv] where no band describes the function.

    The first versions give the places of the queries (cache_position) instead of their number and the first place.
    """
    places = q_length if isinstance(q_length, Tensor) and q_length.dim() == 1 else cache_position
    if places is not None:
        q_length, q_offset = places.shape[0], places[0]
    if q_length is None or kv_length is None:
        raise TypeError(
            f"headwise.transformers: transformers {transformers.__version__} asks for a mask without the number of queries "
            "(q_length or cache_position) and keys (kv_length); headwise knows the interface of 5.0.0 to 5.23"
        )
    band = band_of(mask_function)
    if band is None:
        words.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
        if _BY_PLACES:
            words["cache_position"] = torch.arange(q_length) + q_offset if places is None else places
        else:
            words.update(q_length=q_length, q_offset=q_offset)
        return masking_utils.sdpa_mask(
            batch_size=batch_size, kv_length=kv_length, kv_offset=kv_offset, mask_function=mask_function,
            attention_mask=attention_mask, **words,
        )  # fmt: skip
    if isinstance(q_offset, Tensor) and not _is_compiling():
        q_offset = int(q_offset)
    start = q_offset - kv_offset
    if attention_mask is None:
        return _unpadded(Open(band, start, q_length, kv_length))
    padding = attention_mask[:, kv_offset : kv_offset + kv_length].to(torch.bool)
    if _is_compiling():
        return Open(band, start, q_length, kv_length, _widen(padding, kv_length))
    missing = kv_length - padding.shape[1]  # keys of a static cache that nobody wrote yet: causal masks close them
    later = band.ahead == 0 and missing > 0 and start + q_length <= padding.shape[1]
    if bool(padding.all()) and (missing <= 0 or later):
        return _unpadded(Open(band, start, q_length, kv_length))
    padding = _widen(padding, kv_length)
    return Open(band, start, q_length, kv_length, padding, *_token_runs(padding))


def _unpadded(seen: Open) -> Open:
    """With its mask made once for all layers."""
    if _is_compiling():
        return seen
    made = seen.mask()
    return replace(seen, made=made, alone=made is None or seen.q_start == 0)


def _widen(padding: Tensor, tokens: int) -> Tensor:
    missing = tokens - padding.shape[1]
    return padding if missing <= 0 else torch.nn.functional.pad(padding, (0, missing), value=False)
