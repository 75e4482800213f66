"""flash_attn_with_kvcache: new keys and values go into a cache in place, then queries look at all of it."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import torch as _torch
from .._core import Mask
from .._types import Pages
from .words import mask_of, need


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, interleaved: bool) -> Tensor:
    """The first 2 * cos.shape[1] columns turned by the rows of cos and sin at `places` [batch tokens]."""
    half = cos.shape[1]
    need(int(places.max()) < cos.shape[0], f"position {int(places.max())} lies past the {cos.shape[0]} rows of rotary_cos")
    c, s = (t[places][:, :, None].to(torch.float32) for t in (cos, sin))
    turned, rest = x[..., : 2 * half].to(torch.float32), x[..., 2 * half :]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    left, right = a * c - b * s, b * c + a * s
    joined = torch.stack((left, right), -1).flatten(-2) if interleaved else torch.cat((left, right), -1)
    return torch.cat((joined.to(x.dtype), rest), -1)


def _lengths(cache_seqlens: int | Tensor | None, batch: int, rows: int) -> Tensor:
    if cache_seqlens is None:
        return torch.full((batch,), rows, dtype=torch.int64)
    if isinstance(cache_seqlens, int):
        return torch.full((batch,), cache_seqlens, dtype=torch.int64)
    need(cache_seqlens.numel() == batch, f"cache_seqlens is {list(cache_seqlens.shape)} for a batch of {batch}")
    return cache_seqlens.to("cpu", torch.int64)


def _write(cache: Tensor, new: Tensor, places: Tensor, rows: Tensor, table: Tensor | None) -> None:
    """new [batch tokens kv_heads dim] at token `places` of each text, in the cache's own memory."""
    if table is None:
        cache[rows[:, None].to(cache.device), places] = new.to(cache.dtype)
    else:
        size = cache.shape[1]
        cache[table.to(torch.int64).gather(1, places // size), places % size] = new.to(cache.dtype)


def _over_cache(
    q: Tensor, caches: tuple[Tensor, Tensor], total: Tensor, table: Tensor | None, mask: Mask | None, terms: dict[str, Any]
) -> Any:
    """Texts of `total` tokens each; the last query stands at the last of them."""
    terms["q_start"] = total - q.shape[1]
    if table is not None:
        terms["pages"] = Pages(table.to(torch.int32), total)
    else:
        lengths = Mask.lengths(total.tolist())
        mask = lengths if mask is None else lengths & mask
    return _torch.attention(q, caches[0], caches[1], mask=mask, **terms)


def flash_attn_with_kvcache(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, k: Tensor | None = None, v: Tensor | None = None,
    rotary_cos: Tensor | None = None, rotary_sin: Tensor | None = None, cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None, cache_leftpad: Tensor | None = None, block_table: Tensor | None = None,
    softmax_scale: float | None = None, causal: bool = False, window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0, rotary_interleaved: bool = True, alibi_slopes: Tensor | None = None, num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:  # fmt: skip
    """q [batch tokens heads dim] over k_cache and v_cache [rows tokens kv_heads dim], or pages with a block_table.

    k and v are written behind cache_seqlens first, in place. Rotation turns them at their positions, and q too: each
    token at its own under causal or a window, all at the first one otherwise. num_splits changes nothing. No gradients.
    """
    if cache_leftpad is not None:
        raise NotImplementedError("flash_attn_with_kvcache: cache_leftpad was given; start each text at row 0 of its cache")
    if alibi_slopes is not None and alibi_slopes.dim() != 1:
        raise NotImplementedError(
            f"flash_attn_with_kvcache: alibi_slopes is {list(alibi_slopes.shape)}; give one slope a head"
        )
    need((k is None) == (v is None), "one of k and v was given; give both or none")
    need((rotary_cos is None) == (rotary_sin is None), "one of rotary_cos and rotary_sin was given; give both or none")
    batch, tokens = q.shape[:2]
    room = k_cache.shape[1] * (block_table.shape[1] if block_table is not None else 1)
    old = _lengths(cache_seqlens, batch, room)
    count = 0 if k is None else k.shape[1]
    need(int(old.min()) >= 0 and int(old.max()) + count <= room, f"{int(old.max())} + {count} tokens do not fit {room} rows")
    with torch.no_grad():
        if rotary_cos is not None and rotary_sin is not None:
            local = causal or tuple(window_size) != (-1, -1)
            own = (old[:, None] + torch.arange(tokens) * int(local)).to(q.device)
            q = _rotate(q, rotary_cos, rotary_sin, own, rotary_interleaved)
        if k is not None and v is not None:
            places = (old[:, None] + torch.arange(count)).to(q.device)
            if rotary_cos is not None and rotary_sin is not None:
                k = _rotate(k, rotary_cos, rotary_sin, places, rotary_interleaved)
            rows = torch.arange(batch) if cache_batch_idx is None else cache_batch_idx.to(torch.int64)
            _write(k_cache, k, places, rows, block_table)
            _write(v_cache, v, places, rows, block_table)
        if block_table is None:
            rows = None if cache_batch_idx is None else cache_batch_idx.to(k_cache.device, torch.int64)
            k_cache, v_cache = (x[:batch] if rows is None else x[rows] for x in (k_cache, v_cache))
        terms: dict[str, Any] = {"scale": softmax_scale, "return_lse": return_softmax_lse}
        if softcap:
            terms["softcap"] = softcap
        if alibi_slopes is not None:
            terms["alibi"] = alibi_slopes
        mask = mask_of(causal, tuple(window_size))
        found = _over_cache(q, (k_cache, v_cache), old + count, block_table, mask, terms)
    if not return_softmax_lse:
        return found
    return found.out, found.lse.masked_fill(found.lse == -torch.inf, torch.inf)
