#!/usr/bin/env python3
"""How quick the recogniser is: one text at a time (p50, p99) and texts a second, against the same model in torch and the BiLSTM.

Both sides start from text: ours in `headwise eval --latency`, torch's with the package tokenizers. Outputs are compared first.
Sides take turns; a figure is the median of the rounds. --long measures one long text instead: our fused attention against torch
with materialised weights, time and memory, on a model trained with --max-tokens and --chunk-tokens of at least that many.
Usage: intent_latency.py MODEL FILE.tsv [--bilstm MODEL.pt] [--rounds N]    or    intent_latency.py MODEL --long 2048 8192"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import intent_bilstm
import intent_data
import intent_torch

MOST = 2000  # texts, as headwise eval has it


def ours(asked, file: pathlib.Path) -> dict:
    done = subprocess.run([asked.program, "eval", str(asked.model), str(file), "--latency", "--json", "--threads", str(asked.threads)],
                          check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["latency"]


def theirs(predict, texts: list[str], rows: int = 64) -> dict:
    """The same of a Python side: one by one, then in batches of texts of about one length."""
    for text in texts[:20]:
        predict([text])
    each = []
    for text in texts:
        start = time.perf_counter()
        predict([text])
        each.append(1e3 * (time.perf_counter() - start))
    each.sort()
    order = sorted(texts, key=len)
    start = time.perf_counter()
    for at in range(0, len(order), rows):
        predict(order[at : at + rows])
    return {"p50_ms": each[len(each) // 2], "p99_ms": each[len(each) * 99 // 100],
            "texts_per_second": len(order) / (time.perf_counter() - start)}


def check_equal(asked, model: intent_torch.Recognizer, texts: list[str]) -> float:
    """The largest distance of two probabilities; a speed counts only if the answers are equal."""
    command = [asked.program, "predict", str(asked.model), "--json", "--top", str(len(model.labels)), "--threads", "1"]
    said = subprocess.run(command, input="\n".join(texts) + "\n", check=True, capture_output=True, text=True).stdout.splitlines()
    apart = 0.0
    for line, wanted in zip(said, model.predict(texts), strict=True):
        given = {x["label"]: x["probability"] for x in json.loads(line)["likeliest"]}
        apart = max(apart, max(abs(given[name] - float(p)) for name, p in zip(model.labels, wanted, strict=True)))
    if apart > 2e-5:
        raise SystemExit(f"{asked.model}: the two sides' probabilities are {apart:.3g} apart: nothing was timed")
    return apart


def load_bilstm(path: pathlib.Path, model: intent_torch.Recognizer):
    kept = torch.load(path)
    rival = intent_bilstm.BiLstm(model.tokenizer.get_vocab_size(), len(kept["labels"]), kept["width"], kept["embedding"])
    rival.load_state_dict(kept["weights"])
    rival.eval()

    @torch.no_grad()
    def predict(texts: list[str]) -> torch.Tensor:
        ids = [torch.tensor(e.ids) for e in model.tokenizer.encode_batch(texts)]
        return rival(torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), torch.tensor([len(i) for i in ids]))

    return predict


def setting(asked) -> dict:
    return {"commit": intent_data.commit(), "machine": intent_data.machine(), "threads": asked.threads, "torch_version": torch.__version__,
            "config": {k: v for k, v in json.loads((asked.model / "config.json").read_text()).items() if k != "labels"}}


def short(asked) -> None:
    model = intent_torch.Recognizer(asked.model)
    texts = [line.split("\t")[0] for line in asked.file.read_text(encoding="utf-8").splitlines()][:MOST]
    apart = check_equal(asked, model, texts[:100])
    sides = {"headwise": lambda: ours(asked, asked.file), "torch": lambda: theirs(model.predict, texts)}
    if asked.bilstm:
        rival = load_bilstm(asked.bilstm, model)
        sides["bilstm"] = lambda: theirs(rival, texts)
    rounds: dict[str, list[dict]] = {name: [] for name in sides}
    for _ in range(asked.rounds):
        for name, side in sides.items():
            rounds[name].append(side())
    found = {name: {key: statistics.median(r[key] for r in runs) for key in ("p50_ms", "p99_ms", "texts_per_second")}
             for name, runs in rounds.items()}
    for name, f in found.items():
        print(f"{name:<9} p50 {f['p50_ms']:.3f} ms, p99 {f['p99_ms']:.3f} ms, {f['texts_per_second']:,.0f} texts a second")
    path = intent_data.save("latency", {"data": asked.file.parent.name, "texts": len(texts), "rounds": asked.rounds, "apart": apart,
                                        **setting(asked), **found}, asked.out)
    print(path)


def long_side(asked) -> None:
    """The child that computes one long text in torch, weights materialised, and prints its time."""
    torch.set_num_threads(asked.threads)
    model = intent_torch.Recognizer(asked.model, materialised=True)
    text = asked.file.read_text(encoding="utf-8").split("\t")[0]
    if asked.tokens:
        times = []
        for _ in range(3):
            start = time.perf_counter()
            model.predict([text])
            times.append(1e3 * (time.perf_counter() - start))
        print(min(times))


def long(asked) -> None:
    label = (asked.model / "labels.txt").read_text(encoding="utf-8").splitlines()[0]
    rows = []
    with tempfile.TemporaryDirectory() as room:
        file = pathlib.Path(room) / "long.tsv"
        torch_side = [sys.executable, __file__, str(asked.model), str(file), "--threads", str(asked.threads), "--side"]
        our_side = [asked.program, "eval", str(asked.model), str(file), "--latency", "--json", "--threads", str(asked.threads)]
        file.write_text(f"a\t{label}\n", encoding="utf-8")
        base_ours, base_torch = (intent_data.run_measured(side)[2] for side in (our_side, [*torch_side, "0"]))
        for tokens in asked.long:
            # A letter between commas is two tokens wherever it stands; [CLS] and [SEP] are the other two.
            file.write_text("a," * ((tokens - 2) // 2) + f"\t{label}\n", encoding="utf-8")
            out, _, memory = intent_data.run_measured(our_side)
            fused = json.loads(out)["latency"]["p50_ms"]
            out, _, rival_memory = intent_data.run_measured([*torch_side, str(tokens)])
            rows.append({"tokens": tokens, "fused_ms": fused, "materialised_ms": float(out), "fused_mb": memory - base_ours,
                         "materialised_mb": rival_memory - base_torch})
            print(re.sub(r"[{}']", "", str(rows[-1])))
    print(intent_data.save("long_text", {"rows": rows, **setting(asked)}, asked.out))


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("model", type=pathlib.Path)
    words.add_argument("file", type=pathlib.Path, nargs="?")
    words.add_argument("--bilstm", type=pathlib.Path, help="model.pt that intent_bilstm.py left")
    words.add_argument("--long", type=int, nargs="*", help="tokens of one long text")
    words.add_argument("--rounds", type=int, default=5)
    words.add_argument("--program", default=str(intent_data.ROOT / "build/release/headwise/cli/headwise"))
    words.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    words.add_argument("--out", type=pathlib.Path, default=intent_data.RESULTS)
    words.add_argument("--side", type=int, dest="tokens", help=argparse.SUPPRESS)
    asked = words.parse_args()
    if asked.tokens is not None:
        return long_side(asked)
    torch.set_num_threads(asked.threads)
    if asked.long:
        return long(asked)
    if not asked.file:
        words.error("give a file of texts, or --long")
    short(asked)


if __name__ == "__main__":
    main()
