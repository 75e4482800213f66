#!/usr/bin/env python3
"""Language models beside other programs, all loaded once, asked in turns.

Usage: turns.py MODELS [--steps-program PROGRAM] [--threads 1] [--rounds 3] [--asks "roof 64;roof 512;batch 8"]
       [--engines "headwise f32;transformers f32"] [--out FILE.json]

MODELS is a folder of make_model.py: stored.gguf, f32.gguf, f16.gguf, q8_0.gguf and hf/. PROGRAM is headwise_decoder_steps. Each
engine is a process that answers lines: "roof N" reads a prompt of N tokens and writes 24, "batch N" writes N texts of 64
tokens at once. Figures are tokens in a second of the wall and of the process's CPU time; on a busy machine compare the
latter, with one thread. The rounds ask every engine for one figure before the next, so that all see the same machine.
Engines that are not installed are said and left out."""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

STEPS = 24
FILES = {"f32": "f32.gguf", "bf16": "f32.gguf", "f16": "f16.gguf", "q4_1": "stored.gguf", "q8_0": "q8_0.gguf"}
RIVALS = ["transformers f32", "transformers bf16", "openvino f32", "openvino bf16", "openvino q4_1", "llama.cpp f32", "llama.cpp f16",
          "llama.cpp q4_1", "llama.cpp q8_0"]
OWN = ["headwise f32", "headwise bf16", "headwise q4_1 exact", "headwise q4_1 i8", "headwise q8_0 exact", "headwise q8_0 i8"]


def clock():
    return time.perf_counter(), time.process_time()


class Prompts:
    """Ids that were not seen before: engines keep beginnings."""

    def __init__(self):
        self.draw = random.Random(11)

    def some(self, texts, tokens):
        return [[self.draw.randrange(1000, 40000) for _ in range(tokens)] for _ in range(texts)]


class Transformers:
    def __init__(self, models, dtype, threads):
        import torch
        from transformers import AutoModelForCausalLM
        torch.set_num_threads(threads)
        self.torch = torch
        kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
        self.model = AutoModelForCausalLM.from_pretrained(models / "hf", dtype=kind).eval()

    def write(self, prompts):
        """Clocks before, behind the prompts, and at the end."""
        with self.torch.inference_mode():
            begin = clock()
            out = self.model(self.torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            ids = out.logits[:, -1].argmax(-1, keepdim=True)
            first = clock()
            for _ in range(STEPS):
                out = self.model(ids, past_key_values=out.past_key_values, use_cache=True)
                ids = out.logits[:, -1].argmax(-1, keepdim=True)
            return begin, first, clock()


class LlamaCpp:
    def __init__(self, models, dtype, threads):
        import llama_cpp.llama_cpp as lib
        import numpy
        self.lib, self.numpy = lib, numpy
        lib.llama_backend_init()
        file = models / "plain" / FILES[dtype]  # the same without a tokenizer, where it is there
        file = file if file.exists() else models / FILES[dtype]
        self.model = lib.llama_model_load_from_file(str(file).encode(), lib.llama_model_default_params())
        c = lib.llama_context_default_params()
        c.n_ctx, c.n_batch, c.n_ubatch, c.n_seq_max, c.n_threads, c.n_threads_batch = 16384, 2048, 512, 16, threads, threads
        if hasattr(c, "kv_unified"):
            c.kv_unified = True
        self.ctx = lib.llama_init_from_model(self.model, c)
        self.batch = lib.llama_batch_init(2048, 0, 1)
        self.size = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))

    def decode(self, rows):
        """(token, position, text, wanted) of each row; the likeliest next of those wanted."""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, position, text, wanted) in enumerate(rows):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, position, 1, wanted
            b.seq_id[i][0] = text
        if self.lib.llama_decode(self.ctx, b) != 0:
            raise RuntimeError("llama_decode failed")
        logits = [self.lib.llama_get_logits_ith(self.ctx, i) for i, row in enumerate(rows) if row[3]]
        return [int(self.numpy.ctypeslib.as_array(one, (self.size,)).argmax()) for one in logits]

    def write(self, prompts):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.ctx), True)
        n = len(prompts[0])
        rows = [(t, i, s, i + 1 == n) for s, p in enumerate(prompts) for i, t in enumerate(p)]
        begin, ids = clock(), []
        for at in range(0, len(rows), 2048):
            ids += self.decode(rows[at : at + 2048])
        first = clock()
        for step in range(STEPS):
            ids = self.decode([(t, n + step, s, True) for s, t in enumerate(ids)])
        return begin, first, clock()


