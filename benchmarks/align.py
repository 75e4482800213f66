#!/usr/bin/env python3
"""Word alignment on Multi30K against links drawn by hand: every cross-attention head of a translator and their mean, IBM Model 1 and
eflomal (where it is installed), in one table; and the same of nouns and of verbs alone.

Usage: align.py HEADWISE MODEL DATA [--tags TREEBANK] [--out FILE]
HEADWISE is the program, MODEL a translator's folder (translate.py --model), DATA holds train.en.gz, train.de.gz, test_2016_flickr.*.
Baselines learn from the 29,000 training pairs and the test pairs themselves, in lower case. Without MODEL (give -) they alone are judged.
TREEBANK is a .conllu.gz of English: a word is a noun or a verb when its form mostly is one there; a form it has not is neither.
--beside FILE takes the baselines' rows from an earlier --out instead of making them again."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from word_links import Link, Model1, merge, read_gold, scores, scores_of, split, tags_of

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


class Judge:
    """Figures of links against the gold: over all words, and over English nouns and verbs alone where there are tags."""

    def __init__(self, gold: dict[int, tuple[set[Link], set[Link]]], english: list[str], tags: dict[str, str]) -> None:
        self.gold, self.tags = gold, tags
        self.sentences = [split(english[n - 1].lower()) for n in gold]

    def __call__(self, found: list[set[Link]]) -> dict[str, float]:
        row = {k: round(v, 2) for k, v in scores(found, self.gold.values()).items()}
        for tag in ("NOUN", "VERB") if self.tags else ():
            part = scores_of(found, self.gold.values(), self.sentences, lambda word: self.tags.get(word) == tag)
            row[tag.lower()] = round(part["aer"], 2)
        return row


def of_heads(asked: argparse.Namespace, pairs: str, way: str, step: str, judge: Judge) -> list[dict[str, Any]]:
    """A row for each file of links that headwise align writes of the gold's pairs: merged, and every head."""
    with tempfile.TemporaryDirectory() as room:
        folder = pathlib.Path(room) / "links"
        subprocess.run([asked.program, "align", asked.model, pairs, "--merge", way, "--step", step, "--out", folder], check=True, stdout=subprocess.DEVNULL)
        every = {file.stem: read_links(file.read_text()) for file in sorted(folder.glob("*.txt"))}
    return [{"by": name, "merge": way, "step": step, **judge(links)} for name, links in every.items()]


def of_shares(asked: argparse.Namespace, pairs: list[tuple[str, str]], judge: Judge) -> list[dict[str, Any]]:
    """The same weights, each divided by what its source word gets in all before a target word chooses: a word that everything looks at
    wins no row by that. Needs the Python package."""
    try:
        import headwise as hw
    except ImportError:
        return []
    found = hw.align(asked.model, pairs, step="writes")
    maps = {f"{layer}.{head}": [pair.weights[i] for pair in found] for i, (layer, head) in enumerate(found[0].heads)}
    maps["merged"] = [pair.weights.mean(0) for pair in found]
    table = []
    for name, every in maps.items():
        forward = [{(int(row.argmax()), t) for t, row in enumerate(w / (w.sum(0, keepdims=True) + 1e-9))} for w in every]
        backward = [{(s, int(column.argmax())) for s, column in enumerate(w.T)} for w in every]
        for way in MERGES:
            row = judge([merge(f, b, way) for f, b in zip(forward, backward)])
            table.append({"by": name, "merge": way, "step": "shares", **row})
    return table


def of_baselines(asked: argparse.Namespace, test: list[list[str]], judge: Judge) -> list[dict[str, Any]]:
    if asked.beside:
        return [row for row in json.loads(asked.beside.read_text())["rows"] if "step" not in row]
    train = [lines(asked.data, f"train.{language}") for language in ("en", "de")]
    english, german = ([split(line.lower()) for line in train[i] + test[i]] for i in range(2))
    wanted = [len(train[0]) + n - 1 for n in judge.gold]
    table = []
    for name, learn in (("IBM Model 1", of_model1), ("eflomal", of_eflomal)):
        directions = learn(english, german, wanted)
        for way in MERGES if directions else ():
            table.append({"by": name, "merge": way, **judge([merge(f, b, way) for f, b in zip(*directions)])})
    return table


def show(table: list[dict[str, Any]]) -> None:
    print(f"{'by':<12}{'merge':<21}{'step':<8}{'AER':>7}{'prec.':>8}{'recall':>8}{'links':>7}{'nouns':>8}{'verbs':>8}")
    for row in table:
        print(f"{row['by']:<12}{row['merge']:<21}{row.get('step', ''):<8}{row['aer']:>7.2f}{row['precision']:>8.2f}{row['recall']:>8.2f}{row['links']:>7}"
              + "".join(f"{row[tag]:>8.2f}" for tag in ("noun", "verb") if tag in row))


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("program")
    words.add_argument("model")
    words.add_argument("data", type=pathlib.Path)
    words.add_argument("--out", type=pathlib.Path)
    words.add_argument("--tags", type=pathlib.Path)
    words.add_argument("--beside", type=pathlib.Path)
    asked = words.parse_args()
    gold = read_gold(GOLD.read_text().split("\n"))
    test = [lines(asked.data, f"{TEST}.{language}") for language in ("en", "de")]
    judge = Judge(gold, test[0], tags_of(gzip.decompress(asked.tags.read_bytes()).decode().split("\n")) if asked.tags else {})
    table = of_baselines(asked, test, judge)
    if asked.model != "-":
        with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
            file.write("".join(f"{test[0][n - 1]}\t{test[1][n - 1]}\n" for n in gold))
            file.flush()
            for way in MERGES:
                for step in ("writes", "reads"):
                    table += of_heads(asked, file.name, way, step, judge)
        table += of_shares(asked, [(test[0][n - 1], test[1][n - 1]) for n in gold], judge)
    table.sort(key=lambda row: row["aer"])
    show(table)
    if asked.out:
        asked.out.write_text(json.dumps({"gold": f"{len(gold)} pairs of {TEST}", "rows": table}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
