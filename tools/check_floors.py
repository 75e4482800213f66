#!/usr/bin/env python3
"""Floors: a file includes its own floor or lower, never higher; an unknown room is a failure with its name."""
import pathlib
import re
import sys

FLOORS = {
    1: "base spec",
    2: "kernels",
    3: "ops masks heads cache",
    4: "layers train analysis model text intent distributed",
    5: "server cli c python viewer",
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms.split()}
INCLUDE = re.compile(r'^\s*#\s*include\s+"headwise/([^"]+)"', re.M)


def floor_of(path):
    """headwise/headwise.h stands on the top floor; everything else on the floor of its room."""
    room = path.split("/")[0]
    return 5 if path == "headwise.h" else FLOOR_OF.get(room)


def main(root):
    faults = []
    for file in sorted(root.rglob("*")):
        if file.suffix not in {".h", ".cc", ".cu", ".cuh", ".inc"}:
            continue
        name = file.relative_to(root).as_posix()
        mine = floor_of(name)
        if mine is None:
            faults.append(f"headwise/{name}: room {name.split('/')[0]!r} has no floor; name it in {sys.argv[0]}")
            continue
        for included in INCLUDE.findall(file.read_text()):
            theirs = floor_of(included)
            if theirs is None or theirs > mine:
                faults.append(f"headwise/{name} (floor {mine}) includes headwise/{included} (floor {theirs})")
    print("\n".join(faults) or "floors: every include goes down or stays")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent / "headwise"))
