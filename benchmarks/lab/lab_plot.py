#!/usr/bin/env python3
"""The plots of lab_proof.py's figures as plain SVG, rows of panels for each run: heads cut, columns shared, kv heads, noise,
redundancy over depth.

Usage: lab_plot.py PROOF.json... PLOT.svg
Several files are one: runs of a name go together, so parts of a proof may be made apart."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "intent"))
from intent_plot import ticks  # noqa: E402

Lines = dict[str, list[tuple[float, float]]]
WIDTH, ROW, LEFT, TOP, WIDE, HIGH, GAP = 1000, 290, 56, 104, 240, 150, 76
COLOURS = ("#14406b", "#b4460f", "#3b7a2a")


def panel(title: str, below: str, lines: Lines, high: float, corner: tuple[float, float]) -> list[str]:
    """Lines of (x, y); x from its least to its most, y up to `high`."""
    x0, y0 = corner
    points = [p for line in lines.values() for p in line]
    marks, low_x, high_x = ticks(min(y for _, y in points), high), min(x for x, _ in points), max(x for x, _ in points)

    def place(x: float, y: float) -> tuple[float, float]:
        return x0 + WIDE * (x - low_x) / max(high_x - low_x, 1e-9), y0 + HIGH * (marks[-1] - y) / (marks[-1] - marks[0])

    out = [f'<text x="{x0}" y="{y0 - 14}" font-weight="bold">{title}</text>']
    for mark in marks:
        y = place(low_x, mark)[1]
        out.append(f'<line x1="{x0}" x2="{x0 + WIDE}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{x0 - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{mark:g}</text>')
    for x in sorted({x for x, _ in points}):
        out.append(f'<text x="{place(x, marks[0])[0]:.1f}" y="{y0 + HIGH + 18}" text-anchor="middle" fill="#555" font-size="10">{x:g}</text>')
    out.append(f'<text x="{x0 + WIDE / 2}" y="{y0 + HIGH + 36}" text-anchor="middle" fill="#555">{below}</text>')
    for i, (name, line) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        spots = [place(x, y) for x, y in sorted(line)]
        out.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in spots)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in spots]
        out.append(f'<text x="{x0 + 92 * i}" y="{y0 + HIGH + 56}" fill="{colour}">{name}</text>')
    return out


def grouped_panels(grouped: list[dict], whole: float) -> list[tuple[str, str, Lines, float]]:
    """Shared keys and values over the tuning; where nothing was tuned, over their number."""
    ways = ("mean", "aligned")
    if grouped and not any(r["training"] for r in grouped):
        of = grouped[0]["of"]
        lines = {by: [(of, whole), *((r["kv_heads"], r["right"]) for r in grouped if r["by"] == by)] for by in ways}
        return [(f"{of} heads that share keys and values", "heads of keys and values", lines, 100)]
    panels = []
    for kv in sorted({r["kv_heads"] for r in grouped}, reverse=True):
        rows = [r for r in grouped if r["kv_heads"] == kv]
        lines = {by: [(100 * r["training"], r["right"]) for r in rows if r["by"] == by] for by in ways}
        panels.append((f"{rows[0]['of']} heads share {kv} of keys and values", "tuned on so many percent of the training", lines, 100))
    return panels


def panels_of(run: dict) -> list[tuple[str, str, Lines, float]]:
    whole, panels = run["model"][0]["right"], []
    if rows := run.get("michel"):
        total = rows[0]["of"]
        names = [n for n in ("cut", "tuned") if any(n in r for r in rows)]
        panels.append(("Heads cut by Michel's score", f"heads kept of {total}",
                       {n: [(total, whole), *((r["kept"], r[n]) for r in rows if n in r)] for n in names}, 100))
    if rows := run.get("collaborative"):
        energy = [(r["shared"], sum(r["energy"]) / len(r["energy"])) for r in rows]
        panels.append(("Columns that heads share", f"columns of {rows[0]['of']}",
                       {"right": [(r["shared"], r["right"]) for r in rows], "energy kept": energy}, 100))
    panels += grouped_panels(run.get("grouped", []), whole)
    if rows := run.get("noised"):
        zero = [(0, r["right"]) for r in rows if r["noise"] == 0]
        words = {"one head": "mean_of_one", "the worst": "worst_of_one", "all heads": "all"}
        panels.append(("Noise on heads", "standard deviations",
                       {word: [*zero, *((r["noise"], r[name]) for r in rows if name in r)] for word, name in words.items()}, 100))
    if rows := run.get("redundancy"):
        words = {"of the layer": "apart", "nearest two": "nearest", "from others": "from_others"}
        lines = {word: [(r["layer"], r[name]) for r in rows] for word, name in words.items()}
        panels.append(("Heads apart, nats", "layer", lines, max(y for line in lines.values() for _, y in line)))
    return panels


def main() -> None:
    runs, seeds = {}, set()
    for path in sys.argv[1:-1]:
        proof = json.loads(pathlib.Path(path).read_text())
        seeds.add(str(proof["seed"]))
        for name, run in proof["runs"].items():
            runs.setdefault(name, {}).update(run)
    rows = []
    for name, run in runs.items():
        some = panels_of(run)
        rows += [(name, run, some[i : i + 3]) for i in range(0, len(some), 3)]
    high = TOP - 40 + ROW * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {high}" width="{WIDTH}" height="{high}" '
           'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12.5" fill="#222">',
           "<title>What surgery does to recognisers</title>", f'<rect width="{WIDTH}" height="{high}" fill="#fff"/>',
           f'<text x="{LEFT}" y="28" font-size="16" font-weight="bold">What surgery does to recognisers</text>',
           f'<text x="{LEFT}" y="48" fill="#555">right answers of test texts in percent; seed {", ".join(sorted(seeds))}</text>']
    for i, (name, run, some) in enumerate(rows):
        y0 = TOP + ROW * i
        out.append(f'<text x="{LEFT}" y="{y0 - 34}" fill="#555">{run["data"]}, from {run["from"]}: {run["model"][0]["right"]:.2f} % whole</text>')
        for k, (title, below, lines, top) in enumerate(some):
            out += panel(title, below, lines, top, (LEFT + k * (WIDE + GAP), y0))
    pathlib.Path(sys.argv[-1]).write_text("\n".join([*out, "</svg>", ""]))


if __name__ == "__main__":
    main()
