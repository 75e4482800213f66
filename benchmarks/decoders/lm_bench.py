#!/usr/bin/env python3
"""The training step of a small language model (forward, backward, clipping, AdamW) against torch, taking turns in one run.

The model is the same on both sides: learned positions, norm first, GELU, tied embedding, causal. Ours runs in lm_step, which times
itself; the figure is the shortest step of all turns on each side, and the ratio the median over turns.
Usage: lm_bench.py LM_STEP [--turns N] [--threads N]"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import statistics
import subprocess
import time

import torch
from torch import nn
from torch.nn import functional as F

CASES = {"tiny": (128, 4, 4, 64, 12), "small": (256, 4, 8, 128, 8)}  # model_dim depth heads tokens rows
VOCABULARY = 65


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm1, self.norm2 = heads, nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.wide, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        q, k, v = (t.view(batch, tokens, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(dim, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, dim)
        x = x + self.out(y)
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, dim, depth, heads, tokens):
        super().__init__()
        self.table, self.places = nn.Embedding(VOCABULARY, dim), nn.Embedding(tokens, dim)
        self.blocks, self.norm = nn.ModuleList(Block(dim, heads) for _ in range(depth)), nn.LayerNorm(dim)
        nn.init.normal_(self.table.weight, std=0.02)
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, ids):
        x = self.table(ids) + self.places.weight[:ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.table.weight)


class Torch:
    def __init__(self, dim, depth, heads, tokens, rows):
        torch.manual_seed(1)
        self.model, self.rows, self.tokens, self.step, self.loss = Model(dim, depth, heads, tokens), rows, tokens, 0, 0.0
        self.adamw = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)

    def run(self, steps):
        shortest = float("inf")
        for _ in range(steps):
            e = torch.arange(self.step * self.rows, (self.step + 1) * self.rows)[:, None]
            ids = (e * 31 + torch.arange(self.tokens + 1) * 7) % VOCABULARY
            start = time.perf_counter()
            self.adamw.zero_grad(set_to_none=True)
            loss = F.cross_entropy(self.model(ids[:, :-1]).view(-1, VOCABULARY), ids[:, 1:].reshape(-1))
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.adamw.step()
            shortest = min(shortest, time.perf_counter() - start)
            self.step, self.loss = self.step + 1, loss.item()
        return shortest


class Ours:
    def __init__(self, program, threads, *sizes):
        self.process = subprocess.Popen([program, *map(str, sizes), str(threads)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("program")
    options.add_argument("--turns", type=int, default=12)
    options.add_argument("--threads", type=int, default=torch.get_num_threads())
    options.add_argument("--cases", nargs="*", default=list(CASES))
    chosen = options.parse_args()
    torch.set_num_threads(chosen.threads)
    print(f"torch {torch.__version__}, {chosen.threads} threads, f32; shortest step of {chosen.turns} turns of 5, ratio: median of turns")
    for name in chosen.cases:
        sizes = CASES[name]
        ours, theirs = Ours(chosen.program, chosen.threads, *sizes), Torch(*sizes)
        ours.ask(3), theirs.run(3)
        turns = []
        for _ in range(chosen.turns):
            turns.append((ours.ask(5), theirs.run(5)))
            time.sleep(0.01)
        dim, depth, heads, tokens, rows = sizes
        ratio = statistics.median(t / o for o, t in turns)
        best_ours, best_theirs = (min(side) * 1e3 for side in zip(*turns))
        print(f"{name}: model_dim {dim}, depth {depth}, heads {heads}, [{rows} {tokens}]: headwise {best_ours:.2f} ms, torch "
              f"{best_theirs:.2f} ms, {ratio:.2f}x (shortest {best_theirs / best_ours:.2f}x); losses {ours.ask('loss'):.3f} "
              f"{theirs.loss:.3f}", flush=True)
        ours.close()


if __name__ == "__main__":
    main()
