#!/usr/bin/env python3
"""Known faults: every line of tests/decoder/known_faults.txt names tests that exist, or says why it has none.

Usage: check_known_faults.py"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def tests():
    """Suite.Name of C++ tests and file.py::name of Python ones."""
    found = set()
    for file in (ROOT / "tests").rglob("*.cc"):
        for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", file.read_text(), re.M):
            found.add(f"{suite}.{name}")
    for file in (ROOT / "tests/python").rglob("test_*.py"):
        for name in re.findall(r"^def (test_\w+)", file.read_text(), re.M):
            found.add(f"{file.name}::{name}")
    return found


def main():
    known, faults, numbers, without = tests(), 0, [], 0
    for line in (ROOT / "tests/decoder/known_faults.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        number, rest = line.split(" ", 1)
        what, _, names = rest.partition(" | ")
        numbers.append(number)
        if names.startswith("none: "):
            without += 1
            continue
        for name in names.split() or [""]:
            if name not in known:
                print(f"{number}: no test {name!r} ({what})")
                faults += 1
    wanted = [f"G{i:03}" for i in range(1, 89)]
    if numbers != wanted:
        print("the numbers do not run from G001 to G088")
        faults += 1
    if not faults:
        print(f"known faults: {len(numbers) - without} of {len(numbers)} have tests, {without} say why not")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
