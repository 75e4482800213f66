#!/usr/bin/env python3
"""clang-tidy over the files of headwise/ that a build compiled; a file that passed is not read again until it, a header of
ours that it includes, its flags, the checks or clang-tidy change. What passed is kept in ~/.cache/headwise/tidy.

Usage: run_tidy.py BUILD    e.g. build/release"""
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIDY = ["clang-tidy-14", "--quiet", "--extra-arg=-Wno-unknown-warning-option"]
KEPT = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "headwise/tidy"


def headers_by_object(build):
    """object -> headers of this tree, as the compiler named them to ninja."""
    where = functools.cache(lambda name: (build / name).resolve())
    found, headers = {}, None
    for line in subprocess.run(["ninja", "-C", build, "-t", "deps"], text=True, capture_output=True, check=True).stdout.splitlines():
        if line.startswith(" "):
            file = where(line.strip())
            if file.is_relative_to(ROOT):
                headers.append(file)
        elif ":" in line:
            headers = found.setdefault(line.split(":")[0], [])
    return found


class Digests:
    """The digest of each file, computed once."""

    def __init__(self):
        self.known = {}

    def of(self, file):
        if file not in self.known:
            self.known[file] = hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "gone"
        return self.known[file]


def key_of(unit, headers, common, digests):
    """None where ninja does not know what the file includes: such a file is always read."""
    if not headers:
        return None
    told = hashlib.sha256(common)
    told.update(unit["command"].replace(str(ROOT), "").encode())
    for file in sorted({pathlib.Path(unit["file"]), *headers}):
        told.update(f"{file.relative_to(ROOT)} {digests.of(file)}\n".encode())
    return told.hexdigest()


def read(build, file, key):
    """What clang-tidy has to say of a file, or None if it passed."""
    done = subprocess.run([*TIDY, "-p", str(build), file], text=True, cwd=ROOT, capture_output=True)
    if done.returncode:
        return done.stdout or done.stderr
    if key:
        (KEPT / key).touch()
    return None


def main(build):
    build = (ROOT / build).resolve()
    units = {u["file"]: u for u in json.loads((build / "compile_commands.json").read_text())
             if u["file"].startswith(str(ROOT / "headwise"))}
    KEPT.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([TIDY[0], "--version"], text=True, capture_output=True, check=True).stdout
    common = version.encode() + (ROOT / ".clang-tidy").read_bytes() + " ".join(TIDY).encode()
    headers, digests = headers_by_object(build), Digests()
    due = []
    for file, unit in sorted(units.items()):
        output = unit.get("output") or unit["command"].split(" -o ")[1].split()[0]
        key = key_of(unit, headers.get(os.path.relpath(pathlib.Path(unit["directory"]) / output, build)), common, digests)
        if not (key and (KEPT / key).exists()):
            due.append((file, key))
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        said = [words for words in pool.map(lambda job: read(build, *job), due) if words]
    print("\n".join(said))
    print(f"tidy: {len(units)} files, {len(due)} read, {len(said)} with findings")
    return 1 if said else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
