"""Operators of the ONNX standard with its names and meaning, for NumPy arrays and torch tensors: Attention 23 to 25,
RotaryEmbedding 23, RMSNormalization 23, LayerNormalization 17. The package onnx is not needed.
"""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._core import Mask
from ._onnx.arrays import Arrays, arrays_of
from ._types import Scores

__all__ = ["AttentionOutputs", "attention", "export_ops", "layer_normalization", "rms_normalization", "rotary_embedding",
           "to_folder"]  # fmt: skip

_FAR = 2**40


class AttentionOutputs(NamedTuple):
    """The operator's outputs by its names; qk_matmul_output is None unless its mode was given."""

    Y: Any
    present_key: Any
    present_value: Any
    qk_matmul_output: Any


def _need(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(f"onnx.{sentence}")


def export_ops() -> dict[Any, Any]:
    """hw.torch.attention as Attention of the standard: a table for torch.onnx.export(..., custom_translation_table=...)."""
    from ._onnx import export

    return export.export_ops()


def to_folder(model: Any, folder: Any, *, vocab: Any = None) -> dict[str, Any]:
    """Writes an ONNX file of a BERT-style encoder as the folder that hw.TextEncoder and the program read.

    vocab.txt and the tokenizer's settings come from the file's folder, the one above, or `vocab`. The package onnx reads
    the file and runs it once; weights that do not give what it gives are refused. Returns what config.json holds.
    """
    from ._onnx import encoder

    return encoder.to_folder(model, folder, vocab=vocab)


def _split_heads(x: Any, heads: int | None, name: str) -> Any:
    """[batch tokens heads*dim] to [batch heads tokens dim]; four axes stay."""
    if x.ndim == 4:
        return x
    _need(x.ndim == 3, f"attention: {name} has {x.ndim} axes; give 3 or 4")
    _need(bool(heads), f"attention: {name} has 3 axes, so q_num_heads and kv_num_heads are needed")
    _need(x.shape[2] % (heads or 1) == 0, f"attention: {name} has {x.shape[2]} columns for {heads} heads; give a multiple")
    return x.reshape(x.shape[0], x.shape[1], heads, -1).swapaxes(1, 2)


def _band(causal: int, left: int, right: int) -> Mask:
    mask = Mask.causal() if causal else Mask()
    if left >= 0 or right >= 0:
        mask = mask & Mask.window(left if left >= 0 else _FAR, right if right >= 0 else _FAR)
    return mask


def _check(words: dict[str, Any]) -> None:
    """Attributes out of range, by their names."""
    for name in ("left_window_size", "right_window_size"):
        _need(words[name] >= -1, f"attention: {name} is {words[name]}; give -1 for no bound, or a number of keys")
    mode, precision = words["qk_matmul_output_mode"], words["softmax_precision"]
    _need(mode in (None, 0, 1, 2, 3), f"attention: qk_matmul_output_mode is {mode}; give 0, 1, 2 or 3")
    _need(precision in (None, 1, 10, 11, 16), f"attention: softmax_precision is {precision}; give 1, 10, 11 or 16")
    _need(words["softcap"] >= 0, f"attention: softcap is {words['softcap']}; give 0 for none, or a positive number")


def attention(
    Q: Any, K: Any, V: Any, attn_mask: Any = None, past_key: Any = None, past_value: Any = None,
    nonpad_kv_seqlen: Any = None, *, is_causal: int = 0, scale: float | None = None, softcap: float = 0.0,
    q_num_heads: int | None = None, kv_num_heads: int | None = None, softmax_precision: int | None = None,
    qk_matmul_output_mode: int | None = None, left_window_size: int = -1, right_window_size: int = -1,
) -> AttentionOutputs:  # fmt: skip
    """Attention of opset 25; without windows it is that of 24, without nonpad_kv_seqlen that of 23.

    Q, K and V are [batch heads tokens dim], or [batch tokens heads*dim] with q_num_heads and kv_num_heads. torch tensors
    carry gradients through Y.
    """
    _check(locals())
    _need((past_key is None) == (past_value is None), "attention: one of past_key and past_value was given; give both or none")
    _need(past_key is None or nonpad_kv_seqlen is None, "attention: past_key and nonpad_kv_seqlen were given; give one of them")
    xp, packed, dtype = arrays_of(Q), Q.ndim == 3, Q.dtype
    q, k, v = _split_heads(Q, q_num_heads, "Q"), _split_heads(K, kv_num_heads, "K"), _split_heads(V, kv_num_heads, "V")
    start: Any = 0
    if past_key is not None:
        start = past_key.shape[2]
        k, v = xp.join([past_key, k], 2), xp.join([past_value, v], 2)
    present_key, present_value = k, v
    mask, bias = _band(is_causal, left_window_size, right_window_size), None
    if nonpad_kv_seqlen is not None:
        mask = mask & Mask.lengths(nonpad_kv_seqlen)
        start = nonpad_kv_seqlen - q.shape[2]
    if attn_mask is not None:
        open, bias = _mask_or_bias(xp, attn_mask, q.shape[2], k.shape[2])
        mask = mask if open is None else mask & open
    wide = softmax_precision == 11 and not xp.is_double(q)
    v = v if xp.same_dtype(v, q) else xp.cast_like(v, q)
    q, k, v, bias = (xp.double(x) if wide and x is not None else x for x in (q, k, v, bias))
    words: dict[str, Any] = dict(scale=scale, softcap=softcap or None, layout="bhsd")
    y = xp.attend(q, k, v, mask=mask, bias=bias, q_start=start, **words)
    scores = None
    if qk_matmul_output_mode is not None:  # modes 0 and 1 stand before mask and bias: they are asked without them
        later = dict(mask=mask, bias=bias, q_start=start) if qk_matmul_output_mode >= 2 else {}
        words.update(later, probe=Scores(qk_matmul_output_mode))
        found: Any = _core.attention(xp.plain(q), xp.plain(k), xp.plain(v), **words)
        scores = xp.cast(found.probe.scores, dtype)
    y = xp.cast(y, dtype)
    if packed:
        y = y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)
    return AttentionOutputs(y, present_key, present_value, scores)


