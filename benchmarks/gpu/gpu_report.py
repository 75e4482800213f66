#!/usr/bin/env python3
"""Turns the log of a GPU (benchmarks/results/gpu-*.json) into tables: the newest figure of every case, then the sections as they are.

Usage: gpu_report.py LOG.json [--check]   writes LOG.md beside it; --check only says whether that page is up to date."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
GROUPS = {"forward": "Forward", "backward": "Gradients", "decode": "Decode: one query a sequence", "window": "Windows",
          "documents": "Documents", "heads": "Heads that mix, entmax, row lists", "edges": "Edges: unusual widths, pages, few queries over many keys, dropout, a bias, f32, top keys", "probes": "Statistics of rows (headwise: entropy and top_weight; `all` in a case: all six; off: none), top keys, column sums"}
SAME = {"short": "forward", "gqa": "forward", "widths": "forward"}  # groups of the bench that are one table here
RIVALS = ("cudnn", "fa2", "flex", "eager", "compiled", "torch", "efficient", "math", "flash", "one piece")
GRID = re.compile(r"D([\d/]+) (\d+/\d+ )?B(\d+) (\d+) (full|causal)$")


def number(x: float) -> str:
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.3g}"


def entry(section: str, row: dict) -> dict | None:
    """One measured case as {group, case, unit, us, value: {who: figure}}; None where a row is something else."""
    if "headwise" in row.get("value", ()):
        times = row.get("times", {}).get("headwise", {})
        return {"group": SAME.get(row["group"], row["group"]), "case": row["case"], "unit": row["unit"],
                "us": times.get("median_ms", 0) * 1e3 or None, "value": row["value"]}
    if "headwise" not in row or "host_bound" in row:  # there the host was measured, not the kernel
        return None
    group, _, case = row["case"].partition(" ")
    if group not in GROUPS and group not in SAME:
        group, case = "backward", row["case"]  # the section of gradients alone names no group
    value = {k: v for k, v in row.items() if isinstance(v, (int, float)) and k not in ("us", "process", "few_over_off")}
    return {"group": SAME.get(group, group), "case": case, "unit": row.get("unit", "TFLOP/s"), "us": row.get("us"), "value": value}


def newest(log: dict) -> dict[str, dict[str, dict]]:
    """{group: {case: entry}}: later sections stand behind earlier ones in the log, `tables` is the oldest."""
    found: dict[str, dict[str, dict]] = {}
    sections = [name for name, s in log.items() if isinstance(s, dict) and "rows" in s]
    for name in sorted(sections, key=lambda s: s != "tables"):
        seen = set()
        for row in log[name]["rows"]:
            e = entry(name, row)
            if e and (e["group"], e["case"]) not in seen:  # of several processes the first
                seen.add((e["group"], e["case"]))
                found.setdefault(e["group"], {})[e["case"]] = {**e, "section": name}
    return found


def ratios(e: dict) -> str:
    ours = e["value"]["headwise"]
    higher = e["unit"] not in ("ms", "us")
    return ", ".join(f"{r} {number(v)} ({(ours / v if higher else v / ours):.2f}x)" for r, v in e["value"].items() if r in RIVALS and v)


def grid_of(cases: dict[str, dict]) -> list[str]:
    """Head widths down, tokens across: headwise / best rival (ratio)."""
    cells: dict[str, dict[int, str]] = {}
    for case, e in cases.items():
        found = GRID.fullmatch(case)
        if found:
            width, heads, batch, tokens, mask = found.groups()
            one = f", {heads.strip()} heads" if heads and heads.split("/")[0] != heads.strip().split("/")[1] else ""
            rival = max(((v, r) for r, v in e["value"].items() if r in RIVALS), default=None)
            text = number(e["value"]["headwise"])
            if rival:
                text += f" / {number(rival[0])} ({e['value']['headwise'] / rival[0]:.2f}x)"
            cells.setdefault(f"D{width} {mask}{one}", {})[int(tokens)] = text
    tokens = sorted({t for row in cells.values() for t in row})
    if not tokens:
        return []
    lines = ["| | " + " | ".join(str(t) for t in tokens) + " |", "|---" * (len(tokens) + 1) + "|"]
    order = sorted(cells, key=lambda name: ("," in name, [int(n) for n in re.findall(r"\d+", name.split()[0])], "causal" in name))
    return lines + [f"| {name} | " + " | ".join(cells[name].get(t, "") for t in tokens) + " |" for name in order]


def list_of(cases: dict[str, dict]) -> list[str]:
    lines = ["| case | headwise | time | rivals, and how many times as fast | others | section |", "|---|---|---|---|---|---|"]
    for case, e in cases.items():
        others = ", ".join(f"{k} {number(v)}" for k, v in e["value"].items() if k != "headwise" and k not in RIVALS)
        us = f"{number(e['us'])} us" if e["us"] else ""
        lines.append(f"| {case} | {number(e['value']['headwise'])} {e['unit']} | {us} | {ratios(e)} | {others} | `{e['section']}` |")
    return lines


def plain_table(rows: list[dict]) -> list[str]:
    keys = list(dict.fromkeys(k for r in rows for k in r))
    show = lambda x: "" if x is None else ", ".join(map(str, x)) if isinstance(x, list) else str(x)
    return ["| " + " | ".join(keys) + " |", "|---" * len(keys) + "|",
            *("| " + " | ".join(show(r.get(k)) for k in keys) + " |" for r in rows)]


def sections(log: dict) -> list[str]:
    """Sections whose rows are not cases beside a rival in our units: before and after of single changes."""
    text = []
    for name, s in log.items():
        if isinstance(s, dict) and "rows" in s:
            rest = [r for r in s["rows"] if not entry(name, r) and "host_bound" not in r]
            if rest:
                text += [f"### `{name}`", "", s.get("what", "Rows of another form") + ".", "", *plain_table(rest), ""]
    return text


def document(log: dict) -> str:
    machine = next(s["device"] for s in log.values() if isinstance(s, dict) and "device" in s)
    torch = sorted({s["torch"] for s in log.values() if isinstance(s, dict) and "torch" in s})
    text = ["# GPU: measured", "", "<!-- written by benchmarks/gpu/gpu_report.py; do not edit -->", "",
            f"Device {machine}; torch {', '.join(torch)}. Medians, bf16, headwise and rivals in one process.",
            "A grid cell reads headwise / best rival (how many times as fast); D is head_dim, or head_dim/value_dim.",
            "Where several runs measured a case, the newest stands here; the log has all of them.", ""]
    found = newest(log)
    for group in [g for g in GROUPS if g in found] + [g for g in found if g not in GROUPS]:
        title, cases = GROUPS.get(group, group.capitalize()), found[group]
        grid = grid_of(cases)
        if grid and group in ("forward", "backward"):
            text += [f"## {title}, TFLOP/s", "", *grid, ""]
            cases = {c: e for c, e in cases.items() if not GRID.fullmatch(c)}
            if cases:
                text += [*list_of(cases), ""]
        else:
            text += [f"## {title}", "", *list_of(cases), ""]
    rest = sections(log)
    if rest:
        text += ["## Before and after single changes", "", *rest]
    checks = {c.get("command", name): c for name, c in log.items() if isinstance(c, dict) and "passed" in c}
    checks |= {c["command"]: c for c in log.get("later_checks", [])}
    if checks:
        text += ["## Checks", "", "| what ran | passed | failed |", "|---|---|---|"]
        text += [f"| `{name}` | {c['passed']:,} | {c['failed']} |" for name, c in checks.items()] + [""]
    return "\n".join(text).rstrip() + "\n"


def main(words: list[str]) -> int:
    files = [w for w in words if w != "--check"]
    if len(files) != 1:
        print(__doc__)
        return 2
    log = pathlib.Path(files[0])
    page, made = log.with_suffix(".md"), document(json.loads(log.read_text()))
    if "--check" in words:
        if not page.exists() or page.read_text() != made:
            print(f"gpu_report: {page.name} is not what {log.name} says; run benchmarks/gpu/gpu_report.py {files[0]}")
            return 1
        return 0
    page.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
