#!/usr/bin/env python3
"""Draws docs/speed.svg: torch's time over headwise's for attention on CPUs, from the files that `make bench` wrote.

Usage: plot_speed.py [FILE]    without FILE: docs/speed.svg"""
# SPDX-License-Identifier: Apache-2.0
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ("attention-x86_64-host", "backward-x86_64-host", "attention-aarch64-n1")
KINDS = {"forward": ("forward", "#1f6fb2"), "backward": ("backward", "#b4460f"), "decode": ("one query", "#2c7a3f")}
WIDTH, LEFT, RIGHT, TOP, LINE, LOW, HIGH = 920, 345, 70, 92, 19, 0.5, 4.5


def x_of(ratio):
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(ratio / LOW) / math.log(HIGH / LOW)


def read():
    """(machine, kind, case, ratio) in the order of the files."""
    for name in RESULTS:
        log = json.loads((ROOT / f"benchmarks/results/{name}.json").read_text())
        s = log["setting"]
        machine = f"{s['cpu'].replace('(R)', '')}, {s['threads']} threads, {s['isa']}, torch {s['torch'].split('+')[0]}"
        for row in log["rows"]:
            if "torch" in row and row["table"] in KINDS:
                yield machine, row["table"], row["case"], row["torch"]


def dot(y, kind, case, ratio):
    """A line from the least to the most of the rounds, with a dot at their median."""
    words, colour = KINDS[kind]
    least, median, most = (x_of(min(max(ratio[key], LOW), HIGH)) for key in ("least", "median", "most"))
    yield f'<text x="{LEFT - 12}" y="{y + 4:.0f}" text-anchor="end">{words}: {case}</text>'
    yield f'<line x1="{least:.1f}" x2="{most:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2" opacity="0.5"/>'
    yield f'<circle cx="{median:.1f}" cy="{y}" r="4.5" fill="{colour}"/>'
    yield f'<text x="{WIDTH - RIGHT + 8}" y="{y + 4:.0f}">{ratio["median"]:.2f}x</text>'


def draw():
    body, y, before = [], TOP, None
    for machine, kind, case, ratio in read():
        if machine != before:
            y += LINE if before else 0
            body.append(f'<text x="14" y="{y + 4:.0f}" font-weight="bold">{machine}</text>')
            y, before = y + LINE, machine
        body += dot(y, kind, case, ratio)
        y += LINE
    height, axis = y + 44, []
    for value in (0.5, 0.75, 1, 1.5, 2, 3, 4):
        x, strong = x_of(value), value == 1
        axis.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 14}" y2="{y}" stroke="{"#888" if strong else "#e2e2e2"}"/>')
        axis.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{value:g}x</text>')
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
            'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12.5" fill="#222">',
            "<title>Attention: torch's time over headwise's</title>", f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            '<text x="14" y="26" font-size="16" font-weight="bold">Attention on CPUs: torch\'s time over headwise\'s</text>',
            '<text x="14" y="48" fill="#555">right of 1x headwise is faster; a dot is the median of 9 alternating rounds, a line goes '
            "from the least to the most</text>"]
    return "\n".join([*head, *axis, *body, "</svg>", ""])


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs/speed.svg"
    pathlib.Path(target).write_text(draw())