def _mask_or_bias(xp: Arrays, given: Any, q_tokens: int, kv_tokens: int) -> tuple[Mask | None, Any]:
    """bool as bits, True = may attend; floats as a bias. A short last axis is closed at its end."""
    missing = kv_tokens - given.shape[-1]
    _need(missing >= 0, f"attention: attn_mask has {given.shape[-1]} columns for {kv_tokens} keys; give at most as many")
    if not xp.is_bool(given):
        return None, given if missing == 0 else xp.pad_last(given, missing, -np.inf)
    wide = given if missing == 0 else xp.pad_last(given, missing, False)
    return Mask.dense(xp.spread(wide, (*wide.shape[:-2], q_tokens, kv_tokens))), None


def rotary_embedding(
    X: Any, cos_cache: Any, sin_cache: Any, position_ids: Any = None, *, interleaved: int = 0, num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Any:  # fmt: skip
    """RotaryEmbedding of opset 23: X is [batch heads tokens dim], or [batch tokens heads*dim] with num_heads.

    The caches are [positions dim/2] with position_ids [batch tokens], or [batch tokens dim/2] without.
    """
    xp, shape = arrays_of(X), X.shape
    _need(X.ndim in (3, 4), f"rotary_embedding: X has {X.ndim} axes; give 3 or 4")
    _need(X.ndim == 4 or num_heads > 0, "rotary_embedding: X has 3 axes, so num_heads is needed")
    x = X.swapaxes(1, 2) if X.ndim == 4 else X.reshape(shape[0], shape[1], num_heads, -1)
    turned = rotary_embedding_dim or x.shape[3]
    if position_ids is not None:
        cos_cache, sin_cache = cos_cache[position_ids], sin_cache[position_ids]
    for name, cache in (("cos_cache", cos_cache), ("sin_cache", sin_cache)):
        _need(
            cache.ndim == 3 and 2 * cache.shape[-1] == turned,
            f"rotary_embedding: {name} has {cache.shape[-1]} columns where {turned} turn; give {turned // 2}",
        )
    cos, sin = cos_cache[:, :, None], sin_cache[:, :, None]
    head, rest = x[..., :turned], x[..., turned:]
    a, b = (head[..., 0::2], head[..., 1::2]) if interleaved else (head[..., : turned // 2], head[..., turned // 2 :])
    left, right = a * cos - b * sin, a * sin + b * cos
    if interleaved:
        both = xp.join([left[..., None], right[..., None]], -1).reshape(*head.shape)
    else:
        both = xp.join([left, right], -1)
    y = xp.join([both, rest], -1)
    return y.swapaxes(1, 2) if X.ndim == 4 else y.reshape(*shape)


def _last_axes(x: Any, axis: int, name: str) -> tuple[int, ...]:
    _need(-x.ndim <= axis < x.ndim, f"{name}: axis is {axis} for {x.ndim} axes; give one of them")
    return tuple(range(axis % x.ndim, x.ndim))


def rms_normalization(X: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    """RMSNormalization of opset 23: X / sqrt(mean(X^2) + epsilon) * scale over the axes from `axis` on."""
    xp, axes = arrays_of(X), _last_axes(X, axis, "rms_normalization")
    x = xp.stash(X, stash_type)
    y = x / xp.sqrt((x * x).mean(axes, keepdims=True) + epsilon)
    return xp.cast(y, X.dtype) * scale


def layer_normalization(
    X: Any, Scale: Any, B: Any = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Any, Any, Any]:
    """LayerNormalization of opset 17 over the axes from `axis` on: (Y, Mean, InvStdDev)."""
    xp, axes = arrays_of(X), _last_axes(X, axis, "layer_normalization")
    x = xp.stash(X, stash_type)
    mean = x.mean(axes, keepdims=True)
    inverse = 1 / xp.sqrt(((x - mean) * (x - mean)).mean(axes, keepdims=True) + epsilon)
    y = xp.cast((x - mean) * inverse, X.dtype) * Scale
    return (y if B is None else y + B), mean, inverse


def _main() -> int:
    import argparse
    import sys

    words = argparse.ArgumentParser(prog="python -m headwise.onnx", description="Writes an ONNX encoder as a model folder.")
    words.add_argument("model", help="the .onnx file of a BERT-style encoder")
    words.add_argument("folder", help="the folder to make")
    words.add_argument("--vocab", help="vocab.txt, where it does not lie beside the file")
    given = words.parse_args()
    try:
        config = to_folder(given.model, given.folder, vocab=given.vocab)
    except (OSError, ValueError) as fault:
        print(f"error: {fault}", file=sys.stderr)
        return 1
    layers, heads, width = (config[f"{x}"] for x in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
    print(f"wrote {given.folder}: {layers} layers, {heads} heads, {width} wide; {given.model} is as it was")
    return 0


if __name__ == "__main__":
    raise SystemExit(_main())
