"""hw.align: which word is whose translation, by the cross-attention of a translator."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _core

Links = list[tuple[int, int]]


@dataclass(frozen=True)
class Aligned:
    """One pair: its words, the weights of every head between them, and the links of the merged heads."""

    source: list[str]
    target: list[str]
    heads: list[tuple[int, int]]  # layer and head, as weights count them
    weights: Any  # float32 [heads, target words, source words]
    links: Links  # source word, target word, both from 0
    merge: str
    shares: bool = False
    back: Any = None  # of the translator back, the mean of its heads: float32 [source words, target words]

    def of_head(self, layer: int, head: int) -> Links:
        """The links of one head alone."""
        if (layer, head) not in self.heads:
            raise ValueError(f"align: there is no head {layer}.{head}; the model's last one is {self.heads[-1][0]}.{self.heads[-1][1]}")
        return _core.word_links(self.weights[self.heads.index((layer, head))], self.merge, self.shares, self.back)

    def __str__(self) -> str:
        """Pharaoh's form, such as 0-0 1-2."""
        return " ".join(f"{s}-{t}" for s, t in self.links)


def align(
    model: str | os.PathLike[str],
    pairs: Sequence[tuple[str, str]],
    *,
    step: str = "writes",
    merge: str = "grow-diag",
    heads: Sequence[tuple[int, int]] = (),
    shares: bool = False,
    back: str | os.PathLike[str] | None = None,
    back_heads: Sequence[tuple[int, int]] = (),
    threads: int = 0,
) -> list[Aligned]:
    """Which word is whose translation, for pairs of a sentence and its translation.

    `model` is a translator's folder. `step` says whose row a target word has: the step that writes it, or the next one,
    which reads it. `merge` is argmax, intersection, union, grow-diag, grow-diag-final or grow-diag-final-and. `heads` are
    those whose weights are averaged, as layer and head; none: all. With `shares` each weight counts by its share of what
    its source word gets, then of its target word's row. `back` is the folder of a translator of the other direction; the
    mean of its `back_heads` (none: all) says which target word each source word has.
    """
    if back_heads and back is None:
        raise ValueError("align: back_heads are heads of the other direction; give its translator as back")
    there, here = ([f"{layer}.{head}" for layer, head in chosen] for chosen in (heads, back_heads))
    names, found = _core.align_pairs(os.fspath(model), os.fspath(back or ""), list(pairs), (step, merge, shares), there, here, threads)
    return [Aligned(source, target, names, weights, links, merge, shares, turned) for source, target, weights, turned, links in found]
