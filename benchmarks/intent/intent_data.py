"""What every run of the recogniser's benchmarks shares: data sets and their splits, figures of an answer, a result as JSON."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import gzip
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks/results/intent"
ROOM = ROOT / "build/intent"  # split files and models: what a run goes on from
SETS = ("banking77", "mixbanking77", "nlupp", "clinc150", "crosswoz")
ROWS_OF_SWEEP = 10000  # mixbanking77_10k: the first ones of its training rows


def data_folder() -> pathlib.Path:
    folder = pathlib.Path(os.environ.get("HEADWISE_DATA", ROOT.parent / "shared/data")) / "unified_tsv"
    if not folder.is_dir():
        raise SystemExit(f"{folder} is not there; set HEADWISE_DATA to the folder that holds unified_tsv")
    return folder


def read_rows(name: str) -> list[list[str]]:
    """Columns of every line: text, labels joined by #, then what the set adds."""
    with gzip.open(data_folder() / f"{name}.tsv.gz", "rt", encoding="utf-8") as file:
        return [line.rstrip("\n").split("\t") for line in file]


def by_turns(rows: list, every: int) -> tuple[list, list]:
    """(kept, taken): each `every`-th row goes to the second."""
    return [r for i, r in enumerate(rows) if i % every != every - 1], rows[every - 1::every]


def splits_of(data: str) -> dict[str, list[list[str]]]:
    """train, dev and test, and oos for clinc150. Where a set brings no dev, every tenth or twentieth training row is one."""
    if data == "banking77":
        train, dev = by_turns(read_rows("banking77_train"), 20)
        return {"train": train, "dev": dev, "test": read_rows("banking77_test")}
    if data in ("mixbanking77", "mixbanking77_10k"):
        found = {part: read_rows(f"mixbanking77_built_{part}") for part in ("train", "dev", "test")}
        return found if data == "mixbanking77" else {**found, "train": found["train"][:ROWS_OF_SWEEP]}
    if data == "nlupp":
        # Rows without an intent stay out, as in the figures of others; folds 18 and 19 are the test.
        rows = [r for r in read_rows("nlupp_banking_withfold") if r[1]]
        train, dev = by_turns([r for r in rows if int(r[2]) < 18], 10)
        return {"train": train, "dev": dev, "test": [r for r in rows if int(r[2]) >= 18]}
    if data == "clinc150":
        # Rows labelled oos are not learnt; those of dev calibrate the threshold.
        return {"train": read_rows("clinc150_train"), "dev": read_rows("clinc150_val") + read_rows("clinc150_oos_val"),
                "test": read_rows("clinc150_test"), "oos": read_rows("clinc150_oos_test")}
    if data == "crosswoz":
        users = {part: [r for r in read_rows(f"crosswoz_{part}_role_dialog") if r[2] == "usr" and r[1]] for part in ("val", "test")}
        train, dev = by_turns(users["val"], 10)
        return {"train": train, "dev": dev, "test": users["test"]}
    raise SystemExit(f"{data!r} is no data set here; there are {', '.join(SETS)}")


def write_whole(path: pathlib.Path, text: str) -> None:
    """Puts the file in place at once: who reads it meanwhile, or writes it too, sees one whole file or the other."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write_splits(data: str) -> dict[str, pathlib.Path]:
    """The splits as text<TAB>a#b, the same bytes every time."""
    folder = ROOM / "data" / data
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for part, rows in splits_of(data).items():
        paths[part] = folder / f"{part}.tsv"
        write_whole(paths[part], "".join(f"{r[0]}\t{r[1]}\n" for r in rows))
    return paths


def figures(wanted: list[set[str]], given: list[set[str]]) -> dict:
    """Exact match, over all and by number of intents, and micro-F1, in percent; for one label a text they are the accuracy."""
    right = [w == g for w, g in zip(wanted, given, strict=True)]
    hits = sum(len(w & g) for w, g in zip(wanted, given))
    counts: dict[int, list[bool]] = {}
    for w, ok in zip(wanted, right):
        counts.setdefault(len(w), []).append(ok)
    percent = lambda oks: 100 * sum(oks) / max(len(oks), 1)
    return {
        "rows": len(wanted),
        "exact_match": percent(right),
        "micro_f1": 100 * 2 * hits / max(sum(map(len, wanted)) + sum(map(len, given)), 1),
        "exact_match_by_intents": {str(n): percent(oks) for n, oks in sorted(counts.items())},
    }


def parameters_of(model: pathlib.Path) -> int:
    """Of a model folder: the sizes in the header of its safetensors file."""
    with open(model / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def run_measured(command: list[str], quiet: bool = True) -> tuple[str, float, float]:
    """(stdout, seconds, peak memory in MB); an error ends the program. A small process stands between: a child's peak counts
    what its parent held when it was forked."""
    between = ("import resource, subprocess, sys; done = subprocess.run(sys.argv[2:]); "
               "open(sys.argv[1], 'w').write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)); "
               "sys.exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)")
    with tempfile.NamedTemporaryFile("r") as peak:
        start = time.monotonic()
        done = subprocess.run([sys.executable, "-S", "-c", between, peak.name, *command], text=True,
                              stdout=subprocess.PIPE if quiet else None)
        seconds = time.monotonic() - start
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}")
        return done.stdout or "", seconds, float(peak.read())


def machine() -> dict:
    listed = subprocess.run(["lscpu"], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    named = re.search(r"^Model name:\s*(.+)$", listed.stdout, re.M)
    return {"cpu": named[1].strip() if named else platform.machine(), "machine": platform.machine(),
            "cpus": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 2)}


def commit() -> str:
    """Of the tree, "+" behind it when tracked files differ."""
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return ""
    clean = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "headwise", "benchmarks"]).returncode == 0
    return head.stdout.strip() + ("" if clean else "+")


def save(name: str, result: dict, folder: pathlib.Path = RESULTS) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    stamped = {"name": name, "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"), **result}
    write_whole(path, json.dumps(stamped, indent=1, ensure_ascii=False) + "\n")
    return path
