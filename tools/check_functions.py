#!/usr/bin/env python3
"""Functions: a C++ or CUDA function has at most 100 lines and 7 parameters; tools/functions.txt lists those that have more.

A listed function may shrink, never grow, and no other may join. `--write` lowers the list to what stands there today."""
import bisect
import pathlib
import re
import sys

from check_lengths import tracked

LINES, PARAMETERS = 100, 7
CODE = {".h", ".cc", ".cu", ".cuh", ".inc"}
ROOMS = {"headwise", "python", "tests", "benchmarks", "examples"}
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|^[ \t]*#(?:\\\n|[^\n])*',
                   re.S | re.M)
SCOPE = re.compile(r"\b(namespace|struct|class|union|extern)\b")
CONTROL = {"if", "for", "while", "switch", "catch", "return", "else", "do", "sizeof", "alignas", "decltype", "noexcept"}
NAME = re.compile(r"(operator\s*[^\s\w(]+|operator\s*\(\)|~?[A-Za-z_]\w*(?:::~?\w+)*)\s*$")


def blank(text):
    """Comments, strings and preprocessor lines become spaces; lines stay where they are."""
    return NOISE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def list_of(head):
    """(name, parameters) of a function's head, or None where it is something else."""
    depth, angle = 0, 0
    for at, c in enumerate(head):
        if c == "(" and depth == 0:
            name = NAME.search(head[max(0, at - 100):at])
            if name and name[1] not in CONTROL and not name[1].startswith("__"):
                break
        depth += (c == "(") - (c == ")")
    else:
        return None
    level, count, empty = 0, 1, True
    for end in range(at + 1, len(head)):
        c = head[end]
        if c in "([{":
            level += 1
        elif c in ")]}":
            if level == 0:
                return name[1], 0 if empty else count
            level -= 1
        elif c == "<":
            angle += 1
        elif c == ">" and head[end - 1] != "-":
            angle = max(0, angle - 1)
        elif c == "," and level == 0 and angle == 0:
            count += 1
        empty = empty and c.isspace()
    return None


def functions_of(text):
    """(name, first line, lines, parameters) of every function that has a body."""
    text, found, stack, start, round_depth = blank(text), [], [], 0, 0
    ends = [found.start() for found in re.finditer("\n", text)]

    def line_at(place):
        return bisect.bisect_left(ends, place) + 1

    for mark in re.finditer("[{}();]", text):
        i, c = mark.start(), mark[0]
        round_depth += (c == "(") - (c == ")")
        inside = bool(stack) and stack[-1][0] != "scope"
        if c == "{":
            start = max(start, i - 4000)  # a head is shorter; tables of numbers are not
            head, kind = text[start:i], "block"
            if not inside and round_depth == 0:
                bare = re.sub(r"template\s*<[^{}]*?>\s*(?=\w|\[)", " ", head)
                function = list_of(head)
                if SCOPE.search(bare.split("(")[0]) and not function:
                    kind = "scope"
                elif re.search(r"\bnamespace\b|^\s*extern\s*$", bare) or (SCOPE.search(bare) and "(" not in bare):
                    kind = "scope"
                elif function and "=" not in re.sub(r"operator\s*[=!<>+*/-]*=*|[<>=!]=|\([^()]*\)", "", bare.split("(")[0]):
                    kind = function
            first = start + len(head) - len(head.lstrip())
            stack.append((kind, line_at(first)))
            if kind != "block" or not inside:
                start = i + 1
        elif c == "}" and stack:
            kind, first = stack.pop()
            if isinstance(kind, tuple):
                found.append((kind[0], first, line_at(i) - first + 1, kind[1]))
            if not (stack and stack[-1][0] != "scope"):
                # The braces of a member's initialiser stand before the body of its constructor.
                if kind != "block" or text[i + 1:i + 200].lstrip()[:1] not in {",", "{"}:
                    start = i + 1
        elif c == ";" and not inside and round_depth == 0:
            start = i + 1
    return found


def read(root):
    """{'file name': (lines, parameters)} of all functions over a limit; of several with one name, the larger numbers."""
    over = {}
    for file in tracked(root):
        name = file.relative_to(root)
        if file.suffix not in CODE or name.parts[0] not in ROOMS:
            continue
        for function, _, lines, parameters in functions_of(file.read_text()):
            if lines > LINES or parameters > PARAMETERS:
                key = f"{name.as_posix()} {re.sub(r'[ ]+', '', function)}"
                old = over.get(key, (0, 0))
                over[key] = max(lines, old[0]), max(parameters, old[1])
    return over


def main(root, write):
    table, now = root / "tools/functions.txt", read(root)
    listed = {}
    for line in table.read_text().splitlines() if table.exists() else []:
        if line and not line.startswith("#"):
            key, lines, parameters = line.rsplit(" ", 2)
            listed[key] = int(lines), int(parameters)
    if write:
        rows = [f"{key} {max(now[key][0], LINES)} {max(now[key][1], PARAMETERS)}" for key in sorted(now)]
        table.write_text("# file, function, most lines, most parameters: what check_functions.py allows beside its limits\n" +
                         "\n".join(rows) + "\n")
        return 0
    faults = []
    for key, (lines, parameters) in sorted(now.items()):
        most = listed.get(key, (LINES, PARAMETERS))
        if lines > most[0]:
            faults.append(f"{key}: {lines} lines, at most {most[0]}; split it by idea")
        if parameters > most[1]:
            faults.append(f"{key}: {parameters} parameters, at most {most[1]}; give them a struct")
    faults += [f"{key}: in tools/functions.txt, but it has few lines and parameters by now; run check_functions.py --write"
               for key in sorted(set(listed) - set(now))]
    print("\n".join(faults) or f"functions: {len(now)} over {LINES} lines or {PARAMETERS} parameters, none more than listed")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent, "--write" in sys.argv[1:]))
