"""headwise for torch: attention that torch.compile and autocast see through, and a drop-in scaled_dot_product_attention.

Importing headwise never imports this file; hw.torch does.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _core, _lists
from ._core import Context, Mask
from ._heads import Head
from ._torch import node as _node
from ._torch.ops import COEFFICIENTS, MASK_TYPE, WORDS, Attention, Call, attention_op, mask_text
from ._types import T5, AttentionResult, Pages, Probe, Scores

__all__ = ["Block", "MultiHead", "MultiheadAttention", "Swapped", "attention", "head_plan",
           "scaled_dot_product_attention", "sharding_rules", "swap"]

def _autocast(x: Any) -> Any:
    """As autocast wants it; packed keys, 8 bits and float64 stay what they are."""
    if not isinstance(x, Tensor) or x.dtype == torch.float64 or x.itemsize == 1 or not x.is_floating_point():
        return x
    return x.to(torch.get_autocast_dtype(x.device.type))


def _casts(x: Tensor) -> bool:
    """Autocast is on where the tensor lies; meta tensors lie nowhere."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


_attend: Any = _node.native._node_attend
_is_compiling = torch.compiler.is_compiling
_is_grad_enabled = torch.is_grad_enabled
_modes = torch._C._len_torch_dispatch_stack


def _traced(x: Tensor) -> bool:
    """Somebody records what happens to this tensor, or it has sizes alone (meta): it goes through the registered op
    instead of straight in."""
    plain = type(x) is Tensor or type(x) is torch.nn.Parameter
    return _is_compiling() or _modes() > 0 or not plain or x.is_meta


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
    head: Head | str | None = None,
    coefficients: dict[str, Any] | None = None,
    pages: Pages | None = None,
) -> Any:
    """headwise.attention on torch tensors of the CPU or a CUDA device, differentiable once, visible to torch.compile and
    autocast.

    Gradients reach q, k, v and every tensor among bias, alibi, relative's table, sinks, scale, gate and the coefficients;
    not lse, not probes. A compiled graph holds the call as one op. Lists of tensors, a list of masks, `out`, `probe`,
    `ctx`, `pages` and packed keys have no place in a graph: with them it breaks there and the call runs between two graphs.
    """
    if not _is_compiling():  # what is as by default is not handed on: reading it takes longer than attention
        if (
            softcap is None and bias is None and alibi is None and relative is None and sinks is None and gate is None
            and not dropout and not seed and type(q_start) is int and q_start == 0 and q_offsets is None
            and kv_offsets is None and k_scale is None and v_scale is None and out is None and return_lse is False
            and probe is None and kernels is None and ctx is None and head is None and coefficients is None
            and pages is None
        ):  # fmt: skip
            found = _attend(q, k, v, mask, scale, layout)
            if found is not NotImplemented:
                return found
            del found
        return _eager({word: x for word, x in locals().items() if x is not _DEFAULTS.get(word, _NEEDED)})
    if isinstance(q, (list, tuple)):
        return _lists.attention(
            q, k, v, mask=mask, attend=attention, scale=scale, softcap=softcap, bias=bias, alibi=alibi, relative=relative,
            sinks=sinks, gate=gate, dropout=dropout, seed=seed, q_start=q_start, q_offsets=q_offsets,
            kv_offsets=kv_offsets, k_scale=k_scale, v_scale=v_scale, layout=layout, out=out, return_lse=return_lse,
            probe=probe, kernels=kernels, ctx=ctx, head=head, coefficients=coefficients, pages=pages,
        )  # fmt: skip
    if isinstance(q, Tensor) and _casts(q):
        q, k, v = _autocast(q), _autocast(k), _autocast(v)
    table = None if relative is None else relative.table
    learned = () if coefficients is None else coefficients.values()
    records = torch.is_grad_enabled() and _wants_grad(q, k, v, bias, alibi, table, sinks, scale, gate, *learned)
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
    _check_recorded(records, k, words, pages, out)
    in_graph = out is None and probe is None and ctx is None and k_scale is None and v_scale is None
    in_graph = in_graph and pages is None and isinstance(k, Tensor)
    in_graph = in_graph and (mask is None or isinstance(mask, Mask))
    words.update(head=head, coefficients=coefficients)
    if in_graph:
        return _through_op(q, k, v, mask=mask, records=records, **words)
    if not records:
        return _attention_here(q, k, v, mask=mask, out=out, probe=probe, ctx=ctx, pages=pages, **words)
    return _recorded_here(q, k, v, mask=mask, words=dict(words, probe=probe, ctx=ctx))


