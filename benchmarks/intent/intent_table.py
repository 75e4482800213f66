#!/usr/bin/env python3
"""The tables of docs/intent.md and the plot docs/intent-heads.svg, made from benchmarks/results/intent/*.json: mean and spread over
seeds, nothing that was not run.

Usage: intent_table.py [--check]   --check only says whether the page is up to date"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pathlib
import statistics
import sys
import textwrap

import intent_data
import intent_plot
import intent_settings

PAGE = intent_data.ROOT / "docs/intent.md"
PLOT = PAGE.with_name("intent-heads.svg")
BEGIN, END = "<!-- made by benchmarks/intent/intent_table.py -->", "<!-- end -->"
NOT_RUN = "not run yet"

# data, setting, what it is, what others reach, must
MAIN = (
    ("banking77", "scratch", "BANKING77, from scratch", "linear 88.25, BiLSTM 83 to 88.6, CNN 89.2", 88.3),
    ("banking77", "minilm", "BANKING77, from MiniLM-L6", "BERT-base 93.66", 92.0),
    ("mixbanking77", "bilstm", "MixBANKING77, BiLSTM (torch)", "linear 40.56", None),
    ("mixbanking77", "one-head", "MixBANKING77, 1 head", "linear 40.56", None),
    ("mixbanking77", "eight-heads", "MixBANKING77, 8 heads", "linear 40.56", None),
    ("mixbanking77", "cut", "MixBANKING77, 8 heads, cut into spans, 3 short epochs", "", 81.0),
    ("mixbanking77", "cut-full", "MixBANKING77, 8 heads, cut into spans, 8 epochs on a GPU", "", 81.0),
    ("mixbanking77", "minilm", "MixBANKING77, from MiniLM-L6", "", 75.0),
    ("mixbanking77", "minilm-cut", "MixBANKING77, from MiniLM-L6, cut into spans, on a GPU", "", 86.0),
    ("nlupp", "minilm", "NLU++ banking, from MiniLM-L6", "linear 41.75", 62.0),
    ("clinc150", "minilm", "CLINC150 in scope, from MiniLM-L6", "SVM 91.0, BERT 96.9", 94.0),
    ("crosswoz", "scratch", "CrossWOZ user acts, from scratch", "linear 76.58", 77.0),
)

# The same of options that are no row above: data, setting, what it is.
OPTIONS = (
    ("mixbanking77", "cut-256", "MixBANKING77, `--compound cut`, batch 256, 3 epochs, bf16"),
    ("mixbanking77", "minilm-cut-mean", "MixBANKING77, from MiniLM-L6, cut, pooling `mean`, on a GPU"),
    ("nlupp", "minilm-labels", "NLU++ banking, from MiniLM-L6, `--compound labels`, on a GPU"),
    ("nlupp", "minilm-open", "NLU++ banking, from MiniLM-L6, in f32 on a GPU"),
    ("nlupp", "auto", "NLU++ banking, `--compound auto`, from scratch"),
    ("crosswoz", "auto", "CrossWOZ, `--compound auto`"),
    ("clinc150", "scratch", "CLINC150 in scope, from scratch"),
)


def read_results(folder: pathlib.Path) -> dict[tuple[str, str], list[dict]]:
    found: dict[tuple[str, str], list[dict]] = {}
    for path in sorted(folder.glob("*-s[0-9]*.json")):
        run = json.loads(path.read_text(encoding="utf-8"))
        found.setdefault((run["data"], run["setting"]), []).append(run)
    return found


def spread(values: list[float], digits: int = 2) -> str:
    """The mean; with several seeds the least and the most behind it."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def seeds(runs: list[dict]) -> str:
    return f"{len(runs)} seed{'s' * (len(runs) > 1)}"


def exact(runs: list[dict]) -> list[float]:
    return [r["metrics"]["exact_match"] for r in runs]


def by_intents(runs: list[dict]) -> str:
    shares = [r["metrics"]["exact_match_by_intents"] for r in runs]
    if len(shares[0]) < 2:
        return ""
    return " / ".join(f"{statistics.fmean(s.get(n, 0.0) for s in shares):.1f}" for n in sorted(shares[0], key=int))


def memory(run: dict) -> float:
    return run["memory_mb"]["train"] if isinstance(run["memory_mb"], dict) else run["memory_mb"]


