"""Model settings of the recogniser's benchmarks: a name, and what it adds to `headwise train`. One list for runs and tables."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

# Comparisons of heads leave the n-grams out: they are no attention, and the BiLSTM has none.
FUSED = "+gated:source=input,act=silu"  # the recogniser's own fusion
KINDS = {
    "mha": "mha:heads=8", "gqa": "gqa:heads=8,kv_heads=2", "moh": "moh:heads=8,shared=2,k=3", "dcmha": "dcmha:heads=8",
    "talking": "talking:heads=8", "overlapped": "overlapped:heads=8", "collaborative": "collaborative:heads=8",
    "entmax": "entmax:heads=8",
}
SWEEP = (1, 2, 4, 8, 12, 16, 32)  # heads of 192 columns together: the parameters stay the same
FUSIONS = {
    "concat": {"heads": "mha:heads=8"},
    "glu-input": {"heads": "mha:heads=8" + FUSED},
    "glu-heads": {"heads": "mha:heads=8+gated:source=heads,act=silu"},
    "rms-after": {"norm": "rms", "norm-after": True},
    "layer-first": {"norm": "layer"},
    "layer-after": {"norm": "layer", "norm-after": True},
}

OPEN = {"may-lose": 0}  # nothing is refused where dev has no out-of-scope rows
FINE = {"dtype": "f32"}  # on a device, which learns in f32
CUT = {"compound": "cut", **OPEN}  # the recipe's own 8 epochs of 256 texts
JOINS = (",", "and", "and then", "and also")  # MixBANKING77 was built with them
CUT_64 = {**CUT, "batch": 64}
MINILM_CUT = {"from": "minilm", "compound": "cut", "batch": 128, "epochs": 4, "rate": 1e-3, "encoder-rate": 0.1, **FINE, **OPEN}

SETTINGS: dict[str, dict] = {
    "scratch": {},
    "minilm": {"from": "minilm"},
    "one-head": {"heads": "mha:heads=1" + FUSED, "ngrams": 0},
    "eight-heads": {"heads": "mha:heads=8" + FUSED, "ngrams": 0},
    "cut": {"compound": "cut", "batch": 64, "epochs": 3},
    "cut-256": {"compound": "cut", "epochs": 3, "dtype": "bf16"},
    "cut-one-head": {"compound": "cut", "batch": 64, "epochs": 3, "heads": "mha:heads=1" + FUSED},
    "cut-segment": {"compound": "cut", "batch": 64, "epochs": 3, "heads": "segment:heads=8" + FUSED},
    "labels": {"compound": "labels"},
    "auto": {"compound": "auto"},
    "cut-full": CUT,
    "cut-joins": {**CUT, "connectors": JOINS},
    "cut-joins-64": {**CUT_64, "connectors": JOINS},
    "cut-joins-one-head": {**CUT, "connectors": JOINS, "heads": "mha:heads=1" + FUSED},
    "cut-64": CUT_64,
    "cut-64-rope": {**CUT_64, "positions": "rope"},
    "cut-64-one-head": {**CUT_64, "heads": "mha:heads=1" + FUSED},
    "cut-full-one-head": {**CUT, "heads": "mha:heads=1" + FUSED},
    "cut-full-no-ngrams": {**CUT, "ngrams": 0},
    "cut-full-mean": {**CUT, "pooling": "mean"},
    "cut-full-rope": {**CUT, "positions": "rope"},
    "cut-full-segment": {**CUT, "heads": "segment:heads=8" + FUSED},
    "labels-full": {"compound": "labels", **OPEN},
    "scratch-open": OPEN,
    "scratch-labels": {"pooling": "labels", **OPEN},
    "scratch-long": {"epochs": 24, "dropout": 0.2, **OPEN},
    "minilm-cut": {**MINILM_CUT, "pooling": "attention"},
    "minilm-cut-mean": MINILM_CUT,
    "minilm-labels": {"from": "minilm", "compound": "labels", **FINE, **OPEN},
    "minilm-open": {"from": "minilm", **FINE, **OPEN},
    "minilm-long": {"from": "minilm", **FINE, "epochs": 16, **OPEN},
    "minilm-slow": {"from": "minilm", **FINE, "epochs": 12, "rate": 6e-4, **OPEN},
    "minilm-attention": {"from": "minilm", "pooling": "attention", **FINE, "epochs": 12, **OPEN},
    "minilm-128": {"from": "minilm", "batch": 128, "epochs": 12, **FINE, **OPEN},
    "minilm-128-oos": {"from": "minilm", "batch": 128, "epochs": 12, **FINE},
    "minilm-f32": {"from": "minilm", **FINE},
    "minilm-f32-long": {"from": "minilm", **FINE, "epochs": 16},
    **{f"kind-{name}": {"heads": heads, "ngrams": 0, "minutes": 12} for name, heads in KINDS.items()},
    **{f"heads-{h}": {"heads": f"mha:heads={h}", "ngrams": 0, "model-dim": 192, "depth": 2} for h in SWEEP},
    **{f"fusion-{name}": {**options, "ngrams": 0} for name, options in FUSIONS.items()},
}


def words_of(setting: str, minilm: str | None) -> list[str]:
    """As the command line has them."""
    if setting not in SETTINGS:
        raise SystemExit(f"{setting!r} is no setting; there are {', '.join(SETTINGS)}")
    words = []
    for name, value in SETTINGS[setting].items():
        if name == "from":
            if not minilm:
                raise SystemExit(f"{setting}: give --minilm, the folder with its config.json and model.safetensors")
            value = minilm
        words += [f"--{name}"] if value is True else [f"--{name}", *value] if isinstance(value, tuple) else [f"--{name}", str(value)]
    return words
