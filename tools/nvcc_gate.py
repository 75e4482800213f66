#!/usr/bin/env python3
"""Runs one nvcc command and reads what ptxas says: in a hopper_* file a spill or a C75xx message fails the build.

A spill costs these kernels more than a smaller tile; C75xx says that wgmma was serialised or setmaxnreg ignored."""
import pathlib
import re
import subprocess
import sys

FAULT = re.compile(r"\(C75\d\d\)|[1-9]\d* bytes spill|Registers are spilled")
NOISE = re.compile(r"^ptxas info|bytes stack frame|^\s*$")


def main(command):
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines = done.stdout.splitlines()
    source = next((pathlib.Path(a) for a in command if a.endswith(".cu")), None)
    faults = [line for line in lines if FAULT.search(line)] if source and source.name.startswith("hopper_") else []
    for line in lines:
        if not NOISE.search(line) or line in faults:
            print(line)
    if faults and not done.returncode:
        print(f"nvcc_gate: {source.name}: {len(faults)} lines speak of spills or serialised products")
        if "-o" in command:
            pathlib.Path(command[command.index("-o") + 1]).unlink(missing_ok=True)
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
