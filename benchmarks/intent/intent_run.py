#!/usr/bin/env python3
"""One run of the recogniser: one data set, one model setting, one seed; trains and judges by the program `headwise`.

The same command again goes on where it stopped, and says so when the run is done. The result (settings, seed, commit, machine,
figures, time, memory) goes to benchmarks/results/intent/NAME.json; benchmarks/intent/intent_table.py makes the page of them.
Usage: intent_run.py DATA SETTING [--seed N] [--program HEADWISE] [--threads N] [--device D] [-- more words for headwise train]"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
import time

import intent_data
import intent_settings


def judge(program: str, model: pathlib.Path, file: pathlib.Path, where: list[str]) -> tuple[dict, float, float]:
    """(figures, seconds, memory), the figures in percent and under the names intent_data.figures has; `where`: threads and device."""
    out, seconds, memory = intent_data.run_measured([program, "eval", str(model), str(file), "--json", *where])
    said = json.loads(out)
    found = {"rows": said["exact"]["whole"], "exact_match": 100 * said["exact"]["value"], "micro_f1": 100 * said["micro_f1"],
             "exact_match_by_intents": {n: 100 * share["value"] for n, share in said["by_intents"].items()},
             "best_label": 100 * said["best_label"]["value"], "out_of_scope_recall": 100 * said["out_of_scope_recall"]["value"]}
    return found, seconds, memory


def look_at_heads(program: str, model: pathlib.Path, file: pathlib.Path, threads: int) -> dict | None:
    """How the weights of the heads look: a run of its own, so that the time and memory of the judging are its alone. A program from
    before --heads-figures, and heads whose weights cannot be looked at, have none."""
    if "--heads-figures" not in intent_data.run_measured([program, "eval", "--help"])[0]:
        return None
    out, _, _ = intent_data.run_measured([program, "eval", str(model), str(file), "--json", "--heads-figures", "--threads", str(threads)])
    return json.loads(out)["heads"]


def main(arguments: list[str]) -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data", help=", ".join((*intent_data.SETS, "mixbanking77_10k")))
    words.add_argument("setting", help=", ".join(intent_settings.SETTINGS))
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--program", default=str(intent_data.ROOT / "build/release/headwise/cli/headwise"))
    words.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    words.add_argument("--device", default="cpu", help="where the encoder learns and is judged: cpu or cuda")
    words.add_argument("--minilm", default=os.environ.get("HEADWISE_MINILM"), help="folder of the pretrained encoder")
    words.add_argument("--out", type=pathlib.Path, default=intent_data.RESULTS)
    own, more = (arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:]) if "--" in arguments else (arguments, [])
    asked = words.parse_args(own)

    name = f"{asked.data}-{asked.setting}-s{asked.seed}"
    if (asked.out / f"{name}.json").exists():
        print(f"{name}: done before; its result lies in {asked.out / name}.json")
        return
    parts = intent_data.write_splits(asked.data)
    model = intent_data.ROOM / name
    options = intent_settings.words_of(asked.setting, asked.minilm)
    where = ["--threads", str(asked.threads), *(["--device", asked.device] if asked.device != "cpu" else [])]
    command = [asked.program, "train", str(parts["train"]), "--dev", str(parts["dev"]), "--out", str(model), "--seed",
               str(asked.seed), *where, *options, *more]
    clock = intent_data.ROOM / f"{name}.seconds"  # of earlier, interrupted parts
    clock.parent.mkdir(parents=True, exist_ok=True)
    before = float(clock.read_text()) if clock.exists() else 0.0
    start = time.monotonic()
    try:
        _, _, train_memory = intent_data.run_measured(command, quiet=False)
    finally:
        clock.write_text(str(before + time.monotonic() - start))
    metrics, seconds, memory = judge(asked.program, model, parts["test"], where)
    dev = judge(asked.program, model, parts["dev"], where)[0]
    result = {
        "data": asked.data, "setting": asked.setting, "seed": asked.seed, "commit": intent_data.commit(),
        "machine": intent_data.machine(), "threads": asked.threads, "device": asked.device,
        "options": [*intent_settings.words_of(asked.setting, "minilm"), *more],
        "config": {k: v for k, v in json.loads((model / "config.json").read_text()).items() if k != "labels"},
        "parameters": intent_data.parameters_of(model),
        "seconds": {"train": round(float(clock.read_text()), 1), "eval": round(seconds, 2)},
        "memory_mb": {"train": round(train_memory, 1), "eval": round(memory, 1)},
        "metrics": metrics, "dev": dev,
    }
    if weights := look_at_heads(asked.program, model, parts["test"], asked.threads):
        result["weights"] = weights
    if "oos" in parts:
        result["out_of_scope_recall"] = judge(asked.program, model, parts["oos"], where)[0]["out_of_scope_recall"]
    path = intent_data.save(name, result, asked.out)
    print(f"{name}: exact match {metrics['exact_match']:.2f}, micro-F1 {metrics['micro_f1']:.2f}, "
          f"{result['seconds']['train']:.0f} s; {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
