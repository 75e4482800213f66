"""How a speed is measured: problems as text lines, sides that take turns, a ratio as the median of rounds, the roofs."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import os
import pathlib
import platform
import re
import statistics
import subprocess
import time
from dataclasses import dataclass, replace

import headwise as hw
import numpy as np

try:
    import torch
except ImportError:
    torch = None

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINE = re.compile(r"(f32|bf16|f16)\s+\[(\d+) (\d+) (\d+) (\d+)\]\s+(all|causal)(?:\s+(rows|columns|(?:top|classes|picked)\d+))?$")
DECODE = re.compile(r"(f32|bf16|f16|i8)\s+(plain|packed)\s+decode\s+\[(\d+) (\d+) (\d+)/(\d+) (\d+)\]$")
PARK_SECONDS = 0.010  # between turns: workers of both sides spin well under this before they sleep


@dataclass(frozen=True)
class Case:
    """One problem; every head has its own keys and values, q_tokens == kv_tokens, head_dim == value_dim."""

    dtype: str
    batch: int
    tokens: int
    heads: int
    head_dim: int
    mask: str
    probe: str = ""

    @staticmethod
    def parse(line: str) -> Case | DecodeCase:
        if of_decode := DECODE.match(line.strip()):
            dtype, form, *sizes = of_decode.groups()
            return DecodeCase(dtype, form, *map(int, sizes))
        found = LINE.match(line.strip())
        if not found:
            raise SystemExit(f"case {line.strip()!r}: the form is: dtype [batch tokens heads dim] mask [probe], "
                             "e.g. f32 [1 2048 8 128] causal")
        dtype, *sizes, mask, probe = found.groups()
        batch, tokens, heads, dim = map(int, sizes)
        return Case(dtype, batch, tokens, heads, dim, mask, probe or "")

    def __str__(self) -> str:
        words = f"{self.dtype} [{self.batch} {self.tokens} {self.heads} {self.head_dim}] {self.mask}"
        return f"{words} {self.probe}".strip()

    def bare(self) -> Case:
        return replace(self, probe="")

    @property
    def flop(self) -> float:
        """2 multiply-add FLOP x (head_dim + value_dim) per open pair; a causal mask counts its true triangle."""
        pairs = self.tokens * (self.tokens + 1) / 2 if self.mask == "causal" else self.tokens**2
        return 4.0 * self.batch * self.heads * self.head_dim * pairs


@dataclass(frozen=True)
class DecodeCase:
    """One query a sequence against a long KV, keys plain or packed; i8: int8 KV with f32 queries."""

    dtype: str
    form: str
    batch: int
    tokens: int
    heads: int
    kv_heads: int
    head_dim: int

    def __str__(self) -> str:
        return (f"{self.dtype} {self.form} decode [{self.batch} {self.tokens} {self.heads}/{self.kv_heads} "
                f"{self.head_dim}]")

    @property
    def flop(self) -> float:
        return 4.0 * self.batch * self.heads * self.tokens * self.head_dim

    @property
    def bytes(self) -> float:
        """Keys and values once, and the scales of int8."""
        item = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1}[self.dtype]
        row = self.head_dim * item + (4 if self.dtype == "i8" else 0)
        return 2.0 * self.batch * self.kv_heads * self.tokens * row


def decode_tensors(case: DecodeCase):
    """q [batch heads 1 dim], k and v [batch kv_heads tokens dim], each head's tokens side by side."""
    dtype = torch.float32 if case.dtype == "i8" else {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[case.dtype]
    kv = (case.batch, case.kv_heads, case.tokens, case.head_dim)
    made = [torch.randn(size, generator=torch.Generator().manual_seed(seed))
            for seed, size in enumerate([(case.batch, case.heads, 1, case.head_dim), kv, kv])]
    return [x.to(dtype) for x in made]


def decode_side(case: DecodeCase, qkv):
    q, k, v = qkv
    words = {"layout": "bhsd"}
    if case.dtype == "i8":
        (k, words["k_scale"]), (v, words["v_scale"]) = (hw.quantize_kv(x, layout="bhsd") for x in (k, v))
    if case.form == "packed":
        k = hw.pack_keys(k, layout="bhsd")
    return lambda: hw.attention(q, k, v, **words)


def decode_rival(case: DecodeCase, qkv):
    q, k, v = qkv
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, enable_gqa=case.heads != case.kv_heads)


def read_cases(name: str) -> list[Case | DecodeCase]:
    lines = (pathlib.Path(__file__).parent / "cases" / f"{name}.txt").read_text().splitlines()
    return [Case.parse(line) for line in lines if line.strip() and not line.startswith("#")]


def tensors(case: Case, count: int = 3):
    """q, k, v (and dout) [batch heads tokens dim], unit normal, the same memory for both sides; torch's if it is there."""
    sizes = (case.batch, case.heads, case.tokens, case.head_dim)
    made = [np.random.default_rng(seed).standard_normal(sizes, dtype=np.float32) for seed in range(1, count + 1)]
    if torch is not None:
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[case.dtype]
        return [torch.from_numpy(x).to(dtype) for x in made]
    if case.dtype == "bf16":
        import ml_dtypes

        return [x.astype(ml_dtypes.bfloat16) for x in made]
    return [x.astype(np.float16) for x in made] if case.dtype == "f16" else made


