"""hw.lab: what the heads of a model do, and surgery on them.

Models are folders: a recogniser that `headwise train` wrote, a BERT-style encoder, and for surveys a decoder too.
"""
# SPDX-License-Identifier: Apache-2.0

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from . import _core


@dataclass(frozen=True)
class Survey:
    """Figures of all heads, layer by layer, as NumPy arrays."""

    figures: dict[str, Any]  # name -> [heads], the mean over texts
    half: dict[str, Any]  # half of its 95 % interval
    shuffled: dict[str, Any]  # the same head of a model with shuffled attention matrices
    chance: dict[str, float]  # heads with random weights
    layer: Any  # [heads]
    head: Any  # [heads], the number inside its layer
    roles: list[list[str]]
    cluster: Any  # [heads]
    place: Any  # [heads, 2], on the map
    apart: Any  # [heads, heads], mean Jensen-Shannon divergence, nats
    relations: dict[str, Any]  # name -> [heads, 2]: forth and back
    baselines: dict[str, float]  # name -> share of the best offset
    texts: int
    tokens: int


def survey(
    model: str,
    texts: Sequence[str],
    *,
    most: int = 200,
    tokens: int = 128,
    conllu: str | None = None,
    pairs: str | None = None,
    seed: int = 1,
) -> Survey:
    """What every head of a model does on texts, beside a shuffled model and chance."""
    import numpy as np

    made, apart = _core.lab_survey(model, list(texts), most, tokens, conllu or "", pairs or "", seed).split("\0")
    data = json.loads(made)
    heads = data["heads"]
    numbers = np.array([h["figures"] for h in heads])
    names = data["figures"]
    rows = [line.split(",")[1:] for line in apart.splitlines()[1:]]
    found = np.array([h["relations"] for h in heads])
    return Survey(
        figures={n: numbers[:, i, 0] for i, n in enumerate(names)},
        half={n: numbers[:, i, 1] for i, n in enumerate(names)},
        shuffled={n: numbers[:, i, 2] for i, n in enumerate(names)},
        chance={n: c[0] for n, c in zip(names, data["chance"], strict=False)},
        layer=np.array([h["layer"] for h in heads]),
        head=np.array([h["head"] for h in heads]),
        roles=[h["roles"] for h in heads],
        cluster=np.array([h["cluster"] for h in heads]),
        place=np.array([h["place"] for h in heads]),
        apart=np.array(rows, dtype=float),
        relations={r["name"]: found[:, i, :2] for i, r in enumerate(data["relations"])},
        baselines={r["name"]: r["baseline"] for r in data["relations"]},
        texts=data["texts"],
        tokens=data["tokens"],
    )


def cut(
    model: str,
    out: str,
    *,
    plan: Mapping[str, Any] | None = None,
    keep: int | None = None,
    texts: Sequence[str] = (),
    labels: Sequence[Sequence[str]] = (),
    rank: Literal["michel", "off", "greedy"] = "off",
) -> dict[str, Any]:
    """Writes the model without some heads to the folder `out`; returns the plan.

    Give a plan such as {"heads": [8, 8], "cut": {"0": [1, 2]}}, or how many heads to keep and the texts on which
    they are ranked.
    """
    if (plan is None) == (keep is None):
        raise ValueError("lab: give a plan, or how many heads to keep; not both")
    words = "" if plan is None else json.dumps(plan)
    rows = [list(row) for row in labels]
    return dict(json.loads(_core.lab_cut(model, out, words, list(texts), rows, keep or 0, rank)))


@dataclass(frozen=True)
class Conversion:
    """How far shared heads are from those they stand for, and how far answers moved."""

    keys: list[float]  # by layer, squared differences over squares
    values: list[float]
    kl: float  # recognisers: mean KL(before || after), nats
    same: float  # recognisers: share of texts with the same labels
    cosine: float  # encoders: mean cosine of the vectors


def convert(
    model: str,
    out: str,
    *,
    kv_heads: int,
    texts: Sequence[str],
    by: Literal["mean", "first", "aligned"] = "aligned",
) -> Conversion:
    """Writes the model with shared keys and values to the folder `out`; texts calibrate and measure."""
    layers, kl, same, cosine = _core.lab_convert(model, out, kv_heads, by, list(texts))
    return Conversion([k for k, _ in layers], [v for _, v in layers], kl, same, cosine)


@dataclass(frozen=True)
class Change:
    """What one head gives instead of its output.

    off: nothing. scaled: `factor` times it. noised: normal noise of `factor` standard deviations, by the seed. mean:
    its mean over all rows. patched: `rows` of another run, as head_rows gives them.
    """

    layer: int
    head: int
    kind: Literal["off", "scaled", "noised", "mean", "patched"] = "off"
    factor: float = 0.0
    seed: int = 0
    rows: Any = field(default=None, repr=False)


def answers(model: str, texts: Sequence[str], changes: Sequence[Change] = ()) -> Any:
    """What a model gives while heads are changed: probabilities [texts, labels], or vectors [texts, model_dim]."""
    import numpy as np

    all_changes = [
        (c.kind, c.layer, c.head, c.factor, c.seed, [] if c.rows is None else np.ravel(c.rows).tolist())
        for c in changes
    ]
    return np.array(_core.lab_answers(model, list(texts), all_changes), dtype=np.float32)


def head_rows(model: str, texts: Sequence[str], layer: int, head: int) -> Any:
    """What one head gives for every token of the texts, before W_O: float32 [rows * value_dim]."""
    import numpy as np

    return np.array(_core.lab_head_rows(model, list(texts), layer, head), dtype=np.float32)
