"""The plot of the heads sweep: accuracy, time, memory and what the weights look like against the number of heads, as plain SVG."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import statistics

WIDTH, HEIGHT = 900, 530
COLUMNS, LEFT, TOP, GAP_X, GAP_Y, PANEL_W, PANEL_H = 3, 62, 92, 80, 92, 210, 150


def ticks(low: float, high: float) -> list[float]:
    """Round numbers around low..high, at most seven."""
    span = high - low or abs(high) or 1.0
    step = next(m * 10.0**e for e in range(-9, 10) for m in (1, 2, 5) if m * 10.0**e >= span / 5)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 9) for i in range(first, max(last, first + 1) + 1)]


def panel(title: str, heads: list[int], series: dict[int, list[float]], x0: float, y0: float) -> list[str]:
    """One figure: a dot a seed, a line through the means."""
    values = [v for found in series.values() for v in found]
    marks = ticks(min(values), max(values))
    low, high = marks[0], marks[-1]
    x_of = {h: x0 + PANEL_W * i / max(1, len(heads) - 1) for i, h in enumerate(heads)}

    def y_of(value: float) -> float:
        return y0 + PANEL_H * (1 - (value - low) / ((high - low) or 1))

    out = [f'<text x="{x0}" y="{y0 - 14}" font-weight="bold">{title}</text>']
    for mark in marks:
        out.append(f'<line x1="{x0}" x2="{x0 + PANEL_W}" y1="{y_of(mark):.1f}" y2="{y_of(mark):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{x0 - 8}" y="{y_of(mark) + 4:.1f}" text-anchor="end" fill="#555">{mark:g}</text>')
    for h in heads:
        out.append(f'<text x="{x_of[h]:.1f}" y="{y0 + PANEL_H + 18}" text-anchor="middle" fill="#555">{h}</text>')
    points = " ".join(f"{x_of[h]:.1f},{y_of(statistics.fmean(series[h])):.1f}" for h in heads if h in series)
    out.append(f'<polyline points="{points}" fill="none" stroke="#14406b" stroke-width="2"/>')
    out += [f'<circle cx="{x_of[h]:.1f}" cy="{y_of(v):.1f}" r="3.2" fill="#b4460f" fill-opacity="0.8"/>'
            for h in heads for v in series.get(h, [])]
    return out


def heads_plot(figures: list[tuple[str, dict[int, list[float]]]], heads: tuple[int, ...]) -> str:
    """figures: a title and, by number of heads, the value of every seed; those without any value are left out."""
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12.5" fill="#222">',
           "<title>What the number of heads changes</title>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           f'<text x="{LEFT}" y="28" font-size="16" font-weight="bold">What the number of heads changes at equal parameters</text>',
           f'<text x="{LEFT}" y="48" fill="#555">number of heads from left to right; a dot a seed, the line through their means</text>']
    for i, (title, series) in enumerate(f for f in figures if f[1]):
        out += panel(title, list(heads), series, LEFT + (i % COLUMNS) * (PANEL_W + GAP_X), TOP + i // COLUMNS * (PANEL_H + GAP_Y))
    return "\n".join([*out, "</svg>", ""])
