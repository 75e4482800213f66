#!/usr/bin/env python3
"""Word alignment on Multi30K against links drawn by hand: every cross-attention head of a translator and their mean, IBM Model 1 and
eflomal (where it is installed), in one table; and the same of nouns and of verbs alone.

Usage: align.py HEADWISE MODEL DATA [--tags TREEBANK] [--out FILE]
HEADWISE is the program, MODEL a translator's folder (translate.py --model), DATA holds train.en.gz, train.de.gz, test_2016_flickr.*.
Baselines learn from the 29,000 training pairs and the test pairs themselves, in lower case. Without MODEL (give -) they alone are judged.
TREEBANK is a .conllu.gz of English: a word is a noun or a verb when its form mostly is one there; a form it has not is neither.
--back FOLDER is a translator of the other direction: its heads say which target word each source word has.
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

GOLD = pathlib.Path(__file__).parents[1] / "results/multi30k-alignments.txt"
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


def shares(w: Any) -> Any:
    """As `headwise align --shares` has them: by column, then by row."""
    w = w.astype("float64")
    w = w / (w.sum(0, keepdims=True) + 1e-12)
    return w / (w.sum(1, keepdims=True) + 1e-12)


def choice(w: Any) -> list[int]:
    return [int(row.argmax()) for row in w]


def choices(model: str, pairs: list[tuple[str, str]]) -> tuple[dict[str, list[Any]], dict[str, list[list[int]]]]:
    """Shares of every head and of their mean, and the source word that each target word has by them."""
    import headwise as hw

    found = hw.align(model, pairs, step="writes")
    maps = {f"{layer}.{head}": [shares(pair.weights[i]) for pair in found] for i, (layer, head) in enumerate(found[0].heads)}
    maps["merged"] = [shares(pair.weights.mean(0)) for pair in found]
    return maps, {name: [choice(w) for w in every] for name, every in maps.items()}


def of_shares(asked: argparse.Namespace, pairs: list[tuple[str, str]], judge: Judge) -> list[dict[str, Any]]:
    """Heads by shares; with --back every head of one direction merged with every head of the other. Needs the Python package; the links
    are worked out here, not by the package."""
    maps, forth = choices(asked.model, pairs)
    back = {name: [("", [choice(w.T) for w in every])] for name, every in maps.items()}
    if asked.back:
        others = choices(asked.back, [(t, s) for s, t in pairs])[1]
        back = {name: ways + [(f" + {other}", every) for other, every in others.items()] for name, ways in back.items()}
    table = []
    for name, there in forth.items():
        forward = [{(s, t) for t, s in enumerate(pair)} for pair in there]
        for other, here in back[name]:
            backward = [{(s, t) for s, t in enumerate(pair)} for pair in here]
            for way in MERGES[1:] if other else MERGES:  # argmax asks one direction alone
                row = judge([merge(f, b, way) for f, b in zip(forward, backward)])
                table.append({"by": name + other, "merge": way, "step": "shares", **row})
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(table, key=lambda row: row["aer"]):
        best.setdefault(row["by"], row)
    # Of heads of both directions the best merge alone, the best of them: there are 169 pairs.
    return [row for row in table if " + " not in row["by"]] + [row for by, row in best.items() if " + " in by][:40]


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
    print(f"{'by':<18}{'merge':<21}{'step':<8}{'AER':>7}{'prec.':>8}{'recall':>8}{'links':>7}{'nouns':>8}{'verbs':>8}")
    for row in table:
        print(f"{row['by']:<18}{row['merge']:<21}{row.get('step', ''):<8}{row['aer']:>7.2f}{row['precision']:>8.2f}{row['recall']:>8.2f}{row['links']:>7}"
              + "".join(f"{row[tag]:>8.2f}" for tag in ("noun", "verb") if tag in row))


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("program")
    words.add_argument("model")
    words.add_argument("data", type=pathlib.Path)
    words.add_argument("--out", type=pathlib.Path)
    words.add_argument("--tags", type=pathlib.Path)
    words.add_argument("--back")
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
