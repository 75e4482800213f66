#!/usr/bin/env python3
"""What the lab's surgery does to recognisers: Michel's curve, columns shared by collaborative heads, MHA to GQA and MQA by mean and aligned,
redundancy of heads over depth, noised heads.

Usage: lab_proof.py PROGRAM --out FILE.json --runs RUN... [--room DIR] [--beside 4] [--threads 4] [--device cuda] [--seconds 540] [--seed 1]
RUN is NAME:DATA:STEPS[:FOLDER], such as minilm:banking77:adcef:MINILM or scratch:banking77:acef. Without FOLDER the recogniser begins with
nothing, 4 layers of 8 heads; with it, from this encoder. STEPS:
  a  accuracy against heads kept, by Michel's score, as cut and tuned    d  kv heads by mean and aligned, at 0, 5 % and 20 % of the training
  c  columns that heads share: energy and accuracy                      e  redundancy of heads over depth       f  noised heads
PROGRAM is `headwise`; the Python package must be importable. Heads are ranked on the dev texts, and every figure is of the test texts:
the share whose likeliest label is the right one, refused or not. --beside: jobs at a time, each with --threads; --device: where tuning
learns. No job begins after --seconds. The data are those of intent_data.py, without texts out of scope. FILE is written after every
figure, so a stopped run keeps what it has."""
# SPDX-License-Identifier: Apache-2.0
import argparse
import concurrent.futures
import itertools
import json
import math
import os
import pathlib
import queue
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "intent"))
import intent_data  # noqa: E402

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)
NOISE = (0.5, 1.0, 2.0, 4.0)
ORDER = "daefc"  # which step's jobs begin first


