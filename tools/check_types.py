#!/usr/bin/env python3
"""Types and inline constants: one qualified name has one definition in the whole tree, or two parts of a program disagree about
its layout or its value."""
import pathlib
import re
import sys

from check_lengths import tracked

ROOMS = ("headwise/", "python/")
# Raw strings come first: what they hold is no code.
NO_CODE = re.compile(r'R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.M)
TOKEN = re.compile(r"[{}();]")
NAMESPACE = re.compile(r"\b(?:inline\s+)?namespace(?:\s+(?P<name>[\w:]+))?\s*$")
ATTRIBUTE = r"(?:\s*\[\[.*?\]\]|\s*\b(?:alignas|__attribute__|__align__)\s*\(.*\))*"
TYPE = re.compile(r"\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\b" + ATTRIBUTE +
                  r"\s+(?P<name>\w+(?:\s*<.*>)?)(?:\s+final)?\s*(?::(?!:).*)?$", re.S)

CONSTANT = re.compile(r"^inline\s+(?:constexpr|const)\s[^=(){}]*?\b(?P<name>k[A-Z]\w*)\s*(?:\[\w*\])?\s*(?:=|$)")


def blank(match):
    return "\n" * match[0].count("\n")


def types_of(text):
    """(qualified name, line) of every type and inline constant defined in a namespace or in a type; not those inside functions.
    Names of an anonymous namespace carry `(here)`: another file cannot mean them."""
    code = DIRECTIVE.sub(blank, NO_CODE.sub(blank, text))
    scopes, start, depth = [], 0, 0  # a scope: its name, or None where names are nobody else's
    for found in TOKEN.finditer(code):
        token, at = found[0], found.start()
        if token in "()":
            depth += 1 if token == "(" else -1
            continue
        if depth > 0 and token == ";":
            continue
        if token != "}" and None not in scopes and depth == 0 and (constant := CONSTANT.search(code[start:at].strip())):
            yield "::".join([*scopes, constant["name"]]), code.count("\n", 0, at) + 1
        if token == "{":
            head, name = code[start:at].strip(), None
            if namespace := NAMESPACE.search(head):
                name = namespace["name"] or "(here)"
            elif (kind := TYPE.search(head)) and depth == 0:
                name = re.sub(r"\s+", "", kind["name"])
                if None not in scopes:
                    yield "::".join([*scopes, name]), code.count("\n", 0, at) + 1
            scopes.append(name)
        elif token == "}" and scopes:
            scopes.pop()
        start = found.end()


def faults_in(files):
    """files: (name, text). A name with `(here)` is a name of its file alone."""
    first = {}
    for file, text in files:
        for name, line in types_of(text):
            key = (name, file) if "(here)" in name else name
            if key in first:
                yield f"{file}:{line}: {name} is also defined at {first[key]}: give one of them another name"
            else:
                first[key] = f"{file}:{line}"


def main(root):
    names = [(p.relative_to(root).as_posix(), p) for p in tracked(root)]
    faults = list(faults_in((name, p.read_text()) for name, p in names
                            if name.startswith(ROOMS) and p.suffix in {".h", ".cc", ".cu", ".cuh", ".inc"}))
    print("\n".join(faults) or "types: every name has one definition")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent))
