#!/usr/bin/env python3
"""Layers against torch: an encoder block forward and backward beside nn.TransformerEncoderLayer, eager and compiled; one
large projection beside a loop over heads; the planning of a step. All sides in one process taking turns, the same weights.

Figures are the median and the range of the rounds; a round is the least of its calls."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from dataclasses import dataclass

import headwise as hw
import numpy as np

import measure
import report
from gemm_bench import rounds_of
from measure import Effort, torch


@dataclass(frozen=True)
class Encoder:
    batch: int
    tokens: int
    model_dim: int
    heads: int

    def __str__(self) -> str:
        return f"f32 [{self.batch} {self.tokens} {self.model_dim}], {self.heads} heads"

    @property
    def flop(self) -> float:
        """Three times the forward: 24 model_dim^2 a token in products, 4 tokens^2 model_dim a sequence in attention."""
        products = 24.0 * self.batch * self.tokens * self.model_dim**2
        return 3 * (products + 4.0 * self.batch * self.tokens**2 * self.model_dim)


def block_sides(case: Encoder, compiled: bool) -> dict:
    sizes = (case.batch, case.tokens, case.model_dim)
    x, dy = (np.random.default_rng(seed).standard_normal(sizes, dtype=np.float32) for seed in (1, 2))
    module = torch.nn.TransformerEncoderLayer(case.model_dim, case.heads, 4 * case.model_dim, 0.0, "gelu", batch_first=True)
    block = hw.Block(f"mha:heads={case.heads},dim={case.model_dim // case.heads}", case.model_dim, 4 * case.model_dim,
                     feed="gelu", norm_first=False)
    block.load_torch_state({name: value.numpy() for name, value in module.state_dict().items()})
    leaf, slope = torch.from_numpy(x).requires_grad_(), torch.from_numpy(dy)

    def ours():
        block.forward(x)
        return block.backward(dy)

    def step_of(run):
        def step():
            leaf.grad = None
            with torch.enable_grad():
                run(leaf).backward(slope)
            return leaf.grad.numpy()

        return step

    sides = {"ours": ours, "torch": step_of(module)}
    if compiled:
        sides["compiled"] = step_of(torch.compile(module))
    found = {name: side() for name, side in sides.items()}
    for name, dx in found.items():
        distance = float(np.linalg.norm(found["ours"] - dx) / np.linalg.norm(dx))
        if not distance < 1e-5:
            raise SystemExit(f"{case}: dx of {name} is {distance:.3g} apart (relative): nothing was timed")
    return sides


def heads_sides(case: Encoder) -> dict:
    """W_Q as one matrix and as one a head; the products have the same bits."""
    rows, dim = case.batch * case.tokens, case.model_dim // case.heads
    x = np.random.default_rng(1).standard_normal((rows, case.model_dim), dtype=np.float32)
    w = np.random.default_rng(2).standard_normal((case.model_dim, case.model_dim), dtype=np.float32)
    one, loop = (np.empty((rows, case.heads, dim), np.float32) for _ in range(2))

    def small():
        for h in range(case.heads):
            hw.linear(x, w[h * dim : h * dim + dim], out=loop[:, h])

    sides = {"one matrix": lambda: hw.linear(x, w, out=one), "loop over heads": small}
    for side in sides.values():
        side()
    if not np.array_equal(one, loop):
        raise SystemExit(f"{case}: one matrix and the loop differ: nothing was timed")
    return sides


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    words.add_argument("--cpu-time", action="store_true", help="one thread, its CPU time: for machines with neighbours")
    words.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    words.add_argument("--smoke", action="store_true", help="tiny problems: only shows that the driver runs")
    words.add_argument("--out", type=pathlib.Path, help="JSON file")
    asked = words.parse_args()
    if torch is None:
        words.error("torch is not there; install it: it is the rival")
    threads = 1 if asked.cpu_time else asked.threads
    effort = Effort(3, 0.001, 2, 2) if asked.smoke else Effort(7, 0.5, 20, 50)
    measure.set_threads(threads)
    clock = time.thread_time if asked.cpu_time else time.perf_counter
    setting = measure.machine(threads, effort)
    print(f"{report.setting_words(setting)}; {'CPU' if asked.cpu_time else 'wall'} time", flush=True)
    rows = []
    case = Encoder(2, 8, 16, 2) if asked.smoke else Encoder(8, 512, 512, 8)
    for what, sides, rivals in (
        ("encoder block, forward + backward", block_sides(case, not (asked.smoke or asked.no_compile)), ("torch", "compiled")),
        ("projection of q", heads_sides(case), ("loop over heads",)),
        ("planning: a block of one token, forward + backward", block_sides(Encoder(1, 1, 8, 2), False), ("torch",)),
    ):
        seconds = rounds_of(sides, effort, clock)
        own = next(iter(sides))
        against = {rival: measure.ratio(seconds[rival], seconds[own]) for rival in rivals if rival in sides}
        rows.append({"what": what, "case": str(case), "seconds": seconds, "against": against})
        times = ", ".join(f"{name} {measure.summary(s)['median'] * 1e3:.3g} ms" for name, s in seconds.items())
        print(f"{what}: {times}; " + ", ".join(f"{report.times(r)} {name}" for name, r in against.items()), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps({"setting": setting, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