def rows_of(path: pathlib.Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


class Run:
    """One recogniser and the figures of what is made of it."""

    def __init__(self, words, asked, room, proof):
        self.name, self.data, self.steps, *start = words.split(":", 3)
        self.start, self.asked, self.proof, self.room = (start or [None])[0], asked, proof, room / self.name
        self.room.mkdir(parents=True, exist_ok=True)
        self.model, self.heads = self.room / "model", [12] * 6 if self.start else [8] * 4
        self.found = {"data": self.data, "from": "MiniLM-L6" if self.start else "nothing"}
        self.parts = {part: self.room / f"{part}.tsv" for part in ("train", "dev", "test")}
        for part, rows in intent_data.splits_of(self.data).items():
            if part in self.parts:
                lines = [f"{r[0]}\t{r[1]}\n" for r in rows if r[1] != "oos"]
                intent_data.write_whole(self.parts[part], "".join(lines))
        self.train_rows = self.parts["train"].read_text(encoding="utf-8").splitlines()
        self.texts = self.room / "texts.txt"
        stride = max(1, len(self.train_rows) // 500)
        intent_data.write_whole(self.texts, "".join(line.split("\t")[0] + "\n" for line in self.train_rows[::stride]))

    def run(self, *words, threads=None):
        command = [self.asked.program, *map(str, words), "--threads", str(threads or self.asked.threads)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def right(self, model, changes=(), every=0):
        """Share of the test texts whose likeliest label is the right one, in percent."""
        import headwise as hw

        labels = (pathlib.Path(model) / "labels.txt").read_text(encoding="utf-8").splitlines()
        rows = rows_of(self.parts["test"])[:: every or self.asked.every]
        hits = 0
        for first in range(0, len(rows), 512):
            some = rows[first : first + 512]
            best = hw.lab.answers(str(model), [r[0] for r in some], changes).argmax(-1)
            hits += sum(labels[b] == r[1] for b, r in zip(best, some))
        return 100 * hits / len(rows)

    def keep(self, step, row):
        self.proof.keep(self.name, self.found, step, row)

    def learn(self):
        """The recogniser itself, unless it is there."""
        begun = time.time()
        if not self.model.is_dir():
            start = ["--from", self.start] if self.start else ["--heads", "mha:heads=8,dim=32", "--depth", "4", "--model-dim", "256", "--dtype", "bf16"]
            self.run("train", self.parts["train"], "--dev", self.parts["dev"], "--out", self.model, "--quiet", "--seed", self.asked.seed,
                     "--epochs", self.asked.epochs if self.start else self.asked.scratch_epochs, *start, threads=self.asked.train_threads)
        self.keep("model", {"right": self.right(self.model), "every": self.asked.every, "seconds": round(time.time() - begun, 1)})

    def tuning(self, path, epochs):
        device = ["--device", self.asked.device] if self.asked.device != "cpu" else []
        return ["--tune", path, "--epochs", epochs, "--rate", self.asked.rate, "--seed", self.asked.seed, *device]

    def some_rows(self, share):
        """A file of this share of what the training read, rows over again where it is more than there are."""
        count = round(share * self.asked.epochs * len(self.train_rows))
        stride = next(s for s in range(617, 10**6) if math.gcd(s, len(self.train_rows)) == 1)
        rows = [self.train_rows[i * stride % len(self.train_rows)] + "\n" for i in range(count)]
        path = self.room / f"train-{share:g}.tsv"
        intent_data.write_whole(path, "".join(rows))
        return path

    def made(self, step, row, figure, *command):
        """A job: the command's model, its accuracy, and what the command said of energy or change."""
        small = self.room / "-".join(map(str, [step, figure, *row.values()])).replace("/", "_")
        said = self.run(*command, "--out", small) if not small.is_dir() else ""
        row = {**row, figure: self.right(small)}
        for name, words in (("energy", r"keep ([\d.]+) % of the energy"), ("kl", r"KL ([\d.]+)"), ("same", r"same answer to ([\d.]+) %")):
            if numbers := [float(x) for x in re.findall(words, said)]:
                row[name] = numbers
        self.keep(step, row)

    def jobs(self):
        """(step, job): those that answer most first."""
        for step in ORDER:
            if step in self.steps:
                for job in getattr(self, f"step_{step}")():
                    yield ORDER.index(step), job

    def step_a(self):
        whole = sum(self.heads)
        for share, tuned in itertools.product(SHARES, (False, True) if self.asked.tune_epochs else (False,)):
            kept = max(len(self.heads), round(share * whole))
            tune = self.tuning(self.parts["train"], self.asked.tune_epochs) if tuned else []
            yield lambda kept=kept, tuned=tuned, tune=tune: self.made(
                "michel", {"kept": kept, "of": whole}, "tuned" if tuned else "cut",
                "cut", self.model, self.parts["dev"], "--keep", kept, "--rank", "michel", *tune)

    def step_c(self):
        width = 32 * self.heads[0]
        for part in (2 / 3, 1 / 2, 1 / 3, 1 / 4, 1 / 6):
            shared = round(part * width)
            yield lambda shared=shared: self.made("collaborative", {"shared": shared, "of": width}, "right",
                                                  "convert", self.model, "--shared", shared, "--steps", 60, "--texts", self.texts)

    def step_d(self):
        heads = self.heads[0]
        shares = (0, 0.05, 0.2) if self.asked.tune_epochs else (0,)
        for kv, share, by in itertools.product((heads // 3 if heads % 3 == 0 else heads // 4, 1), shares, ("mean", "aligned")):
            def job(kv=kv, by=by, share=share):
                tune = self.tuning(self.some_rows(share), 1) if share else []
                self.made("grouped", {"kv_heads": kv, "of": heads, "by": by, "training": share}, "right",
                          "convert", self.model, "--kv-heads", kv, "--by", by, "--texts", self.texts, *tune)
            yield job

    def step_e(self):
        yield self.redundancy

    def redundancy(self):
        """Mean Jensen-Shannon divergence between the heads of a layer, nats, and clusters, over depth."""
        out = self.room / "survey"
        self.run("survey", self.model, "--texts", self.texts, "--out", out, "--most", 300)
        heads = json.loads((out / "survey.json").read_text())["heads"]
        rows = [[float(x) for x in line.split(",")[1:]] for line in (out / "apart.csv").read_text().splitlines()[1:]]
        for layer in sorted({h["layer"] for h in heads}):
            own = [i for i, h in enumerate(heads) if h["layer"] == layer]
            others = [rows[a][b] for a in own for b in range(len(heads)) if b not in own]
            pairs = [rows[a][b] for a, b in itertools.combinations(own, 2)]
            self.keep("redundancy", {"layer": layer, "apart": sum(pairs) / len(pairs), "nearest": min(pairs), "from_others": sum(others) / len(others),
                                     "clusters": len({heads[i]["cluster"] for i in own}), "roles": sum(bool(heads[i]["roles"]) for i in own)})

    def step_f(self):
        yield lambda: self.keep("noised", {"noise": 0, "right": self.right(self.model, every=8)})
        for noise in NOISE:
            yield lambda noise=noise: self.noised(noise)

    def noised(self, noise):
        """Right answers with noise of so many standard deviations on one head (mean and worst of some), on a layer, on all."""
        import headwise as hw

        def changed(heads):
            return self.right(self.model, [hw.lab.Change(layer, head, "noised", factor=noise, seed=self.asked.seed) for layer, head in heads], 8)

        every = [(layer, head) for layer, heads in enumerate(self.heads) for head in range(heads)]
        each = [changed([h]) for h in every[:: max(1, len(every) // self.asked.noised)]]
        layers = [changed([h for h in every if h[0] == layer]) for layer in range(len(self.heads))]
        self.keep("noised", {"noise": noise, "mean_of_one": sum(each) / len(each), "worst_of_one": min(each), "layers": layers, "all": changed(every)})


class Proof:
    """Jobs of all runs on a few workers."""

    def __init__(self, asked):
        self.asked, self.lock, self.begun, self.found = asked, threading.Lock(), time.time(), {"seed": asked.seed}
        self.jobs, self.left, self.count = queue.PriorityQueue(), 0, itertools.count()

    def keep(self, run, found, step, row):
        with self.lock:
            self.found.setdefault("runs", {})[run] = found
            found.setdefault(step, []).append(row)
            print(f"[{time.time() - self.begun:4.0f}] {run} {step} {json.dumps(row)}", flush=True)
            intent_data.write_whole(self.asked.out, json.dumps(self.found, indent=1) + "\n")

    def put(self, priority, job):
        with self.lock:
            self.left += 1
        self.jobs.put((priority, next(self.count), job))

    def work(self):
        while True:
            try:
                _, _, job = self.jobs.get(timeout=1)
            except queue.Empty:
                if self.left == 0:
                    return
                continue
            try:
                if time.time() - self.begun < self.asked.seconds:
                    job()
            except (RuntimeError, ValueError) as e:
                print(e, flush=True)
            with self.lock:
                self.left -= 1

    def learn(self, run):
        run.learn()
        for priority, job in run.jobs():
            self.put(priority, job)


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("program")
    words.add_argument("--out", type=pathlib.Path, required=True)
    words.add_argument("--runs", nargs="+", required=True)
    words.add_argument("--room", type=pathlib.Path)
    words.add_argument("--epochs", type=int, default=8, help="of a fine-tuning")
    words.add_argument("--scratch-epochs", type=int, default=12)
    words.add_argument("--tune-epochs", type=int, default=2, help="0: nothing is tuned")
    words.add_argument("--every", type=int, default=1, help="figures are of each so many-th test text")
    words.add_argument("--noised", type=int, default=24, help="heads that get noise alone, about so many")
    words.add_argument("--rate", type=float, default=2e-4)
    words.add_argument("--device", default="cpu")
    words.add_argument("--beside", type=int, default=4)
    words.add_argument("--threads", type=int, default=4)
    words.add_argument("--train-threads", type=int, default=8, help="of what is trained first")
    words.add_argument("--seconds", type=float, default=1e9)
    words.add_argument("--seed", type=int, default=1)
    asked = words.parse_args()
    os.environ["HEADWISE_THREADS"] = str(asked.threads)
    with tempfile.TemporaryDirectory() as held:
        proof = Proof(asked)
        for one in asked.runs:
            run = Run(one, asked, asked.room or pathlib.Path(held), proof)
            proof.put(-1, lambda run=run: proof.learn(run))
        with concurrent.futures.ThreadPoolExecutor(asked.beside) as pool:
            for done in [pool.submit(proof.work) for _ in range(asked.beside)]:
                done.result()


if __name__ == "__main__":
    main()
