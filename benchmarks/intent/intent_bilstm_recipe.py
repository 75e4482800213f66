#!/usr/bin/env python3
"""The BiLSTM with the recipe of cutting: joins made afresh, n-grams, tags and spans read alone (--form cut), or a query for every label
with token labels and a count (--form labels). Vocabulary and number of parameters are those of a model folder of ours (--like).

The same loss, masks, classes and decoding as `headwise train --compound cut`; AdamW with warm-up and a cosine, a running mean of the
weights, judged on dev every second epoch, the best kept. A run that was stopped begins again.
Usage: intent_bilstm_recipe.py --like MODEL --form cut|labels [--seed N] [--epochs N] [--threads N] [--device cpu|cuda]"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import copy
import itertools
import os
import pathlib
import time

import numpy as np
import torch
from tokenizers import BertWordPieceTokenizer
from torch import nn
from torch.nn import functional as F

import intent_data
import intent_joins

DATA = "mixbanking77"
DRAWN = 32340  # compounds of an epoch, as many as training rows
BUCKETS, COLUMNS, EMBEDDING, QUERIES, MOST = 7000, 64, 128, 4, 3
SHARES = (0.3, 0.5, 0.2)  # of 1, 2 and 3 intents, as the rows have it
SHIFTS, WEIGHTS = (0, -1, 1, -2, 2), (1, 1.5, 2, 3, 4, 6, 9, 0.7, 0.3)


class RecipeLstm(nn.Module):
    def __init__(self, vocabulary: int, labels: int, width: int, form: str, dropout: float = 0.3) -> None:
        super().__init__()
        self.form, self.labels = form, labels
        self.table = nn.Embedding(vocabulary + 1, EMBEDDING, padding_idx=vocabulary)
        self.grams = nn.Embedding(BUCKETS, COLUMNS, padding_idx=0)
        self.widen = nn.Linear(COLUMNS, EMBEDDING, bias=False)
        self.lstm = nn.LSTM(EMBEDDING, width, num_layers=2, batch_first=True, bidirectional=True, dropout=0.2)
        self.drop, self.wide_drop = nn.Dropout(0.2), nn.Dropout(dropout)
        if form == "cut":
            self.queries = nn.Parameter(torch.randn(2 * width, QUERIES) * 0.02)
            self.classes, self.tags = nn.Linear(QUERIES * 2 * width, labels + 1), nn.Linear(2 * width, 2)
        else:
            self.queries = nn.Parameter(torch.randn(2 * width, labels) * 0.02)
            self.vectors, self.bias = nn.Parameter(torch.randn(labels, 2 * width) * 0.05), nn.Parameter(torch.full((labels,), -3.5))
            self.tokens, self.count = nn.Linear(2 * width, labels + 1), nn.Linear(4 * width, MOST)
        nn.init.normal_(self.table.weight, std=0.1), nn.init.normal_(self.grams.weight, std=0.1)
        with torch.no_grad():
            self.table.weight[vocabulary] = 0
            self.grams.weight[0] = 0

    def rows(self, ids: torch.Tensor, bags: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pairs = torch.where((ids[:, 1:] >= 0), 1 + (ids[:, :-1] * 1000003 + ids[:, 1:] * 998244353) % (BUCKETS - 1), 0)
        bags = torch.cat([bags, F.pad(pairs, (1, 0)).unsqueeze(2)], 2)
        summed = self.grams(bags).sum(2) / (bags > 0).sum(2, keepdim=True).clamp(min=1).sqrt()
        x = self.drop(self.table(torch.where(ids < 0, self.table.padding_idx, ids)) + self.widen(summed))
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=ids.shape[1])
        return h, torch.arange(ids.shape[1], device=ids.device)[None] < lengths.to(ids.device)[:, None]

    def forward(self, ids: torch.Tensor, bags: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h, open_ = self.rows(ids, bags, lengths)
        weights = (h @ self.queries).masked_fill(~open_.unsqueeze(2), -1e9).softmax(1)
        pooled = weights.transpose(1, 2) @ h
        if self.form == "cut":
            return self.classes(self.wide_drop(pooled.flatten(1))), self.tags(h)
        logits = 2 * (self.wide_drop(pooled) * self.vectors).sum(2) + self.bias
        mean = (h * open_.unsqueeze(2)).sum(1) / lengths.to(h.device)[:, None]
        most = h.masked_fill(~open_.unsqueeze(2), -1e9).amax(1)
        return logits, self.tokens(h), self.count(self.wide_drop(torch.cat([mean, most], 1)))


def fitting(vocabulary: int, labels: int, form: str, wanted: int) -> RecipeLstm:
    def size(width: int) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in RecipeLstm(vocabulary, labels, width, form).parameters())
    return RecipeLstm(vocabulary, labels, min(range(32, 320), key=lambda w: abs(size(w) - wanted)), form)


class Batches:
    """Padded tensors of token rows; masked tokens lose their n-grams."""

    def __init__(self, mask: int, device: str, seed: int) -> None:
        self.mask, self.device, self.draw = mask, device, np.random.default_rng(seed)

    def __call__(self, texts: list[tuple[np.ndarray, np.ndarray]], dropped: float = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        lengths = torch.tensor([max(1, len(i)) for i, _ in texts])
        ids = np.full((len(texts), int(lengths.max())), -1, np.int64)
        bags = np.zeros((*ids.shape, intent_joins.MOST_NGRAMS), np.int64)
        for row, (i, b) in enumerate(texts):
            ids[row, :len(i)], bags[row, :len(i)] = i, b
            if not len(i):
                ids[row, 0] = self.mask
        if dropped:
            gone = (self.draw.random(ids.shape) < dropped) & (ids >= 0)
            ids[gone], bags[gone] = self.mask, 0
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(bags).to(self.device), lengths


def step_loss(model: RecipeLstm, joins: intent_joins.Joins, batches: Batches, count: int) -> torch.Tensor:
    compounds = [joins.compound() for _ in range(count)]
    singles = [joins.single() for _ in range(count)] if model.form == "cut" else []
    ids, bags, lengths = batches([(joins.ids[p], joins.bags[p]) for p, _, _ in compounds], 0.25)
    marks = np.full(ids.shape, -2)
    for row, (_, m, _) in enumerate(compounds):
        marks[row, :len(m)] = m
    open_ = torch.from_numpy(marks > -2).to(ids.device)
    if model.form == "labels":
        target = torch.zeros(count, model.labels, device=ids.device)
        own = np.full(ids.shape, -100)
        for row, (_, m, chosen) in enumerate(compounds):
            target[row, chosen] = 1
            own[row, :len(m)] = [model.labels if k < 0 else chosen[k] for k in m]
        logits, tokens, number = model(ids, bags, lengths)
        smooth = target * 0.9 + 0.1 / model.labels
        howmany = torch.tensor([len(c) - 1 for _, _, c in compounds], device=ids.device)
        return (F.binary_cross_entropy_with_logits(logits, smooth, reduction="sum") / count
                + F.cross_entropy(tokens.transpose(1, 2), torch.from_numpy(own).to(ids.device)) + 0.5 * F.cross_entropy(number, howmany))
    starts = (marks[:, 1:] != marks[:, :-1]) & (marks[:, 1:] > 0)
    wanted = np.stack([np.pad(starts, ((0, 0), (1, 0))), marks == -1], 2)
    logits, tags = model(ids, bags, lengths)
    each = F.binary_cross_entropy_with_logits(tags, torch.from_numpy(wanted).to(ids.device, torch.float32), reduction="none")
    each[:, 0, 0] = 0
    loss = (each.sum(2) * open_).sum() / count
    whole = torch.tensor([c[0] if len(c) == 1 else model.labels for _, _, c in compounds], device=ids.device)
    loss = loss + 0.5 * F.cross_entropy(logits, whole, label_smoothing=0.1)
    said = model(*batches([(joins.ids[p], joins.bags[p]) for p, _ in singles], 0.1))[0]
    return loss + 2 * F.cross_entropy(said, torch.tensor([y for _, y in singles], device=ids.device), label_smoothing=0.1)


@torch.no_grad()
def outputs(model: RecipeLstm, texts: list[tuple[np.ndarray, np.ndarray]], batches: Batches) -> list[tuple[np.ndarray, ...]]:
    model.eval()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i][0]))
    found: list = [None] * len(texts)
    for first in range(0, len(order), 512):
        picked = order[first:first + 512]
        parts = [part.float().cpu().numpy() for part in model(*batches([texts[i] for i in picked]))]
        for row, i in enumerate(picked):
            found[i] = tuple(part[row] for part in parts)
    return found


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def read_cuts(model: RecipeLstm, texts: list[tuple[np.ndarray, np.ndarray]], batches: Batches) -> list[tuple]:
    """Of every text: logits of its candidates, and for every set of at most two of them the spans' label probabilities."""
    wanted, places = [], {}
    for i, ((ids, _), (_, tags)) in enumerate(zip(texts, outputs(model, texts, batches))):
        start, joined = tags[:len(ids), 0], 1 / (1 + np.exp(-tags[:len(ids), 1]))
        chance = 1 / (1 + np.exp(-start))
        likely = sorted(sorted((t for t in range(1, len(ids)) if chance[t] > 0.02), key=lambda t: -chance[t])[:5])
        ways = []
        for chosen in itertools.chain.from_iterable(itertools.combinations(likely, n) for n in range(MOST)):
            spans, begin = [], 0
            for t in [*chosen, len(ids)]:
                end = t
                while t < len(ids) and end > begin + 1 and t - end < 2 and joined[end - 1] > 0.5 * chance[t]:
                    end -= 1
                spans.append(places.setdefault((i, begin, end), len(places)))
                begin = t
            ways.append((chosen, spans))
        wanted.append(({t: float(start[t]) for t in likely}, ways))
    pieces = [(texts[i][0][b:e], texts[i][1][b:e]) for i, b, e in places]
    said = [log_softmax(x)[:model.labels] for x, _ in outputs(model, pieces, batches)]
    best = [[(int(l), float(s[l])) for l in np.argsort(-s)[:3]] for s in said]
    return [(likely, [(chosen, labelled([best[s] for s in spans])) for chosen, spans in ways]) for likely, ways in wanted]


