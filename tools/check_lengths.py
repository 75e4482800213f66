#!/usr/bin/env python3
"""Lengths: a source file holds at most 500 lines; a header says in its first line what it is for, and names its licence on a line
of its own."""
import pathlib
import subprocess
import sys

MOST = 500
CODE = {".h", ".cc", ".cu", ".cuh", ".py", ".c", ".cmake", ".sh", ".inc"}
LICENCE = "SPDX-License-Identifier: Apache-2.0"


def tracked(root):
    """Files git knows or would add; in an unpacked archive, every file outside build folders."""
    try:
        out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=root, text=True, check=True,
                             capture_output=True).stdout
        return [root / line for line in out.splitlines() if (root / line).is_file()]
    except (OSError, subprocess.CalledProcessError):
        return [f for f in root.rglob("*") if f.is_file() and f.relative_to(root).parts[0] not in {"build", "dist", ".venv"}]


def main(root):
    faults = []
    for file in tracked(root):
        if file.suffix not in CODE:
            continue
        name, lines = file.relative_to(root), file.read_text().splitlines()
        if any(f". {LICENCE}" in line for line in lines):
            faults.append(f"{name}: clang-format joined the SPDX line to a long sentence; wrap that by hand, SPDX stands alone")
        if len(lines) > MOST:
            faults.append(f"{name}: {len(lines)} lines, at most {MOST}; split it by idea")
        if file.suffix in {".h", ".cuh"} and name.parts[0] == "headwise":
            first = lines[0] if lines else ""
            if not first.startswith(("// ", "/* ")) or LICENCE in first or len(first) < 30:
                faults.append(f"{name}: its first line must say in one sentence what it is for")
            if not any(LICENCE in line for line in lines[:4]):
                faults.append(f"{name}: no SPDX line below the first sentence")
            if "#pragma once" not in lines and name.as_posix() != "headwise/c/headwise.h":
                faults.append(f"{name}: no #pragma once")
    print("\n".join(faults) or f"lengths: no file above {MOST} lines")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent))
