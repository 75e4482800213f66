#!/usr/bin/env python3
"""Tables of attention against torch SDPA and the measured peak, in one process; saved as JSON and Markdown.

Protocol: the peak is the best of 20 windows of 50 ms with the same number of threads; a ratio is the median of alternating
rounds, both sides called from Python on the same tensors with the same number of threads, pools asleep between turns.
The package must be importable: installed, or PYTHONPATH=<build>/python."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import headwise as hw
import numpy as np

import measure
import report
from measure import Case, DecodeCase, Effort
from targets import TARGETS, judge

TORCH = "2.13.0"
FULL = Effort(rounds=9, turn_seconds=0.08, windows=20, window_ms=50)
QUICK = Effort(rounds=5, turn_seconds=0.03, windows=20, window_ms=50)
SMOKE = Effort(rounds=5, turn_seconds=0.001, windows=2, window_ms=2)
DTYPES = ("f32", "bf16", "f16", "i8")
TABLES = ("forward", "small", "backward", "probes", "memory", "decode")


class Bench:
    def __init__(self, effort: Effort, threads: int, targets: dict, with_torch: bool):
        self.effort, self.targets, self.with_torch = effort, targets, with_torch
        measure.set_threads(threads)
        self.setting = measure.machine(threads, effort)
        self.rows: list[dict] = []
        self.skipped: list[str] = []

    def goals(self, *pairs) -> list[dict]:
        found = [judge(self.targets, what, value) for what, value in pairs]
        return [goal for goal in found if goal]

    def row(self, table: str, case: Case, seconds: list[float], goals: list[dict], flop: float = 0, **more) -> None:
        time_of = measure.summary(seconds)
        rate = (flop or case.flop) / time_of["median"] / 1e9
        row = {"table": table, "case": str(case), "seconds": time_of, "gflops": rate,
               "share": rate / self.setting["peak_gflops"], "goals": goals, **more, "rounds": seconds}
        self.rows.append(row)
        print(report.line(row), flush=True)

    def forward(self, cases: list[Case], table: str = "forward") -> None:
        """All problems of one size take turns: f32 and bf16, full and causal, both sides."""
        for _, same in itertools.groupby(cases, key=lambda c: (c.batch, c.tokens, c.heads, c.head_dim)):
            group = self.possible(list(same))
            sides = {}
            for case in group:
                qkv = measure.tensors(case)
                sides[f"ours {case}"] = measure.ours(case, qkv)
                if self.with_torch:
                    sides[f"torch {case}"] = measure.rival(case, qkv)
                    measure.check_equal(case, sides[f"ours {case}"](), sides[f"torch {case}"]())
            seconds = measure.take_turns(sides, self.effort)
            for case in group:
                self.forward_row(table, case, seconds)

    def forward_row(self, table: str, case: Case, seconds: dict) -> None:
        mine, goals, more = seconds[f"ours {case}"], [], {}
        share = case.flop / measure.summary(mine)["median"] / 1e9 / self.setting["peak_gflops"]
        if table == "forward":
            goals += self.goals((f"share {case.dtype} {case.head_dim}", share))
        if f"torch {case}" in seconds:
            more["torch_seconds"] = measure.summary(seconds[f"torch {case}"])
            more["torch_rounds"] = seconds[f"torch {case}"]
            more["torch"] = measure.ratio(seconds[f"torch {case}"], mine)
            kind = "small" if table == "small" else case.dtype
            goals += self.goals((f"torch {kind}", more["torch"]["median"]))
        single = f"ours {measure.replace(case, dtype='f32')}"
        if table == "forward" and case.dtype == "bf16" and single in seconds:
            more["over_f32"] = measure.ratio(seconds[single], mine)
            goals += self.goals((f"over_f32 {case.head_dim}", more["over_f32"]["median"]))
        full = f"ours {measure.replace(case, mask='all')}"
        if table == "forward" and case.mask == "causal" and full in seconds:
            # A rate is FLOP over time, so the ratio of rates is that of times, weighed by the open pairs.
            weight = case.flop / measure.replace(case, mask="all").flop
            more["causal_rate"] = {k: v * weight for k, v in measure.ratio(seconds[full], mine).items()}
            goals += self.goals(("causal_rate", more["causal_rate"]["median"]))
        self.row(table, case, mine, goals, **more)

    def small(self, cases: list[Case]) -> None:
        for case in cases:
            self.forward([case], "small")

    def backward(self, cases: list[Case]) -> None:
        """f32 and bf16, full and causal of one size take turns with torch's gradient node."""
        for _, same in itertools.groupby(cases, key=lambda c: (c.batch, c.tokens, c.heads, c.head_dim)):
            group = self.possible(list(same))
            sides = {}
            for case in group:
                *qkv, dout = measure.tensors(case, count=4)
                sides[f"ours {case}"] = measure.ours_backward(case, qkv, dout)
                if self.with_torch:
                    sides[f"torch {case}"] = measure.rival_backward(case, qkv, dout)
                    measure.check_gradients(case, sides[f"ours {case}"](), sides[f"torch {case}"]())
            seconds = measure.take_turns(sides, self.effort)
            for case in group:
                mine, more = seconds[f"ours {case}"], {}
                flop = measure.backward_flop(case, self.setting["threads"])
                share = flop / measure.summary(mine)["median"] / 1e9 / self.setting["peak_gflops"]
                goals = self.goals((f"backward share {case.dtype} {'own' if flop < 3 * case.flop else 'cut'}", share))
                if f"torch {case}" in seconds:
                    more["torch"] = measure.ratio(seconds[f"torch {case}"], mine)
                    more["torch_seconds"] = measure.summary(seconds[f"torch {case}"])
                    goals += self.goals((f"backward torch {case.dtype}", more["torch"]["median"]))
                single = f"ours {measure.replace(case, dtype='f32')}"
                if case.dtype == "bf16" and single in seconds:
                    more["over_f32"] = measure.ratio(seconds[single], mine)
                    goals += self.goals(("backward over_f32", more["over_f32"]["median"]))
                self.row("backward", case, mine, goals, flop=flop, **more)

    def probes(self, cases: list[Case]) -> None:
        for bare, same in itertools.groupby(cases, key=Case.bare):
            group = self.possible(list(same))
            if not group:
                continue
            qkv = measure.tensors(bare)
            sides = {"": measure.ours(bare, qkv)} | {c.probe: measure.ours(c, qkv) for c in group}
            seconds = measure.take_turns(sides, self.effort)
            for case in group:
                slower = {k: v - 1 for k, v in measure.ratio(seconds[case.probe], seconds[""]).items()}
                goals = self.goals((f"{case.probe}_slower", slower["median"]))
                self.row("probes", case, seconds[case.probe], goals, slower=slower)

    def memory(self, cases: list[Case]) -> None:
        for case in cases:
            done = subprocess.run([sys.executable, __file__, "--memory-of", str(case), "--threads",
                                   str(self.setting["threads"])], capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"memory of {case}: {done.stderr.strip()[-500:]}")
            got = json.loads(done.stdout)
            goals = self.goals(("extra_mb", got["extra_mb"]))
            self.row("memory", case, [got["seconds"]], goals, extra_mb=got["extra_mb"])

    def decode(self, cases: list[DecodeCase]) -> None:
        """All forms of one size take turns; the read bandwidth is the best of several looks between them."""
        for _, same in itertools.groupby(cases, key=lambda c: (c.batch, c.tokens, c.heads, c.kv_heads, c.head_dim)):
            group, sides, rivals = list(same), {}, {}
            if measure.torch is None:
                self.skipped += [f"{c}: decode is timed on torch tensors" for c in group]
                continue
            for case in group:
                qkv = measure.decode_tensors(case)
                sides[str(case)] = measure.decode_side(case, qkv)
                rival = f"torch {case.dtype}"
                if self.with_torch and case.dtype != "i8" and rival not in sides:
                    sides[rival] = measure.decode_rival(case, qkv)
                    measure.check_equal(case, sides[str(case)](), sides[rival]())
            read = max(measure.hw._core.measure_read(self.setting["threads"]) for _ in range(5))
            seconds = measure.take_turns(sides, self.effort)
            read = max([read, *(measure.hw._core.measure_read(self.setting["threads"]) for _ in range(5))])
            for case in group:
                self.decode_row(case, seconds, read)

    def decode_row(self, case: DecodeCase, seconds: dict, read: float) -> None:
        mine = seconds[str(case)]
        shares = measure.summary([case.bytes / s / 1e9 / read for s in mine])
        goals, more, gqa = [], {"read": shares, "read_gbytes": read}, case.heads != case.kv_heads
        if not gqa and case.dtype != "i8":
            goals += self.goals((f"read {case.form} {case.dtype}", shares["median"]))
        if f"torch {case.dtype}" in seconds:
            theirs = seconds[f"torch {case.dtype}"]
            more["torch_seconds"], more["torch_rounds"] = measure.summary(theirs), theirs
            more["torch"] = measure.ratio(theirs, mine)
            goals += self.goals(("torch decode gqa" if gqa else "torch decode", more["torch"]["median"]))
        half = str(measure.replace(case, dtype="f16"))
        if case.dtype == "i8" and half in seconds:
            more["over_f16"] = measure.ratio(mine, seconds[half])
            if case.form == "packed":
                goals += self.goals(("over_f16", more["over_f16"]["median"]))
        self.row("decode", case, mine, goals, **more)

    def possible(self, cases: list[Case]) -> list[Case]:
        """Without torch, NumPy has bf16 only through ml_dtypes."""
        if measure.torch is None and any(c.dtype == "bf16" for c in cases):
            try:
                import ml_dtypes  # noqa: F401
            except ImportError:
                self.skipped += [f"{c}: NumPy knows bf16 only with ml_dtypes" for c in cases if c.dtype == "bf16"]
                return [c for c in cases if c.dtype != "bf16"]
        return cases


