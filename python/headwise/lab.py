"""hw.lab: what the heads of a model do, and surgery on them.

Models are folders: a recogniser that `headwise train` wrote, a BERT-style encoder, or a decoder. Changes of single heads
take the first two.
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
    depth: dict[str, Any]  # name -> [layers, 3]: rollout, flow and rank collapse behind each layer, half, shuffled
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
    rows_only: bool = False,
    part: Literal["own", "cross", "source"] | None = None,
) -> Survey:
    """What every head of a model does on texts, beside a shuffled model and chance.

    rows_only: figures of rows of weights alone; all others are NaN, and there are no roles and no map. part: of a
    translator, "source" its encoder; "own" and "cross" its decoder, whose texts are a source, a tab and its translation.
    """
    named = -1 if part is None else ("own", "cross", "source").index(part)
    made = _core.lab_survey(model, list(texts), [most, tokens, seed, int(rows_only), named], conllu or "", pairs or "")
    return _survey_of(made)


# What arrays of weights cannot say: these need the model's matrices, or that it reads random tokens.
_OF_MODELS = (
    "induction duplicate score_rank gradient gradient_sep out_norm qk_rank qk_top ov_rank ov_top copying".split()
)


def survey_arrays(
    weights: Sequence[Any],
    *,
    ids: Sequence[Sequence[int]] | None = None,
    cls: Sequence[Sequence[int]] | None = None,
    sep: Sequence[Sequence[int]] | None = None,
    punctuation: Sequence[Sequence[int]] | None = None,
    value_norms: Sequence[Any] | None = None,
    causal: bool = False,
    clusters: int = 8,
    seed: int = 1,
) -> Survey:
    """The figures of `survey` from weights of any model of any library, one entry of `weights` a text.

    weights: [layers, heads, tokens, tokens], or a sequence of [heads, tokens, tokens] or [1, heads, tokens, tokens], one
    a layer, as `output_attentions` gives them; `weights_of` makes them of q and k. ids: the tokens, for the rarest one.
    cls, sep and punctuation: places of these tokens in each text. value_norms: |v W_O|, [layers, heads, tokens] a text.
    The shuffled model is the same rows with their entries shuffled. What needs the model itself is NaN.
    """
    import numpy as np

    heads: list[int] = []
    tokens: list[int] = []
    rows = []
    for number, text in enumerate(weights):
        layers = [_array(layer) for layer in text]
        layers = [layer[0] if layer.ndim == 4 and len(layer) == 1 else layer for layer in layers]
        shapes = [layer.shape for layer in layers]
        if not layers or any(len(s) != 3 or s[1] != s[2] or s[1] != shapes[0][1] for s in shapes):
            raise ValueError(f"lab: the weights of text {number} are {shapes}; give [heads, tokens, tokens] a layer")
        if heads and heads != [s[0] for s in shapes]:
            raise ValueError(f"lab: text {number} has {[s[0] for s in shapes]} heads by layer, the first {heads}; give as many")
        heads = [s[0] for s in shapes]
        tokens.append(shapes[0][1])
        rows.append(b"".join(layer.tobytes() for layer in layers))
    norms = []
    for text in value_norms or ():
        norms.append(b"".join(_array(layer).tobytes() for layer in text))
    for name, given in (("ids", ids), ("cls", cls), ("sep", sep), ("punctuation", punctuation), ("value_norms", value_norms)):
        if given is not None and len(given) != len(rows):
            raise ValueError(f"lab: got {len(rows)} texts and {name} of {len(given)}; give as many")
    kinds = []
    for number, count in enumerate(tokens):
        kind = np.zeros(count, int)
        for bit, given in ((1, cls), (2, sep), (4, punctuation)):
            places = list(given[number]) if given is not None else []
            if any(not 0 <= p < count for p in places):
                raise ValueError(f"lab: text {number} has {count} tokens but {places} are named; name 0 to {count - 1}")
            kind[places] |= bit
        kinds.append(kind.tolist())
    names = [list(map(int, row)) for row in ids] if ids is not None else [[0] * count for count in tokens]
    if [len(row) for row in names] != tokens:
        raise ValueError(f"lab: ids have {[len(row) for row in names]} tokens but the weights {tokens}; give as many")
    survey = _survey_of(_core.lab_survey_arrays(rows, norms, heads, names, kinds, [seed, clusters, int(causal)]))
    unknown = [*_OF_MODELS, *([] if ids is not None else ["rare"]), *([] if norms else ["value_special"])]
    for name in unknown:
        for numbers in (survey.figures, survey.half, survey.shuffled):
            numbers[name][:] = np.nan
        survey.chance[name] = np.nan
    return survey


def weights_of(q: Any, k: Any, *, scale: float | None = None, causal: bool = False) -> Any:
    """softmax(scale q k^T) in float32, [..., heads, tokens, tokens]: heads of q that are more than those of k share them.

    q: [..., heads, tokens, dim], k: [..., kv_heads, tokens, dim], both as the scores meet them, behind RoPE for one.
    """
    import numpy as np

    q, k = _array(q).astype(np.float64), _array(k).astype(np.float64)
    if q.ndim < 3 or q.ndim != k.ndim or q.shape[-3] % k.shape[-3] or q.shape[-2:] != k.shape[-2:]:
        raise ValueError(f"lab: q is {q.shape} and k {k.shape}; give [heads, tokens, dim] and a part of the heads for k")
    k = np.repeat(k, q.shape[-3] // k.shape[-3], axis=-3)
    scores = (q.shape[-1] ** -0.5 if scale is None else scale) * (q @ np.swapaxes(k, -1, -2))
    if causal:
        scores = np.where(np.tri(q.shape[-2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def _array(given: Any) -> Any:
    """Float32 in order; tensors of torch are taken from where they are."""
    import numpy as np

    if hasattr(given, "detach"):
        given = given.detach().float().cpu().numpy()
    return np.ascontiguousarray(given, dtype=np.float32)


def _survey_of(words: str) -> Survey:
    import numpy as np

    made, apart = words.split("\0")
    data = json.loads(made)
    heads = data["heads"]
    numbers = np.array([h["figures"] for h in heads], dtype=float)
    names = data["figures"]
    rows = [line.split(",")[1:] for line in apart.splitlines()[1:]]
    found = np.array([h["relations"] for h in heads])
    return Survey(
        figures={n: numbers[:, i, 0] for i, n in enumerate(names)},
        half={n: numbers[:, i, 1] for i, n in enumerate(names)},
        shuffled={n: numbers[:, i, 2] for i, n in enumerate(names)},
        chance={n: np.nan if c[0] is None else c[0] for n, c in zip(names, data["chance"], strict=False)},
        layer=np.array([h["layer"] for h in heads]),
        head=np.array([h["head"] for h in heads]),
        roles=[h["roles"] for h in heads],
        cluster=np.array([h["cluster"] for h in heads]),
        place=np.array([h["place"] for h in heads]),
        apart=np.array(rows, dtype=float),
        depth={n: np.array(rows, dtype=float)[:, :3] for n, rows in data["depth"].items()},
        relations={r["name"]: found[:, i, :2] for i, r in enumerate(data["relations"])},
        baselines={r["name"]: r["baseline"] for r in data["relations"]},
        texts=data["texts"],
        tokens=data["tokens"],
    )


@dataclass(frozen=True)
class History:
    """Figures of all heads after every epoch of a training, as NumPy arrays."""

    epochs: Any  # [epochs]
    layer: Any  # [heads]
    head: Any  # [heads], the number inside its layer
    figures: dict[str, Any]  # name -> [epochs, heads]
    roles: list[list[str]]  # [epochs][heads], " | " between several


def during(model: str) -> History:
    """What `headwise train --during` kept in a model's folder, or in the folder of a training that still runs."""
    import numpy as np

    with open(f"{model}/during.json", encoding="utf-8") as file:
        data = json.load(file)
    epochs = sorted({row["epoch"] for row in data["heads"]})
    first = [row for row in data["heads"] if row["epoch"] == epochs[0]]
    numbers = np.array([row["figures"] for row in data["heads"]], dtype=float).reshape(len(epochs), len(first), -1)
    roles = [row["roles"] for row in data["heads"]]
    return History(
        epochs=np.array(epochs),
        layer=np.array([row["layer"] for row in first]),
        head=np.array([row["head"] for row in first]),
        figures={name: numbers[:, :, i] for i, name in enumerate(data["figures"])},
        roles=[roles[i * len(first) : (i + 1) * len(first)] for i in range(len(epochs))],
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

    keys: list[float]  # by layer, squared differences over squares; empty for collaborative heads
    values: list[float]
    kl: float  # recognisers and decoders (of the next token): mean KL(before || after), nats
    same: float  # recognisers: share of texts with the same labels
    cosine: float  # encoders: mean cosine of the vectors
    energy: list[float] = field(default_factory=list)  # collaborative heads: by layer, what is kept of |W_Q^T W_K|^2


def convert(
    model: str,
    out: str,
    *,
    kv_heads: int | None = None,
    shared: int | None = None,
    texts: Sequence[str],
    by: Literal["mean", "first", "aligned"] = "aligned",
    steps: int = 100,
) -> Conversion:
    """Writes the model with shared keys to the folder `out`; texts calibrate and measure.

    kv_heads: heads share keys and values in groups. shared: heads become collaborative and weigh so many columns of
    one query and one key, found in at most `steps` steps of least squares.
    """
    if shared is not None and kv_heads is None:
        energy, kl, same, cosine = _core.lab_share(model, out, shared, steps, list(texts))
        return Conversion([], [], kl, same, cosine, energy)
    if kv_heads is None or shared is not None:
        raise ValueError("lab: give kv_heads, or how many columns are shared; not both")
    layers, kl, same, cosine = _core.lab_convert(model, out, kv_heads, by, list(texts))
    return Conversion([k for k, _ in layers], [v for _, v in layers], kl, same, cosine)


@dataclass(frozen=True)
class Change:
    """What one head gives instead of its output.

    part names the attention of a decoder or translator: own, cross, or source, the translator's encoder.
    off: nothing. scaled: `factor` times it. noised: normal noise of `factor` standard deviations, by the seed. mean:
    its mean over all rows. patched: `rows` of another run, as head_rows gives them.
    """

    layer: int
    head: int
    kind: Literal["off", "scaled", "noised", "mean", "patched"] = "off"
    factor: float = 0.0
    seed: int = 0
    part: Literal["own", "cross", "source"] = "own"
    rows: Any = field(default=None, repr=False)


def answers(
    model: str,
    texts: Sequence[str],
    changes: Sequence[Change] = (),
    *,
    without: Sequence[tuple[int, int, int, int] | tuple[int, int, int, int, str]] = (),
    targets: Sequence[str] = (),
    states: Any = None,
) -> Any:
    """What a model gives while heads are changed: probabilities [texts, labels], or vectors [texts, model_dim].

    A decoder and a translator give the probabilities of the next token, [texts, vocabulary]. targets: what a
    translator has written of each text. states: what the cross heads of a decoder look at, [tokens, model_dim].
    without: pairs that are knocked out, as (layer, head, query, key) or with the part behind them, all of one layer.
    Tokens are counted from 0 as the model reads a text, [CLS] included. The other weights of the row share what the
    pair had. Decoders take pairs of several layers.
    """
    import numpy as np

    all_changes = [
        (c.kind, c.layer, c.head, c.part, c.factor, c.seed, [] if c.rows is None else np.ravel(c.rows).tolist())
        for c in changes
    ]
    pairs = [(*pair, "own") if len(pair) == 4 else pair for pair in without]
    rows = _core.lab_answers(model, list(texts), all_changes, pairs, list(targets), _rows_of(states))
    return np.array(rows, dtype=np.float32)


def head_rows(
    model: str,
    texts: Sequence[str],
    layer: int,
    head: int,
    *,
    part: Literal["own", "cross", "source"] = "own",
    targets: Sequence[str] = (),
    states: Any = None,
) -> Any:
    """What one head gives for every token of the texts, before W_O: float32 [rows * value_dim]."""
    import numpy as np

    rows = _core.lab_head_rows(model, list(texts), layer, head, part, list(targets), _rows_of(states))
    return np.array(rows, dtype=np.float32)


def _rows_of(states: Any) -> list[list[float]]:
    rows: list[list[float]] = [] if states is None else _array(states).tolist()
    return rows


def rollout(model: str, text: str) -> Any:
    """How much of each input token is in each token behind the last layer: [tokens, tokens], rows sum to 1."""
    import numpy as np

    return np.array(_core.lab_rollout(model, text))


def flow(model: str, text: str, token: int = 0) -> Any:
    """The largest flow from a token behind the last layer to each input token, one at a time: [tokens], sum 1."""
    import numpy as np

    return np.array(_core.lab_flow(model, text, token))
