#!/usr/bin/env python3
"""Head variants against our own MHA of the same sizes and against torch, all sides in one process taking turns.

A case makes its sides, functions without arguments, and names its figures: the time of one side over that of another, with
what it must reach. Projections, routing and coefficient networks stay outside the clock. Figures are the median and the range
of the rounds; a side of more than two seconds is called in the first two rounds only, and the lesser counts for all."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import gemm_bench
import headwise as hw
import measure
import report
from measure import Effort, torch

HEADS, DIM, RANK = 16, 64, 2


@dataclass(frozen=True)
class Figure:
    """seconds[above] / seconds[below]; at most `must` where `most`, else at least."""

    words: str
    above: str
    below: str
    must: float | None = None
    then: float | None = None
    most: bool = False

    def verdict(self, value: float) -> str:
        def met(goal: float) -> bool:
            return value <= goal if self.most else value >= goal

        if self.must is None:
            return ""
        return "then" if self.then is not None and met(self.then) else "must" if met(self.must) else "**no**"


@dataclass
class Case:
    sides: dict[str, Callable[[], object]]
    figures: list[Figure]


CASES: dict[str, Callable[[int, bool], Case]] = {}
MASKS: dict[str, tuple[str, ...]] = {}


def case(name: str, masks: tuple[str, ...] = ("all", "causal")):
    def add(make: Callable[[int, bool], Case]):
        CASES[name], MASKS[name] = make, masks
        return make

    return add


def normal(seed: int, *sizes: int, by: float = 1.0):
    return by * torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def check(name: str, ours, theirs, allowed: float = 1e-4) -> None:
    distance = float((ours - theirs).norm() / theirs.norm())
    if not distance < allowed:
        raise SystemExit(f"{name}: the results are {distance:.3g} apart (relative): nothing was timed")


@dataclass
class Setting:
    """q, k, v and dout of one problem, as we and as torch like them."""

    tokens: int
    causal: bool

    def __post_init__(self) -> None:
        self.q, self.k, self.v, self.dout = (normal(i, 1, self.tokens, HEADS, DIM) for i in range(4))
        self.mask = hw.Mask.causal() if self.causal else None
        self.hidden = torch.ones(self.tokens, self.tokens, dtype=torch.bool).triu(1) if self.causal else None

    def forward(self, **words):
        return hw.attention(self.q, self.k, self.v, self.mask, **words)

    def backward(self, **words):
        """Our gradients of everything given, as a side."""
        out, lse, _ = self.forward(return_lse=True, **words)
        return lambda: hw.attention_backward(self.dout, self.q, self.k, self.v, out, lse, self.mask, **words)

    def eager_inputs(self):
        return [x.transpose(1, 2).contiguous().requires_grad_() for x in (self.q, self.k, self.v)]

    def eager_backward(self, attend, words: dict):
        inputs = self.eager_inputs()
        learned = {name: x.clone().requires_grad_() for name, x in words.items()}
        with torch.enable_grad():
            out, dout = attend(*inputs, learned, self.hidden), self.dout.transpose(1, 2)
        return lambda: torch.autograd.grad(out, [*inputs, *learned.values()], dout, retain_graph=True)


def mix_words(name: str, tokens: int) -> dict:
    if name == "talking":
        return {w: torch.eye(HEADS) + normal(5 + i, HEADS, HEADS, by=0.1)
                for i, w in enumerate(("mix_before", "mix_after"))}
    rows = 2 * (2 * RANK + 1)
    return {w: normal(7 + i, 1, tokens, rows, HEADS, by=0.1) for i, w in enumerate(("mix_q", "mix_k"))}


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


def eager_mixed(q, k, v, words: dict, hidden):
    s = eager_mix(q @ k.transpose(-1, -2) * DIM**-0.5, words, 0)
    if hidden is not None:
        s = s.masked_fill(hidden, float("-inf"))
    return eager_mix(torch.softmax(s, -1), words, 1) @ v


def mixed_forward(name: str, tokens: int, causal: bool) -> Case:
    s, words = Setting(tokens, causal), mix_words(name, tokens)
    inputs = [x.detach() for x in s.eager_inputs()]
    check(name, s.forward(coefficients=words), eager_mixed(*inputs, words, s.hidden).transpose(1, 2))
    talking = name == "talking"
    against = (2.5, 4.0) if talking and causal else (1.3, 2.0) if talking else (2.0, 5.0)
    return Case(
        {"ours": lambda: s.forward(coefficients=words),
         "two-pass": lambda: s.forward(kernels="cpu/mixed_twice", coefficients=words),
         "our MHA": lambda: s.forward(),
         "eager torch": lambda: eager_mixed(*inputs, words, s.hidden)},
        [Figure("times our MHA", "ours", "our MHA", *((1.7, 1.4) if talking else (1.8, 1.45)), most=True),
         Figure("two-pass, times our MHA", "two-pass", "our MHA", 2.2 if talking else 2.3, most=True),
         Figure("as fast as eager", "eager torch", "ours", *against)],
    )  # fmt: skip


def mixed_backward(name: str, tokens: int, causal: bool) -> Case:
    s, words = Setting(tokens, causal), mix_words(name, tokens)
    ours, theirs = s.backward(coefficients=words), s.eager_backward(eager_mixed, words)
    found, truth = ours(), theirs()
    for mine, other in zip((found.dq, found.dk, found.dv), truth):
        check(f"{name} backward", mine, other.transpose(1, 2))
    for (word, mine), other in zip(found.dcoefficients.items(), truth[3:]):
        check(f"{name} backward d{word}", mine, other)
    del found, truth
    return Case({"ours": ours, "our MHA": s.backward(), "eager torch": theirs},
                [Figure("times our MHA", "ours", "our MHA"),
                 Figure("as fast as eager", "eager torch", "ours", 2.0, 4.0)])  # fmt: skip


for _name in ("talking", "dcmha"):
    case(f"{_name} forward")(lambda tokens, causal, name=_name: mixed_forward(name, tokens, causal))
    case(f"{_name} backward")(lambda tokens, causal, name=_name: mixed_backward(name, tokens, causal))


def rows_of(tokens: int, shared: int, chosen: int):
    """Lists of MoH: shared heads work on every row, each row has `chosen` of the routed heads."""
    rng = np.random.default_rng(0)
    picks = np.argsort(rng.random((tokens, HEADS - shared)), axis=1)[:, :chosen] + shared
    lists = [np.arange(tokens)] * shared + [np.flatnonzero((picks == h).any(1)) for h in range(shared, HEADS)]
    return np.cumsum([0, *map(len, lists)]), np.concatenate(lists)


def moh(chosen: int, backward: bool, goals: tuple, tokens: int, causal: bool) -> Case:
    s = Setting(tokens, causal)
    words = {"coefficients": {"rows": rows_of(tokens, 4, chosen)}, "gate": normal(9, 1, tokens, HEADS).abs()}
    if backward:
        sides = {"ours": s.backward(**words), "our MHA": s.backward()}
    else:
        sides = {"ours": lambda: s.forward(**words), "our MHA": lambda: s.forward()}
    return Case(sides, [Figure("as fast as our MHA", "our MHA", "ours", *goals)])


for _share, _chosen, _backward, _goals in ((50, 4, False, (1.5, 1.8)), (75, 8, False, (1.15, 1.28)),
                                           (50, 4, True, (1.35, 1.7))):  # fmt: skip
    case(f"moh {_share} % {'backward' if _backward else 'forward'}", ("all",))(
        lambda tokens, causal, c=_chosen, b=_backward, g=_goals: moh(c, b, g, tokens, causal))


def entmax_recipe():
    """Sort, cumulative sums, the threshold of the last that is in; the gradient from the weights alone."""

    class Recipe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            x = (x - x.amax(-1, keepdim=True)) / 2
            falling = x.sort(-1, descending=True).values
            count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype)
            mean, square = falling.cumsum(-1) / count, (falling**2).cumsum(-1) / count
            delta = (1 - count * (square - mean**2)) / count
            tau = mean - delta.clamp(min=0).sqrt()
            inside = (tau <= falling).sum(-1, keepdim=True)
            y = (x - tau.gather(-1, inside - 1)).clamp(min=0) ** 2
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, dy):
            (y,) = ctx.saved_tensors
            slope = y.sqrt()
            dx = dy * slope
            return dx - slope * (dx.sum(-1, keepdim=True) / slope.sum(-1, keepdim=True))

    return Recipe.apply


@case("entmax-1.5 forward+backward")
def entmax(tokens: int, causal: bool) -> Case:
    s, recipe = Setting(tokens, causal), entmax_recipe()
    inputs, words = s.eager_inputs(), {"coefficients": {"alpha": torch.full((HEADS,), 1.5)}}

    @torch.enable_grad()
    def theirs():
        scores = inputs[0] @ inputs[1].transpose(-1, -2) * DIM**-0.5
        if s.hidden is not None:
            scores = scores.masked_fill(s.hidden, -1e30)
        out = recipe(scores) @ inputs[2]
        return out.detach(), torch.autograd.grad(out, inputs, s.dout.transpose(1, 2))

    def ours():
        out, lse, _ = s.forward(return_lse=True, **words)
        return out, hw.attention_backward(s.dout, s.q, s.k, s.v, out, lse, s.mask, wants=["q", "k", "v"], **words)

    (out, found), (their_out, truth) = ours(), theirs()
    check("entmax", out, their_out.transpose(1, 2))
    for mine, other in zip((found.dq, found.dk, found.dv), truth):
        check("entmax backward", mine, other.transpose(1, 2))
    return Case({"ours": ours, "torch recipe": theirs},
                [Figure("as fast as the recipe", "torch recipe", "ours", 2.0, 4.0)])  # fmt: skip


@case("collaborative", ("all",))
def collaborative(tokens: int, causal: bool) -> Case:
    """QK costs heads * shared multiply-adds a pair, and a token's keys are `shared` numbers for all heads."""
    s, whole = Setting(tokens, causal), HEADS * DIM
    sides: dict = {"our MHA": lambda: s.forward()}
    keys = {"our MHA": s.k.nbytes}
    for name, shared in (("D~ = D_k", whole), ("D~ = D_k / 3", whole // 3)):
        head = hw.Collaborative(heads=HEADS, dim=DIM, shared=shared, content=False)
        q, k = normal(11, 1, tokens, HEADS, shared), normal(12, 1, tokens, 1, shared)
        sides[name] = lambda q=q, k=k, head=head: hw.attention(q, k, s.v, s.mask, head=head)
        keys[name] = k.nbytes
    cache = keys["our MHA"] / keys["D~ = D_k / 3"]
    return Case(sides, [Figure(f"as fast as D~ = D_k, {cache:.2f}x smaller key cache", "D~ = D_k", "D~ = D_k / 3"),
                        Figure("times our MHA", "D~ = D_k / 3", "our MHA")])  # fmt: skip


for _product in gemm_bench.read_products():
    if _product.rows == _product.inputs == _product.outputs:

        def squares(tokens: int, causal: bool, product=_product) -> Case:
            small = gemm_bench.Product(product.dtype, *[min(side, tokens) for side in (product.rows,) * 3])
            sides = gemm_bench.sides_of(small)
            return Case({"ours": sides["packed"], "OpenBLAS": sides["openblas"]},
                        [Figure("as fast as OpenBLAS f32", "OpenBLAS", "ours", 1.0, 1.2)])  # fmt: skip

        case(f"packed GEMM {_product}", ("all",))(squares)


def rounds_of(sides: dict, effort: Effort, clock) -> dict[str, list[float]]:
    """The least of a turn's calls is what a turn says: neighbours only ever add."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(effort.rounds):
        for name in names[turn % len(names):] + names[: turn % len(names)]:
            if turn >= 2 and min(seconds[name]) > 2:
                seconds[name].append(min(seconds[name]))
                continue
            time.sleep(measure.PARK_SECONDS)
            least, start = float("inf"), time.perf_counter()
            while least == float("inf") or time.perf_counter() - start < effort.turn_seconds:
                before = clock()
                sides[name]()
                least = min(least, clock() - before)
            seconds[name].append(least)
    return seconds


TITLES = ["case", "sizes", "figure", "measured", "must", "then", "met", "times"]


def rows_for(name: str, sizes: str, made: Case, seconds: dict) -> list[list[str]]:
    rows = []
    for figure in made.figures:
        value = measure.ratio(seconds[figure.above], seconds[figure.below])
        goals = ["" if goal is None else f"{'<=' if figure.most else '>='} {goal:g}x" for goal in (figure.must, figure.then)]
        medians = (f"{side} {report.duration(measure.summary(seconds[side])['median'])}"
                   for side in (figure.above, figure.below))
        rows.append([name, sizes, figure.words, report.times(value), *goals, figure.verdict(value["median"]),
                     ", ".join(medians)])
    return rows


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
        words.error("torch is not there; install it: it is one of the rivals")
    threads = 1 if asked.cpu_time else asked.threads
    effort = Effort(2, 0.001, 2, 2) if asked.smoke else Effort(asked.rounds, 0.3, 20, 50)
    measure.set_threads(threads)
    setting = measure.machine(threads, effort) | {"openblas": gemm_bench.openblas(threads)}
    clock = time.process_time if asked.cpu_time else time.perf_counter
    said = (f"{report.setting_words(setting)}; {setting['openblas']}; "
            f"{'CPU' if asked.cpu_time else 'wall'} time, least of each turn")
    print(said, flush=True)
    tokens = 48 if asked.smoke else asked.tokens
    rows, lines = [], [TITLES, ["---"] * len(TITLES)]
    for name, make in CASES.items():
        for mask in MASKS[name] if asked.only in name else ():
            made = make(tokens, mask == "causal")
            seconds = rounds_of(made.sides, effort, clock)
            sizes = "" if "GEMM" in name else f"f32 [1 {tokens} {HEADS} {DIM}] {mask}"
            for cells in rows_for(name, sizes, made, seconds):
                lines.append(cells)
                print(" | ".join(cells), flush=True)
            rows.append({"case": name, "mask": mask, "seconds": seconds, "cells": rows_for(name, sizes, made, seconds)})
            del made
    if asked.out:
        asked.out.write_text(json.dumps({"setting": setting, "rows": rows}, indent=1) + "\n")
        asked.out.with_suffix(".md").write_text("# Heads: measured\n\n" + said + ".\n\n" + "\n".join(
            "| " + " | ".join(cells) + " |" for cells in lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
