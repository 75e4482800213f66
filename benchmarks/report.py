#!/usr/bin/env python3
"""Turns a benchmark's JSON into Markdown, and fills the table of both READMEs from it.

Usage: report.py RESULT.json             prints the Markdown
       report.py --readme RESULT.json    writes the table between the markers of README.md and README.zh.md"""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pathlib
import sys
import textwrap

READMES = [pathlib.Path(__file__).resolve().parent.parent / name for name in ("README.md", "README.zh.md")]
BEGIN, END = "<!-- speed: written by benchmarks/report.py -->", "<!-- /speed -->"
TITLES = {
    "forward": "Forward",
    "small": "Short sequences",
    "backward": "Backward",
    "probes": "Probes, each priced alone",
    "memory": "Memory",
    "decode": "Decode: one query against a long KV",
}
NAMES = {"share": "of peak", "torch": "x torch", "over_f32": "x our f32", "causal_rate": "of the full rate",
         "rows_slower": "slower", "columns_slower": "slower", "extra_mb": "MB extra",
         "read": "of read bandwidth", "over_f16": "x the time of f16"}
PERCENT = {"share", "read", "causal_rate", "rows_slower", "columns_slower"}


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def half_spread(s: dict) -> str:
    return f"±{100 * (s['most'] - s['least']) / 2 / s['median']:.0f} %"


def times(s: dict) -> str:
    return f"{s['median']:.2f}x ({s['least']:.2f} to {s['most']:.2f})"


def percent(s: dict) -> str:
    return f"{100 * s['median']:.1f} % ({100 * s['least']:.1f} to {100 * s['most']:.1f})"


def goal_words(goal: dict) -> str:
    kind = goal["what"].removeprefix("backward ").split()[0]
    shown = (lambda x: f"{100 * x:g} %") if kind in PERCENT else (lambda x: f"{x:g}")
    bound = "at most " if kind in ("rows_slower", "columns_slower", "extra_mb", "over_f16") else ""
    text = f"{bound}{shown(goal['must'])} {NAMES[kind]}: {'**no**' if goal['verdict'] == 'below' else 'yes'}"
    if goal["then"] is not None:
        text += f", then {shown(goal['then'])}: {'yes' if goal['verdict'] == 'then' else 'no'}"
    return text


def verdict(row: dict) -> str:
    return "; ".join(goal_words(g) for g in row["goals"])


def line(row: dict) -> str:
    """One line for the terminal: setting, median, spread, share of the peak, rival, verdict."""
    parts = [f"{row['case']:<34}", f"{duration(row['seconds']['median']):>10} {half_spread(row['seconds']):<7}",
             f"{100 * row['share']:5.1f} % of f32 peak"]
    for key, word, form in (("torch", "torch", times), ("over_f32", "our f32", times), ("causal_rate", "of full rate", percent),
                            ("slower", "slower", percent), ("read", "of read bandwidth", percent),
                            ("over_f16", "the time of f16", times)):
        if key in row:
            parts.append(f"{form(row[key])} {word}")
    if "extra_mb" in row:
        parts.append(f"{row['extra_mb']:.1f} MB extra")
    if row["goals"]:
        parts.append(f"[{verdict(row)}]".replace("**", ""))
    return "  ".join(parts)


def setting_words(s: dict) -> str:
    rival = f"torch {s['torch']}" if s["torch"] else "no torch"
    commit = f", commit {s['commit']}" if s["commit"] else ""
    busy = f". THE MACHINE WAS BUSY (load {s['load_before']:.1f}): not fit to quote" if s["load_before"] > 0.5 * s["cpus"] else ""
    return (f"{s['cpu']} ({s['machine']}, {s['cpus']} CPUs), {s['threads']} threads both sides, {s['isa']}. headwise "
            f"{s['headwise']}{commit}, {rival}. Measured f32 peak {s['peak_gflops']:.1f} GFLOP/s ({s['peak_windows']}), read "
            f"{s['read_gbytes']:.1f} GB/s. Median of {s['rounds']} alternating rounds, {s['date']}{busy}")


