"""python -m headwise.selftest: an installed package against the formula in double, in a few seconds and with NumPy alone."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pathlib
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import headwise as hw

Array = Any
TOKENS, HEADS, DIM = 37, 4, 16
MASKS = {
    "all": hw.Mask(),
    "causal": hw.Mask.causal(),
    "window": hw.Mask.window(5, 2),
    "prefix": hw.Mask.causal() | hw.Mask.prefix(9),
    "lengths": hw.Mask.lengths([TOKENS, 20]),
}


def _open(name: str) -> Array:
    """The same pairs by plain comparison, [batch 1 q kv]."""
    i, j = np.arange(TOKENS)[:, None], np.arange(TOKENS)[None, :]
    pairs = {
        "all": (i >= 0) & (j >= 0),
        "causal": j <= i,
        "window": (j >= i - 5) & (j <= i + 2),
        "prefix": (j <= i) | ((j < 9) & (i >= 0)),
    }
    if name == "lengths":
        return np.stack([(j < n) & (i >= 0) for n in (TOKENS, 20)])[:, None]
    return np.stack([pairs[name]] * 2)[:, None]


def _formula(q: Array, k: Array, v: Array, open: Array) -> Array:
    q, k, v = (x.astype(np.float64).swapaxes(1, 2) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = np.where(open, q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True) @ v).swapaxes(1, 2)


def _draw(dtype: Any, kv_heads: int = HEADS) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(1)
    return tuple(rng.standard_normal((2, TOKENS, h, DIM)).astype(dtype) for h in (HEADS, kv_heads, kv_heads))  # type: ignore[return-value]


def _forward(mask: str, dtype: Any, kv_heads: int, most: float) -> float:
    q, k, v = _draw(dtype, kv_heads)
    found = hw.attention(q, k, v, mask=MASKS[mask])
    return float(np.abs(found.astype(np.float64) - _formula(q, k, v, _open(mask))).max()) / most


def _gradient() -> float:
    """dq of a causal call against differences of the formula."""
    q, k, v = _draw(np.float64)
    out = hw.attention(q, k, v, mask=MASKS["causal"], return_lse=True)
    weight = np.random.default_rng(2).standard_normal(q.shape)
    words: dict[str, Any] = dict(q=q, k=k, v=v, out=out.out, lse=out.lse, mask=MASKS["causal"])
    found = hw.attention_backward(weight, **words)
    worst, step = 0.0, 1e-5
    for at in ((0, 0, 0, 0), (1, 20, 3, 7), (0, 36, 1, 15)):
        sides = []
        for sign in (1, -1):
            moved = q.copy()
            moved[at] += sign * step
            sides.append(float((_formula(moved, k, v, _open("causal")) * weight).sum()))
        worst = max(worst, abs((sides[0] - sides[1]) / (2 * step) - float(found.dq[at])))
    return worst / 1e-6


def _same_bits() -> float:
    """A text's bits do not depend on its neighbours or on threads."""
    q, k, v = _draw(np.float32)
    whole = hw.attention(q, k, v, ctx=hw.Context(threads=2))
    alone = hw.attention(q[1:], k[1:], v[1:], ctx=hw.Context(threads=1))
    return 0.0 if np.array_equal(whole[1:], alone) else 2.0


def _program() -> float:
    program = pathlib.Path(__file__).parent / "bin/headwise"
    said = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False).stdout
    return 0.0 if hw.__version__ in said else 2.0


def _refusal() -> float:
    q, k, v = _draw(np.float32)
    try:
        hw.attention(q, k[:1], v)
    except ValueError:
        return 0.0
    return 2.0


def main() -> int:
    """Every test says how far it is off, in parts of what is allowed."""
    tests: dict[str, Callable[[], float]] = {}
    for name in MASKS:
        tests[f"{name}, f32"] = partial(_forward, name, np.float32, HEADS, 2e-6)
        tests[f"{name}, f16, shared keys"] = partial(_forward, name, np.float16, 2, 4e-3)
        tests[f"{name}, f64"] = partial(_forward, name, np.float64, 1, 1e-13)
    tests |= {"gradient": _gradient, "same bits": _same_bits, "refusal": _refusal}
    if (pathlib.Path(__file__).parent / "bin/headwise").exists():
        tests["program"] = _program
    failed = 0
    for name, test in tests.items():
        off = test()
        if not off <= 1:
            failed += 1
            print(f"{name}: failed, off by {off:.3g} of what is allowed")
    print(f"headwise {hw.__version__} selftest: {len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
