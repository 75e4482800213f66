#!/usr/bin/env python3
"""Decoding of one text: tokens a second, share of what the memory can deliver, beside other engines that are installed.

Usage: decoder_bench.py MODEL.gguf [--headwise PROGRAM] [--threads 2] [--rounds 3] [--tokens 48]

The roof is the bytes of weights a token reads, over the bandwidth that as many processes reach when they search a
buffer of zeros. Speed is the difference of a long and a short answer, so that loading does not count. Engines run in
turns; medians and the spread are shown. transformers (with gguf and accelerate) and llama_cpp are measured where they
are installed; their absence is said. Nothing else should run."""
import argparse
import importlib.util
import json
import multiprocessing
import statistics
import subprocess
import sys
import time

PROMPT = "Once upon a time there was a"
WAYS = [("f32", "exact"), ("bf16", "exact"), ("stored", "exact"), ("stored", "i8")]


def search(barrier, queue, size=256 << 20, times=6):
    buffer = bytes(size)
    buffer.find(b"\x01")
    barrier.wait()
    begin = time.perf_counter()
    for _ in range(times):
        buffer.find(b"\x01")
    queue.put((begin, time.perf_counter(), size * times))


def read_bandwidth(threads):
    barrier, queue = multiprocessing.Barrier(threads), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=search, args=(barrier, queue)) for _ in range(threads)]
    for w in workers:
        w.start()
    parts = [queue.get() for _ in workers]
    for w in workers:
        w.join()
    return sum(p[2] for p in parts) / (max(p[1] for p in parts) - min(p[0] for p in parts))


def run(program, model, threads, dtype, rows, tokens):
    """Seconds of a run, tokens drawn, bytes of weights."""
    begin = time.perf_counter()
    out = subprocess.run([program, "generate", model, PROMPT, "--max-tokens", str(tokens), "--dtype", dtype, "--rows", rows,
                          "--threads", str(threads), "--json"], capture_output=True, text=True, check=True)
    return time.perf_counter() - begin, len(json.loads(out.stdout)["tokens"])


def weight_bytes(program, model, dtype):
    out = subprocess.run([program, "generate", model, PROMPT, "--max-tokens", "1", "--dtype", dtype, "--stats"],
                         capture_output=True, text=True, check=True)
    return float(out.stderr.rsplit("weights ", 1)[1].split(" MB")[0]) * 1e6


def headwise_engine(program, dtype, rows):
    def measure(model, threads, tokens):
        short, few = run(program, model, threads, dtype, rows, 4)
        long, many = run(program, model, threads, dtype, rows, 4 + tokens)
        return (many - few) / (long - short)
    return measure


def transformers_engine(model, threads, tokens, held={}):
    import os
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    torch.set_num_threads(threads)
    if not held:
        folder, file = os.path.split(os.path.abspath(model))
        held["model"] = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
        held["ids"] = AutoTokenizer.from_pretrained(folder, gguf_file=file)(PROMPT, return_tensors="pt")
    times = []
    for n in (4, 4 + tokens):
        begin = time.perf_counter()
        held["model"].generate(**held["ids"], min_new_tokens=n, max_new_tokens=n, do_sample=False)
        times.append(time.perf_counter() - begin)
    return tokens / (times[1] - times[0])


def llama_engine(model, threads, tokens, held={}):
    import llama_cpp
    if not held:
        held["model"] = llama_cpp.Llama(model, n_threads=threads, n_ctx=512, verbose=False)
    times = []
    for n in (4, 4 + tokens):
        begin = time.perf_counter()
        held["model"](PROMPT, max_tokens=n, temperature=0, logit_bias={2: -100.0})
        times.append(time.perf_counter() - begin)
        held["model"].reset()
    return tokens / (times[1] - times[0])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--headwise", default="build/release/headwise/cli/headwise")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48)
    a = parser.parse_args()
    engines = {f"headwise {d} {r}": (headwise_engine(a.headwise, d, r), weight_bytes(a.headwise, a.model, d)) for d, r in WAYS}
    for name, package, engine in (("transformers f32", "transformers", transformers_engine), ("llama.cpp, its file", "llama_cpp", llama_engine)):
        if importlib.util.find_spec(package) and (package != "transformers" or importlib.util.find_spec("gguf")):
            engines[name] = (engine, weight_bytes(a.headwise, a.model, "f32" if package == "transformers" else "stored"))
        else:
            print(f"{name}: not installed, not measured")
    bandwidth = read_bandwidth(a.threads)
    print(f"read bandwidth of {a.threads} processes: {bandwidth / 1e9:.1f} GB/s")
    speeds = {name: [] for name in engines}
    for _ in range(a.rounds):
        for name, (engine, _) in engines.items():
            speeds[name].append(engine(a.model, a.threads, a.tokens))
    print(f"{'engine':24} tokens/s    lowest   highest   share of the roof")
    for name, (_, weights) in engines.items():
        s = sorted(speeds[name])
        middle = statistics.median(s)
        print(f"{name:24} {middle:8.1f}  {s[0]:8.1f}  {s[-1]:8.1f}   {100 * middle * weights / bandwidth:6.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
