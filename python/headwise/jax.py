"""Attention for JAX, on the CPU: jit, vmap and grad, through XLA's foreign function interface.

from headwise.jax import attention
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import _core
from ._core import Mask, get_threads

__all__ = ["attention"]

_native: Any = _core  # its names with an underscore are in no stub
for _name, _target in _native._jax_targets().items():
    jax.ffi.register_ffi_target(_name, _target, platform="cpu")

Words = tuple[str, float, float, int]


def _refuse(sentence: str) -> None:
    raise ValueError(f"attention: {sentence}")


def _mask_text(mask: Any) -> str:
    if mask is None:
        return ""
    if not isinstance(mask, Mask):
        raise TypeError(f"attention: mask is a {type(mask).__name__}; pass a headwise.Mask or None")
    text, dense = mask.__getstate__()
    if dense:
        _refuse("mask has bits of its own (Mask.dense), which a compiled program cannot hold; build it of causal, window, ...")
    return text


def _check(q: Any, k: Any, v: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 4:
            _refuse(f"{name} has shape {tuple(x.shape)}; it must be [batch tokens heads dim]")
        if x.dtype != q.dtype:
            _refuse(f"{name} is {x.dtype} but q is {q.dtype}; convert one of them")
    if q.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16, jnp.float64):
        _refuse(f"q is {q.dtype}; f32, bf16, f16 and f64 are taken")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        _refuse(f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit: batch, kv_tokens, kv_heads and head_dim must agree")
    if k.shape[2] == 0 or q.shape[2] % k.shape[2]:
        _refuse(f"q has {q.shape[2]} heads and k has {k.shape[2]}; the first must be a multiple of the second")


def _call(name: str, results: Any, words: Words) -> Any:
    mask, scale, softcap, q_start = words
    call = jax.ffi.ffi_call(name, results, vmap_method="broadcast_all")
    return functools.partial(call, mask=mask, scale=np.float64(scale), softcap=np.float64(softcap), q_start=np.int64(q_start),
                             threads=np.int32(get_threads()))


def _forward(q: Any, k: Any, v: Any, words: Words) -> Any:
    batch, tokens, heads, _ = q.shape
    wide = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
    results = (jax.ShapeDtypeStruct((batch, tokens, heads, v.shape[3]), q.dtype), jax.ShapeDtypeStruct((batch, heads, tokens), wide))
    return _call("headwise_attention", results, words)(q, k, v)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(q: Any, k: Any, v: Any, words: Words) -> Any:
    return _forward(q, k, v, words)[0]


def _attend_forward(q: Any, k: Any, v: Any, words: Words) -> Any:
    out, lse = _forward(q, k, v, words)
    return out, (q, k, v, out, lse)


def _attend_backward(words: Words, kept: Any, dout: Any) -> Any:
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in kept[:3])
    return tuple(_call("headwise_attention_backward", results, words)(*kept, dout))


_attend.defvjp(_attend_forward, _attend_backward)


def attention(q: Any, k: Any, v: Any, mask: Mask | None = None, *, scale: float | None = None, softcap: float | None = None,
              q_start: int = 0, return_lse: bool = False) -> Any:
    """Multi-head attention of q [batch tokens heads dim] over k and v, heads shared by division.

    mask, scale, softcap and q_start are parts of the compiled program. Gradients are those of q, k and v; with return_lse,
    (out, lse) comes back and has none.
    """
    q, k, v = jnp.asarray(q), jnp.asarray(k), jnp.asarray(v)
    _check(q, k, v)
    words = (_mask_text(mask), math.nan if scale is None else float(scale), float(softcap or 0), int(q_start))
    if return_lse:
        return tuple(_forward(q, k, v, words))
    return _attend(q, k, v, words)
