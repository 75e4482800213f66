#!/usr/bin/env python3
"""Runs a command of ranks over hosts that are network namespaces of this machine, one rank a host, joined by links of a given rate
(tc tbf). Without a command it times the sums of hw.distributed there. Needs root, ip, tc and Open MPI.

usage: ranks_hosts.py [--hosts 2] [--rate 200mbit] [COMMAND...]
"""
import argparse
import os
import pathlib
import stat
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = 7


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Hosts:
    """Namespaces with one link each to a bridge in a namespace of its own; all go when it ends."""

    def __init__(self, count, rate):
        self.name, self.count, self.rate = f"hw{os.getpid()}", count, rate
        self.made = []

    def __enter__(self):
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        switch = self.space("s")
        ip("-n", switch, "link", "add", "name", "hub0", "type", "bridge")
        ip("-n", switch, "link", "set", "hub0", "up")
        for i in range(1, self.count + 1):
            host = self.space(i)
            ip("-n", host, "link", "add", "name", "eth0", "type", "veth", "peer", "name", f"port{i}", "netns", switch)
            ip("-n", host, "addr", "add", f"10.99.0.{i}/24", "dev", "eth0")
            ip("-n", switch, "link", "set", f"port{i}", "master", "hub0")
            for space, link in ((host, "lo"), (host, "eth0"), (switch, f"port{i}")):
                ip("-n", space, "link", "set", link, "up")
                if self.rate and link != "lo":
                    subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", link, "root", "tbf", "rate", self.rate, "burst", "64kb",
                                    "latency", "100ms"], check=True)

    def space(self, word):
        name = f"{self.name}h{word}"
        ip("netns", "add", name)
        self.made.append(name)
        return name

    def run(self, command):
        with tempfile.TemporaryDirectory() as folder:
            agent = pathlib.Path(folder) / "agent"  # what mpirun calls instead of ssh
            agent.write_text(f'#!/bin/sh\nn=${{1##*.}}\nshift\nexec ip netns exec {self.name}h$n sh -c "$*"\n')
            agent.chmod(agent.stat().st_mode | stat.S_IXUSR)
            net = "10.99.0.0/24"
            line = ["ip", "netns", "exec", f"{self.name}h1", "mpirun", "-n", str(self.count), "--host",
                    ",".join(f"10.99.0.{i}" for i in range(1, self.count + 1)), "--mca", "plm_rsh_agent", str(agent), "--mca", "btl",
                    "tcp,self", "--mca", "btl_tcp_if_include", net, "--mca", "oob_tcp_if_include", net, "-x", "HEADWISE_THREADS",
                    "-x", "PYTHONPATH", *command]
            env = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_mpi_yield_when_idle="1",
                       HEADWISE_THREADS=os.environ.get("HEADWISE_THREADS", "1"))
            return subprocess.run(line, env=env).returncode

    def __exit__(self, *_):
        for name in reversed(self.made):
            subprocess.run(["ip", "netns", "del", name])


def sums():
    """On each rank: a tree of 2^20 numbers, its sums gathered in 32 bits and in 16, against the engine's all-reduce of as many bytes as
    the numbers have in 32 bits and in 16."""
    import numpy as np

    import headwise as hw

    world = hw.distributed.start()
    x = np.ones(1 << 20, np.float32)
    half_bytes = x[: x.size // 2].copy()
    ways = {"tree f32": (x, "tree", None), "tree, sums in f16": (x, "tree", "f16"), "all-reduce f32": (x, "engine", None),
            "all-reduce of half the bytes": (half_bytes, "engine", None)}
    sent = {}
    times = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (values, order, dtype) in ways.items():
            world.share(np.zeros(1, np.float32))
            before = world.counted["bytes"]
            begin = time.perf_counter()
            world.sum(values, order, dtype=dtype)
            sent[name] = world.counted["bytes"] - before
            world.gather(np.zeros(1, np.float32))
            times[name].append(1e3 * (time.perf_counter() - begin))
    if world.rank == 0:
        half = statistics.median(times["all-reduce of half the bytes"])
        for name, all_of in times.items():
            mid = statistics.median(all_of)
            bytes_sent = f", {sent[name] / 1e6:.2f} MB from each" if sent[name] else ""
            print(f"{world.ranks} hosts, {name}: {mid:.0f} ms ({min(all_of):.0f} to {max(all_of):.0f}), {mid / half:.2f}x{bytes_sent}",
                  flush=True)


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--hosts", type=int, default=2)
    words.add_argument("--rate", default="200mbit", help='of each link, each way; "" for no limit')
    words.add_argument("--sums", action="store_true", help=argparse.SUPPRESS)
    words.add_argument("command", nargs=argparse.REMAINDER)
    a = words.parse_args()
    if a.sums:
        return sums()
    with Hosts(a.hosts, a.rate) as hosts:
        sys.exit(hosts.run(a.command or [sys.executable, os.path.abspath(__file__), "--sums"]))


if __name__ == "__main__":
    main()