class OpenVino:
    def __init__(self, models, dtype, threads):
        import openvino_genai
        self.lib = openvino_genai
        self.prompts = Prompts()
        # It does not read GGUF in f32: weights of f16, computed in `dtype`.
        file, kind = ("stored.gguf", "f32") if dtype == "q4_1" else ("f16.gguf", dtype)
        pools = openvino_genai.SchedulerConfig()
        pools.cache_size, pools.enable_prefix_caching, pools.max_num_batched_tokens, pools.max_num_seqs = 2, False, 8192, 64
        self.pipe = openvino_genai.ContinuousBatchingPipeline(str(models / file), pools, "CPU", {
            "INFERENCE_PRECISION_HINT": kind, "INFERENCE_NUM_THREADS": threads, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "KV_CACHE_PRECISION": kind})

    def ask(self, prompts, tokens):
        import numpy
        import openvino as ov
        o = self.lib.GenerationConfig()
        o.max_new_tokens = o.min_new_tokens = tokens
        o.ignore_eos, o.do_sample, o.apply_chat_template = True, False, False
        tensors = [ov.Tensor(numpy.array([p], dtype="int64")) for p in prompts]
        before = clock()
        self.pipe.generate(tensors, [o] * len(prompts))
        return [b - a for a, b in zip(before, clock())]

    def write(self, prompts):
        one = self.ask(self.prompts.some(len(prompts), len(prompts[0])), 1)
        many = self.ask(prompts, STEPS + 1)
        return (0, 0), one, many


ENGINES = {"transformers": Transformers, "llama.cpp": LlamaCpp, "openvino": OpenVino}


def child(a):
    """Answers as headwise_decoder_steps does."""
    name, dtype = a.child.split()
    engine, prompts = ENGINES[name](a.models, dtype, a.threads), Prompts()
    engine.write(prompts.some(1, 16))
    print('{"ready": true}', flush=True)
    for line in sys.stdin:
        ask, n = line.split()
        texts, tokens = (int(n), 64) if ask == "batch" else (1, int(n))
        begin, first, end = engine.write(prompts.some(texts, tokens))
        figures = {}
        for i, mark in enumerate(("", "cpu_")):
            figures[f"tokens_{mark}s"] = texts * STEPS / (end[i] - first[i])
            if ask != "batch":
                figures[f"prefill_tokens_{mark}s"] = tokens / (first[i] - begin[i])
        print(json.dumps(figures), flush=True)
    return 0


def words_of(a, engine):
    name, dtype, *rows = engine.split()
    if name != "headwise":
        return [sys.executable, __file__, str(a.models), "--threads", str(a.threads), "--child", engine]
    kv = "bf16" if dtype == "bf16" else "f32"
    own = dtype if dtype in ("f32", "bf16", "f16") else "stored"
    return [str(a.steps_program), str(a.models / FILES[dtype]), "--threads", str(a.threads), "--dtype", own, "--kv", kv,
            "--steps", str(STEPS), "--rows", rows[0] if rows else "exact"]


class Engine:
    def __init__(self, a, name):
        self.name = name
        errors = None if a.verbose else subprocess.DEVNULL
        self.process = subprocess.Popen(words_of(a, name), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)

    def answer(self):
        """The next line of JSON; None: the process has ended."""
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        return None

    def ask(self, line):
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            return self.answer()
        except BrokenPipeError:
            return None

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def measure(a):
    engines = [Engine(a, name) for name in (a.engines.split(";") if a.engines else OWN + RIVALS)]
    ready = [e for e in engines if e.answer() is not None]
    for e in engines:
        if e not in ready:
            print(f"{e.name}: did not start, not measured")
    seen, begin = {}, time.time()
    for number in range(a.rounds):
        for line in a.asks.split(";"):
            for e in ready:
                figures = e.ask(line) if time.time() - begin < a.seconds else None
                if figures:
                    seen.setdefault(e.name, {}).setdefault(line, []).append(figures)
        print(f"round {number + 1} of {a.rounds}, {time.time() - begin:.0f} s", flush=True)
    for e in engines:
        e.end()
    return seen


def table(seen, threads):
    """A row for each figure and engine: the median of the rounds, both ends, and how often that is each rival's."""
    mark = "cpu_" if threads == 1 else ""
    lines = ["| figure | engine | tokens/s | least, most | times |", "| --- | --- | --- | --- | --- |"]
    middle = {}
    for engine, asked in seen.items():
        for line, answers in asked.items():
            for what in ("prefill_tokens_", "tokens_"):
                values = [f[what + mark + "s"] for f in answers if what + mark + "s" in f]
                if values:
                    middle.setdefault((line, what), {})[engine] = (statistics.median(values), min(values), max(values))
    for (line, what), engines in middle.items():
        name = ("prefill " if what.startswith("prefill") else "decode ") + line.split()[1] if line.startswith("roof") else line
        for engine, (value, low, high) in engines.items():
            own = engine.startswith("headwise")
            times = ", ".join(f"{value / v[0]:.2f} x {e}" for e, v in engines.items() if own and not e.startswith("headwise"))
            lines.append(f"| {name} | {engine} | {value:.1f} | {low:.1f}, {high:.1f} | {times} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--steps-program", type=pathlib.Path, default=pathlib.Path(__file__).parents[2] / "build/release/benchmarks/headwise_decoder_steps")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1e9, help="behind them nothing more is asked")
    parser.add_argument("--asks", default="roof 64;roof 512;roof 2000;batch 8;batch 16")
    parser.add_argument("--engines", default="")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        return child(a)
    seen = measure(a)
    if a.out:
        a.out.write_text(json.dumps({"threads": a.threads, "cpus": os.cpu_count(), "figures": seen}, indent=1) + "\n")
    print(table(seen, a.threads), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
