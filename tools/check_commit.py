#!/usr/bin/env python3
"""Commits: a title of at most 50 characters, "room: what it does", no full stop, an empty line, a body of at most 100 columns.

Usage: check_commit.py [RANGE] (default: the last commit)"""
import re
import subprocess
import sys

TITLE = re.compile(r"^[a-z0-9_./-]+(: [a-z0-9_./-]+)*: \S.*[^.\s]$")


def faults_in(message):
    lines = message.rstrip("\n").split("\n")
    if len(lines[0]) > 50:
        yield f"title has {len(lines[0])} characters, at most 50"
    if not TITLE.match(lines[0]):
        yield "title must read 'room: what it does', without a full stop"
    if len(lines) > 1 and lines[1]:
        yield "the second line must be empty"
    for line in lines[2:]:
        if len(line) > 100 and " " in line.strip():
            yield f"a body line has {len(line)} columns, at most 100"


def main(span):
    hashes = subprocess.run(["git", "rev-list", "--no-merges", *span], text=True, check=True,
                            capture_output=True).stdout.split()
    faults = 0
    for commit in hashes:
        message = subprocess.run(["git", "log", "-1", "--format=%B", commit], text=True, check=True,
                                 capture_output=True).stdout
        for fault in faults_in(message):
            print(f"{commit[:10]} {message.splitlines()[0]!r}: {fault}")
            faults += 1
    if not faults:
        print(f"commits: {len(hashes)} read, all in form")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or ["-1", "HEAD"]))
