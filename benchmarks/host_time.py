#!/usr/bin/env python3
"""Host time of small calls beside torch's scaled_dot_product_attention: forward, forward + backward, and decode.

Usage: host_time.py [--device cpu|cuda] [--rounds 9]
On the CPU the time of the calling thread is counted, so that a busy machine changes little; on CUDA the time until a
queue of calls is handed over, which must not wait for the device. The package must be importable."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import statistics
import time

import headwise as hw
import torch

CASES = {  # batch tokens heads head_dim, dtype
    "cpu": [((1, 16, 4, 32), torch.float32), ((1, 8, 2, 16), torch.float32), ((1, 64, 8, 64), torch.float32)],
    "cuda": [((1, 64, 8, 64), torch.bfloat16), ((1, 16, 4, 64), torch.bfloat16)],
}

DECODE = {"cpu": [(1, 2048, 8, 64), (8, 300, 8, 64)], "cuda": []}  # one query over these keys, float32


def decode_calls(shape, device):
    batch, tokens, heads, dim = shape
    q, k, v = (torch.randn(batch, heads, n, dim, device=device) for n in (1, tokens, tokens))
    return {
        "torch": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "headwise": lambda: hw.torch.attention(q, k, v, layout="bhsd"),
        "drop-in": lambda: hw.torch.scaled_dot_product_attention(q, k, v),
    }


def calls(shape, dtype, device):
    """The three ways by name, each forward and forward + backward on the same leaves, [batch heads tokens dim]."""
    batch, tokens, heads, dim = shape
    q, k, v = (torch.randn(batch, heads, tokens, dim, dtype=dtype, device=device, requires_grad=True) for _ in range(3))
    dout = torch.randn_like(q)
    plain = [x.detach() for x in (q, k, v)]
    ways = {
        "torch": torch.nn.functional.scaled_dot_product_attention,
        "headwise": lambda q, k, v: hw.torch.attention(q, k, v, layout="bhsd"),
        "drop-in": hw.torch.scaled_dot_product_attention,
    }
    return {
        "forward": {name: lambda way=way: way(*plain) for name, way in ways.items()},
        "both": {name: lambda way=way: torch.autograd.grad(way(q, k, v), (q, k, v), dout) for name, way in ways.items()},
    }


def microseconds(call, device, times):
    clock = time.thread_time if device == "cpu" else time.perf_counter
    if device == "cuda":
        torch.cuda.synchronize()
    start = clock()
    for _ in range(times):
        call()
    return (clock() - start) / times * 1e6


def show(name, ways, given):
    for call in ways.values():
        microseconds(call, given.device, given.times // 6 + 1)
    rounds = {way: [] for way in ways}
    for _ in range(given.rounds):
        for way, call in ways.items():
            rounds[way].append(microseconds(call, given.device, given.times))
    took = ", ".join(f"{way} {statistics.median(times):.1f}" for way, times in rounds.items())
    ratios = ", ".join(
        f"{way} takes {statistics.median(mine / rival for mine, rival in zip(rounds[way], rounds['torch'])):.2f}x of torch"
        for way in ways if way != "torch"
    )  # fmt: skip
    print(f"{name}: {took}; {ratios}", flush=True)


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--device", choices=CASES, default="cuda" if torch.cuda.is_available() else "cpu")
    words.add_argument("--rounds", type=int, default=9)
    words.add_argument("--times", type=int, default=300, help="calls a round")
    given = words.parse_args()
    torch.set_num_threads(1)
    hw.set_threads(1)
    print(f"torch {torch.__version__}, {given.device}; microseconds a call, median of {given.rounds} rounds in turns")
    for shape, dtype in CASES[given.device]:
        for what, ways in calls(shape, dtype, given.device).items():
            show(f"{list(shape)} {str(dtype).removeprefix('torch.')} {what}", ways, given)
    for shape in DECODE[given.device]:
        show(f"{list(shape)} float32 decode", decode_calls(shape, given.device), given)


if __name__ == "__main__":
    main()
