#!/usr/bin/env python3
"""Head variants against our own MHA of the same sizes and against eager torch, all sides in one process taking turns.

Every case is one line of CASES: a name and a function of (tokens, causal) that gives its sides. `ours` is judged against
`mha` (times its time) and against `eager` (how many times as fast); other sides are forms of ours. Projections and coefficient
networks stay outside the clock. Figures are the median and the range of the rounds."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable

import headwise as hw

import measure
import report
from measure import Effort, torch

HEADS, DIM, RANK = 16, 64, 2
CASES: dict[str, Callable[[int, bool], dict]] = {}
# what -> (must, then): at most so many times the time of our MHA, at least so many times as fast as eager torch
GOALS = {
    "talking forward mha": (1.7, 1.4), "talking forward twice mha": (2.2, None),
    "talking forward all eager": (1.3, 2.0), "talking forward causal eager": (2.5, 4.0),
    "dcmha forward mha": (1.8, 1.45), "dcmha forward twice mha": (2.3, None), "dcmha forward eager": (2.0, 5.0),
}


def case(name: str):
    def add(make: Callable[[int, bool], dict]):
        CASES[name] = make
        return make

    return add


def normal(seed: int, *sizes: int, by: float = 1.0):
    return by * torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def mix_words(name: str, tokens: int) -> dict:
    if name == "talking":
        return {w: torch.eye(HEADS) + normal(3 + i, HEADS, HEADS, by=0.1)
                for i, w in enumerate(("mix_before", "mix_after"))}
    rows = 2 * (2 * RANK + 1)
    return {w: normal(5 + i, 1, tokens, rows, HEADS, by=0.1) for i, w in enumerate(("mix_q", "mix_k"))}


def eager_mix(x, words: dict, which: int):
    """x [b m q k], before (0) or after (1) the normalizer, as its authors write it: whole matrices in memory."""
    if "mix_before" in words:
        return torch.einsum("bmij,mh->bhij", x, words["mix_after" if which else "mix_before"])
    y = x
    for side, near in ((words["mix_q"], "i"), (words["mix_k"], "j")):
        c = side[:, :, which * (2 * RANK + 1):]
        for r in range(RANK):
            down = torch.einsum(f"bmij,b{near}m->bij", x, c[:, :, r])
            y = y + torch.einsum(f"bij,b{near}h->bhij", down, c[:, :, RANK + r])
        y = y + torch.einsum(f"bhij,b{near}h->bhij", x, c[:, :, 2 * RANK])
    return y


def eager(q, k, v, words: dict, hidden):
    s = eager_mix(q @ k.transpose(-1, -2) * DIM**-0.5, words, 0)
    if hidden is not None:
        s = s.masked_fill(hidden, float("-inf"))
    return eager_mix(torch.softmax(s, -1), words, 1) @ v


def mixed_setting(name: str, tokens: int, causal: bool):
    q, k, v = (normal(i, 1, tokens, HEADS, DIM) for i in range(3))
    heads_first = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1) if causal else None
    return q, k, v, heads_first, hidden, hw.Mask.causal() if causal else None, mix_words(name, tokens)


def mixed_forward(name: str, tokens: int, causal: bool) -> dict:
    q, k, v, heads_first, hidden, mask, words = mixed_setting(name, tokens, causal)
    check(name, hw.attention(q, k, v, mask, coefficients=words), eager(*heads_first, words, hidden).transpose(1, 2))
    return {
        "ours": lambda: hw.attention(q, k, v, mask, coefficients=words),
        "twice": lambda: hw.attention(q, k, v, mask, kernels="cpu/mixed_twice", coefficients=words),
        "mha": lambda: hw.attention(q, k, v, mask),
        "eager": lambda: eager(*heads_first, words, hidden),
    }


def check(name: str, ours, theirs) -> None:
    distance = float((ours - theirs).norm() / theirs.norm())
    if not distance < 1e-4:
        raise SystemExit(f"{name}: the results are {distance:.3g} apart (relative): nothing was timed")


for _name in ("talking", "dcmha"):
    case(f"{_name} forward")(lambda tokens, causal, name=_name: mixed_forward(name, tokens, causal))


def rounds_of(sides: dict, effort: Effort, clock) -> dict[str, list[float]]:
    """The least of a turn's calls is what a turn says: neighbours only ever add."""
    seconds = {name: [] for name in sides}
    names = list(sides)
    for turn in range(effort.rounds):
        for name in names[turn % len(names):] + names[: turn % len(names)]:
            time.sleep(measure.PARK_SECONDS)
            least, start = float("inf"), time.perf_counter()
            while least == float("inf") or time.perf_counter() - start < effort.turn_seconds:
                before = clock()
                sides[name]()
                least = min(least, clock() - before)
            seconds[name].append(least)
    return seconds


