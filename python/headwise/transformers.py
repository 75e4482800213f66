"""headwise in Hugging Face transformers: after `import headwise.transformers`, attn_implementation="headwise" works.

Importing headwise never imports this file; hw.transformers does.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
import transformers as _transformers
from torch import Tensor

from . import torch as _torch
from ._core import Mask
from ._torch import node as _node
from ._types import Scores

__all__ = ["attention_forward", "pack", "register", "unpack"]

NAME = "headwise"

try:
    from transformers import AttentionInterface, AttentionMaskInterface

    from ._transformers.mask import Open, make_mask
    from ._transformers.pack import Packed, pack, unpack
    from ._transformers.wishes import wants_weights
except ImportError as error:
    raise ImportError(
        f"headwise.transformers: transformers {_transformers.__version__} is installed, which has no AttentionInterface and "
        "AttentionMaskInterface as they are since 5.0; install transformers 5"
    ) from error

_CAUSAL = Mask.causal()
_attend: Any = _torch._attend
_attend_layer: Any = _node.native._node_layer
_is_compiling = torch.compiler.is_compiling


def register(name: str = NAME) -> None:
    """Makes attn_implementation=name mean headwise; importing this module has done so for "headwise"."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, make_mask)


def attention_forward(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, dropout: float = 0.0,
    scaling: float | None = None, is_causal: bool | None = None, softcap: float | None = None,
    s_aux: Tensor | None = None, position_bias: Tensor | None = None, alibi: bool = False, **words: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """What transformers calls in each layer: q, k and v are [batch heads tokens dim], the answer [batch tokens heads dim].

    The second value holds the weights where output_attentions asks for them, None otherwise.
    """
    plain = softcap is s_aux is position_bias is None and not dropout and not alibi
    if plain and type(attention_mask) is Open and attention_mask.alone:
        if not _is_compiling() and "cache" not in words and not wants_weights(module, words):  # the usual layer: nothing but q, k, v and a mask
            found = _attend_layer(query, key, value, attention_mask.made, scaling)
            if found is not NotImplemented:
                return found, None
            q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
            found = _attend(q, k, v, attention_mask.made, scaling, "bshd")
            if found is not NotImplemented:
                return found, None
    if words.get("cache") is not None:
        raise NotImplementedError(
            f"headwise.transformers: the cache is a {type(words['cache']).__name__}, whose pages belong to transformers' own "
            'continuous batching; use generate(), or attn_implementation="sdpa" there'
        )
    q, k, v = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
    terms: dict[str, Any] = {}
    if softcap is not None:
        terms["softcap"] = softcap
    if s_aux is not None:
        terms["sinks"] = s_aux.float()
    if position_bias is not None:
        terms["bias"] = position_bias
    if alibi:
        terms["alibi"] = True
    if dropout > 0.0:
        terms.update(dropout=dropout, seed=int(torch.randint(2**62, ()).item()))
    if wants_weights(module, words):
        terms["probe"] = Scores("weights")
    mask: Mask | None
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        mask = _CAUSAL if causal and query.shape[2] > 1 else None
    elif isinstance(attention_mask, Packed):
        band, offsets = attention_mask.seen.mask(), attention_mask.offsets
        out = _torch.attention(q[0], k[0], v[0], mask=band, scale=scaling, q_offsets=offsets, kv_offsets=offsets, **terms)
        return out[None], None
    elif isinstance(attention_mask, Open):
        if attention_mask.padding is None:
            mask = attention_mask.mask()
        elif not terms.keys() - _RAGGED_TERMS and _stands_together(attention_mask, q, k):
            return _ragged(q, k, v, attention_mask, scaling, terms), None
        else:
            mask = _pad(attention_mask, terms, q.dtype)
        if (mask is not None or alibi) and (type(attention_mask.q_start) is not int or attention_mask.q_start):
            terms["q_start"] = _start(attention_mask.q_start, query)
    elif isinstance(attention_mask, Tensor) and attention_mask.dim() == 4:
        mask = _from_tensor(attention_mask, terms, q, key.shape[2])
    else:
        raise TypeError(
            f"headwise.transformers: the mask of {type(module).__name__} is {_describe(attention_mask)}; headwise takes None, "
            "a tensor [batch heads q kv] of bool or floats, or what its own mask interface made"
        )
    if "probe" in terms:
        found = _torch.attention(q, k, v, mask=mask, scale=scaling, **terms)
        return found.out, found.probe.scores.to(query.dtype)
    return _torch.attention(q, k, v, mask=mask, scale=scaling, **terms), None


_RAGGED_TERMS = {"softcap", "sinks", "alibi", "dropout", "seed"}


def _start(start: Any, query: Tensor) -> Any:
    if isinstance(start, Tensor):
        return start.reshape(1).expand(query.shape[0]).to("cpu", torch.int64)
    return int(start)


def _describe(x: Any) -> str:
    return f"a tensor {list(x.shape)} of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"


def _stands_together(seen: Open, q: Tensor, k: Tensor) -> bool:
    """Self-attention over texts whose padding stands at their ends: it runs without the padding."""
    whole = type(seen.q_start) is int and seen.q_start == 0 and q.shape[1] == k.shape[1]
    return seen.starts is not None and whole and seen.band.ids is None


def _ragged(q: Tensor, k: Tensor, v: Tensor, seen: Open, scale: float | None, terms: dict[str, Any]) -> Tensor:
    """The batch as one ragged row of texts and paddings, in place; a padding sees no key and gives zeros."""
    batch, tokens = q.shape[:2]
    offsets, lengths = [0], []
    for b, (start, count) in enumerate(zip(seen.starts or (), seen.counts or ())):
        offsets += [b * tokens + start, b * tokens + start + count, (b + 1) * tokens]
        lengths += [0, count, 0]
    band = seen.mask()
    mask = Mask.lengths(lengths)
    q, k, v = (x.reshape(batch * tokens, *x.shape[2:]) for x in (q, k, v))
    mask = mask if band is None else mask & band
    out: Tensor = _torch.attention(q, k, v, mask=mask, scale=scale, q_offsets=offsets, kv_offsets=offsets, **terms)
    return out.view(batch, tokens, *out.shape[1:])


def _pad(seen: Open, terms: dict[str, Any], dtype: torch.dtype) -> Mask | None:
    """The band with the padding beside it: as lengths where texts start at key 0, as a row of -inf elsewhere."""
    band = seen.mask()
    if seen.starts is not None and seen.counts is not None and not any(seen.starts):
        lengths = Mask.lengths(seen.counts)
        return lengths if band is None else lengths & band
    bias, closed = terms.get("bias"), seen.padding_bias(dtype)
    terms["bias"] = closed if bias is None else bias + closed
    return band


def _from_tensor(given: Tensor, terms: dict[str, Any], q: Tensor, kv_tokens: int) -> Mask | None:
    """A matrix of pairs that somebody made: bool stays bits on the CPU, floats are added."""
    given = given[..., :kv_tokens]
    if given.dtype == torch.bool:
        if not torch.compiler.is_compiling() and not given.is_cuda:
            return Mask.dense(given.expand(*given.shape[:2], q.shape[1], kv_tokens))
        given = torch.zeros((), dtype=q.dtype, device=given.device).masked_fill(given.logical_not(), -torch.inf)
    bias = terms.get("bias")
    terms["bias"] = given if bias is None else bias + given
    return None


register()
