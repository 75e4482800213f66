#!/usr/bin/env python3
"""One utterance in a long document: which intent does it have, and what does reading cost? Chunks, sparse and full attention and heads of
three reaches (--scales 32,256,all) beside n-grams without attention and the first 512 tokens, by the program `headwise`.

Usage: long_documents.py HEADWISE DATA --room FOLDER --out FILE [--ways 'a;b'] [--wide] [--minilm FOLDER] [--threads N] [--device D]
                         [--epochs N] [--smoke]
       long_documents.py --plot FILE.svg RESULT.json...
A document is an in-scope utterance of CLINC150 at a random place among sentences of UD EWT and, one in a hundred, out-of-scope rows of
CLINC150 (one in twenty where it is learnt from). Its length counts words and signs. Sentences and out-of-scope rows of judged documents
are those of the test parts, which no training document has. With --wide training documents also hold captions of Multi30k and rows of
CLINC150's other domains. Results of the same FILE are added to, way by way."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import gzip
import json
import os
import pathlib
import random
import re
import resource
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import intent_data

LENGTHS = (2048, 4096, 8192, 16384)
DOMAINS = ("banking",)
OOS_SHARE, OOS_LEARNT, OOS_WIDE = 0.01, 0.05, 0.2  # of the rows around an utterance: judged, learnt from, and that with --wide
MOST = 32768  # pieces that are read: more than words and signs
SIZE = ["--heads", "mha:heads=3,dim=32", "--model-dim", "96", "--feed-dim", "192", "--depth", "1", "--positions", "none"]
WHOLE = ["--long-text", "whole", "--max-tokens", str(MOST)]
WAYS: dict[str, list[str]] = {
    "chunks": [*SIZE, "--long-text", "chunks", "--chunk-tokens", "512"],
    "sparse": [*SIZE, "--long-text", "sparse", "--chunk-tokens", "512", "--max-tokens", str(MOST)],
    "full": [*SIZE, *WHOLE],
    "scales": [*SIZE, *WHOLE, "--scales", "32,256,all"],
    "scales, peak": [*SIZE, *WHOLE, "--scales", "32,256,all", "--pooling", "peak"],
    "minilm, peak": ["--pooling", "peak", "--long-text", "chunks", "--dtype", "f32", "--encoder-rate", "0.1"],
    "n-grams": ["--model-dim", "96", "--depth", "0", "--pooling", "mean", "--positions", "none", *WHOLE],
    "n-grams pooled by attention": ["--model-dim", "96", "--depth", "0", "--positions", "none", *WHOLE],
}
ON_TOP = ("minilm, peak",)  # of the encoder that --minilm names
FIRST = "first 512"  # the way `chunks` given a document's beginning alone
Row = tuple[str, str]


def rows_of(data: pathlib.Path, part: str, labels: set[str]) -> list[Row]:
    with gzip.open(data / f"unified_tsv/clinc150_{part}.tsv.gz", "rt", encoding="utf-8") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    return [(text, label) for text, label in rows if not labels or label in labels]


def sentences_of(data: pathlib.Path, part: str) -> list[str]:
    """Texts of UD EWT's sentences; headings and lists of one word are left out."""
    path = next((data / "ud_en_ewt").glob(f"en_ewt-ud-{part}.*conllu.gz"))
    with gzip.open(path, "rt", encoding="utf-8") as file:
        found = [line[len("# text = "):].strip() for line in file if line.startswith("# text = ")]
    return [text for text in found if " " in text]


def captions_of(data: pathlib.Path) -> list[str]:
    with gzip.open(data / "multi30k_ende/train.en.gz", "rt", encoding="utf-8") as file:
        return [line.strip() for line in file]


def size_of(text: str) -> int:
    """Words and signs."""
    return len(re.findall(r"\w+|[^\w\s]", text))


class Filler:
    """Sentences in an order that goes round and is drawn anew every time."""

    def __init__(self, sentences: list[str], oos: list[str], share: float, seed: int) -> None:
        self.share, self.draw = share, random.Random(seed)
        self.kinds = [(sentences, self.run(sentences)), (oos, self.run(oos))]

    def run(self, texts: list[str]) -> Iterator[tuple[str, int]]:
        order = [(text, size_of(text)) for text in texts]
        while True:
            self.draw.shuffle(order)
            yield from order

    def around(self, utterance: str, length: int) -> str:
        """A document of at most `length` words and signs with the utterance at a random place of it."""
        texts: list[str] = []
        left = length - size_of(utterance)
        while True:
            text, size = next(self.kinds[self.draw.random() < self.share][1])
            if size > left:
                break
            texts.append(text)
            left -= size
        texts.insert(self.draw.randint(0, len(texts)), utterance)
        return " ".join(texts)