def resident_mb(field: str) -> float:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"no {field} in /proc/self/status")


def memory_of(case: Case, threads: int) -> dict:
    """Most memory this process held during the call, less what it held before; its tensors were there before."""
    hw.set_threads(threads)
    sizes = (case.batch, case.tokens, case.heads, case.head_dim)
    q, k, v = (np.random.default_rng(seed).standard_normal(sizes, dtype=np.float32) for seed in (1, 2, 3))
    out = np.full(sizes, np.nan, np.float32)
    mask = hw.Mask.causal() if case.mask == "causal" else None
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again here
    before, start = resident_mb("VmRSS"), time.perf_counter()
    hw.attention(q, k, v, mask, out=out)
    seconds = time.perf_counter() - start
    extra = resident_mb("VmHWM") - before
    if np.isnan(out).any():
        raise SystemExit("out holds NaN")
    return {"extra_mb": max(extra, 0.0), "seconds": seconds}


def main() -> int:
    cpus = len(os.sched_getaffinity(0))
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--quick", action="store_true", help="5 short rounds in place of 9 long ones")
    words.add_argument("--smoke", action="store_true", help="tiny problems and windows: only shows that the driver runs")
    words.add_argument("--only", help=f"tables, joined by commas: {','.join(TABLES)}")
    words.add_argument("--dtypes", help="only problems of these, joined by commas: a rival without bf16 takes minutes a call")
    words.add_argument("--threads", type=int, default=cpus, help="threads of both sides [the CPUs this process may use]")
    words.add_argument("--targets", choices=sorted(TARGETS), default=platform.machine(), help="whose figures to judge by")
    words.add_argument("--out", type=pathlib.Path, help="JSON file; the Markdown goes beside it [benchmarks/results/]")
    words.add_argument("--torch-any-version", action="store_true", help=f"accept a torch other than {TORCH}; it is recorded")
    words.add_argument("--no-torch", action="store_true", help="tables without the rival")
    words.add_argument("--memory-of", help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.memory_of:
        print(json.dumps(memory_of(Case.parse(asked.memory_of), asked.threads)))
        return 0
    if asked.targets not in TARGETS:
        words.error(f"no figures are set for {asked.targets}; give --targets")
    if not asked.no_torch:
        found = measure.torch.__version__ if measure.torch is not None else "none"
        if found.split("+")[0] != TORCH and not (asked.torch_any_version and measure.torch is not None):
            words.error(f"torch is {found}, the rival is {TORCH}; install that, or give --torch-any-version or --no-torch")
    tables = asked.only.split(",") if asked.only else list(TABLES)
    if unknown := [t for t in tables if t not in TABLES]:
        words.error(f"no table {' '.join(unknown)}; there are {' '.join(TABLES)}")

    dtypes = asked.dtypes.split(",") if asked.dtypes else list(DTYPES)
    if unknown := [d for d in dtypes if d not in DTYPES]:
        words.error(f"no dtype {' '.join(unknown)}; there are {' '.join(DTYPES)}")

    effort = SMOKE if asked.smoke else QUICK if asked.quick else FULL
    bench = Bench(effort, asked.threads, {} if asked.smoke else TARGETS[asked.targets], not asked.no_torch)
    bench.setting |= {"targets": asked.targets, "effort": "smoke" if asked.smoke else "quick" if asked.quick else "full"}
    print(report.setting_words(bench.setting), flush=True)
    if asked.smoke:
        cases = measure.read_cases("smoke")
        bench.forward([c for c in cases if not c.probe])
        bench.probes([c for c in cases if c.probe])
        bench.backward([c for c in cases if not c.probe][:2])
        bench.decode([Case.parse(f"{d} packed decode [1 600 4/2 32]") for d in ("f32", "f16", "i8")])
        bench.memory([Case("f32", 1, 256, 2, 32, "causal")])
    else:
        for table in tables:
            getattr(bench, table)([c for c in measure.read_cases(table) if c.dtype in dtypes])
    for words_of_skipped in bench.skipped:
        print(f"skipped: {words_of_skipped}")

    result = {"setting": bench.setting | {"load_after": os.getloadavg()[0]}, "rows": bench.rows, "skipped": bench.skipped}
    out = asked.out or pathlib.Path(__file__).parent / "results" / (
        f"attention-{platform.machine()}{'-smoke' if asked.smoke else '-quick' if asked.quick else ''}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n")
    out.with_suffix(".md").write_text(report.document(result))
    print(f"written: {out} and {out.with_suffix('.md').name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
