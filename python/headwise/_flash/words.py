"""Words of flash_attn that all its functions share, as headwise says them."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from .._core import Mask


class Words(NamedTuple):
    dropout: float
    scale: float | None
    causal: bool
    window: tuple[int, int]
    softcap: float
    alibi: Any
    probs: bool


def need(holds: bool, sentence: str) -> None:
    if not holds:
        raise ValueError(f"flash_attn: {sentence}")


@functools.lru_cache(maxsize=64)
def mask_of(causal: bool, window: tuple[int, int]) -> Mask | None:
    """-1 is no bound; causal puts the right bound at 0."""
    left, right = window[0], 0 if causal else window[1]
    if left < 0 and right < 0:
        return None
    if left < 0 and right == 0:
        return Mask.causal()
    far = 2**40
    return Mask.window(far if left < 0 else left, far if right < 0 else right)
