"""What a figure must reach and what it should reach then, by architecture; a must counts within 2 %."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

NEAR = 0.02

# what is judged -> (must, then); None: no figure is set. "most" goals are upper bounds.
COMMON = {
    "causal_rate": (0.93, 0.97),
    "rows_slower": (0.10, 0.05),
    "columns_slower": (0.60, None),
    "extra_mb": (64, None),
    "read packed f32": (0.80, 0.90), "read packed f16": (0.80, 0.90), "read packed bf16": (0.70, 0.85),
    "read plain f32": (0.65, 0.75), "read plain f16": (0.65, 0.75), "read plain bf16": (0.65, 0.75),
    "over_f16": (0.65, None), "torch decode": (1.2, None), "torch decode gqa": (2.0, None),
}
TARGETS = {
    "aarch64": COMMON | {
        "share f32 128": (0.77, 0.88), "share f32 64": (0.72, 0.85),
        "torch f32": (1.2, 2.0), "torch bf16": (1.2, 2.0), "torch small": (1.0, 1.5),
        "over_f32 128": (2.2, 2.8), "over_f32 64": (1.8, 2.3),
        "backward share f32 own": (0.72, 0.80), "backward share f32 cut": (0.70, 0.80),
        "backward torch f32": (1.5, 3.0), "backward torch bf16": (1.5, 3.0), "backward over_f32": (1.5, 2.2),
    },
    "x86_64": COMMON | {
        "share f32 128": (0.65, None), "share f32 64": (0.65, None),
        "torch f32": (1.2, 2.0), "torch bf16": (1.2, 2.0), "torch small": (1.0, 1.5),
        "backward share f32 own": (0.65, None), "backward share f32 cut": (0.65, None),
        "backward torch f32": (1.5, 3.0), "backward torch bf16": (1.5, 3.0), "backward over_f32": (1.5, 2.2),
    },
    # A larger x86-64 host with many cores, where torch may be another version.
    "x86_64-host": {"torch f32": (1.1, 1.5)},
}
MOST = {"rows_slower", "columns_slower", "extra_mb", "over_f16"}


def judge(targets: dict, what: str, value: float) -> dict | None:
    """{what, value, must, then, verdict}; the verdict is "then", "must" or "below". None: nothing is set for it."""
    if what not in targets:
        return None
    must, then = targets[what]
    if what in MOST:
        reached, further = value <= must * (1 + NEAR), then is not None and value <= then
    else:
        reached, further = value >= must * (1 - NEAR), then is not None and value >= then
    return {"what": what, "value": value, "must": must, "then": then,
            "verdict": "then" if further else "must" if reached else "below"}
