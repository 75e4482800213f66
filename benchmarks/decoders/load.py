#!/usr/bin/env python3
"""Many texts that come and go: headwise beside openvino-genai on one trace, in turns.

Usage: load.py MODELS [--steps-program PROGRAM] [--threads 1] [--rounds 2] [--requests 64] [--rate 8] [--scale 1]

Requests arrive as a Poisson process of RATE a second; lengths of prompts and answers are log-normal, around 128 and 48
tokens times SCALE, and half of the prompts begin with one of 4 beginnings of 512 tokens times SCALE. Both keep
beginnings. Figures: answers' tokens in a second until the last one ended, the 99th percentile of the time to a first
token and of the gaps behind it, and goodput: tokens in a second of the requests that had their first token within
2 seconds and 99 % of their gaps below a quarter of a second."""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time


def trace(a):
    draw = random.Random(5)
    ids = lambda n: [draw.randrange(1000, 40000) for _ in range(n)]  # noqa: E731
    beginnings, at, out = [ids(int(512 * a.scale)) for _ in range(4)], 0.0, []
    for i in range(a.requests):
        prompt = ids(max(4, int(a.scale * draw.lognormvariate(4.85, 0.6))))
        if i % 2:
            prompt = draw.choice(beginnings) + prompt
        out.append((at, max(2, int(a.scale * draw.lognormvariate(3.87, 0.5))), prompt))
        at += draw.expovariate(a.rate)
    return out


def openvino(a, requests):
    """(arrival, [times of tokens]) of each request."""
    import numpy
    import openvino as ov
    import openvino_genai as lib
    pools = lib.SchedulerConfig()
    pools.cache_size, pools.enable_prefix_caching, pools.max_num_batched_tokens, pools.max_num_seqs = 4, True, 256, 64
    pipe = lib.ContinuousBatchingPipeline(str(a.models / "f16.gguf"), pools, "CPU", {
        "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": a.threads, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "KV_CACHE_PRECISION": "f32"})

    def options(tokens):
        o = lib.GenerationConfig()
        o.max_new_tokens = o.min_new_tokens = tokens
        o.ignore_eos, o.do_sample, o.apply_chat_template = True, False, False
        return o

    pipe.generate([ov.Tensor(numpy.full((1, 16), 77, "int64"))], [options(4)])
    begin, handles, times, next_one = time.perf_counter(), {}, [(r[0], []) for r in requests], 0
    while next_one < len(requests) or handles:
        now = time.perf_counter() - begin
        while next_one < len(requests) and requests[next_one][0] <= now:
            _, tokens, prompt = requests[next_one]
            handles[next_one] = pipe.add_request(next_one, ov.Tensor(numpy.array([prompt], "int64")), options(tokens))
            next_one += 1
        if not handles:
            time.sleep(max(0.0, requests[next_one][0] - now))
            continue
        pipe.step()
        now = time.perf_counter() - begin
        for i, handle in list(handles.items()):
            while handle.can_read():
                times[i][1].extend(now for out in handle.read().values() for _ in out.generated_ids)
            if len(times[i][1]) >= requests[i][1]:
                del handles[i]
    return times


def headwise(a, requests):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{at} {tokens} {' '.join(map(str, prompt))}\n" for at, tokens, prompt in requests)
        file.flush()
        words = [str(a.steps_program), str(a.models / "stored.gguf"), "--dtype", "f32", "--threads", str(a.threads), "--cases", "load", "--trace", file.name]
        lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(r[0], [float(t) for t in line.split()]) for r, line in zip(requests, lines)]


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else 0.0


def figures(times):
    gaps = [[b - a for a, b in zip(t, t[1:])] for _, t in times]
    firsts = [t[0] - at for at, t in times]
    end = max(t[-1] for _, t in times)
    good = sum(len(t) for (_, t), g, f in zip(times, gaps, firsts) if f <= 2 and percentile(g, 0.99) <= 0.25)
    return {"tokens/s": sum(len(t) for _, t in times) / end, "goodput": good / end, "p99 first, ms": 1e3 * percentile(firsts, 0.99),
            "p99 gap, ms": 1e3 * percentile([x for g in gaps for x in g], 0.99)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("models", type=pathlib.Path)
    parser.add_argument("--steps-program", type=pathlib.Path, default=pathlib.Path(__file__).parents[2] / "build/release/benchmarks/headwise_decoder_steps")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--rate", type=float, default=8)
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    a = parser.parse_args()
    requests = trace(a)
    if a.child:
        print(json.dumps(figures({"headwise": headwise, "openvino": openvino}[a.child](a, requests))), flush=True)
        return 0
    for number in range(a.rounds):
        for engine in ("headwise", "openvino"):
            done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--child", engine], capture_output=True, text=True)
            print(f"round {number + 1}, {engine}: {done.stdout.strip() or done.stderr.strip()[-300:]}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
