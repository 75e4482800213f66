"""Plain records that go into and come out of attention: they hold values, they compute nothing."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

end: Final[int] = -(2**63)
"""As q_start: the last query meets the last key (bottom-right), whatever their numbers."""


@dataclass(frozen=True)
class T5:
    """Relative positions in buckets: table [buckets heads] holds what is added to a logit."""

    table: Any
    bidirectional: bool = True
    max_distance: int = 128


@dataclass(frozen=True)
class Pages:
    """k and v are pools of pages: token t of sequence b is token t % page_size of page table[b][t // page_size].

    table: int32 [batch pages_each], where k and v lie. lengths: tokens of each sequence, [batch], on the CPU.
    k and v: [pages page_size kv_heads dim], with layout="bhsd" [pages kv_heads page_size dim]; pages of 8 to 256 tokens.
    """

    table: Any
    lengths: Any


@dataclass(frozen=True)
class Probe:
    """Which statistics of the normalized weights a call returns, per head, before dropout.

    rows: entropy, top_weight and its key top_position, second_moment, mean_distance, sink_mass of each row: True for
    all six, or the names of some, which may take less time. entropy, top_weight and sink_mass together are the quick ones.
    top_k: the heaviest keys of each row. classes: integer ids [kv_tokens] or [batch kv_tokens]; each row's mass per class.
    columns: the weight each key receives. picks: (batch, head, query) rows whose weights are written out.
    """

    rows: bool | str | Sequence[str] = False
    top_k: int = 0
    classes: Any = None
    num_classes: int | None = None
    columns: bool = False
    picks: Sequence[tuple[int, int, int]] | None = None


@dataclass(frozen=True)
class Scores:
    """The whole matrix [batch heads q kv] at one stage, from the reference kernel; at most 64 Mi entries.

    stage: "scaled" (0), "softcapped" (1), "biased" (2) or "weights" (3).
    """

    stage: str | int = "weights"


@dataclass
class ProbeResult:
    """What was asked for; the rest is None. [batch heads q ...], ragged [heads tokens ...]."""

    entropy: Any = None
    top_weight: Any = None
    top_position: Any = None
    second_moment: Any = None
    mean_distance: Any = None
    sink_mass: Any = None
    top_keys: Any = None
    top_weights: Any = None
    class_mass: Any = None
    column_sums: Any = None
    picked_weights: Any = None
    scores: Any = None


class AttentionResult(NamedTuple):
    """out; lse [batch heads q], natural log, sink included (ragged: [heads tokens]), or None; the probe's result, or None."""

    out: Any
    lse: Any
    probe: Any


class AttentionGradients(NamedTuple):
    """What attention_backward returns: a gradient in the shape of each array that was asked for, None for the rest;
    those of coefficients in a dict by name."""

    dq: Any
    dk: Any
    dv: Any
    # made by tools/check_tables.py: gradients
    dbias: Any
    dalibi: Any
    drelative: Any
    dsinks: Any
    dscale: Any
    dgate: Any
    # end
    dcoefficients: dict[str, Any]
