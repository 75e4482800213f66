#!/usr/bin/env python3
"""Runs one nvcc command and reads what ptxas says: in a file of a hopper room, or of wgmma, a spill or a C75xx message fails the build.

A spill costs these kernels more than a smaller tile; C75xx says that wgmma was serialised or setmaxnreg ignored.
Forward and decode have 64 instances at most, so that the build stays short: more in a file fail it too."""
import pathlib
import re
import subprocess
import sys

FAULT = re.compile(r"\(C75\d\d\)|[1-9]\d* bytes spill|Registers are spilled")
MOST = {"forward/bf16.cu": 16, "forward/f16.cu": 16, "decode/plain.cu": 12, "decode/eight.cu": 12, "decode/shares.cu": 8}
ENTRY = "Compiling entry function"
NOISE = re.compile(r"^ptxas info|bytes stack frame|^\s*$")


def main(command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = done.stdout.splitlines()
    source = next((pathlib.Path(a) for a in command if a.endswith(".cu")), None)
    gated = source and ("hopper" in source.parts or source.name.startswith(("wgmma_", "block_")))
    faults = [line for line in lines if FAULT.search(line)] if gated else []
    most = MOST.get("/".join(source.parts[-2:])) if gated else None
    entries = [line for line in lines if ENTRY in line]
    if most and len(entries) > most:
        faults += [f"{len(entries)} instances, {most} are the most"]
    for line in lines:
        if not NOISE.search(line) or line in faults:
            print(line)
    if faults and not done.returncode:
        print(f"nvcc_gate: {source.name}: {len(faults)} faults, the last: {faults[-1].strip()}")
        if "-o" in command:
            pathlib.Path(command[command.index("-o") + 1]).unlink(missing_ok=True)
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
