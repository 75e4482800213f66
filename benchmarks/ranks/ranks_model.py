#!/usr/bin/env python3
"""The cost model of ranks: what a cut block sends in each order, and the time on a link. Every time is a prediction.

ranks_model.py                         8B and 70B layers on NVLink, NDR and 25 GbE, as Markdown
ranks_model.py --machine 600e12 46e9   of a machine: FLOP/s of a rank, bytes/s between ranks
ranks_model.py --check PROGRAM         the same bytes as `headwise explain --ranks` says; tests count what is sent"""
import argparse
import itertools
import json
import subprocess

ORDERS = ("engine", "tree", "one_rank")
LAYERS = {"8B": dict(model_dim=4096, feed_dim=14336, heads=32, kv_heads=8, head_dim=128),
          "70B": dict(model_dim=8192, feed_dim=28672, heads=64, kv_heads=8, head_dim=128)}
LINKS = {"NVLink": 370e9, "NDR": 46e9, "25 GbE": 3.1e9}  # bytes a second, one direction
RATE = 600e12    # FLOP/s of one rank, 16 bits
ALPHA = 15e-6    # seconds of an exchange without bytes
SMALL_SUM = 4096  # bytes up to which every rank gets all partials


def forward_bytes(order, tokens, model_dim, out_dim, feed_dim, ranks, width):
    """What one rank sends for W_O and W_2 of a block; partial sums of a tree are f32, other rows `width` bytes a number."""
    if ranks == 1:
        return [0, 0] if feed_dim else [0]
    share = (ranks - 1) / ranks
    if order == "one_rank":
        return [width * tokens * (columns + model_dim) * share for columns in (out_dim, feed_dim) if columns]
    one = 2 * width * tokens * model_dim * share
    if order == "tree":
        whole = 4 * tokens * model_dim
        one = whole * (ranks - 1) if whole <= SMALL_SUM else (4 + width) * tokens * model_dim * share
    return [one, one] if feed_dim else [one]


def forward_flops(tokens, layer):
    kv = layer["kv_heads"] * layer["head_dim"]
    maps = 2 * layer["model_dim"] + 2 * kv + 3 * layer["feed_dim"]  # W_Q, W_O; W_K, W_V; a gated feed-forward
    return 2 * tokens * layer["model_dim"] * maps


def efficiency(order, layer, tokens, ranks, rate, link, width=2):
    """Time of one rank over ranks x time of many, without overlap."""
    work = forward_flops(tokens, layer) / rate
    sent = forward_bytes(order, tokens, layer["model_dim"], layer["heads"] * layer["head_dim"], layer["feed_dim"], ranks, width)
    return work / ranks / (work / ranks + sum(sent) / link + 2 * len(sent) * ALPHA)


def table(rate, links, tokens=8192):
    yield f"Predicted efficiency of one layer's forward, {tokens} tokens in 16 bits, {rate / 1e12:.0f} TFLOP/s a rank; not measured.\n"
    yield "| layer | link | order | 2 ranks | 4 ranks | 8 ranks |\n|---|---|---|---|---|---|"
    for name, layer in LAYERS.items():
        for link, speed in links.items():
            for order in ORDERS:
                cells = " | ".join(f"{100 * efficiency(order, layer, tokens, r, rate, speed):.0f} %" for r in (2, 4, 8))
                yield f"| {name} | {link} | `{order}` | {cells} |"


def check(program):
    """Fails where the program counts other bytes than the model, rows of 32 bits and of 16."""
    done = 0
    for order in ORDERS:
        for ranks in (1, 2, 4, 8):
            for tokens, (dtype, width) in itertools.product((1, 64, 4096), (("f32", 4), ("bf16", 2))):
                words = [program, "explain", "--q-tokens", str(tokens), "--heads", "8", "--head-dim", "64", "--feed-dim", "2048",
                         "--dtype", dtype, "--ranks", str(ranks), "--order", order, "--json", "--threads", "1"]
                said = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)["ranks"]
                model = forward_bytes(order, tokens, 512, 512, 2048, ranks, width)
                counted = [c["bytes"] for c in said["travels"]] or [0, 0]
                assert counted == model, f"{order}, {ranks} ranks, {tokens} tokens in {dtype}: {counted} sent, the model says {model}"
                done += 1
    return f"ranks_model: {done} settings, all bytes equal"


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--machine", nargs=2, type=float, metavar=("FLOPS", "BYTES"))
    words.add_argument("--check", metavar="PROGRAM")
    given = words.parse_args()
    if given.check:
        print(check(given.check))
    elif given.machine:
        print("\n".join(table(given.machine[0], {"this link": given.machine[1]})))
    else:
        print("\n".join(table(RATE, LINKS)))


if __name__ == "__main__":
    main()