_NEEDED = object()
_DEFAULTS: dict[str, Any] = {
    word: p.default for word, p in inspect.signature(attention).parameters.items() if p.default is not p.empty
}
_PLAIN = (Tensor, torch.nn.Parameter)
_GRAPH_WORDS = frozenset(_DEFAULTS) - {"mask", "out", "probe", "ctx", "k_scale", "v_scale", "pages"}


def _eager(words: dict[str, Any]) -> Any:
    """attention outside of a compiled graph; `words` holds what differs from the defaults."""
    q, k, v, mask = words.pop("q"), words.pop("k"), words.pop("v"), words.pop("mask", None)
    if not isinstance(q, Tensor):
        if isinstance(q, (list, tuple)):
            return _lists.attention(q, k, v, mask=mask, attend=attention, **words)
        return _core.attention(q, k, v, mask=mask, **words)
    if _casts(q):
        q, k, v = _autocast(q), _autocast(k), _autocast(v)
    records = _is_grad_enabled() and (_wants_grad(q, k, v) or (bool(words) and _terms_want_grad(words)))
    if _modes() > 0 or type(q) not in _PLAIN or q.is_meta:  # somebody records what happens, or there are sizes alone
        in_graph = isinstance(k, Tensor) and (mask is None or isinstance(mask, Mask))
        if in_graph and _GRAPH_WORDS.issuperset(words):
            _check_recorded(records, k, words)
            if (split := sys.modules.get("torch.distributed.tensor")) and isinstance(q, split.DTensor):
                q, k, v = _sharding().fitted(mask, q, k, v)
            return _through_op(q, k, v, mask=mask, records=records, **words)
    if not records:
        return _core.attention(q, k, v, mask=mask, **words)
    _check_recorded(records, k, words, words.get("pages"), words.get("out"))
    return _recorded(q, k, v, mask=mask, words=words)


def _check_recorded(records: bool, k: Any, words: dict[str, Any], pages: Any = None, out: Any = None) -> None:
    """What has no gradient, said before anything runs."""
    if not records:
        return
    relative = words.get("relative")
    _check_gradients(k, alibi=words.get("alibi"), relative=relative and relative.table, scale=words.get("scale"))
    if pages is not None:
        raise NotImplementedError(
            "attention: k and v lie in pages, which have no gradient; gather them, or call it under torch.no_grad()"
        )
    if isinstance(k, _core.PackedKeys):
        raise NotImplementedError(
            "attention: k is packed, which has no gradient; give plain keys (headwise.unpack_keys), or call it under "
            "torch.no_grad()"
        )
    if out is not None:
        raise ValueError("attention: out was given and a gradient is recorded; autograd makes its own out, leave it away")
    if words.get("k_scale") is not None or words.get("v_scale") is not None:
        raise NotImplementedError(
            "attention: k_scale and v_scale belong to 8-bit keys and values, which have no gradient; "
            "give k and v as floats, or call it under torch.no_grad()"
        )


def _terms_want_grad(words: dict[str, Any]) -> bool:
    relative, coefficients = words.get("relative"), words.get("coefficients")
    return _wants_grad(
        *(words.get(word) for word in WORDS[3:] if word != "relative"),
        None if relative is None else relative.table,
        *(() if coefficients is None else coefficients.values()),
    )


def _check_gradients(k: Any, **terms: Any) -> None:
    """What no CUDA kernel differentiates is said before the forward runs, not inside backward()."""
    for name, x in terms.items() if isinstance(k, Tensor) and k.is_cuda else ():
        if _wants_grad(x):
            raise NotImplementedError(
                f"attention: {name} wants a gradient, which exists on the CPU only; detach it, or bring q, k and v there"
            )


def _wants_grad(*tensors: Any) -> bool:
    return any(isinstance(x, Tensor) and x.requires_grad for x in tensors)


def _recorded(q: Tensor, k: Tensor, v: Tensor, *, mask: Any, words: dict[str, Any]) -> Any:
    """Through autograd, outside of any graph."""
    wants_lse = words.pop("return_lse", False)
    if (mask is None or type(mask) is Mask) and type(k) in _PLAIN and type(v) in _PLAIN:
        place = _node.place_of(mask, words)
        if place is not None:
            out, lse = _node.attend(q, k, v, bias=words.get("bias"), place=place)
            return AttentionResult(out, lse, None) if wants_lse else out
    call = Call(mask, words)
    out, lse = Attention.apply(call, q, k, v, *call.terms.values())
    if call.probe is None and not wants_lse:
        return out
    return AttentionResult(out, lse if wants_lse else None, call.probe_result)


