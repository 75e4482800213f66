"""Ragged batches given as lists of arrays: joined into one, run once, cut apart again."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from itertools import accumulate
from typing import Any

from . import _core
from ._types import AttentionResult


def _join(name: str, arrays: Any, heads_first: bool) -> tuple[Any, list[int]]:
    arrays = list(arrays)
    if not arrays:
        raise ValueError(
            f"attention: {name} is an empty list; give one array [tokens heads dim] per sequence"
        )
    for i, a in enumerate(arrays):
        if getattr(a, "ndim", None) != 3:
            raise ValueError(
                f"attention: {name}[{i}] has {getattr(a, 'ndim', 'no')} axes; "
                f"an array of a list is {'[heads tokens dim]' if heads_first else '[tokens heads dim]'}"
            )
    axis = 1 if heads_first else 0
    offsets = [0, *accumulate(a.shape[axis] for a in arrays)]
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(arrays[0], torch.Tensor):
        return torch.cat(arrays, axis), offsets
    import numpy

    return numpy.concatenate(arrays, axis), offsets


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, q_offsets: Any = None, kv_offsets: Any = None, layout: str = "bshd",
    out: Any = None, attend: Any = _core.attention, **words: Any,
) -> Any:  # fmt: skip
    """One array per sequence in q, k and v; gives a list back for out and lse, probes stay joined over tokens."""
    if q_offsets is not None or kv_offsets is not None:
        raise ValueError("attention: q is a list of arrays and offsets were given too; give one of the two")
    if not isinstance(k, (list, tuple)) or not isinstance(v, (list, tuple)) or not len(q) == len(k) == len(v):
        raise ValueError("attention: q is a list of arrays; k and v must be lists of the same length")
    if out is not None:
        raise ValueError(
            "attention: q is a list of arrays, whose results are views of one new array; leave out away"
        )
    heads_first = layout in ("bhsd", "bnsh", "htd", "hnd")
    joined_q, q_at = _join("q", q, heads_first)
    joined_k, kv_at = _join("k", k, heads_first)
    joined_v, v_at = _join("v", v, heads_first)
    if kv_at != v_at:
        raise ValueError(
            "attention: the arrays of k and v differ in tokens; each pair must have the same number"
        )
    result = attend(
        joined_q, joined_k, joined_v, mask=mask, q_offsets=q_at, kv_offsets=kv_at, layout=layout, **words
    )
    spans = list(zip(q_at, q_at[1:]))

    def cut(x: Any) -> list[Any]:
        return [x[:, a:b] if heads_first else x[a:b] for a, b in spans]

    if isinstance(result, AttentionResult):
        lse = None if result.lse is None else [result.lse[:, a:b] for a, b in spans]
        return AttentionResult(cut(result.out), lse, result.probe)
    return cut(result)
