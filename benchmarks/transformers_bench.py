#!/usr/bin/env python3
"""Models of transformers with attn_implementation="headwise" beside "sdpa": forward, training step, padding, small layers.

Usage: transformers_bench.py [--threads 2] [--clock wall|cpu] [--only WORD] [--out FILE.json]
A model has 4 layers of 512 with 8 heads, in f32, one text, random weights; both sides are one model that is switched.
"packed": the layers leave out padding (headwise.transformers.pack). A ratio is sdpa's time over headwise's, the median of alternating rounds. --clock cpu counts the time of the calling
thread and wants --threads 1: a busy machine changes little there. The package must be importable."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import copy
import datetime
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import time

import headwise as hw
import headwise.transformers
import torch
import transformers as hf

WIDTH, HEADS, LAYERS = 512, 8, 4
TOKENS = (128, 512, 2048)
IMPORT = "import time; t = time.perf_counter(); import headwise; print(time.perf_counter() - t)"


def llama(tokens):
    return hf.LlamaModel(hf.LlamaConfig(
        hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, vocab_size=1000,
        max_position_embeddings=tokens, use_cache=False))  # fmt: skip


def bert(tokens):
    return hf.BertModel(hf.BertConfig(
        hidden_size=WIDTH, intermediate_size=4 * WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS, vocab_size=1000,
        max_position_embeddings=tokens, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), add_pooling_layer=False)  # fmt: skip


MODELS = {"Llama": llama, "BERT": bert}


class Turns:
    """Both sides in turns until their rounds are enough."""

    def __init__(self, clock, rounds, seconds):
        self.clock = time.thread_time if clock == "cpu" else time.perf_counter
        self.rounds, self.seconds = rounds, seconds

    def take(self, sides, after=lambda: None):
        """Seconds a call, by side and round; `after` runs at the end of each round."""
        times = {}
        for name, call in sides.items():
            call()
            start = self.clock()
            call()
            times[name] = self.clock() - start
        count = max(1, round(self.seconds / max(times.values())))
        found = {name: [] for name in sides}
        for turn in range(self.rounds):
            for name in sorted(sides, reverse=bool(turn % 2)):
                start = self.clock()
                for _ in range(count):
                    sides[name]()
                found[name].append((self.clock() - start) / count)
            after()
        return found


def ratio(found):
    both = [rival / mine for rival, mine in zip(found["sdpa"], found["headwise"])]
    return {"median": statistics.median(both), "least": min(both), "most": max(both)}


def passes(model, ids, mask, training):
    """A forward pass, or one with its backward; the same model is switched before each, outside of what is timed."""

    def forward():
        with torch.no_grad():
            return model(input_ids=ids, attention_mask=mask).last_hidden_state

    def step():
        model(input_ids=ids, attention_mask=mask).last_hidden_state.square().mean().backward()
        for parameter in model.parameters():
            parameter.grad = None

    return step if training else forward


def pair(name, tokens, turns, kind):
    training, padded = "training" in kind, "padding" in kind
    torch.manual_seed(1)
    model = MODELS[name](tokens).train(training)
    rows = 2 if padded else 1
    ids = torch.randint(3, 1000, (rows, tokens))
    mask = torch.ones_like(ids)
    if padded:  # half of all tokens: a quarter of one row, three quarters of the other
        mask[0, 3 * tokens // 4 :] = 0
        mask[1, tokens // 4 :] = 0
    twins = {"sdpa": model, "headwise": copy.deepcopy(model)}
    for how, twin in twins.items():
        twin.set_attn_implementation(how)
    if "packed" in kind:
        hw.transformers.pack(twins["headwise"])
    sides = {how: passes(twin, ids, mask, training) for how, twin in twins.items()}
    if not training:
        want, found = (sides[how]()[mask.bool()] for how in ("sdpa", "headwise"))
        assert torch.allclose(found, want, atol=2e-4), f"{name} {tokens}: the sides differ by {(found - want).abs().max()}"
    return turns.take(sides)


def layer(turns, tokens=32):
    """One layer's attention of 8 heads of 64 at 32 tokens: by the adapter and by sdpa, and the kernels of both alone.

    An overhead is the time of a way less that of its kernel: ours runs in a loop of C++, torch's is called by its name."""
    q, k, v = (torch.randn(1, HEADS, tokens, WIDTH // HEADS) for _ in range(3))
    module = llama(64).layers[0].self_attn.eval()
    masks = {"headwise": hw.transformers.make_mask(1, tokens, tokens), "sdpa": None}
    ways = {"headwise": hw.transformers.attention_forward, "sdpa": hf.AttentionInterface()["sdpa"]}
    causal, torchs = hw.Mask.causal(), torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    sides = {
        name: lambda way=way, name=name: way(module, q, k, v, masks[name], dropout=0.0, scaling=0.125, is_causal=True)
        for name, way in ways.items()
    }
    sides["sdpa's kernel"] = lambda: torchs(q, k, v, 0.0, True, scale=0.125)
    with torch.no_grad():
        alone = []
        found = turns.take(sides, after=lambda: alone.append(hw._core._node_seconds(q, k, v, causal, 0.125, "bhsd", 200)))
    found["headwise's kernel"] = alone
    own = {name: [all_ - bare for all_, bare in zip(found[name], found[f"{name}'s kernel"])] for name in ways}
    return {"seconds": {name: statistics.median(times) for name, times in found.items()},
            "overhead": {name: statistics.median(times) for name, times in own.items()}}  # fmt: skip


def import_seconds(rounds=9):
    def once():
        return float(subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True).stdout)

    once()
    return sorted(once() for _ in range(rounds))[rounds // 2]


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor() or platform.machine()


CASES = [(name, kind, tokens) for name in MODELS for kind in ("forward", "training step") for tokens in TOKENS]
CASES += [(name, f"{kind}, half is padding{packed}", tokens)
          for name in MODELS for kind, packed in (("forward", ""), ("forward", ", packed"), ("training step", ", packed")) for tokens in TOKENS]  # fmt: skip


def measure(given):
    log = {
        "machine": f"{processor()} ({platform.machine()})", "threads": given.threads, "clock": given.clock,
        "headwise": hw.__version__, "torch": torch.__version__, "transformers": hf.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), "cases": [],
    }  # fmt: skip
    for name, kind, tokens in CASES:
        if given.only and given.only not in f"{name} {kind} {tokens}":
            continue
        found = pair(name, tokens, Turns(given.clock, given.rounds, given.seconds), kind)
        row = {"model": name, "pass": kind, "tokens": tokens, "ratio": ratio(found),
               "seconds": {side: statistics.median(times) for side, times in found.items()}, "rounds": found}  # fmt: skip
        log["cases"].append(row)
        print(f"{name}, {kind}, {tokens}: sdpa {row['seconds']['sdpa'] * 1e3:.1f} ms, headwise "
              f"{row['seconds']['headwise'] * 1e3:.1f} ms, {spread(row['ratio'])}", flush=True)  # fmt: skip
    if given.only in (None, "layer"):
        log["layer"] = layer(Turns(given.clock, 3 * given.rounds, 0.02))
        log["import_seconds"] = import_seconds()
        print(f"a layer at 32 tokens: {log['layer']}\nimport headwise: {log['import_seconds'] * 1e3:.0f} ms")
    return log


def spread(of):
    return f"{of['median']:.2f}x ({of['least']:.2f} to {of['most']:.2f})"


def page(log):
    rows = {(row["model"], row["pass"], row["tokens"]): spread(row["ratio"]) for row in log["cases"]}
    lines = ["| model, pass | " + " | ".join(f"{tokens:,} tokens" for tokens in TOKENS) + " |", "|---" * (1 + len(TOKENS)) + "|"]
    for name, kind in dict.fromkeys(case[:2] for case in CASES):
        lines.append(f"| {name}, {kind} | " + " | ".join(rows[name, kind, tokens] for tokens in TOKENS) + " |")
    return "\n".join(lines)


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--threads", type=int, default=2)
    words.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    words.add_argument("--rounds", type=int, default=7)
    words.add_argument("--seconds", type=float, default=0.3, help="of one turn, at least one call")
    words.add_argument("--only", help="cases whose name holds this; layer: the small layer and the import alone")
    words.add_argument("--out", type=pathlib.Path, help="keeps every round as JSON")
    given = words.parse_args()
    if given.clock == "cpu" and given.threads != 1:
        words.error(f"--clock cpu counts one thread, and --threads is {given.threads}; give --threads 1")
    torch.set_num_threads(given.threads)
    hw.set_threads(given.threads)
    log = measure(given)
    if given.out:
        given.out.write_text(json.dumps(log, indent=1) + "\n")
    if not given.only:
        print(page(log))


if __name__ == "__main__":
    main()