def probe_of(case: Case):
    kind, count = re.match(r"([a-z]*)(\d*)", case.probe).groups()
    n = int(count or 0)
    if kind == "classes":
        return hw.Probe(classes=(np.arange(case.tokens) % n).astype(np.int32), num_classes=n)
    if kind == "picked":
        return hw.Probe(picks=[(0, i % case.heads, i * case.tokens // n) for i in range(n)])
    return {"": None, "rows": hw.Probe(rows=True), "top": hw.Probe(top_k=n), "columns": hw.Probe(columns=True)}[kind]


def ours(case: Case, qkv):
    mask = hw.Mask.causal() if case.mask == "causal" else None
    q, k, v = qkv
    probe = probe_of(case)
    if probe is None:
        return lambda: hw.attention(q, k, v, mask, layout="bhsd")
    return lambda: hw.attention(q, k, v, mask, layout="bhsd", probe=probe)


def rival(case: Case, qkv):
    q, k, v = qkv
    causal = case.mask == "causal"
    attend = torch.nn.functional.scaled_dot_product_attention
    return lambda: attend(q, k, v, is_causal=causal)


def backward_flop(case: Case, threads: int) -> float:
    """Executed: 5 products of the forward's size each where every thread has heads of its own, else 7."""
    return case.flop * (2.5 if case.batch * case.heads >= threads else 3.5)


def ours_backward(case: Case, qkv, dout):
    mask = hw.Mask.causal() if case.mask == "causal" else None
    q, k, v = qkv
    out, lse, _ = hw.attention(q, k, v, mask, layout="bhsd", return_lse=True)
    return lambda: hw.attention_backward(dout, q, k, v, out, lse, mask, layout="bhsd")[:3]


def rival_backward(case: Case, qkv, dout):
    """torch's own gradient node, its forward not counted."""
    leaves = [x.detach().requires_grad_() for x in qkv]
    with torch.enable_grad():
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=case.mask == "causal")
    return lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True)


def check_gradients(case: Case, ours_found, rival_found) -> None:
    for a, b in zip(ours_found, rival_found):
        check_equal(case, a, b)


def check_equal(case: Case, a, b) -> None:
    """A speed counts only if the results are right: relative distance of the two outputs, above any rounding of the dtype."""
    a, b = a.double(), b.double()
    distance = float((a - b).norm() / b.norm())
    if not distance < {"f32": 2e-5, "bf16": 2e-2, "f16": 3e-3}[case.dtype]:
        raise SystemExit(f"{case}: the two outputs are {distance:.3g} apart (relative): nothing was timed")


@dataclass(frozen=True)
class Effort:
    rounds: int
    turn_seconds: float  # a turn repeats a call until about this long
    windows: int
    window_ms: float


def take_turns(sides: dict, effort: Effort) -> dict[str, list[float]]:
    """Seconds of one call of every side in every round. Sides take turns, each round starts one side later, and the
    thread pools of all of them sleep between turns."""
    names, calls = list(sides), {}
    for name in names:
        sides[name]()
        alone = []
        for _ in range(3):
            start = time.perf_counter()
            sides[name]()
            alone.append(time.perf_counter() - start)
        calls[name] = max(1, round(effort.turn_seconds / max(min(alone), 1e-7)))
    seconds = {name: [] for name in names}
    for turn in range(effort.rounds):
        for name in names[turn % len(names):] + names[: turn % len(names)]:
            call, count = sides[name], calls[name]
            time.sleep(PARK_SECONDS)
            call()  # wakes the pool and fills the caches; not counted
            start = time.perf_counter()
            for _ in range(count):
                call()
            seconds[name].append((time.perf_counter() - start) / count)
    return seconds


def summary(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def ratio(above: list[float], below: list[float]) -> dict[str, float]:
    """Round by round: machines drift, but both sides of a round drift together."""
    return summary([a / b for a, b in zip(above, below)])


def machine(threads: int, effort: Effort) -> dict:
    """Where the figures come from: without it they say nothing."""
    listed = subprocess.run(["lscpu"], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    named = re.search(r"^Model name:\s*(.+)$", listed.stdout, re.M)
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    explained = hw.explain(np.zeros((1, 2, 1, 64), np.float32), np.zeros((1, 2, 1, 64), np.float32),
                           np.zeros((1, 2, 1, 64), np.float32))
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": platform.machine(),
        "cpu": named[1].strip() if named else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "threads": threads,
        "isa": re.search(r"^machine +([^,]+),", explained, re.M)[1],
        "headwise": hw.__version__,
        "commit": commit.stdout.strip() if commit.returncode == 0 else "",
        "torch": torch.__version__ if torch is not None else "",
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "rounds": effort.rounds,
        "peak_gflops": hw._core.measure_peak(threads, effort.windows, effort.window_ms),
        "peak_windows": f"best of {effort.windows} windows of {effort.window_ms:g} ms",
        "read_gbytes": hw._core.measure_read(threads),
    }


def set_threads(threads: int) -> None:
    hw.set_threads(threads)
    if torch is not None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
