#!/usr/bin/env python3
"""The service under load, on loopback: saturation, then p50/p95/p99 and refusals at 50, 100, 200 and 1000 % of it, memory after many
requests, and the time a drain under load takes. Writes results/serve-NAME.json and docs/serve.svg.

The load comes by the clock (headwise_serve_load, open loop: latencies count from the moment a request was due) and from the same
CPUs that the model uses: what it takes, the service has not.
Usage: serve_bench.py [MODEL] [--build DIR] [--seconds S] [--requests N] [--texts FILE]
       [--serve OPTIONS] [--out FILE] [--plot FILE]    without MODEL: one of the default size, trained for an epoch, is made"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARES = (50, 100, 200, 1000)
TEXTS = ["what is the interest rate on my savings account", "please block my card, I lost it this morning",
         "我想提前还清房贷", "how do I raise the limit of my credit card?", "第2年第3次调整后的利率是多少", "不需要保险服务",
         "the transfer to my landlord has not arrived yet", "open a joint account for me and my wife"]
# A request is a message of four such sentences, about 50 tokens.
MESSAGES = [". ".join(TEXTS[(i + j) % len(TEXTS)] for j in range(4)) for i in range(len(TEXTS))]
TOKEN = "of-the-benchmark-alone"


class Server:
    def __init__(self, program, model, options):
        self.process = subprocess.Popen([program, "serve", model, "--port", "0", "--token-env", "HEADWISE_BENCH_TOKEN", *options],
                                        env={**os.environ, "HEADWISE_BENCH_TOKEN": TOKEN}, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"serve_bench: {self.process.stderr.read().strip()}")
        self.port = int(line.rsplit(":", 1)[1])

    def metric(self, name):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.M)[1])

    def memory(self):
        return self.metric("headwise_resident_bytes") / 2**20

    def stop(self):
        """Seconds from SIGTERM to the end of the process."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return time.monotonic() - start


