#!/usr/bin/env python3
"""What the lab's surgery does to a recogniser of BANKING77: Michel's curve, columns shared by collaborative heads, MHA to GQA by mean and
aligned, redundancy of heads over depth, a noised head.

Usage: lab_proof.py PROGRAM --out FILE.json [--room DIR] [--from MINILM] [--minutes 2] [--steps acdef] [--beside 4] [--threads 4] [--seed 1]
PROGRAM is `headwise`. The recogniser is trained first, from MiniLM's folder or from nothing (4 layers of 8 heads); --model takes one that
is there. Heads are ranked on the dev texts; every figure is of the test texts. --beside: commands at a time, each with --threads. The
data are those of intent_data.py. FILE is written after every figure, so a stopped run keeps what it has."""
# SPDX-License-Identifier: Apache-2.0
import argparse
import concurrent.futures
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "intent"))
import intent_data  # noqa: E402


class Proof:
    def __init__(self, asked, room):
        self.asked, self.room, self.found = asked, room, {"seed": asked.seed, "from": "MiniLM-L6" if asked.start else "nothing"}
        self.lock, self.begun = threading.Lock(), time.time()
        self.paths = intent_data.write_splits("banking77")
        self.texts = room / "texts.txt"
        rows = [line.split("\t")[0] for line in self.paths["train"].read_text(encoding="utf-8").splitlines()]
        self.texts.write_text("\n".join(rows[:: max(1, len(rows) // 500)]) + "\n", encoding="utf-8")

    def run(self, *words):
        command = [self.asked.program, *map(str, words), "--threads", str(self.asked.threads)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def right(self, model):
        """Right answers of the test texts, in percent."""
        return 100 * json.loads(self.run("eval", model, self.paths["test"], "--json"))["exact"]["value"]

    def keep(self, step, row):
        with self.lock:
            self.found.setdefault(step, []).append(row)
            print(f"[{time.time() - self.begun:4.0f}] {step} {json.dumps(row)}", flush=True)
            self.asked.out.write_text(json.dumps(self.found, indent=1) + "\n")

    def train(self):
        if self.asked.model:
            return self.asked.model
        model = self.room / "model"
        start = ["--from", self.asked.start] if self.asked.start else ["--heads", "mha:heads=8,dim=32", "--depth", "4", "--model-dim", "256"]
        self.run("train", self.paths["train"], "--dev", self.paths["dev"], "--out", model, "--quiet", "--seed", self.asked.seed,
                 "--minutes", self.asked.minutes, *start)
        return model

    def some_rows(self, count):
        """The first `count` training rows after a fixed shuffle by stride, over again where there are fewer."""
        rows = self.paths["train"].read_text(encoding="utf-8").splitlines()
        stride = next(s for s in range(617, 10**6) if math.gcd(s, len(rows)) == 1)
        path = self.room / f"train-{count}.tsv"
        path.write_text("".join(rows[i * stride % len(rows)] + "\n" for i in range(count)), encoding="utf-8")
        return path


def michel(p, model, heads):
    """(a) accuracy against heads kept, as cut and after an epoch of tuning."""
    layers = 6 if p.asked.start else 4
    for share in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2):
        kept = max(layers, round(share * heads))
        row = {"kept": kept, "of": heads}
        for name, tune in (("cut", []), ("tuned", ["--tune", p.paths["train"], "--epochs", p.asked.epochs, "--rate", p.asked.rate])):
            small = p.room / f"michel-{kept}-{name}"
            yield row, name, small, ["cut", model, p.paths["dev"], "--keep", kept, "--rank", "michel", "--out", small, *tune]


def collaborative(p, model, width):
    """(c) shared columns against energy and accuracy."""
    for part in (2 / 3, 1 / 2, 1 / 3, 1 / 4, 1 / 6):
        shared = round(part * width)
        small = p.room / f"shared-{shared}"
        yield {"shared": shared, "of": width}, "right", small, ["convert", model, "--shared", shared, "--steps", 60, "--texts", p.texts, "--out", small]


def grouped(p, model, heads):
    """(d) MHA to GQA and MQA: mean against aligned at 0, 5 % and 20 % of the training's texts."""
    trained = 3 * len(p.paths["train"].read_text(encoding="utf-8").splitlines())
    for kv in (heads // 3 if heads % 3 == 0 else heads // 4, 1):
        for by in ("mean", "aligned"):
            for share in (0, 0.05, 0.2):
                small = p.room / f"kv{kv}-{by}-{share}"
                tune = ["--tune", p.some_rows(round(share * trained)), "--epochs", 1, "--rate", p.asked.rate] if share else []
                yield {"kv_heads": kv, "of": heads, "by": by, "training": share}, "right", small, [
                    "convert", model, "--kv-heads", kv, "--by", by, "--texts", p.texts, "--out", small, *tune]


def redundancy(p, model):
    """(e) mean Jensen-Shannon divergence between the heads of a layer, nats, and clusters, over depth."""
    out = p.room / "survey"
    p.run("survey", model, "--texts", p.texts, "--out", out, "--most", 200)
    heads = json.loads((out / "survey.json").read_text())["heads"]
    rows = [[float(x) for x in line.split(",")[1:]] for line in (out / "apart.csv").read_text().splitlines()[1:]]
    for layer in sorted({h["layer"] for h in heads}):
        own = [i for i, h in enumerate(heads) if h["layer"] == layer]
        pairs = [rows[a][b] for a in own for b in own if a < b]
        p.keep("redundancy", {"layer": layer, "apart": sum(pairs) / len(pairs), "nearest": min(pairs),
                              "clusters": len({heads[i]["cluster"] for i in own}), "roles": sum(bool(heads[i]["roles"]) for i in own)})


def noised(p, model, shape):
    """(f) right answers while noise of so many standard deviations is added to one head, the mean and the worst over heads, and to all."""
    import headwise as hw

    labels = (pathlib.Path(model) / "labels.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in p.paths["test"].read_text(encoding="utf-8").splitlines()][::8]
    texts, wanted = [r[0] for r in rows], [labels.index(r[1]) for r in rows]

    def right(changes):
        found = hw.lab.answers(str(model), texts, changes).argmax(-1)
        return 100 * sum(int(f == w) for f, w in zip(found, wanted)) / len(wanted)

    p.keep("noised", {"noise": 0, "right": right([]), "texts": len(texts)})
    every = [(layer, head) for layer, heads in enumerate(shape) for head in range(heads)]
    for noise in (1.0, 4.0):
        def changed(heads, noise=noise):
            return right([hw.lab.Change(layer, head, "noised", factor=noise, seed=p.asked.seed) for layer, head in heads])
        each = [changed([h]) for h in every[:: max(1, len(every) // 24)]]
        p.keep("noised", {"noise": noise, "mean_of_one": sum(each) / len(each), "worst_of_one": min(each), "layer_0": changed(every[: shape[0]]),
                          "all": changed(every)})


def main():
    words = argparse.ArgumentParser()
    words.add_argument("program")
    words.add_argument("--out", type=pathlib.Path, required=True)
    words.add_argument("--room", type=pathlib.Path)
    words.add_argument("--from", dest="start")
    words.add_argument("--model")
    words.add_argument("--minutes", type=float, default=2)
    words.add_argument("--epochs", type=int, default=1)
    words.add_argument("--rate", type=float, default=2e-4)
    words.add_argument("--steps", default="acdef")
    words.add_argument("--beside", type=int, default=4)
    words.add_argument("--threads", type=int, default=4)
    words.add_argument("--seed", type=int, default=1)
    asked = words.parse_args()
    with tempfile.TemporaryDirectory() as held:
        room = asked.room or pathlib.Path(held)
        room.mkdir(parents=True, exist_ok=True)
        p = Proof(asked, room)
        model = p.train()
        p.keep("model", {"right": p.right(model), "seconds": time.time() - p.begun})
        probe = room / "probe"
        p.run("cut", model, "--plan", empty_plan(p, model, room), "--out", probe)
        shape = json.loads((room / "plan.json").read_text())["heads"]
        width = json.loads((pathlib.Path(model) / "config.json").read_text())["model_dim"]
        steps = {"a": ("michel", lambda: michel(p, model, sum(shape))), "c": ("collaborative", lambda: collaborative(p, model, width)),
                 "d": ("grouped", lambda: grouped(p, model, shape[0]))}
        jobs = [(steps[s][0], *job) for s in asked.steps if s in steps for job in steps[s][1]()]

        def one(job):
            name, row, figure, small, command = job
            try:
                said = p.run(*command)
                row = {**row, figure: p.right(small)}
                energy = [float(x) for x in re.findall(r"keep ([\d.]+) % of the energy", said)]
                p.keep(name, {**row, "energy": energy} if energy else row)
            except RuntimeError as e:
                print(e, flush=True)

        with concurrent.futures.ThreadPoolExecutor(asked.beside) as pool:
            if "e" in asked.steps:
                pool.submit(redundancy, p, model)
            list(pool.map(one, jobs))
        if "f" in asked.steps:
            noised(p, model, shape)


def empty_plan(p, model, room):
    """A plan that cuts nothing, for the model's heads, which the refusal of a wrong one names."""
    path = room / "plan.json"
    path.write_text('{"heads": [0], "cut": {}}')
    done = subprocess.run([p.asked.program, "cut", str(model), "--plan", str(path), "--out", str(room / "none")], capture_output=True, text=True)
    path.write_text(json.dumps({"heads": json.loads(re.search(r"the model has (\[[\d, ]+\])", done.stderr)[1]), "cut": {}}))
    return path


if __name__ == "__main__":
    main()