def grid(titles: list[str], rows: list[list[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def figures(runs: list[dict]) -> list[str]:
    """exact match, by number of intents, F1, parameters, minutes, memory."""
    return [f"{spread(exact(runs))}, {seeds(runs)}", by_intents(runs), spread([r["metrics"]["micro_f1"] for r in runs]),
            f"{runs[0]['parameters'] / 1e6:.2f} M", spread([r["seconds"]["train"] / 60 for r in runs], 1),
            spread([memory(r) for r in runs], 0)]


FIGURES = ["exact match, %", "by 1, 2, 3 ... intents", "micro-F1", "parameters", "minutes", "memory, MB"]
EMPTY = [NOT_RUN] + [""] * (len(FIGURES) - 1)


def main_table(results: dict) -> str:
    rows = []
    for data, setting, words, others, must in MAIN:
        runs = results.get((data, setting), [])
        goal = "" if must is None else f"{must:g}" if not runs else f"{must:g}: {'yes' if statistics.fmean(exact(runs)) >= must else '**no**'}"
        rows.append([words, *(figures(runs) if runs else EMPTY), others, goal])
    return grid(["data and model", *FIGURES, "others", "must"], rows)


def gap(results: dict) -> str:
    """Eight heads against the BiLSTM and against one head, when all three have run."""
    ours, one, rival = (results.get(("mixbanking77", s)) for s in ("eight-heads", "one-head", "bilstm"))
    if not (ours and one and rival):
        return "The gap between eight heads, one head and the BiLSTM stands here when all three have run."
    def points(other: list[dict]) -> str:
        """The gap of the means, and its least and most over the seeds that both have."""
        theirs = {r["seed"]: r["metrics"]["exact_match"] for r in other}
        gaps = [r["metrics"]["exact_match"] - theirs[r["seed"]] for r in ours if r["seed"] in theirs]
        mean = statistics.fmean(exact(ours)) - statistics.fmean(exact(other))
        return f"{mean:+.2f} points" + (f" ({min(gaps):+.2f} to {max(gaps):+.2f} seed by seed)" if len(gaps) > 1 else "")
    words = (f"Eight heads at equal parameters, exact match: {points(rival)} beside the BiLSTM, {points(one)} beside one head "
             f"({seeds(ours)}).")
    return textwrap.fill(words, 120, break_on_hyphens=False)


def options_table(results: dict) -> str:
    rows = []
    for data, setting, words in OPTIONS:
        runs = results.get((data, setting), [])
        rows.append([words, *(figures(runs) if runs else EMPTY)])
    return grid(["data and options", *FIGURES], rows)


def out_of_scope(results: dict) -> str:
    runs = [r for r in results.get(("clinc150", "minilm"), []) if "out_of_scope_recall" in r]
    if not runs:
        return f"CLINC150, out-of-scope recall at the calibrated threshold: {NOT_RUN}."
    return f"CLINC150, out-of-scope recall at the calibrated threshold: {spread([r['out_of_scope_recall'] for r in runs])} %."


def list_table(results: dict, data: str, settings: list[str], title: str) -> str:
    rows = []
    for setting in settings:
        runs = results.get((data, setting), [])
        rows.append([f"`{setting}`", *(figures(runs) if runs else EMPTY)])
    return grid([title, *FIGURES], rows)


SWEEP_DATA = "mixbanking77_10k"
# column, key of a result's "weights", factor, digits; results from before these were measured have none
WEIGHTS = (("own token, % of weight", "self_mass", 100, 1), ("entropy, nats", "entropy", 1, 2),
           ("distance between heads, nats", "head_distance", 1, 3))


def weights_of(runs: list[dict], key: str, factor: float) -> list[float]:
    """One head has no distance to another."""
    return [factor * r["weights"][key] for r in runs if "weights" in r and (key != "head_distance" or r["weights"]["heads"] > 1)]


def sweep_table(results: dict) -> str:
    rows = []
    for heads in intent_settings.SWEEP:
        runs = results.get((SWEEP_DATA, f"heads-{heads}"), [])
        found = [weights_of(runs, key, factor) for _, key, factor, _ in WEIGHTS]
        rows.append([f"`heads-{heads}`", *(figures(runs) if runs else EMPTY),
                     *(spread(values, w[3]) if values else "" for values, w in zip(found, WEIGHTS))])
    return grid(["heads", *FIGURES, *(w[0] for w in WEIGHTS)], rows)


def sweep_plot(results: dict) -> str | None:
    """The SVG; None before the first run."""
    runs = {h: results[SWEEP_DATA, f"heads-{h}"] for h in intent_settings.SWEEP if (SWEEP_DATA, f"heads-{h}") in results}
    if not runs:
        return None
    panels = [("exact match, %", exact), ("training, minutes", lambda some: [r["seconds"]["train"] / 60 for r in some]),
              ("memory of training, MB", lambda some: [memory(r) for r in some]),
              *((w[0], lambda some, w=w: weights_of(some, w[1], w[2])) for w in WEIGHTS)]
    return intent_plot.heads_plot([(title, {h: v for h, some in runs.items() if (v := of(some))}) for title, of in panels],
                                  intent_settings.SWEEP)


def latency_table(folder: pathlib.Path) -> str:
    path = folder / "latency.json"
    titles = ["what", "headwise", "torch", "BiLSTM", "against torch", "against the BiLSTM"]
    if not path.exists():
        return grid(titles, [[what, NOT_RUN, "", "", "", ""] for what in ("batch 1, p50", "batch 1, p99", "texts a second")])
    run = json.loads(path.read_text(encoding="utf-8"))
    rows = []
    for what, key, unit in (("batch 1, p50", "p50_ms", " ms"), ("batch 1, p99", "p99_ms", " ms"), ("texts a second", "texts_per_second", "")):
        ours, torch, lstm = (run[side].get(key) if side in run else None for side in ("headwise", "torch", "bilstm"))
        text = lambda v: NOT_RUN if v is None else f"{v:.3g}{unit}" if unit else f"{v:,.0f}"
        ratio = lambda v: "" if v is None else f"{v / ours if unit else ours / v:.2f}x"
        share = "" if lstm is None else f"{100 * (ours / lstm if unit else lstm / ours):.0f} %"
        rows.append([what, text(ours), text(torch), text(lstm), ratio(torch), share])
    setting = (f"{run['data']}, {run['machine']['cpu']}, {run['threads']} threads, torch {run['torch_version']}, commit {run['commit']},"
               f" load {run['machine']['load']}, {run['date']}.")
    return grid(titles, rows) + "\n\n" + setting


def long_table(folder: pathlib.Path) -> str:
    path = folder / "long_text.json"
    titles = ["tokens", "fused", "materialised (torch)", "memory, fused", "memory, materialised", "times as quick", "memory share"]
    if not path.exists():
        return grid(titles, [[n, NOT_RUN, "", "", "", "", ""] for n in ("2,048", "8,192")])
    run = json.loads(path.read_text(encoding="utf-8"))
    rows = [[f"{r['tokens']:,}", f"{r['fused_ms']:.1f} ms", f"{r['materialised_ms']:.1f} ms", f"{r['fused_mb']:.1f} MB",
             f"{r['materialised_mb']:.1f} MB", f"{r['materialised_ms'] / r['fused_ms']:.2f}x",
             f"{100 * r['fused_mb'] / r['materialised_mb']:.0f} %"] for r in run["rows"]]
    return grid(titles, rows)


def tables(folder: pathlib.Path) -> str:
    results = read_results(folder)
    kinds = [f"kind-{name}" for name in intent_settings.KINDS]
    fusion = [f"fusion-{name}" for name in intent_settings.FUSIONS]
    return "\n\n".join([
        main_table(results), gap(results), out_of_scope(results),
        "### Other options", options_table(results),
        "### Kinds of heads, MixBANKING77, 12 minutes each", list_table(results, "mixbanking77", kinds, "head"),
        "### Number of heads at equal parameters, 10,000 rows of MixBANKING77", sweep_table(results),
        *(["![What the number of heads changes](intent-heads.svg)"] if sweep_plot(results) else []),
        "### Fusion and norm, 10,000 rows of MixBANKING77", list_table(results, "mixbanking77_10k", fusion, "setting"),
        "### Latency", latency_table(folder),
        "### Long texts: fused and materialised attention", long_table(folder),
    ])


def filled(page: str, folder: pathlib.Path) -> str:
    above, rest = page.split(BEGIN)
    return above + BEGIN + "\n" + tables(folder) + "\n" + END + rest.split(END, 1)[1]


def main(words: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    made, plot = filled(page, intent_data.RESULTS), sweep_plot(read_results(intent_data.RESULTS))
    if "--check" in words:
        same = made == page and (plot is None or (PLOT.exists() and plot == PLOT.read_text(encoding="utf-8")))
        print("intent_table: docs/intent.md is up to date" if same else
              "intent_table: docs/intent.md or its plot differs from its results; run python3 benchmarks/intent/intent_table.py")
        return 0 if same else 1
    PAGE.write_text(made, encoding="utf-8")
    if plot:
        PLOT.write_text(plot, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