@torch.compiler.disable
def _recorded_here(q: Tensor, k: Tensor, v: Tensor, *, mask: Any, words: dict[str, Any]) -> Any:
    """The same from inside of a graph, which breaks there."""
    return _recorded(q, k, v, mask=mask, words={word: x for word, x in words.items() if x is not _DEFAULTS[word]})


def _through_op(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Any = None, open: Tensor | None = None, scale: Any = None,
    softcap: float | None = None,
    bias: Tensor | None = None, alibi: Any = None, relative: T5 | None = None, sinks: Any = None, gate: Any = None,
    dropout: float = 0.0, seed: int = 0, q_start: Any = 0, q_offsets: Any = None, kv_offsets: Any = None,
    k_scale: Any = None, v_scale: Any = None, layout: str = "bshd", return_lse: bool = False, kernels: Any = None,
    records: bool = False, head: Head | str | None = None, coefficients: dict[str, Any] | None = None,
) -> Any:  # fmt: skip
    def offsets(x: Any) -> Tensor | None:
        return x if x is None or isinstance(x, Tensor) else torch.tensor(list(x), dtype=torch.int64)

    starts = q_start if isinstance(q_start, Tensor) else None
    given = {} if coefficients is None else coefficients
    if unknown := set(given) - {*COEFFICIENTS, "rows"}:
        raise ValueError(
            f'attention: coefficients holds "{min(unknown)}"; it may hold {", ".join(COEFFICIENTS)}, rows'
        )
    rows = given.get("rows", (None, None))
    start_list = [] if starts is not None else [q_start] if isinstance(q_start, int) else list(q_start)
    result, lse = attention_op(
        q,
        k,
        v,
        mask=mask if mask is None or MASK_TYPE is not None else mask_text(mask),
        open=open,
        scale=None if isinstance(scale, Tensor) or scale is None else float(scale),
        scales=scale if isinstance(scale, Tensor) else None,
        softcap=None if softcap is None else float(softcap),
        bias=bias,
        alibi=alibi is True,
        slopes=alibi if isinstance(alibi, Tensor) else None,
        table=None if relative is None else relative.table,
        bidirectional=True if relative is None else relative.bidirectional,
        max_distance=0 if relative is None else relative.max_distance,
        sinks=sinks,
        gate=gate,
        dropout=float(dropout),
        seed=seed if seed < 2**63 else seed - 2**64,
        q_start=start_list,
        q_starts=starts,
        q_offsets=offsets(q_offsets),
        kv_offsets=offsets(kv_offsets),
        layout=layout,
        head=head if head is None or isinstance(head, str) else head.settings,
        **{name: given.get(name) for name in COEFFICIENTS},
        row_offsets=offsets(rows[0]),
        row_index=offsets(rows[1]),
        lse=return_lse or records,
        kernels=kernels if kernels is None or isinstance(kernels, str) else ",".join(kernels),
    )
    return AttentionResult(result, lse, None) if return_lse else result


def _four_axes(x: Tensor, batch: torch.Size) -> Tensor:
    """[*batch heads tokens dim] with one batch axis; a view unless batch axes were repeated."""
    return (
        x.expand(*batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:])
        if x.dim() != 4 or x.shape[:-3] != batch
        else x
    )


