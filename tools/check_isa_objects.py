#!/usr/bin/env python3
"""ISA objects: a weak symbol in an object of one ISA level could be the copy the linker keeps for all: there is none.

Usage: check_isa_objects.py BUILD_DIR [nm]"""
import pathlib
import subprocess
import sys


def main(build, nm="nm"):
    objects = sorted(pathlib.Path(build).rglob("level/*.cc.o"))
    if len(objects) < 2:
        print(f"isa objects: {len(objects)} found under {build}; build the library first")
        return 1
    faults = 0
    for file in objects:
        out = subprocess.run([nm, "-C", file], text=True, check=True, capture_output=True).stdout
        for line in out.splitlines():
            kind, _, symbol = line[17:].partition(" ")
            if kind in "WwVvu":
                print(f"{file.name}: {kind} {symbol}: include no header with inline code here, or make it static")
                faults += 1
    if not faults:
        print(f"isa objects: no weak symbol in {len(objects)} levels")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
