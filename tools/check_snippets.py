#!/usr/bin/env python3
"""Snippets: what README.md and docs/*.md show works. Whole programs in ```cpp and ```c blocks compile, the ```python blocks
of a page run from top to bottom, and `headwise ...` lines of ```sh blocks run.

Usage: check_snippets.py BUILD_DIR [PYTHON]"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.S | re.M)
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]


class Snippets:
    def __init__(self, root, build, python):
        self.root, self.build, self.python = root, build.resolve(), python
        self.passed, self.faults, self.skipped = 0, [], []

    def run(self, where, command, shell=False, stdin=None):
        # Each snippet runs in a folder of its own: what it writes is not left in the tree.
        with tempfile.TemporaryDirectory() as room:
            env = dict(os.environ, PATH=f"{self.build / 'headwise/cli'}:{os.environ['PATH']}")
            try:
                done = subprocess.run(command, shell=shell, input=stdin, text=True, capture_output=True, env=env, cwd=room,
                                      timeout=1800)
            except subprocess.TimeoutExpired as late:
                self.faults.append(f"{where}: {late}")
                return
        if done.returncode:
            self.faults.append(f"{where}: {done.stderr.strip()[-2000:] or done.stdout.strip()[-2000:]}")
        else:
            self.passed += 1

    def compile(self, where, language, text):
        compiler = ["g++", "-std=c++20", "-xc++"] if language == "cpp" else ["gcc", "-std=c11", "-xc"]
        self.run(where, [*compiler, *WARNINGS, "-fsyntax-only", f"-I{self.root}", f"-I{self.build}/include", "-"], stdin=text)

    def page(self, file):
        name, text, python = file.relative_to(self.root), file.read_text(), []
        for block in BLOCK.finditer(text):
            where = f"{name}:{text[:block.start()].count(chr(10)) + 1}"
            language, body = block.groups()
            if language in ("cpp", "c") and re.search(r"\bmain\(", body):
                self.compile(where, language, body)
            elif language == "python":
                # Line numbers of an error are those of the page.
                python.append((block.start(), body))
            elif language == "sh":
                # A line that ends in a backslash goes on in the next.
                for line in body.replace("\\\n", " ").splitlines():
                    if "$HEADWISE_DATA" in line and "HEADWISE_DATA" not in os.environ:
                        self.skipped.append(f"{where}: HEADWISE_DATA names no folder")
                    elif line.removeprefix("$ ").startswith("headwise "):
                        self.run(where, line.removeprefix("$ "), shell=True)
        if python and self.python:
            program, at = "", 0
            for start, body in python:
                line = text[:start].count("\n") + 1
                program += "\n" * (line - at) + body
                at = line + body.count("\n")
            self.run(str(name), [self.python, "-c", program])
        elif python:
            self.skipped.append(f"{name}: no Python with the package")


def main(build, python=None):
    root = pathlib.Path(__file__).resolve().parent.parent
    if python and not shutil.which(python):
        python = None
    all_of_them = Snippets(root, pathlib.Path(build), python and str(pathlib.Path(python).absolute()))
    for file in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if file.exists():
            all_of_them.page(file)
    for fault in all_of_them.faults + all_of_them.skipped:
        print(fault)
    print(f"snippets: {all_of_them.passed} passed, {len(all_of_them.faults)} failed, {len(all_of_them.skipped)} skipped")
    return 1 if all_of_them.faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
