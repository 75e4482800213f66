"""The functions of the package flash_attn by name and meaning, on the CPU and on CUDA: change one import.

Importing headwise never imports this file; hw.flash_attn does.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import torch as _torch
from ._core import Mask
from ._flash.cache import flash_attn_with_kvcache
from ._flash.words import Words, mask_of, need
from ._types import end

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def _attend(q: Tensor, k: Tensor, v: Tensor, words: Words, **more: Any) -> Any:
    """Bottom-right alignment: the last query meets the last key. An empty row has LSE +inf, as flash_attn gives it."""
    mask: Mask | None = mask_of(words.causal, words.window)
    terms: dict[str, Any] = {} if mask is None and words.alibi is None else {"q_start": end}
    if words.alibi is not None:
        terms["alibi"] = words.alibi
    if words.softcap:
        terms["softcap"] = words.softcap
    if words.dropout:
        terms.update(dropout=words.dropout, seed=int(torch.randint(2**62, ()).item()))
    terms.update(more)
    if not words.probs:
        return _torch.attention(q, k, v, mask=mask, scale=words.scale, **terms)
    found = _torch.attention(q, k, v, mask=mask, scale=words.scale, return_lse=True, **terms)
    return found.out, found.lse.masked_fill(found.lse == -torch.inf, torch.inf), None


def _each(q: Tensor, k: Tensor, v: Tensor, words: Words) -> Any:
    """Slopes of their own for each text of the batch: one call a text."""
    slopes = words.alibi
    if slopes is None or slopes.dim() == 1:
        return _attend(q, k, v, words)
    need(slopes.shape[0] == q.shape[0], f"alibi_slopes is {list(slopes.shape)} for a batch of {q.shape[0]}")
    parts = [_attend(q[b : b + 1], k[b : b + 1], v[b : b + 1], words._replace(alibi=slopes[b])) for b in range(len(q))]
    if not words.probs:
        return torch.cat(parts)
    return torch.cat([x[0] for x in parts]), torch.cat([x[1] for x in parts]), None


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False,
) -> Any:  # fmt: skip
    """q [batch tokens heads dim], k and v with as many heads or a divisor; out, or (out, softmax_lse, None).

    causal and window_size = (left, right) count from the bottom right. Results are always deterministic. The third value
    is None: flash_attn fills it for its own tests alone.
    """
    words = Words(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)
    return _each(q, k, v, words)


def flash_attn_kvpacked_func(q: Tensor, kv: Tensor, *args: Any, **words: Any) -> Any:
    """flash_attn_func with kv [batch tokens 2 kv_heads dim]."""
    need(kv.dim() == 5 and kv.shape[2] == 2, f"kv is {list(kv.shape)}; give [batch tokens 2 kv_heads dim]")
    k, v = kv.unbind(2)
    return flash_attn_func(q, k, v, *args, **words)


def flash_attn_qkvpacked_func(qkv: Tensor, *args: Any, **words: Any) -> Any:
    """flash_attn_func with qkv [batch tokens 3 heads dim]."""
    need(qkv.dim() == 5 and qkv.shape[2] == 3, f"qkv is {list(qkv.shape)}; give [batch tokens 3 heads dim]")
    q, k, v = qkv.unbind(2)
    return flash_attn_func(q, k, v, *args, **words)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Tensor | None = None,
    deterministic: bool = False, return_attn_probs: bool = False, block_table: Tensor | None = None,
) -> Any:  # fmt: skip
    """Texts of any length one after another: q [tokens heads dim]; softmax_lse is [heads tokens]. The lengths come from
    cu_seqlens; max_seqlen_q and max_seqlen_k change nothing."""
    if block_table is not None:
        raise NotImplementedError(
            "flash_attn_varlen_func: a block_table was given, and texts of several lengths over pages have no kernel here; "
            "call flash_attn_with_kvcache with a block_table for texts of one length"
        )
    if alibi_slopes is not None and alibi_slopes.dim() != 1:
        raise NotImplementedError(
            f"flash_attn_varlen_func: alibi_slopes is {list(alibi_slopes.shape)}; give one slope a head, or call "
            "flash_attn_func for each text"
        )
    words = Words(dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_attn_probs)
    offsets = {"q_offsets": cu_seqlens_q.to("cpu"), "kv_offsets": cu_seqlens_k.to("cpu")}  # lie beside q there, are read here
    return _attend(q, k, v, words, **offsets)


def flash_attn_varlen_kvpacked_func(
    q: Tensor, kv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, *args: Any,
    **words: Any,
) -> Any:  # fmt: skip
    """flash_attn_varlen_func with kv [tokens 2 kv_heads dim]."""
    need(kv.dim() == 4 and kv.shape[1] == 2, f"kv is {list(kv.shape)}; give [tokens 2 kv_heads dim]")
    k, v = kv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *args, **words)


def flash_attn_varlen_qkvpacked_func(qkv: Tensor, cu_seqlens: Tensor, max_seqlen: int, *args: Any, **words: Any) -> Any:
    """flash_attn_varlen_func with qkv [tokens 3 heads dim]."""
    need(qkv.dim() == 4 and qkv.shape[1] == 3, f"qkv is {list(qkv.shape)}; give [tokens 3 heads dim]")
    q, k, v = qkv.unbind(1)
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *args, **words)
