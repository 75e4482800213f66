#!/usr/bin/env python3
"""Word alignment on Multi30K against links drawn by hand: every cross-attention head of a translator and their mean, IBM Model 1 and
eflomal (where it is installed), in one table.

Usage: align.py HEADWISE MODEL DATA [--out FILE]
HEADWISE is the program, MODEL a translator's folder (translate.py --model), DATA holds train.en.gz, train.de.gz, test_2016_flickr.*.
Baselines learn from the 29,000 training pairs and the test pairs themselves, in lower case. Without MODEL (give -) they alone are judged."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile
from typing import Any

from word_links import Link, Model1, merge, read_gold, scores, split

GOLD = pathlib.Path(__file__).parent / "results/multi30k-alignments.txt"
MERGES = ("argmax", "intersection", "union", "grow-diag", "grow-diag-final", "grow-diag-final-and")
TEST = "test_2016_flickr"


def lines(data: pathlib.Path, name: str) -> list[str]:
    return gzip.decompress((data / f"{name}.gz").read_bytes()).decode().split("\n")[:-1]


def read_links(text: str, turned: bool = False) -> list[set[Link]]:
    pairs = [[tuple(map(int, link.split("-"))) for link in line.split()] for line in text.split("\n")[:-1]]
    return [{(b, a) if turned else (a, b) for a, b in pair} for pair in pairs]


def of_model1(english: list[list[str]], german: list[list[str]], wanted: list[int]) -> tuple[list[set[Link]], list[set[Link]]]:
    forward, backward = Model1(list(zip(english, german))), Model1(list(zip(german, english)))
    return ([forward.align(english[n], german[n]) for n in wanted], [{(s, t) for t, s in backward.align(german[n], english[n])} for n in wanted])


def of_eflomal(english: list[list[str]], german: list[list[str]], wanted: list[int]) -> tuple[list[set[Link]], list[set[Link]]] | None:
    try:
        import eflomal
    except ImportError:
        return None
    found = [pathlib.Path(tempfile.mkdtemp()) / name for name in ("forward", "backward")]
    joined = [[" ".join(words) + "\n" for words in side] for side in (english, german)]
    eflomal.Aligner().align(joined[0], joined[1], links_filename_fwd=str(found[0]), links_filename_rev=str(found[1]), quiet=True)
    both = [read_links(file.read_text()) for file in found]
    return [both[0][n] for n in wanted], [both[1][n] for n in wanted]


def of_heads(program: str, model: str, pairs: str, way: str, step: str) -> list[dict[str, Any]]:
    """The table that headwise align --gold prints."""
    done = subprocess.run([program, "align", model, pairs, "--gold", GOLD, "--merge", way, "--step", step], check=True, stdout=subprocess.PIPE, text=True)
    rows = re.findall(r"^(merged|\d+\.\d+) +([\d.]+) +([\d.]+) +([\d.]+) +(\d+)$", done.stdout, re.M)
    return [{"by": name, "merge": way, "step": step, "aer": float(a), "precision": float(p), "recall": float(r), "links": int(n)} for name, a, p, r, n in rows]


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("program")
    words.add_argument("model")
    words.add_argument("data", type=pathlib.Path)
    words.add_argument("--out", type=pathlib.Path)
    asked = words.parse_args()
    gold = read_gold(GOLD.read_text().split("\n"))
    test = [lines(asked.data, f"{TEST}.{language}") for language in ("en", "de")]
    train = [lines(asked.data, f"train.{language}") for language in ("en", "de")]
    english, german = ([split(line.lower()) for line in train[i] + test[i]] for i in range(2))
    wanted = [len(train[0]) + n - 1 for n in gold]
    table: list[dict[str, Any]] = []
    for name, learn in (("IBM Model 1", of_model1), ("eflomal", of_eflomal)):
        directions = learn(english, german, wanted)
        for way in MERGES if directions else ():
            found = [merge(f, b, way) for f, b in zip(*directions)]
            table.append({"by": name, "merge": way, **{k: round(v, 2) for k, v in scores(found, gold.values()).items()}})
    if asked.model != "-":
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
            file.write("".join(f"{e}\t{g}\n" for e, g in zip(*test)))
            file.flush()
            for way in MERGES:
                for step in ("writes", "reads"):
                    table += of_heads(asked.program, asked.model, file.name, way, step)
    table.sort(key=lambda row: row["aer"])
    for row in table:
        print(f"{row['by']:<12}{row['merge']:<21}{row.get('step', ''):<8}{row['aer']:>7.2f}{row['precision']:>8.2f}{row['recall']:>8.2f}{row['links']:>7}")
    if asked.out:
        asked.out.write_text(json.dumps({"gold": f"{len(gold)} pairs of {TEST}", "rows": table}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