def first_words(text: str, count: int) -> str:
    for n, match in enumerate(re.finditer(r"\w+|[^\w\s]", text)):
        if n == count:
            return text[:match.start()]
    return text


def write(path: pathlib.Path, rows: list[Row]) -> pathlib.Path:
    path.write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
    return path


class Documents:
    """The files of one benchmark in a room: train, dev, alone, and one for each length."""

    def __init__(self, data: pathlib.Path, room: pathlib.Path, judged: list[int], smoke: bool, wide: bool = False, share: float = 1) -> None:
        with gzip.open(data / "clinc150/domains.json.gz", "rt", encoding="utf-8") as file:
            domains = json.load(file)
        labels = {label for name in DOMAINS for label in domains[name]}
        parts = {part: rows_of(data, part, labels) for part in ("train", "val", "test")}
        oos = {part: [text for text, _ in rows_of(data, f"oos_{part}", set())] for part in ("train", "val", "test")}
        around, others = sentences_of(data, "train"), oos["train"] + oos["val"]
        if wide:
            around += captions_of(data)
            others += [text for text, label in rows_of(data, "train", set()) if label not in labels]
        learnt = Filler(around, others, OOS_WIDE if wide else OOS_LEARNT, seed=1)
        draw = random.Random(2)
        if smoke:
            parts = {part: rows[::max(1, len(rows) // 45)] for part, rows in parts.items()}  # rows stand by label: some of each
        self.folder = room
        self.lengths = LENGTHS[:1] if smoke else LENGTHS
        room.mkdir(parents=True, exist_ok=True)
        rows = self.training(parts["train"], learnt, draw)
        write(room / "train.tsv", draw.sample(rows, round(share * len(rows))) if share < 1 else rows)
        write(room / "dev.tsv", [(learnt.around(text, 512), label) for text, label in parts["val"]])
        write(room / "alone.tsv", parts["test"])
        for length, count in zip(self.lengths, judged):
            # The first documents of a length are the same however many are judged.
            unseen = Filler(sentences_of(data, "test"), oos["test"], OOS_SHARE, seed=length)
            order = random.Random(length).sample(parts["test"], len(parts["test"]))
            rows = [(unseen.around(text, length), label) for text, label in order[:count]]
            write(room / f"{length}.tsv", rows)
            write(room / f"{length}-first.tsv", [(first_words(text, 512), label) for text, label in rows])
            write(room / f"{length}-one.tsv", rows[:1])
        write(room / "one.tsv", parts["test"][:1])

    def training(self, rows: list[Row], filler: Filler, draw: random.Random) -> list[Row]:
        """Every utterance four times alone, four times among a few sentences and once in a document of 2,048; few in longer ones."""
        out = rows * 4 + [(filler.around(text, draw.randint(40, 250)), label) for text, label in rows * 4]
        for length, share in zip(self.lengths, (1, 10, 25, 50)):
            out += [(filler.around(text, length), label) for text, label in draw.sample(rows, max(1, len(rows) // share))]
        return out

    def __getitem__(self, name: str) -> pathlib.Path:
        return self.folder / f"{name}.tsv"


def cpu_seconds() -> float:
    """Of all threads of the programs that ended: what a busy machine takes away does not count."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def accuracy(program: str, model: pathlib.Path, file: pathlib.Path, where: list[str]) -> tuple[dict[str, Any], float, float]:
    """(share and number of rows, seconds of CPU time, megabytes)."""
    before = cpu_seconds()
    out, _, memory = intent_data.run_measured([program, "eval", str(model), str(file), "--json", *where])
    seconds = cpu_seconds() - before
    exact = json.loads(out)["exact"]
    return {"accuracy": round(100 * exact["value"], 2), "rows": exact["whole"]}, seconds, memory


def where_of(asked: argparse.Namespace) -> list[str]:
    return ["--threads", str(asked.threads), *(["--device", asked.device] if asked.device != "cpu" else [])]


def judge(program: str, model: pathlib.Path, documents: Documents, where: list[str], first: bool) -> dict[str, Any]:
    """Of the utterances alone, of documents of every length; their time and memory beyond those of one short text."""
    found: dict[str, Any] = {"alone": accuracy(program, model, documents["alone"], where)[0]}
    _, idle, held = accuracy(program, model, documents["one"], where)
    for length in documents.lengths:
        name = f"{length}-first" if first else str(length)
        figures, seconds, _ = accuracy(program, model, documents[name], where)
        figures["cpu_seconds_a_document"] = round(max(seconds - idle, 0) / figures["rows"], 4)
        if not first:
            memory = accuracy(program, model, documents[f"{length}-one"], where)[2]
            figures["megabytes_of_a_document"] = round(memory - held, 1)
        found[str(length)] = figures
    return found


def run(asked: argparse.Namespace) -> None:
    documents = Documents(asked.data, asked.room, asked.judged, asked.smoke, asked.wide, asked.share)
    small = ["--vocabulary", "300", "--ngrams", "100"] if asked.smoke else []
    result = json.loads(asked.out.read_text()) if asked.out.exists() else {
        "data": f"CLINC150 ({', '.join(DOMAINS)}) in sentences of UD EWT and {OOS_SHARE:.0%} out-of-scope rows", "ways": {}}
    for way in asked.ways.split(";") if asked.ways else [way for way in WAYS if asked.minilm or way not in ON_TOP]:
        if way not in WAYS:
            raise SystemExit(f"long_documents: there is no way {way}; give some of {', '.join(WAYS)}")
        model = asked.room / re.sub(r"\W+", "-", way)
        options = [*WAYS[way], *(small if way not in ON_TOP else []), "--epochs", str(1 if asked.smoke else asked.epochs), "--batch", str(asked.batch), "--rate", str(asked.rate),
                   "--may-lose", "0"]
        command = [asked.program, "train", str(documents["train"]), "--dev", str(documents["dev"]), "--out", str(model), *where_of(asked),
                   "--replace", *options, *(["--from", asked.minilm] if way in ON_TOP else [])]
        if asked.minutes:
            command += ["--minutes", str(asked.minutes)]
        _, seconds, memory = intent_data.run_measured(command, quiet=False)
        trained = {"options": options, "wide": asked.wide, "share": asked.share, "threads": asked.threads, "device": asked.device, "machine": intent_data.machine(), "train_seconds": round(seconds, 1),
                   "train_megabytes": round(memory)}
        result["ways"][way] = {**trained, **judge(asked.program, model, documents, where_of(asked), first=False)}
        if way == "chunks":
            result["ways"][FIRST] = {**trained, **judge(asked.program, model, documents, where_of(asked), first=True)}
        asked.out.write_text(json.dumps(result, indent=1) + "\n")
        print(table(result), flush=True)


def forget_config(weights: pathlib.Path) -> None:
    """Takes the sum of config.json out of the weights' metadata, so that the folder may have another config."""
    content = weights.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"].pop("files_crc32c", None)
    weights.write_bytes(content[:8] + json.dumps(header, separators=(",", ":")).encode().ljust(end - 8) + content[end:])


def read(asked: argparse.Namespace) -> None:
    """One trained model of `scales` read in every way: its weights fit them all, and so only the reading differs."""
    documents = Documents(asked.data, asked.room, asked.judged, asked.smoke)
    result: dict[str, Any] = {"weights": "of scales", "machine": intent_data.machine(), "threads": asked.threads, "ways": {}}
    for way in ("scales", "full", "sparse", "chunks", FIRST):
        model = asked.room / f"read-{way.replace(' ', '-')}"
        shutil.copytree(asked.read, model, dirs_exist_ok=True)
        config = json.loads((model / "config.json").read_text())
        if way != "scales":
            config["heads"] = config["heads"].split("+reach")[0]
        config["long_text"] = "whole" if way in ("scales", "full") else "sparse" if way == "sparse" else "chunks"
        (model / "config.json").write_text(json.dumps(config))
        forget_config(model / "model.safetensors")
        result["ways"][way] = judge(asked.program, model, documents, where_of(asked), first=way == FIRST)
        asked.out.write_text(json.dumps(result, indent=1) + "\n")
        print(table(result), flush=True)


def table(result: dict[str, Any]) -> str:
    """The rows of the page, in Markdown."""
    lengths = [str(n) for n in LENGTHS if any(str(n) in way for way in result["ways"].values())]
    out = ["| way | alone | " + " | ".join(lengths) + " | ms of CPU a document | MB a document |", "|---|---" + "|---" * len(lengths) + "|---|---|"]
    for name, way in result["ways"].items():
        last = way[lengths[-1]]
        cells = [f"{way['alone']['accuracy']:.1f}", *(f"{way[n]['accuracy']:.1f}" for n in lengths), f"{1000 * last['cpu_seconds_a_document']:.0f}",
                 f"{last['megabytes_of_a_document']:.0f}" if "megabytes_of_a_document" in last else ""]
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(out)


COLORS = ("#14406b", "#b4460f", "#2e7d32", "#7b1fa2", "#555555", "#c2185b", "#00838f")
PANELS = (("accuracy, %", "accuracy", 1.0), ("ms of CPU a document", "cpu_seconds_a_document", 1000.0),
          ("megabytes a document", "megabytes_of_a_document", 1.0))


def panel(title: str, series: dict[str, list[tuple[int, float]]], x0: float, log: bool) -> list[str]:
    """Lines over the length, which doubles from mark to mark; `log`: values do too, tenfold."""
    import math

    width, height, top = 240, 220, 90
    values = [v for points in series.values() for _, v in points]
    low, high = (0.0, 100.0) if not log else (math.floor(math.log10(max(min(values), 0.1))), math.ceil(math.log10(max(values))))

    def place(length: int, value: float) -> tuple[float, float]:
        level = math.log10(max(value, 10.0**low)) if log else value
        return x0 + width * LENGTHS.index(length) / (len(LENGTHS) - 1), top + height * (1 - (level - low) / ((high - low) or 1))

    out = [f'<text x="{x0}" y="{top - 16}" font-weight="bold">{title}</text>']
    for mark in ([10.0**e for e in range(int(low), int(high) + 1)] if log else range(0, 101, 20)):
        y = place(LENGTHS[0], mark)[1]
        out += [f'<line x1="{x0}" x2="{x0 + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
                f'<text x="{x0 - 6}" y="{y + 4:.1f}" text-anchor="end" fill="#555">{mark:g}</text>']
    out += [f'<text x="{place(n, 1)[0]:.1f}" y="{top + height + 18}" text-anchor="middle" fill="#555">{n // 1024}k</text>' for n in LENGTHS]
    for (name, points), color in zip(series.items(), COLORS):
        if points:
            line = " ".join("{:.1f},{:.1f}".format(*place(*p)) for p in points)
            out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"><title>{name}</title></polyline>')
    return out


def plot(result: dict[str, Any]) -> str:
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 380" width="960" height="380" '
           'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12.5" fill="#222">',
           "<title>An utterance in a long document</title>", '<rect width="960" height="380" fill="#fff"/>',
           '<text x="50" y="26" font-size="16" font-weight="bold">An utterance in a document of 2k to 16k words and signs</text>']
    for i, (title, key, times) in enumerate(PANELS):
        series = {name: [(n, times * way[str(n)][key]) for n in LENGTHS if key in way.get(str(n), {})] for name, way in result["ways"].items()}
        out += panel(title, series, 60 + i * 310, log=i > 0)
    x = 60.0
    for name, color in zip(result["ways"], COLORS):
        out += [f'<rect x="{x:.0f}" y="352" width="12" height="12" fill="{color}"/>', f'<text x="{x + 17:.0f}" y="363">{name}</text>']
        x += 40 + 7.4 * len(name)
    return "\n".join([*out, "</svg>", ""])


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("program")
    words.add_argument("data", type=pathlib.Path)
    words.add_argument("--room", type=pathlib.Path, required=True, help="folder for documents and models")
    words.add_argument("--out", type=pathlib.Path, required=True, help="JSON file")
    words.add_argument("--ways", default="", help="some of them, joined by semicolons")
    words.add_argument("--wide", action="store_true", help="learn from documents of more kinds of sentences")
    words.add_argument("--share", type=float, default=1, help="of the rows to learn from")
    words.add_argument("--minilm", default="", help="folder of the pretrained encoder of `minilm, peak`")
    words.add_argument("--device", default="cpu", help="where encoders learn and are judged: cpu or cuda")
    words.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    words.add_argument("--epochs", type=int, default=2)
    words.add_argument("--batch", type=int, default=32)
    words.add_argument("--rate", type=float, default=2e-3)
    words.add_argument("--minutes", type=float, default=0, help="of a training, at most")
    words.add_argument("--judged", type=int, nargs=4, default=[450, 450, 450, 450], help="documents of each length")
    words.add_argument("--read", type=pathlib.Path, help="a trained model of scales: nothing is trained, it is read in every way")
    words.add_argument("--smoke", action="store_true", help="a few rows and 2,048 alone, only to show that it runs")
    if "--plot" in sys.argv[1:2]:
        merged: dict[str, Any] = {"ways": {}}
        for path in sys.argv[3:]:
            merged["ways"].update(json.loads(pathlib.Path(path).read_text())["ways"])
        pathlib.Path(sys.argv[2]).write_text(plot(merged))
        print(table(merged))
        return 0
    asked = words.parse_args()
    (read if asked.read else run)(asked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
