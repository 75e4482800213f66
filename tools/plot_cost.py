#!/usr/bin/env python3
"""Draws docs/cost.svg: FLOP per byte of a decode step against the batch, from the formulas of docs/cost.md.

Usage: plot_cost.py [FILE]    without FILE: docs/cost.svg"""
# SPDX-License-Identifier: Apache-2.0
import math
import pathlib
import sys

BYTES = 2  # bf16
MODEL_DIM, HEADS, HEAD_DIM, KV_TOKENS = 4096, 32, 128, 4096
BATCHES = [2**i for i in range(0, 11)]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 820, 480, 70, 230, 64, 60
LOW, HIGH = 0.5, 1024  # of the vertical axis


def projection(batch):
    """x [batch model_dim] times W [model_dim model_dim]: the weights are read once for all tokens of the step."""
    flop = 2 * batch * MODEL_DIM * MODEL_DIM
    return flop / (BYTES * (MODEL_DIM * MODEL_DIM + 2 * batch * MODEL_DIM))


def decode(batch, group, q_tokens):
    """Every sequence reads its own keys and values; `group` query heads share them, and so do its q_tokens."""
    kv_heads = HEADS // group
    flop = 4 * batch * HEADS * q_tokens * KV_TOKENS * HEAD_DIM
    elements = 2 * KV_TOKENS * kv_heads * HEAD_DIM + 2 * q_tokens * HEADS * HEAD_DIM  # k, v; q, out
    return flop / (BYTES * batch * elements)


def x_of(batch):
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(batch) / math.log2(BATCHES[-1])


def y_of(value):
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log2(value / LOW) / math.log2(HIGH / LOW)


def draw():
    curves = [
        ("projection, 4096 x 4096", "#b4460f", [projection(b) for b in BATCHES]),
        ("decode, group 8, 4 tokens: 32", "#14406b", [decode(b, 8, 4) for b in BATCHES]),
        ("decode, group 8 (GQA): 8", "#1f6fb2", [decode(b, 8, 1) for b in BATCHES]),
        ("decode, group 4 (GQA): 4", "#2f83bf", [decode(b, 4, 1) for b in BATCHES]),
        ("decode, group 1 (MHA): 1", "#4a8fb8", [decode(b, 1, 1) for b in BATCHES]),
    ]
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
           'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13" fill="#222">',
           "<title>FLOP per byte of a decode step against the batch</title>",
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           f'<text x="{LEFT}" y="26" font-size="16" font-weight="bold">One decode step: projections rise with the batch, '
           "attention does not</text>",
           f'<text x="{LEFT}" y="46" fill="#555">FLOP per byte, bf16, {HEADS} heads of {HEAD_DIM}, {KV_TOKENS} cached '
           "tokens a sequence; both axes logarithmic</text>"]
    value = LOW
    while value <= HIGH:
        if math.log2(value) % 2 == 0:
            out.append(f'<line x1="{LEFT}" x2="{right}" y1="{y_of(value):.1f}" y2="{y_of(value):.1f}" stroke="#ddd"/>')
            out.append(f'<text x="{LEFT - 8}" y="{y_of(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
        value *= 2
    for batch in BATCHES:
        if math.log2(batch) % 2 == 0:
            out.append(f'<line x1="{x_of(batch):.1f}" x2="{x_of(batch):.1f}" y1="{bottom}" y2="{bottom + 5}" stroke="#888"/>')
            out.append(f'<text x="{x_of(batch):.1f}" y="{bottom + 20}" text-anchor="middle">{batch}</text>')
    out.append(f'<line x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}" stroke="#888"/>')
    out.append(f'<text x="{(LEFT + right) / 2:.1f}" y="{HEIGHT - 16}" text-anchor="middle">batch: sequences that decode '
               "together</text>")
    for words, colour, values in curves:
        points = " ".join(f"{x_of(b):.1f},{y_of(v):.1f}" for b, v in zip(BATCHES, values))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        out.append(f'<text x="{right + 8}" y="{y_of(values[-1]) + 4:.1f}" fill="{colour}">{words}</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    target = sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent / "docs/cost.svg"
    pathlib.Path(target).write_text(draw())
