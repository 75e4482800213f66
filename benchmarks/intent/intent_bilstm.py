#!/usr/bin/env python3
"""The rival of the recogniser: a BiLSTM in PyTorch on the same splits, the same tokens and as many parameters.

Vocabulary and number of parameters are those of a trained model folder of ours (--like); the width of the LSTM is the one that
comes nearest. Two layers, mean and maximum over time, dropout, AdamW with warm-up and linear decay, the best epoch on dev kept.
Several intents: sigmoid outputs, the threshold chosen on dev. A run that was stopped goes on after its last whole epoch.
With --device cuda it learns and is judged on a GPU; intent_latency.py measures its latency on the CPU.
Usage: intent_bilstm.py DATA --like MODEL [--seed N] [--epochs N] [--minutes M] [--threads N] [--device cpu|cuda]"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import os
import pathlib
import resource
import time

import torch
from tokenizers import BertWordPieceTokenizer
from torch import nn
from torch.nn import functional as F

import intent_data

TOKENS = 256  # at most of a text; none of the sets comes near


class BiLstm(nn.Module):
    def __init__(self, vocabulary: int, labels: int, width: int, embedding: int, dropout: float = 0.3):
        super().__init__()
        self.table = nn.Embedding(vocabulary, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, width, num_layers=2, batch_first=True, bidirectional=True, dropout=dropout)
        self.out, self.drop = nn.Linear(4 * width, labels), nn.Dropout(dropout)
        nn.init.normal_(self.table.weight, std=0.1)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(self.drop(self.table(ids)), lengths, batch_first=True, enforce_sorted=False)
        rows, _ = nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        lengths = lengths.to(rows.device)
        open_ = (torch.arange(rows.shape[1], device=rows.device)[None] < lengths[:, None]).unsqueeze(2)
        mean = (rows * open_).sum(1) / lengths[:, None]
        most = rows.masked_fill(~open_, -1e9).amax(1)
        return self.out(self.drop(torch.cat([mean, most], 1)))


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def fitting(vocabulary: int, labels: int, wanted: int, embedding: int) -> BiLstm:
    """The width whose count comes nearest; where the table alone is too much, a narrower table."""
    def count(width: int, columns: int) -> int:
        lstm = 2 * (4 * width * (columns + width + 2)) + 2 * (4 * width * (2 * width + width + 2))
        return vocabulary * columns + lstm + labels * (4 * width + 1)

    while embedding > 16 and count(16, embedding) > wanted:
        embedding -= 8
    width = min(range(8, 2048), key=lambda w: abs(count(w, embedding) - wanted))
    return BiLstm(vocabulary, labels, width, embedding)


class Texts:
    def __init__(self, rows: list[list[str]], tokenizer: BertWordPieceTokenizer, labels: list[str], device: str):
        place = {name: i for i, name in enumerate(labels)}
        ids = [torch.tensor(e.ids[:TOKENS] or [1]) for e in tokenizer.encode_batch([r[0] for r in rows])]
        self.wanted = [set(r[1].split("#")) - {""} for r in rows]
        targets = torch.zeros(len(rows), len(labels))
        for i, names in enumerate(self.wanted):
            for name in names:
                targets[i, place[name]] = 1
        self.lengths = torch.tensor([len(i) for i in ids])  # on the CPU, where packing wants them
        self.ids, self.targets = nn.utils.rnn.pad_sequence(ids, batch_first=True).to(device), targets.to(device)

    def __len__(self) -> int:
        return len(self.wanted)

    def batch(self, picked: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        lengths, there = self.lengths[picked], picked.to(self.ids.device)
        return self.ids[there, :int(lengths.max())], lengths, self.targets[there]


@torch.no_grad()
def scores(model: BiLstm, texts: Texts) -> torch.Tensor:
    model.eval()
    order = texts.lengths.argsort(stable=True)
    found = torch.empty(texts.targets.shape)
    for picked in order.split(256):
        ids, lengths, _ = texts.batch(picked)
        found[picked] = model(ids, lengths).cpu()
    return found


def answers(logits: torch.Tensor, labels: list[str], multi: bool, threshold: float) -> list[set[str]]:
    if not multi:
        return [{labels[i]} for i in logits.argmax(1).tolist()]
    return [{labels[i] for i in row.nonzero().flatten().tolist()} for row in logits.sigmoid() >= threshold]


def best_threshold(logits: torch.Tensor, texts: Texts, labels: list[str]) -> float:
    grid = [i / 20 for i in range(2, 18)]
    return max(grid, key=lambda t: intent_data.figures(texts.wanted, answers(logits, labels, True, t))["exact_match"])


def learn(model: BiLstm, train: Texts, dev: Texts, labels: list[str], multi: bool, asked, saved: pathlib.Path) -> dict:
    """Trains, from the saved epoch on if there is one; leaves the best epoch's weights in the model."""
    steps = asked.epochs * -(-len(train) // asked.rows)
    adamw = torch.optim.AdamW(model.parameters(), lr=asked.rate, weight_decay=0.01)
    plan = torch.optim.lr_scheduler.LambdaLR(adamw, lambda s: min((s + 1) / (0.05 * steps), max(0.0, 1 - s / steps)))
    state = {"epoch": 0, "best": -1.0, "weights": None, "threshold": 0.5, "seconds": 0.0, "curve": []}
    if saved.exists():
        kept = torch.load(saved, map_location="cpu")
        state = kept["state"]
        model.load_state_dict(kept["model"]), adamw.load_state_dict(kept["adamw"]), plan.load_state_dict(kept["plan"])
    while state["epoch"] < asked.epochs and state["seconds"] < 60 * asked.minutes:
        start = time.monotonic()
        torch.manual_seed(asked.seed * 1000 + state["epoch"])
        model.train()
        for picked in torch.randperm(len(train)).split(asked.rows):
            ids, lengths, targets = train.batch(picked)
            logits = model(ids, lengths)
            loss = (F.binary_cross_entropy_with_logits(logits, targets) * len(labels) if multi
                    else F.cross_entropy(logits, targets.argmax(1)))
            adamw.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adamw.step()
            plan.step()
        found = scores(model, dev)
        threshold = best_threshold(found, dev, labels) if multi else 0.5
        exact = intent_data.figures(dev.wanted, answers(found, labels, multi, threshold))["exact_match"]
        state["epoch"] += 1
        state["curve"].append(exact)
        if exact > state["best"]:
            weights = {name: value.cpu().clone() for name, value in model.state_dict().items()}
            state.update(best=exact, threshold=threshold, weights=weights)
        state["seconds"] += time.monotonic() - start
        part = saved.with_suffix(".part")
        torch.save({"state": state, "model": model.state_dict(), "adamw": adamw.state_dict(), "plan": plan.state_dict()}, part)
        part.replace(saved)
        print(f"epoch {state['epoch']}/{asked.epochs}  dev exact match {exact:.2f}  {state['seconds']:.0f} s", flush=True)
    model.load_state_dict(state["weights"])
    return state


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("data", help=", ".join(intent_data.SETS))
    words.add_argument("--like", type=pathlib.Path, required=True, help="a model folder: its vocab.txt and number of parameters")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--epochs", type=int, default=12)
    words.add_argument("--minutes", type=float, default=60, help="no epoch begins after this")
    words.add_argument("--rows", type=int, default=64, help="of a step")
    words.add_argument("--rate", type=float, default=2e-3)
    words.add_argument("--embedding", type=int, default=128)
    words.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    words.add_argument("--device", default="cpu", help="cpu, or cuda where a GPU is there")
    words.add_argument("--out", type=pathlib.Path, default=intent_data.RESULTS)
    asked = words.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)

    parts = intent_data.splits_of(asked.data)
    labels = sorted({name for part in ("train", "dev") for r in parts[part] for name in r[1].split("#") if name})
    multi = any("#" in r[1] for r in parts["train"])
    tokenizer = BertWordPieceTokenizer(str(asked.like / "vocab.txt"), lowercase=True)
    train, dev, test = (Texts(parts[part], tokenizer, labels, asked.device) for part in ("train", "dev", "test"))
    wanted = intent_data.parameters_of(asked.like)
    model = fitting(tokenizer.get_vocab_size(), len(labels), wanted, asked.embedding).to(asked.device)
    name = f"{asked.data}-bilstm-s{asked.seed}"
    print(f"{name}: {parameters(model):,} parameters beside {wanted:,}, {len(train)} texts, {len(labels)} labels", flush=True)
    room = intent_data.ROOM / name
    room.mkdir(parents=True, exist_ok=True)
    state = learn(model, train, dev, labels, multi, asked, room / "state.pt")
    torch.save({"weights": state["weights"], "labels": labels, "threshold": state["threshold"], "multi": multi,
                "embedding": model.table.embedding_dim, "width": model.lstm.hidden_size}, room / "model.pt")
    start = time.monotonic()
    found = scores(model, test)
    seconds = time.monotonic() - start
    metrics = intent_data.figures(test.wanted, answers(found, labels, multi, state["threshold"]))
    path = intent_data.save(name, {
        "data": asked.data, "setting": "bilstm", "seed": asked.seed, "commit": intent_data.commit(),
        "machine": intent_data.machine(), "threads": asked.threads, "torch": torch.__version__,
        "device": asked.device if asked.device == "cpu" else torch.cuda.get_device_name(),
        "config": {"embedding": model.table.embedding_dim, "width": model.lstm.hidden_size, "layers": 2, "dropout": 0.3,
                   "rows": asked.rows, "rate": asked.rate, "epochs": asked.epochs, "vocabulary": tokenizer.get_vocab_size()},
        "parameters": parameters(model),
        "seconds": {"train": round(state["seconds"], 1), "eval": round(seconds, 2)},
        "memory_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "metrics": metrics,
    }, asked.out)
    print(f"{name}: exact match {metrics['exact_match']:.2f}, micro-F1 {metrics['micro_f1']:.2f}; {path}")


if __name__ == "__main__":
    main()
