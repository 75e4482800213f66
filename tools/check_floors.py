#!/usr/bin/env python3
"""Floors and rooms: a file includes its own floor or lower, never higher; inside the houses of ORDERS and on floor 4 a room includes
only rooms that stand before it in its list; a public header includes public ones alone. An unknown room is a failure with
its name, and so is an include of a header that is not there."""
import pathlib
import re
import sys

FLOOR_4 = "distributed layers model text train decoder intent translation analysis view lab"  # lowest first, as in ORDERS
FLOORS = {
    1: "base spec",
    2: "kernels",
    3: "ops masks heads cache",
    4: FLOOR_4,
    5: "server cli c python viewer",
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms.split()}
# Rooms of one house, lowest first: each includes itself and those before it. "." is what lies in the folder itself.
ORDERS = {
    "kernels": ". ref cpu cuda",
    "kernels/cpu": "isa lanes tile amx row gemm stored forward backward mixed entmax f64 level",
    "kernels/cuda": "device table inputs gemm row hopper hopper/forward hopper/decode hopper/backward mma plain chunk entmax mixed/pairs mixed"
                    " probe row_lists .",
    "ops": "checks keys attention/checks attention device row norm projection route explain .",
    "layers": "basic multi_head transformer",
    "intent": "corpus compound recognizer training",
    "decoder": "files forward .",
    "train": "steps checkpoints .",
    "model": ". gguf",
    "analysis": ". report",
    "lab": "matrix model figures depth survey cut convert decoder during",
    "cli": "args ranks attention decoder intent serve lab shell .",
}
PYTHON_ORDER = "arrays attention layers text ."  # of python/, lowest first
INCLUDE = re.compile(r'^\s*#\s*include\s+"headwise/([^"]+)"', re.M)
ANY_INCLUDE = re.compile(r'^\s*#\s*include\s+"((?:headwise|python|tests)/[^"]+)"', re.M)
PUBLIC = re.compile(r"\bheadwise/[\w/]+\.h\b")
HEAD = re.compile(r"^static_assert\(Head<", re.M)
WRITTEN_BY_CMAKE = {"headwise/base/version.h", "headwise/heads/list.inc"}
MADE = WRITTEN_BY_CMAKE | {"headwise/kernels/cuda/device/wgmma.inc"}
SOURCES = {".h", ".cc", ".cu", ".cuh", ".inc"}


def floor_of(path):
    """headwise/headwise.h stands on the top floor; everything else on the floor of its room."""
    room = path.split("/")[0]
    return 5 if path == "headwise.h" else FLOOR_OF.get(room)


def rank_in(order, path):
    """The place of a path below `order` in that house's list; the longest room that holds it counts. None: it has none."""
    rest = path[len(order) + 1:]
    rooms = ORDERS[order].split()
    if "/" not in rest:
        return rooms.index(".") if "." in rooms else None
    holding = [room for room in rooms if rest.startswith(room + "/")]
    return rooms.index(max(holding, key=len)) if holding else None


def faults_of(name, included):
    """What is wrong with headwise/`name` including headwise/`included`, in words."""
    mine, theirs = floor_of(name), floor_of(included)
    if theirs is None or theirs > mine:
        yield f"headwise/{name} (floor {mine}) includes headwise/{included} (floor {theirs})"
    for order in ORDERS:
        if name.startswith(order + "/") and included.startswith(order + "/"):
            own, other = rank_in(order, name), rank_in(order, included)
            if other is None or own is None or other > own:
                yield f"headwise/{name} includes headwise/{included}, whose room stands after its own in {order}: {ORDERS[order]}"
    own, other = name.split("/")[0], included.split("/")[0]
    rooms = FLOOR_4.split()
    if own in rooms and other in rooms and rooms.index(other) > rooms.index(own):
        yield f"headwise/{name} includes headwise/{included}: {other} stands on {own}, not the other way round"


def public_faults(house):
    """What is wrong with cmake/public_headers.cmake, in words."""
    listed = [name for line in (house / "cmake/public_headers.cmake").read_text().splitlines() if not line.startswith("#")
              for name in PUBLIC.findall(line)]
    heads = [f"headwise/heads/{f.name}" for f in sorted((house / "headwise/heads").glob("*.h")) if HEAD.search(f.read_text())]
    public = {*listed, *heads, *WRITTEN_BY_CMAKE}
    yield from (f"cmake/public_headers.cmake: {name} stands twice" for name in sorted(set(listed)) if listed.count(name) > 1)
    for name in listed + heads:
        if not (house / name).exists():
            yield f"cmake/public_headers.cmake: there is no {name}"
            continue
        for included in INCLUDE.findall((house / name).read_text()):
            if f"headwise/{included}" not in public:
                yield f"{name} is public and includes headwise/{included}, which cmake/public_headers.cmake does not list"


def python_faults(name, included):
    """What is wrong with python/`name` including python/`included`, in words."""
    rooms = PYTHON_ORDER.split()
    own, other = (p.split("/")[0] if "/" in p else "." for p in (name, included))
    if own not in rooms or other not in rooms or rooms.index(other) > rooms.index(own):
        yield f"python/{name} includes python/{included}, whose room stands after its own in python: {PYTHON_ORDER}"


def tree_faults(house):
    """Includes of headers that are not there, anywhere in the tree, and the rooms of python/."""
    for top in ("headwise", "python", "tests", "examples", "benchmarks"):
        for file in sorted((house / top).rglob("*")):
            if file.suffix not in SOURCES | {".c"}:
                continue
            name = file.relative_to(house).as_posix()
            for included in ANY_INCLUDE.findall(file.read_text()):
                if included not in MADE and not (house / included).exists():
                    yield f"{name} includes {included}, which is not there"
                if top == "python" and included.startswith("python/"):
                    yield from python_faults(name[len("python/"):], included[len("python/"):])


def main(root):
    faults = [*public_faults(root.parent), *tree_faults(root.parent)]
    for file in sorted(root.rglob("*")):
        if file.suffix not in SOURCES:
            continue
        name = file.relative_to(root).as_posix()
        if floor_of(name) is None:
            faults.append(f"headwise/{name}: room {name.split('/')[0]!r} has no floor; name it in {sys.argv[0]}")
            continue
        for order in ORDERS:
            if name.startswith(order + "/") and rank_in(order, name) is None:
                faults.append(f"headwise/{name}: its room is not in the list of {order}; name it in {sys.argv[0]}")
        for included in INCLUDE.findall(file.read_text()):
            faults += faults_of(name, included)
    print("\n".join(faults) or "floors: every include goes down or stays")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent / "headwise"))