class Bench:
    def __init__(self, build, model, options, texts):
        self.program, self.loader = build / "headwise/cli/headwise", build / "benchmarks/headwise_serve_load"
        self.model, self.options, self.texts = model, options, texts

    def load(self, server, *words, texts=None):
        done = subprocess.run([self.loader, str(server.port), TOKEN, *map(str, words)], input=texts or self.texts, text=True,
                              capture_output=True, check=True)
        return json.loads(done.stdout)

    def drain(self, rate):
        """A drain in the middle of a load: its time, and what clients did not hear of what they had sent."""
        server = Server(self.program, self.model, self.options)
        loader = subprocess.Popen([self.loader, str(server.port), TOKEN, "open", str(rate), "6"], stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, text=True)
        loader.stdin.write(self.texts)
        loader.stdin.close()
        time.sleep(2)
        seconds = server.stop()
        figures = json.loads(loader.stdout.read())
        loader.wait()
        return {"seconds": round(seconds, 3), "exit_code": server.process.returncode,
                "answered": figures["accepted"]["count"] + figures["refused"]["count"], "other": figures["other"]}

    def run(self, seconds, requests):
        server = Server(self.program, self.model, self.options)
        try:
            self.load(server, "closed", 8, 500)  # warm
            closed = self.load(server, "closed", 8, max(1000, requests // 25))  # no more than the queue takes
            saturation = closed["accepted"]["count"] / closed["seconds"]
            out = {"saturation_per_second": round(saturation, 1), "loads": {}}
            for share in SHARES:
                figures = self.load(server, "open", saturation * share / 100, seconds)
                out["loads"][str(share)] = figures
                print(f"{share:5} %: {line_of(figures)}", flush=True)
            before = server.memory()
            many = self.load(server, "closed", 16, requests, texts="\n".join(TEXTS) + "\n")
            out["memory"] = {"requests": many["sent"], "before_mib": round(before, 1), "after_mib": round(server.memory(), 1)}
        finally:
            server.stop()
        out["drain"] = self.drain(saturation)
        return out


def line_of(f):
    a, r = f["accepted"], f["refused"]
    return (f"{a['count'] / f['seconds']:.0f}/s answered, p50 {a['p50_ms']:.1f} p95 {a['p95_ms']:.1f} p99 {a['p99_ms']:.1f} ms; "
            f"{r['count']} refused, p99 {r['p99_ms']:.1f} ms")


def setting(args, texts):
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True, capture_output=True).stdout.strip()
    config = json.loads((pathlib.Path(args.model) / "config.json").read_text())
    return {"date": datetime.date.today().isoformat(), "commit": commit, "machine": platform.machine(),
            "cpu": cpu[1] if cpu else "unknown", "cpus": len(os.sched_getaffinity(0)),
            "load_average": round(os.getloadavg()[0], 1), "serve_options": args.serve,
            "bytes_a_text": round(statistics.mean(len(t.encode()) for t in texts.splitlines())), "seconds_a_load": args.seconds,
            "config": config}


def draw(result):
    """p50 and p99 of what was taken and p99 of what was refused, against the load."""
    width, height, left, right, top, bottom = 820, 420, 70, 210, 64, 60
    loads = result["loads"]
    curves = [("accepted p99", "#b4460f", [loads[str(s)]["accepted"]["p99_ms"] for s in SHARES]),
              ("accepted p50", "#14406b", [loads[str(s)]["accepted"]["p50_ms"] for s in SHARES]),
              ("refused p99", "#4a8fb8", [loads[str(s)]["refused"]["p99_ms"] for s in SHARES])]
    highest = max(max(values) for _, _, values in curves) * 1.1 or 1
    x_of = [left + (width - left - right) * i / (len(SHARES) - 1) for i in range(len(SHARES))]

    def y_of(ms):
        return height - bottom - (height - top - bottom) * ms / highest

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
           'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13" fill="#222">',
           "<title>Latency of the service against its load</title>", f'<rect width="{width}" height="{height}" fill="#fff"/>',
           f'<text x="{left}" y="26" font-size="16" font-weight="bold">Latency under overload: who is taken, and who is refused</text>',
           f'<text x="{left}" y="46" fill="#555">milliseconds; saturation is {result["saturation_per_second"]:.0f} requests a '
           f'second on {result["setting"]["cpus"]} CPUs, load included</text>']
    step = 10 ** len(str(int(highest / 2))) / 2 if highest >= 2 else 0.5
    value = 0.0
    while value <= highest:
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y_of(value):.1f}" y2="{y_of(value):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 8}" y="{y_of(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
        value += step
    for x, share in zip(x_of, SHARES):
        out.append(f'<text x="{x:.1f}" y="{height - bottom + 20}" text-anchor="middle">{share} %</text>')
    out.append(f'<text x="{(left + width - right) / 2:.1f}" y="{height - 16}" text-anchor="middle">requests, in parts of '
               "saturation</text>")
    last = []
    for words, colour, values in sorted(curves, key=lambda c: -c[2][-1]):
        points = " ".join(f"{x:.1f},{y_of(v):.1f}" for x, v in zip(x_of, values))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        y = max([y_of(values[-1]) + 4, *(other + 16 for other in last)])
        last.append(y)
        out.append(f'<text x="{width - right + 8}" y="{y:.1f}" fill="{colour}">{words}: {values[-1]:.1f}</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--seconds", type=float, default=20, help="of each load")
    parser.add_argument("--requests", type=int, default=100_000, help="after which memory is read")
    parser.add_argument("--texts", help="a file, one text a line")
    parser.add_argument("--serve", default=f"--threads {max(1, len(os.sched_getaffinity(0)) - 1)}",
                        help="options of headwise serve; one CPU is left to the event loop and the load")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / f"benchmarks/results/serve-{platform.machine()}-host.json")
    parser.add_argument("--plot", type=pathlib.Path, default=ROOT / "docs/serve.svg")
    args = parser.parse_args()
    if not args.model:
        args.model = str(args.build / "serve-model")
        subprocess.run([args.build / "headwise/cli/headwise", "train", "--builtin", "--epochs", "1", "--out", args.model], check=True,
                       stdout=subprocess.DEVNULL)
    texts = pathlib.Path(args.texts).read_text() if args.texts else "\n".join(MESSAGES)
    bench = Bench(args.build, args.model, args.serve.split(), texts + "\n")
    result = {"setting": setting(args, texts), **bench.run(args.seconds, args.requests)}
    args.out.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    args.plot.write_text(draw(result))
    print(f"saturation {result['saturation_per_second']:.0f}/s; memory {result['memory']}; drain {result['drain']}; wrote {args.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