def table(name: str, rows: list[dict]) -> str:
    def grid(titles, cells):
        lines = [titles, ["---"] * len(titles), *cells]
        return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"

    base = [[r["case"], f"{duration(r['seconds']['median'])} {half_spread(r['seconds'])}"] for r in rows]
    if name == "memory":
        return grid(["case", "time", "extra memory", "must"],
                    [[r["case"], duration(r["seconds"]["median"]), f"{r['extra_mb']:.1f} MB", verdict(r)] for r in rows])
    if name == "decode":
        return grid(["case", "time", "of read bandwidth", "x torch", "x the time of f16", "must"],
                    [[*b, percent(r["read"]), times(r["torch"]) if "torch" in r else "",
                      times(r["over_f16"]) if "over_f16" in r else "", verdict(r)] for b, r in zip(base, rows)])
    if name == "probes":
        return grid(["case", "time", "slower than without", "must"],
                    [[*b, percent(r["slower"]), verdict(r)] for b, r in zip(base, rows)])
    cells = []
    for b, r in zip(base, rows):
        own = [times(r["over_f32"]) + " f32"] if "over_f32" in r else []
        own += [percent(r["causal_rate"]) + " of full"] if "causal_rate" in r else []
        cells.append([*b, f"{r['gflops']:.0f}", f"{100 * r['share']:.1f} %",
                      duration(r["torch_seconds"]["median"]) if "torch" in r else "",
                      times(r["torch"]) if "torch" in r else "", "; ".join(own), verdict(r)])
    titles = ["case", "time", "GFLOP/s", "of f32 peak", "torch", "x torch", "against ourselves", "must"]
    keep = [i for i in range(len(titles)) if any(c[i] for c in cells)]
    return grid([titles[i] for i in keep], [[c[i] for i in keep] for c in cells])


def document(result: dict) -> str:
    rows = result["rows"]
    judged = [g for r in rows for g in r["goals"]]
    text = ["# Attention: measured\n", setting_words(result["setting"]) + ".\n",
            "Cases read `dtype [batch tokens heads dim] mask`; in brackets behind a figure: the least and the most of the "
            "rounds. FLOP are counted over open pairs. A must counts within 2 %.\n"]
    if judged:
        reached = sum(g["verdict"] != "below" for g in judged)
        text.append(f"Reached: {reached} of {len(judged)} musts.\n")
    for name, title in TITLES.items():
        if some := [r for r in rows if r["table"] == name]:
            text += [f"## {title}\n", table(name, some)]
    text += [f"Skipped: {s}\n" for s in result["skipped"]]
    return "\n".join(text)


def readme_table(result: dict) -> str:
    lines = ["| case | headwise | of f32 peak | torch | times torch |", "|---|---|---|---|---|"]
    for r in result["rows"]:
        if r["table"] == "forward":
            rival = [duration(r["torch_seconds"]["median"]), times(r["torch"])] if "torch" in r else ["", ""]
            lines.append(f"| {r['case']} | {duration(r['seconds']['median'])} | {100 * r['share']:.0f} % | {' | '.join(rival)} |")
    return "\n".join(lines) + "\n\n" + textwrap.fill(f"{setting_words(result['setting'])}.", 120) + "\n"


def fill_readme(result: dict) -> None:
    for readme in READMES:
        text = readme.read_text(encoding="utf-8")
        if BEGIN not in text or END not in text:
            raise SystemExit(f"{readme.name}: the markers {BEGIN} and {END} are missing")
        before, rest = text.split(BEGIN, 1)
        readme.write_text(f"{before}{BEGIN}\n{readme_table(result)}{END}{rest.split(END, 1)[1]}", encoding="utf-8")


def main(words: list[str]) -> int:
    files = [w for w in words if w != "--readme"]
    if len(files) != 1:
        print(__doc__)
        return 2
    result = json.loads(pathlib.Path(files[0]).read_text())
    if "--readme" in words:
        fill_readme(result)
    else:
        print(document(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