def _broadcast(shapes: Sequence[torch.Size], refusal: str) -> torch.Size:
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise ValueError(f"scaled_dot_product_attention: {refusal}") from None


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
    headwise's own rule; there is no second derivative.
    """
    if attn_mask is not None and is_causal:
        raise ValueError(
            "scaled_dot_product_attention: attn_mask and is_causal were both given; give one of them"
        )
    if attn_mask is None and not dropout_p and not _is_compiling() and query.dim() == key.dim() == value.dim() == 4:
        (batches, heads, *_), (k_batches, k_heads, *_), (v_batches, v_heads, *_) = query.shape, key.shape, value.shape
        if batches == k_batches == v_batches and (enable_gqa or heads == k_heads == v_heads):
            found = _attend(query, key, value, _CAUSAL if is_causal else None, scale, "bhsd")
            if found is not NotImplemented:
                return found
    if query.dim() < 2 or key.dim() < 2 or value.dim() < 2:
        raise ValueError(
            "scaled_dot_product_attention: query, key and value need at least 2 axes, [tokens dim]"
        )
    axes, q_shape, k_shape = max(query.dim(), key.dim(), value.dim()), query.shape, key.shape
    batch = q_shape[:-3]
    if (
        not query.dim() == key.dim() == value.dim() == 4
        or not q_shape[0] == k_shape[0] == value.shape[0]
        or not (enable_gqa or q_shape[1] == k_shape[1] == value.shape[1])
    ):
        query, key, value = (x if x.dim() >= 3 else x.unsqueeze(0) for x in (query, key, value))
        if not enable_gqa and not key.shape[-3] == value.shape[-3] == 1:  # one serves all heads as it is
            heads = _broadcast(
                [x.shape[-3:-2] for x in (query, key, value)],
                f"query has {query.shape[-3]} heads, key {key.shape[-3]} and value {value.shape[-3]}; "
                "share heads with enable_gqa=True",
            )
            query, key, value = (x.expand(*x.shape[:-3], *heads, *x.shape[-2:]) for x in (query, key, value))
        batches = [x.shape[:-3] for x in (query, key, value)]
        batch = _broadcast(
            batches,
            "query has batch {}, key {} and value {}; give equal sizes or 1".format(*map(list, batches)),
        )
        query, key, value = (_four_axes(x, batch) for x in (query, key, value))
    if _casts(query):
        query, key, value = _autocast(query), _autocast(key), _autocast(value)
    bias = open = None
    if attn_mask is not None:
        shared = (*k_shape[:-3], 1) if enable_gqa and len(k_shape) > 2 else k_shape[:-2]
        scores = (*torch.broadcast_shapes(q_shape[:-2], shared), q_shape[-2], k_shape[-2])
        if attn_mask.dim() > len(scores) or any(
            size != 1 and size != need for size, need in zip(attn_mask.shape[::-1], scores[::-1])
        ):
            raise ValueError(
                f"scaled_dot_product_attention: attn_mask is {list(attn_mask.shape)} but the scores are {list(scores)}; "
                "give it axes of these sizes or 1, counted from the last"
            )
        spread = attn_mask.expand(*attn_mask.shape[:-2], *scores[-2:])
        if len(batch) != 1 and spread.dim() > 3:
            spread = _four_axes(spread, batch)
        if spread.dtype == torch.bool and spread.is_cuda:  # a mask of bits would have to come to the CPU first
            bias = query.new_zeros(()).masked_fill(~spread, -torch.inf)
        elif spread.dtype == torch.bool:
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
        records = torch.is_grad_enabled() and _wants_grad(query, key, value, bias)
        out = _through_op(
            query, key, value, mask=mask, open=open, scale=scale, bias=bias, dropout=dropout_p, seed=seed, layout="bhsd",
            records=records,
        )  # fmt: skip
    else:
        if open is not None:
            mask = Mask.dense(open)
        out = attention(
            query, key, value, mask=mask, scale=scale, bias=bias, dropout=dropout_p, seed=seed, layout="bhsd"
        )
    return out if axes == 4 else out.reshape((*batch, *out.shape[1:])[-axes:])


def head_plan(module: torch.nn.Module, mesh: Any, *, heads: int | None = None, kv_heads: int | None = None,
              head: str = "gqa") -> dict[str, Any]:
    """The plan by which torch's parallelize_module cuts an attention module over the ranks of a mesh of one axis.

    W_Q, W_K and W_V are cut by heads without gathering, W_O reads what is cut. kv_heads below the ranks: each kv head
    lies on several ranks, and its gradients are summed. Heads that cannot be cut are refused. Counts are the module's
    or its config's where they are not given.
    """
    from ._torch import ranks  # torch.distributed takes its time to import

    return ranks.head_plan(module, mesh, heads=heads, kv_heads=kv_heads, head=head)


def _sharding() -> Any:
    from ._torch import sharding  # torch.distributed takes its time to import

    sharding.register()
    return sharding


def sharding_rules() -> None:
    """Tells torch's DTensor how attention may be split: by batch, by heads, or not at all. The first call of
    hw.torch.attention with a DTensor outside of a graph does so; compiled programs ask for it before."""
    _sharding()


_CAUSAL = Mask.causal()

from ._torch.layers import Block, MultiHead  # noqa: E402  they use what stands above
from ._torch.modules import MultiheadAttention, Swapped, swap  # noqa: E402  they use what stands above
