"""headwise for torch: attention that torch.compile and autocast see through, and a drop-in scaled_dot_product_attention.

Importing headwise never imports this file; hw.torch does.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _core
from ._core import Context, Mask
from ._types import T5, AttentionResult, Probe, Scores

__all__ = ["attention", "scaled_dot_product_attention"]

_kept: list[Mask] = []


def _kept_mask(at: int) -> Mask:
    return _kept[at]


def _mask_words(self: Mask) -> tuple[str, dict[str, Any]]:
    # How a compiled graph spells this mask. Dense bits have no text: such a mask stays here as long as its graph may.
    try:
        if Mask.parse(str(self)) == self:
            return f"Mask.parse({str(self)!r})", {"Mask": Mask}
    except ValueError:
        pass
    if self not in _kept:
        _kept.append(self)
    return f"_kept_mask({_kept.index(self)})", {"_kept_mask": _kept_mask}


try:
    from torch._library.opaque_object import get_opaque_type_name, register_opaque_type

    setattr(Mask, "__fx_repr__", _mask_words)
    register_opaque_type(Mask, typ="value")
    _MASK_TYPE: str | None = get_opaque_type_name(Mask)
except (
    ImportError,
    AttributeError,
):  # torch before opaque values: graphs break at a mask instead of holding it
    _MASK_TYPE = None

_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, "
    + (f"{_MASK_TYPE}? mask, " if _MASK_TYPE else "str? mask, ")
    + "Tensor? open, "
    "float? scale, Tensor? scales, float? softcap, Tensor? bias, bool alibi, Tensor? slopes, Tensor? table, "
    "bool bidirectional, int max_distance, Tensor? sinks, Tensor? gate, float dropout, int seed, int[] q_start, "
    "Tensor? q_starts, Tensor? q_offsets, Tensor? kv_offsets, str layout, bool lse, str? kernels) -> (Tensor, Tensor)"
)


@torch.library.custom_op("headwise::attention", mutates_args=(), schema=_SCHEMA)
def _attention_op(
    q, k, v, mask, open, scale, scales, softcap, bias, alibi, slopes, table, bidirectional, max_distance, sinks, gate,
    dropout, seed, q_start, q_starts, q_offsets, kv_offsets, layout, lse, kernels,
):  # fmt: skip
    result = _core.attention(
        q,
        k,
        v,
        Mask.dense(open) if open is not None else mask,
        scale=scale if scales is None else scales,
        softcap=softcap,
        bias=bias,
        alibi=slopes if slopes is not None else alibi,
        relative=None if table is None else T5(table, bidirectional, max_distance),
        sinks=sinks,
        gate=gate,
        dropout=dropout,
        seed=seed % 2**64,
        q_start=q_start if q_starts is None else q_starts,
        q_offsets=q_offsets,
        kv_offsets=kv_offsets,
        layout=layout,
        return_lse=lse,
        kernels=kernels,
    )
    return (result.out, result.lse) if lse else (result, q.new_empty(0, dtype=torch.float32))


@_attention_op.register_fake
def _(
    q, k, v, mask, open, scale, scales, softcap, bias, alibi, slopes, table, bidirectional, max_distance, sinks, gate,
    dropout, seed, q_start, q_starts, q_offsets, kv_offsets, layout, lse, kernels,
):  # fmt: skip
    out = q.new_empty((*q.shape[:-1], v.shape[-1]))
    if not lse:
        return out, q.new_empty(0, dtype=torch.float32)
    tokens_first = {"bhsd": (0, 1, 2), "bnsh": (0, 1, 2), "sbhd": (1, 2, 0)}.get(layout, (0, 2, 1))
    if q_offsets is None:
        sizes = [q.shape[axis] for axis in tokens_first]
    else:
        sizes = (
            [q.shape[0], q.shape[1]] if layout in ("bhsd", "bnsh", "htd", "hnd") else [q.shape[1], q.shape[0]]
        )
    return out, q.new_empty(sizes, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def _check_grad(**tensors: Any) -> None:
    for name, x in tensors.items():
        if isinstance(x, Tensor) and x.requires_grad:
            raise NotImplementedError(
                f"attention: {name} requires grad, and headwise computes no gradients yet; "
                f"call it under torch.no_grad() or pass {name}.detach()"
            )


def _autocast(x: Tensor) -> Tensor:
    return (
        x if x.dtype == torch.float64 or not x.is_floating_point() else x.to(torch.get_autocast_dtype("cpu"))
    )


_is_compiling = torch.compiler.is_compiling
_is_autocast_enabled = torch.is_autocast_enabled
_modes = torch._C._len_torch_dispatch_stack


def _traced(x: Tensor) -> bool:
    """Somebody records what happens to this tensor: it goes through the registered op instead of straight in."""
    return _is_compiling() or _modes() > 0 or (type(x) is not Tensor and type(x) is not torch.nn.Parameter)


_attention_here: Any = torch.compiler.disable(_core.attention)


def attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Mask | Sequence[Mask] | None = None,
    *,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    alibi: bool | Tensor | None = None,
    relative: T5 | None = None,
    sinks: Tensor | None = None,
    gate: Tensor | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    q_start: int | Sequence[int] | Tensor = 0,
    q_offsets: Sequence[int] | Tensor | None = None,
    kv_offsets: Sequence[int] | Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    layout: str = "bshd",
    out: Tensor | None = None,
    return_lse: bool = False,
    probe: Probe | Scores | None = None,
    kernels: str | Sequence[str] | None = None,
    ctx: Context | None = None,
) -> Any:
    """headwise.attention on torch tensors, visible to torch.compile and autocast.

    A compiled graph holds the call as one op. Lists of tensors, a list of masks, `out`, `probe` and `ctx` have no place
    in a graph: with them it breaks there and the call runs between two graphs.
    """
    tensors = isinstance(q, Tensor)
    if tensors and _is_autocast_enabled("cpu"):
        q, k, v = _autocast(q), _autocast(k), _autocast(v)
    if not tensors or not _traced(q):
        return _core.attention(
            q, k, v, mask, scale=scale, softcap=softcap, bias=bias, alibi=alibi, relative=relative, sinks=sinks,
            gate=gate, dropout=dropout, seed=seed, q_start=q_start, q_offsets=q_offsets, kv_offsets=kv_offsets,
            k_scale=k_scale, v_scale=v_scale, layout=layout, out=out, return_lse=return_lse, probe=probe,
            kernels=kernels, ctx=ctx,
        )  # fmt: skip
    words: dict[str, Any] = dict(
        scale=scale,
        softcap=softcap,
        bias=bias,
        alibi=alibi,
        relative=relative,
        sinks=sinks,
        gate=gate,
        dropout=dropout,
        seed=seed,
        q_start=q_start,
        q_offsets=q_offsets,
        kv_offsets=kv_offsets,
        k_scale=k_scale,
        v_scale=v_scale,
        layout=layout,
        return_lse=return_lse,
        kernels=kernels,
    )
    in_graph = out is None and probe is None and ctx is None and k_scale is None and v_scale is None
    in_graph = in_graph and (mask is None or (_MASK_TYPE is not None and isinstance(mask, Mask)))
    if not in_graph:
        return _attention_here(q, k, v, mask, out=out, probe=probe, ctx=ctx, **words)
    return _through_op(q, k, v, mask, None, **words)


def _through_op(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, open: Tensor | None, *, scale: Any = None, softcap: float | None = None,
    bias: Tensor | None = None, alibi: Any = None, relative: T5 | None = None, sinks: Any = None, gate: Any = None,
    dropout: float = 0.0, seed: int = 0, q_start: Any = 0, q_offsets: Any = None, kv_offsets: Any = None,
    k_scale: Any = None, v_scale: Any = None, layout: str = "bshd", return_lse: bool = False, kernels: Any = None,
) -> Any:  # fmt: skip
    if torch.is_grad_enabled():
        _check_grad(q=q, k=k, v=v, bias=bias, sinks=sinks, gate=gate, scale=scale, alibi=alibi)

    def offsets(x: Any) -> Tensor | None:
        return x if x is None or isinstance(x, Tensor) else torch.tensor(list(x), dtype=torch.int64)

    starts = q_start if isinstance(q_start, Tensor) else None
    start_list = [] if starts is not None else [q_start] if isinstance(q_start, int) else list(q_start)
    result, lse = _attention_op(
        q,
        k,
        v,
        mask,
        open,
        None if isinstance(scale, Tensor) or scale is None else float(scale),
        scale if isinstance(scale, Tensor) else None,
        None if softcap is None else float(softcap),
        bias,
        alibi is True,
        alibi if isinstance(alibi, Tensor) else None,
        None if relative is None else relative.table,
        True if relative is None else relative.bidirectional,
        0 if relative is None else relative.max_distance,
        sinks,
        gate,
        float(dropout),
        seed if seed < 2**63 else seed - 2**64,
        start_list,
        starts,
        offsets(q_offsets),
        offsets(kv_offsets),
        layout,
        return_lse,
        kernels if kernels is None or isinstance(kernels, str) else ",".join(kernels),
    )
    return AttentionResult(result, lse, None) if return_lse else result


def _four_axes(x: Tensor, batch: torch.Size) -> Tensor:
    """[*batch heads tokens dim] with one batch axis; a view unless batch axes were repeated."""
    return (
        x.expand(*batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:])
        if x.dim() != 4 or x.shape[:-3] != batch
        else x
    )


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """torch.nn.functional.scaled_dot_product_attention with its signature, layout [batch heads tokens dim] and meaning.

    Differences: rows without an open key give zeros; dropout draws its seed from torch's generator and then follows
    headwise's own rule; a tensor that requires grad is refused while gradients are not there.
    """
    if attn_mask is not None and is_causal:
        raise ValueError(
            "scaled_dot_product_attention: attn_mask and is_causal were both given; give one of them"
        )
    if query.dim() < 2 or key.dim() < 2 or value.dim() < 2:
        raise ValueError(
            "scaled_dot_product_attention: query, key and value need at least 2 axes, [tokens dim]"
        )
    shape = query.shape
    if not query.dim() == key.dim() == value.dim() == 4 or not shape[0] == key.shape[0] == value.shape[0]:
        query, key, value = (x if x.dim() >= 3 else x.unsqueeze(0) for x in (query, key, value))
        if not enable_gqa:
            heads = torch.broadcast_shapes(*((x.shape[-3],) for x in (query, key, value)))
            query, key, value = (x.expand(*x.shape[:-3], *heads, *x.shape[-2:]) for x in (query, key, value))
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        shape = torch.Size((*batch, *query.shape[-3:])) if len(shape) > 2 else shape
        query, key, value = (_four_axes(x, batch) for x in (query, key, value))
    else:
        batch = shape[:1]
    if not enable_gqa and not query.shape[1] == key.shape[1] == value.shape[1]:
        raise ValueError(
            f"scaled_dot_product_attention: query has {query.shape[1]} heads, key {key.shape[1]} and value "
            f"{value.shape[1]}; share heads with enable_gqa=True"
        )
    if _is_autocast_enabled("cpu"):
        query, key, value = _autocast(query), _autocast(key), _autocast(value)
    bias = open = None
    if attn_mask is not None:
        tokens = (query.shape[2], key.shape[2])
        spread = (
            attn_mask.expand(*attn_mask.shape[:-2], *tokens)
            if attn_mask.dim() >= 2
            else attn_mask.expand(tokens)
        )
        if spread.dim() > 4:
            spread = _four_axes(spread, batch)
        if spread.dtype == torch.bool:
            open = spread
        elif spread.is_floating_point():
            bias = spread
        else:
            raise TypeError(
                f"scaled_dot_product_attention: attn_mask holds {attn_mask.dtype}; give bool (true = may attend) or floats"
            )
    seed = int(torch.randint(2**62, ()).item()) if dropout_p > 0.0 else 0
    mask = _CAUSAL if is_causal else None
    out: Tensor
    if _traced(query):
        out = _through_op(
            query, key, value, mask if _MASK_TYPE else None, _lower(query, key) if is_causal and not _MASK_TYPE else open,
            scale=scale, bias=bias, dropout=dropout_p, seed=seed, layout="bhsd",
        )  # fmt: skip
    else:
        if open is not None:
            mask = Mask.dense(open)
        out = _core.attention(
            query, key, value, mask, scale=scale, bias=bias, dropout=dropout_p, seed=seed, layout="bhsd"
        )
    return out if len(shape) == 4 else out.reshape(*shape[:-1], value.shape[-1])


_CAUSAL = Mask.causal()


def _lower(query: Tensor, key: Tensor) -> Tensor:
    return torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
