#!/usr/bin/env python3
"""Two builds of this library in turns: are their bits equal, and is the second one slower?

Usage: compare.py OLD_TREE OLD_BUILD NEW_TREE NEW_BUILD [--device cpu|cuda] [--core N] [--rounds 7] [--json FILE] [--every N]

A tree holds tests/gpu/harness.py, a build libheadwise.so (BUILD_SHARED_LIBS=ON) and, for CUDA, libheadwise_cuda.so beside it. Each side
is a process of its own with one thread; HEADWISE_ISA chooses the level of both. A round asks both for a turn, in an order that changes;
a ratio is new / old of one round's medians, its spread half the distance of the quartiles."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import cases

HERE = pathlib.Path(__file__).resolve().parent


class Side:
    """One of the two processes."""

    def __init__(self, tree, build, device, core):
        pin = ["taskset", "-c", str(core)] if core is not None else []
        self.process = subprocess.Popen([*pin, sys.executable, str(HERE / "worker.py"), tree, device], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, env=dict(os.environ, HEADWISE_BUILD=build))

    def send(self, **words):
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with {self.process.wait()}")
        return json.loads(line)

    def ask(self, **words):
        self.send(**words)
        return self.receive()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def quartiles(x):
    low, middle, high = statistics.quantiles(x, n=4, method="inclusive")
    return middle, (high - low) / 2


def judge(old, new):
    """The ratio new / old of two lists of rounds, its spread, and whether new loses more than 2 % and more than any spread."""
    ratio, spread = quartiles([b / a for a, b in zip(old, new)])
    own = max(half / middle for middle, half in map(quartiles, (old, new)))
    return {"ratio": ratio, "spread": spread, "own_spread": own, "slower": ratio > 1 + max(0.02, spread, own)}


def is_digest(text):
    return isinstance(text, str) and len(text) == 16


def compare_digests(sides, device, every):
    """Bits of all small calls; a call that both refuse counts apart."""
    todo = cases.digests(device)[::every]
    equal, refused, differ = 0, 0, []
    for i in range(0, len(todo), 40):
        some = todo[i:i + 40]
        for side in sides.values():
            side.send(op="digests", cases=some)
        found = {name: side.receive() for name, side in sides.items()}
        for c, old, new in zip(some, found["old"], found["new"]):
            if is_digest(old) and old == new:
                equal += 1
            elif not is_digest(old) and not is_digest(new):
                refused += 1
            else:
                differ.append({"case": c["name"], "old": old, "new": new})
                print(f"other bits: {c['name']}: {old[:80]} | {new[:80]}", flush=True)
    print(f"bits: {len(todo)} calls, {equal} equal, {refused} refused by both, {len(differ)} differ", flush=True)
    return {"calls": len(todo), "equal": equal, "refused": refused, "differ": differ}


def time_case(sides, c, device, rounds):
    """One row, or None where a side cannot compute the case."""
    made = {name: side.ask(op="prepare", case=c) for name, side in sides.items()}
    if not all(map(is_digest, made.values())):
        print(f"{c['group']:9} {c['name']:36} not computed: {json.dumps(made)[:200]}", flush=True)
        return None
    calls = 6
    if device == "cpu":
        first = min(side.ask(op="turn", calls=1)[0] for side in sides.values())
        calls = max(1, min(2000, round(40 / max(first, 1e-3))))
    times = {name: [] for name in sides}
    for r in range(rounds):
        for name in list(sides) if r % 2 == 0 else list(sides)[::-1]:
            times[name].append(statistics.median(sides[name].ask(op="turn", calls=calls)))
    row = {"group": c["group"], "case": c["name"], "same_bits": made["old"] == made["new"], "ms": times, **judge(times["old"], times["new"])}
    print(f"{c['group']:9} {c['name']:36} {row['ratio']:6.3f} +-{row['spread']:.3f}  old {statistics.median(times['old']):9.4f} ms"
          f"{'' if row['same_bits'] else '  other bits'}{'  SLOWER' if row['slower'] else ''}", flush=True)
    return row


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("old_tree", "old_build", "new_tree", "new_build"):
        words.add_argument(name)
    words.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    words.add_argument("--core", type=int, help="the CPU both sides are pinned to")
    words.add_argument("--rounds", type=int, default=7)
    words.add_argument("--every", type=int, default=1, help="take one case of so many")
    words.add_argument("--json", type=pathlib.Path)
    given = words.parse_args()
    sides = {"old": Side(given.old_tree, given.old_build, given.device, given.core),
             "new": Side(given.new_tree, given.new_build, given.device, given.core)}
    log = {"device": given.device, "isa": os.environ.get("HEADWISE_ISA", ""), "bits": compare_digests(sides, given.device, given.every)}
    todo = (cases.gpu_times() if given.device == "cuda" else cases.cpu_times())[::given.every]
    log["rows"] = [row for c in todo if (row := time_case(sides, c, given.device, given.rounds))]
    for side in sides.values():
        side.end()
    slow = [f"{row['group']} {row['case']}" for row in log["rows"] if row["slower"]]
    print(f"{len(log['rows'])} cases, median {statistics.median(row['ratio'] for row in log['rows']):.3f}; slower: {', '.join(slow) or 'none'}")
    if given.json:
        given.json.write_text(json.dumps(log, indent=1) + "\n")
    return 1 if slow or log["bits"]["differ"] else 0


if __name__ == "__main__":
    sys.exit(main())
