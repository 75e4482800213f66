#!/usr/bin/env python3
"""Every known regression R001..R124 has a test named after it, or a reason why its turn has not come; a gap fails."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAST = 124

# Rows of things that are not built yet, by the thing; the issue that builds it moves its rows out of here.
LATER = {
    "kv cache and pages": [31, 42, 43, 72, 104, 109, 110, 111, 112, 113, 114, 115, 116, 117, 119],
    "gpu": [71, 78, 86, 95, 96, 99],
    "variant hooks (score callbacks do not exist)": [21],
    "distributed": [103],
    "sampler": [106, 124],
    "text models and server": [120, 121, 122, 123],
}


def named_rows():
    """Row -> names of the tests that carry its id."""
    found = {}
    test = re.compile(r"\b(?:TEST|TEST_F|TEST_P|RC_GTEST_PROP)\(\s*(\w+),\s*(\w+)")
    for file in sorted((ROOT / "tests").rglob("*_test.cc")):
        for suite, name in test.findall(file.read_text()):
            for row in re.findall(r"R(\d{3})(?!\d)", name):
                found.setdefault(int(row), []).append(f"{suite}.{name}")
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        for name in re.findall(r"def (test_\w+)", file.read_text()):
            for row in re.findall(r"r(\d{3})(?!\d)", name):
                found.setdefault(int(row), []).append(name)
    return found


def main():
    found = named_rows()
    later = {row: thing for thing, rows in LATER.items() for row in rows}
    faults = [f"R{row:03} has no test and no reason" for row in range(1, LAST + 1) if row not in found and row not in later]
    faults += [f"R{row:03} is no row" for row in list(found) + list(later) if not 1 <= row <= LAST]
    rows_twice = [row for thing in LATER for row in LATER[thing]]
    faults += [f"R{row:03} waits for two things" for row in sorted(set(rows_twice)) if rows_twice.count(row) > 1]
    if "--list" in sys.argv:
        for row in range(1, LAST + 1):
            print(f"R{row:03} {', '.join(found.get(row, [])) or 'later: ' + later.get(row, '?')}")
    for fault in faults:
        print(f"check_regressions: {fault}")
    waiting = [row for row in later if row not in found]
    print(f"check_regressions: {len(found)} rows have a test, {len(waiting)} wait for what they concern, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
