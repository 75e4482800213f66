#!/usr/bin/env python3
"""Products out = x W^T against OpenBLAS (NumPy's own copy) and torch.mm, all sides in one process taking turns.

OpenBLAS multiplies in f32 alone (NumPy's build has no bf16 product), so a bf16 line is measured against its f32 product of
the same sizes. `packed` has its weight packed before the clock starts. Figures are the median and the range of the rounds."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import re
import sys
import time
from dataclasses import dataclass

import headwise as hw
import numpy as np

import measure
import report
from measure import Effort, torch

LINE = re.compile(r"(f32|bf16)\s+(\d+)\s+(\d+)\s+(\d+)$")


@dataclass(frozen=True)
class Product:
    dtype: str
    rows: int
    inputs: int
    outputs: int

    @staticmethod
    def parse(line: str) -> Product:
        found = LINE.match(line.strip())
        if not found:
            raise SystemExit(f"case {line.strip()!r}: the form is: dtype rows in out, e.g. f32 2048 512 2048")
        return Product(found[1], *map(int, found.groups()[1:]))

    def __str__(self) -> str:
        return f"{self.dtype} {self.rows} {self.inputs} {self.outputs}"

    @property
    def flop(self) -> float:
        return 2.0 * self.rows * self.inputs * self.outputs


def read_products(name: str = "gemm") -> list[Product]:
    lines = (pathlib.Path(__file__).parent / "cases" / f"{name}.txt").read_text().splitlines()
    return [Product.parse(line) for line in lines if line.strip() and not line.startswith("#")]


def openblas(threads: int) -> str:
    """NumPy's OpenBLAS with that many threads; its name and the core it chose."""
    libraries = pathlib.Path(np.__file__).parent.parent / "numpy.libs"
    for file in sorted(libraries.glob("*openblas*")):
        library = ctypes.CDLL(str(file))
        for prefix, suffix in (("scipy_", "64_"), ("", "64_"), ("", "")):
            name = getattr(library, f"{prefix}openblas_get_config{suffix}", None)
            if name is None:
                continue
            getattr(library, f"{prefix}openblas_set_num_threads{suffix}")(threads)
            core = getattr(library, f"{prefix}openblas_get_corename{suffix}")
            name.restype = core.restype = ctypes.c_char_p
            return f"{' '.join(name().decode().split()[:2])} ({core().decode()})"
    raise SystemExit(f"no OpenBLAS under {libraries}; install NumPy from PyPI")


def sides_of(case: Product) -> dict:
    x = np.random.default_rng(1).standard_normal((case.rows, case.inputs), dtype=np.float32)
    w = np.random.default_rng(2).standard_normal((case.outputs, case.inputs), dtype=np.float32)
    out, wt = np.empty((case.rows, case.outputs), np.float32), w.T
    dtype = torch.bfloat16 if case.dtype == "bf16" else torch.float32
    tx, tw = torch.from_numpy(x).to(dtype), torch.from_numpy(w).to(dtype)
    packed, ours, theirs = hw.PackedWeight(tw), torch.empty(case.rows, case.outputs, dtype=dtype), torch.empty(
        case.rows, case.outputs, dtype=dtype)
    sides = {
        "ours": lambda: hw.linear(tx, tw, out=ours),
        "packed": lambda: hw.linear(tx, packed, out=ours),
        "torch": lambda: torch.mm(tx, tw.t(), out=theirs),
        "openblas": lambda: np.matmul(x, wt, out=out),
    }
    for side in sides.values():
        side()
    for found in (theirs.float(), torch.from_numpy(out)):
        distance = float((ours.float() - found).norm() / found.norm())
        if not distance < (1e-5 if case.dtype == "f32" else 1e-2):
            raise SystemExit(f"{case}: the outputs are {distance:.3g} apart (relative): nothing was timed")
    return sides


def rounds_of(sides: dict, effort: Effort, clock) -> dict[str, list[float]]:
    """The least of a turn's calls is what a turn says: neighbours only ever add."""
    seconds = {name: [] for name in sides}
    names = list(sides)
    for turn in range(effort.rounds):
        for name in names[turn % len(names):] + names[: turn % len(names)]:
            time.sleep(measure.PARK_SECONDS)
            sides[name]()
            least, start = float("inf"), time.perf_counter()
            while least == float("inf") or time.perf_counter() - start < effort.turn_seconds:
                before = clock()
                sides[name]()
                least = min(least, clock() - before)
            seconds[name].append(least)
    return seconds


def cells_of(case: Product, seconds: dict, peak: float) -> list[str]:
    best = {name: measure.summary(values) for name, values in seconds.items()}
    rate = {name: case.flop / s["median"] / 1e9 for name, s in best.items()}
    against = [report.times(measure.ratio(seconds[rival], seconds[side]))
               for rival in ("openblas", "torch") for side in ("ours", "packed")]
    return [str(case), *(f"{rate[n]:.0f}" for n in ("ours", "packed", "openblas", "torch")),
            f"{100 * rate['ours'] / peak:.0f} %", f"{100 * rate['packed'] / peak:.0f} %", *against]


TITLES = ["dtype rows in out", "ours GFLOP/s", "packed", "OpenBLAS f32", "torch", "of f32 peak", "packed of f32 peak",
          "x OpenBLAS", "packed x OpenBLAS", "x torch", "packed x torch"]


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    words.add_argument("--cpu-time", action="store_true", help="one thread, its CPU time: for machines with neighbours")
    words.add_argument("--smoke", action="store_true", help="tiny problems: only shows that the driver runs")
    words.add_argument("--out", type=pathlib.Path, help="JSON file; the Markdown goes beside it")
    asked = words.parse_args()
    if torch is None:
        words.error("torch is not there; install it: it is one of the rivals")
    threads = 1 if asked.cpu_time else asked.threads
    effort = Effort(3, 0.001, 2, 2) if asked.smoke else Effort(9, 0.3, 20, 50)
    measure.set_threads(threads)
    setting = measure.machine(threads, effort) | {"openblas": openblas(threads)}
    clock = time.thread_time if asked.cpu_time else time.perf_counter
    if asked.cpu_time:
        setting["peak_gflops"] = max(hw._core.measure_peak(1, 5, 0.5) for _ in range(5 if asked.smoke else 100))
    said = (f"{report.setting_words(setting)}; {setting['openblas']}; "
            f"{'CPU' if asked.cpu_time else 'wall'} time, least of each turn")
    print(said, flush=True)
    rows = []
    for case in [Product("f32", 5, 7, 9), Product("bf16", 40, 33, 20)] if asked.smoke else read_products():
        seconds = rounds_of(sides_of(case), effort, clock)
        cells = cells_of(case, seconds, setting["peak_gflops"])
        rows.append({"case": str(case), "cells": cells, "seconds": seconds})
        print(" | ".join(cells), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps({"setting": setting, "rows": rows}, indent=1) + "\n")
        lines = [TITLES, ["---"] * len(TITLES), *(r["cells"] for r in rows)]
        asked.out.with_suffix(".md").write_text("# Products: measured\n\n" + said + ".\n\n" + "\n".join(
            "| " + " | ".join(cells) + " |" for cells in lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
