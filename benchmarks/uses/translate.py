#!/usr/bin/env python3
"""English to German on Multi30K: headwise_translate trains an encoder-decoder and translates a test set greedily; sacrebleu scores it.

Usage: translate.py HEADWISE_TRANSLATE DATA [--steps N] [--rows N] [--set NAME=VALUE ...] [--model FOLDER] [--out FILE]
DATA holds train.en.gz, train.de.gz, val.*, test_2016_flickr.*; --smoke takes a few pairs and steps, only to show that it runs."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

import sacrebleu

TEST = "test_2016_flickr"


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("program", type=pathlib.Path)
    words.add_argument("data", type=pathlib.Path)
    words.add_argument("--steps", type=int, default=4000)
    words.add_argument("--rows", type=int, default=64, help="pairs a step")
    words.add_argument("--set", action="append", default=[], help="a setting of headwise_translate, such as dim=256 or seconds=3600")
    words.add_argument("--model", type=pathlib.Path, help="folder for the trained model: headwise align and headwise view read it")
    words.add_argument("--out", type=pathlib.Path, help="JSON file")
    words.add_argument("--smoke", action="store_true")
    asked = words.parse_args()
    steps, rows, most = (2, 4, 20) if asked.smoke else (asked.steps, asked.rows, None)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)

        def unpack(stored: str, wanted: str) -> list[str]:
            lines = gzip.decompress((asked.data / f"{stored}.gz").read_bytes()).decode().splitlines()[:most]
            (folder / wanted).write_text("".join(f"{line}\n" for line in lines))
            return lines

        for part in ("train", "val"):
            for language in ("en", "de"):
                unpack(f"{part}.{language}", f"{part}.{language}")
        unpack(f"{TEST}.en", "test.en")
        truth = unpack(f"{TEST}.de", "test.de")
        settings = [f"steps={steps}", f"rows={rows}", *asked.set, *([f"model={asked.model}"] if asked.model else [])]
        run = subprocess.run([asked.program, folder, *settings], check=True, stdout=subprocess.PIPE, text=True)
        found = (folder / "test.hyp").read_text().split("\n")[:len(truth)]
    metric = sacrebleu.BLEU()
    score = metric.corpus_score(found, [truth])
    result = {"data": f"multi30k en-de, {TEST}, {len(truth)} sentences", **json.loads(run.stdout.splitlines()[-1]),
              "decoding": "greedy", "bleu": round(score.score, 2), "signature": str(metric.get_signature())}
    print(json.dumps(result, indent=1), *found[:5], sep="\n")
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