def labelled(spans: list[list[tuple[int, float]]]) -> tuple[float, tuple[int, ...]]:
    """The best choice of different labels, and its sum of ln p."""
    return max(((sum(p for _, p in choice), tuple(l for l, _ in choice)) for choice in itertools.product(*spans)
                if len({l for l, _ in choice}) == len(choice)), default=(-1e9, ()))


def choose(reading: tuple, shift: float, weight: float) -> set[int]:
    likely, ways = reading
    def score(way: tuple) -> float:
        chosen, (said, _) = way
        return weight * said - sum(float(np.logaddexp(0, -(z + shift) if t in chosen else z + shift)) for t, z in likely.items())
    return set(max(ways, key=score)[1][1])


def judge(model: RecipeLstm, texts: list, batches: Batches, settings: list[tuple[float, float]]) -> list[list[set[int]]]:
    """Answers under every setting: (shift, weight) of cuts, or (alpha, 0) of label queries."""
    if model.form == "cut":
        readings = read_cuts(model, texts, batches)
        return [[choose(r, *s) for r in readings] for s in settings]
    found = []
    said = [(np.sort(x)[::-1][:MOST].cumsum(), np.argsort(-x), log_softmax(n)) for x, _, n in outputs(model, texts, batches)]
    for alpha, _ in settings:
        found.append([set(order[:1 + int(np.argmax(alpha * top + number))].tolist()) for top, order, number in said])
    return found