def verdict(words: str, kind: str, mask: str, value: float) -> str:
    """"yes", "no" or nothing, for the goal of this figure."""
    goal = GOALS.get(f"{words} {mask} {kind}") or GOALS.get(f"{words} {kind}")
    if goal is None:
        return ""
    good = value <= goal[0] if kind == "mha" else value >= goal[0]
    return f" (must {goal[0]:g}: {'yes' if good else '**no**'})"


def cells_of(name: str, tokens: int, mask: str, seconds: dict) -> list[str]:
    cells = [name, f"f32 [1 {tokens} {HEADS} {DIM}] {mask}",
             *(report.duration(measure.summary(seconds[s])["median"]) for s in ("ours", "mha", "eager"))]
    for side in ("ours", "twice"):
        words = name if side == "ours" else f"{name} {side}"
        if side not in seconds:
            cells += ["", ""]
            continue
        slower, quicker = measure.ratio(seconds[side], seconds["mha"]), measure.ratio(seconds["eager"], seconds[side])
        cells += [report.times(slower) + verdict(words, "mha", mask, slower["median"]),
                  report.times(quicker) + verdict(words, "eager", mask, quicker["median"])]
    return cells


TITLES = ["case", "sizes", "ours", "our MHA", "eager torch", "x time of MHA", "x eager", "two-pass: x time of MHA",
          "two-pass: x eager"]


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    words.add_argument("--cpu-time", action="store_true", help="one thread, its CPU time: for machines with neighbours")
    words.add_argument("--only", default="", help="cases whose name holds this")
    words.add_argument("--tokens", type=int, default=2048)
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--smoke", action="store_true", help="tiny problems: only shows that the driver runs")
    words.add_argument("--out", type=pathlib.Path, help="JSON file; the Markdown goes beside it")
    asked = words.parse_args()
    if torch is None:
        words.error("torch is none; install it: it is one of the rivals")
    threads = 1 if asked.cpu_time else asked.threads
    effort = Effort(2, 0.001, 2, 2) if asked.smoke else Effort(asked.rounds, 0.3, 20, 50)
    measure.set_threads(threads)
    setting = measure.machine(threads, effort)
    clock = time.thread_time if asked.cpu_time else time.perf_counter
    said = f"{report.setting_words(setting)}; {'CPU' if asked.cpu_time else 'wall'} time, least of each turn"
    print(said, flush=True)
    tokens = 48 if asked.smoke else asked.tokens
    rows = []
    for name, make in CASES.items():
        for mask in ("all", "causal"):
            if asked.only not in name:
                continue
            seconds = rounds_of(make(tokens, mask == "causal"), effort, clock)
            cells = cells_of(name, tokens, mask, seconds)
            rows.append({"case": name, "mask": mask, "cells": cells, "seconds": seconds})
            print(" | ".join(cells), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps({"setting": setting, "rows": rows}, indent=1) + "\n")
        lines = [TITLES, ["---"] * len(TITLES), *(r["cells"] for r in rows)]
        asked.out.with_suffix(".md").write_text("# Heads: measured\n\n" + said + ".\n\n" + "\n".join(
            "| " + " | ".join(cells) + " |" for cells in lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
