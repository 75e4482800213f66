#!/usr/bin/env python3
"""Draws docs/heads/moh-budget.svg: accuracy and time of a trained MoH model against the heads a token may use.

Usage: plot_moh.py [JSON [SVG]]    without: docs/heads/moh-budget.json and .svg; the JSON is what
headwise_moh_budget prints"""
# SPDX-License-Identifier: Apache-2.0
import json
import math
import pathlib
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 70, 80, 64, 60


def draw(data):
    points = data["points"]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    most_time = 5 * math.ceil(max(p["us_per_token"] for p in points) / 5)

    def x_of(k):
        return LEFT + (right - LEFT) * (k - points[0]["k"]) / (points[-1]["k"] - points[0]["k"])

    def y_of(share):
        return bottom - (bottom - TOP) * share

    curves = [
        ("accuracy", "#b4460f", [p["accuracy"] for p in points]),
        ("time", "#14406b", [p["us_per_token"] / most_time for p in points]),
    ]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13" fill="#222">',
           "<title>Accuracy and time of a MoH model against the heads a token may use</title>",
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           f'<text x="{LEFT}" y="26" font-size="16" font-weight="bold">One trained model, fewer heads a call: less time, '
           "less accuracy</text>",
           f'<text x="{LEFT}" y="46" fill="#555">{data["head"]}, {data["steps"]} steps: '
           f'{data["task"]}</text>']  # fmt: skip
    for i in range(6):
        y = y_of(i / 5)
        out.append(f'<line x1="{LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#b4460f">'
                   f"{20 * i} %</text>")
        out.append(f'<text x="{right + 8}" y="{y + 4:.1f}" fill="#14406b">{most_time * i / 5:g}</text>')
    for p in points:
        out.append(f'<text x="{x_of(p["k"]):.1f}" y="{bottom + 20}" text-anchor="middle">{p["k"]}</text>')
    for name, colour, shares in curves:
        line = " ".join(f"{x_of(p['k']):.1f},{y_of(s):.1f}" for p, s in zip(points, shares))
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x_of(p["k"]):.1f}" cy="{y_of(s):.1f}" r="3" fill="{colour}"/>' for p, s in zip(points, shares)]
        out.append(f'<text x="{x_of(points[1]["k"]):.1f}" y="{y_of(shares[1]) + 20:.1f}" fill="{colour}">{name}</text>')
    out.append(f'<text x="{(LEFT + right) / 2}" y="{HEIGHT - 14}" text-anchor="middle">'
               f'routed heads a token may use, k; right: us a token ({data["time"]})</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent / "docs" / "heads"
    source = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "moh-budget.json"
    target = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else root / "moh-budget.svg"
    target.write_text(draw(json.loads(source.read_text())))


if __name__ == "__main__":
    main()