def exact(wanted: list[set[int]], given: list[set[int]]) -> float:
    return 100 * sum(w == g for w, g in zip(wanted, given)) / len(wanted)


def learn(model: RecipeLstm, joins: intent_joins.Joins, batches: Batches, dev: tuple[list, list[set[int]]], asked) -> dict:
    """Leaves the best mean of the weights in the model; its setting and figure on dev."""
    grid = ([(s, w) for s in SHIFTS for w in WEIGHTS] if model.form == "cut" else [(a / 20, 0.0) for a in range(2, 25)])
    per_epoch = -(-DRAWN // asked.rows)
    steps = asked.epochs * per_epoch
    plain = [p for p in model.parameters() if p.dim() < 2]
    adamw = torch.optim.AdamW([{"params": [p for p in model.parameters() if p.dim() > 1]}, {"params": plain, "weight_decay": 0}],
                              lr=asked.rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm = max(1, steps // 10)
    plan = torch.optim.lr_scheduler.LambdaLR(
        adamw, lambda s: (s + 1) / warm if s < warm else 0.5 + 0.5 * np.cos(np.pi * (s - warm) / (steps - warm)))
    mean, best = copy.deepcopy(model), {"dev": -1.0, "curve": []}
    for step in range(steps):
        model.train()
        adamw.zero_grad(set_to_none=True)
        loss = step_loss(model, joins, batches, asked.rows)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step(), plan.step()
        keep = min(0.999, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(mean.parameters()), list(model.parameters()), 1 - keep)
        if (step + 1) % (2 * per_epoch) and step + 1 < steps:
            continue
        figures = [exact(dev[1], given) for given in judge(mean, dev[0], batches, grid)]
        best["curve"].append(max(figures))
        print(f"epoch {(step + 1) // per_epoch}/{asked.epochs}  loss {loss.item():.3f}  dev exact match {max(figures):.2f}  "
              f"{time.monotonic() - asked.begun:.0f} s", flush=True)
        if max(figures) > best["dev"]:
            best.update(dev=max(figures), setting=grid[figures.index(max(figures))], weights=copy.deepcopy(mean.state_dict()))
    model.load_state_dict(best.pop("weights"))
    return best


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--like", type=pathlib.Path, required=True, help="a model folder: its vocab.txt and number of parameters")
    words.add_argument("--form", choices=("cut", "labels"), required=True)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--epochs", type=int, default=16)
    words.add_argument("--rows", type=int, default=256, help="compounds of a step, and as many single pieces")
    words.add_argument("--rate", type=float, default=2e-3)
    words.add_argument("--parameters", type=int, default=0, help="wanted; 0: those of --like")
    words.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    words.add_argument("--device", default="cpu", help="cpu, or cuda where a GPU is there")
    words.add_argument("--out", type=pathlib.Path, default=intent_data.RESULTS)
    asked = words.parse_args()
    name = f"{DATA}-bilstm-{asked.form}-s{asked.seed}"
    if (asked.out / f"{name}.json").exists():
        return print(f"{name}: done before")
    asked.begun = time.monotonic()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    parts = intent_data.splits_of(DATA)
    pieces, left = intent_joins.pieces_of(parts["train"])
    labels = sorted(pieces)
    tokenizer = BertWordPieceTokenizer(str(asked.like / "vocab.txt"), lowercase=True)
    tokens = intent_joins.Tokens(tokenizer, BUCKETS)
    joins = intent_joins.Joins(pieces, labels, list(SHARES), tokens, asked.seed)
    batches = Batches(tokenizer.token_to_id("[MASK]") or 1, asked.device, asked.seed)
    sets = {part: ([tokens(r[0]) for r in parts[part]], [{labels.index(n) for n in r[1].split("#")} for r in parts[part]])
            for part in ("dev", "test")}
    wanted = asked.parameters or intent_data.parameters_of(asked.like)
    model = fitting(tokenizer.get_vocab_size(), len(labels), asked.form, wanted).to(asked.device)
    own = sum(p.numel() for p in model.parameters())
    print(f"{name}: {own:,} parameters beside {wanted:,}, {sum(map(len, pieces.values()))} pieces, {left} rows left whole", flush=True)
    best = learn(model, joins, batches, sets["dev"], asked)
    trained = time.monotonic() - asked.begun
    given = judge(model, sets["test"][0], batches, [best["setting"]])[0]
    metrics = intent_data.figures([{labels[l] for l in w} for w in sets["test"][1]], [{labels[l] for l in g} for g in given])
    path = intent_data.save(name, {
        "data": DATA, "setting": f"bilstm-{asked.form}", "seed": asked.seed, "commit": intent_data.commit(),
        "machine": intent_data.machine(), "threads": asked.threads, "torch": torch.__version__,
        "device": asked.device if asked.device == "cpu" else torch.cuda.get_device_name(),
        "config": {"embedding": EMBEDDING, "width": model.lstm.hidden_size, "layers": 2, "rows": asked.rows, "rate": asked.rate,
                   "epochs": asked.epochs, "ngrams": BUCKETS},
        "parameters": own, "seconds": {"train": round(trained, 1), "eval": round(time.monotonic() - asked.begun - trained, 2)},
        "memory_mb": 0, "metrics": metrics, "dev": {"exact_match": best["dev"], "curve": best["curve"], "chosen": best["setting"]},
    }, asked.out)
    print(f"{name}: dev {best['dev']:.2f}, exact match {metrics['exact_match']:.2f}; {path}")


if __name__ == "__main__":
    main()
