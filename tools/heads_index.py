#!/usr/bin/env python3
"""The table of docs/heads/index.md, "how heads meet", made from the list of heads that a build holds.

Usage: heads_index.py PROGRAM [--check]   PROGRAM is the built `headwise`; --check only says whether the page is up to date."""
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/heads/index.md"
BEGIN, END = "<!-- made by tools/heads_index.py -->", "<!-- end -->"


def times(x):
    return f"{x:.3g}x"


def count(n):
    return f"{n:+,}" if n else "0"


def table(facts):
    heads = facts["heads"]
    mha = next(h for h in heads if h["name"] == "mha")
    first = mha["settings"].split(":")[1].split(",")[0].split("=")[1]
    lines = [
        f"Sizes: {first} heads, model_dim {facts['model_dim']}, {facts['tokens']} tokens, layer {facts['layer']} of"
        f" {facts['depth']}, f32, other settings at their defaults.",
        "",
        "- `headwise heads` prints the same for other sizes.",
        "- Parameters: those of a layer beyond `mha`.",
        "- Attention FLOPs: products of the scores, the values and the mixes with every pair open, over those of `mha`.",
        "- Own FLOPs: what a head computes beside attention and its projections, over the attention of `mha`.",
        "- Cache bytes: what a token keeps of keys and values.",
        "- `moh` is counted with all its heads: skipping leaves (shared + k) / heads of it.",
        "",
        "| head | heads meet | parameters | attention FLOPs | own FLOPs | cache bytes |",
        "|---|---|---|---|---|---|",
    ]
    for h in heads:
        lines.append(
            f"| [`{h['name']}`]({h['name']}.md) | {h['meets']} | {count(h['parameters'] - mha['parameters'])} |"
            f" {times(h['attention_flops'] / mha['attention_flops'])} | {times(h['own_flops'] / mha['attention_flops'])} |"
            f" {times(h['cache_bytes'] / mha['cache_bytes'])} |"
        )
    return "\n".join(lines)


def main(program, check):
    facts = json.loads(subprocess.run([program, "heads", "--json"], check=True, capture_output=True, text=True).stdout)
    missing = [h["name"] for h in facts["heads"] if not (PAGE.parent / f"{h['name']}.md").is_file()]
    if missing:
        print(f"heads_index: no page docs/heads/{missing[0]}.md; write its formula, shapes, cost, use and MHA setting")
        return 1
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    made = f"{before}{BEGIN}\n{table(facts)}\n{END}{after}"
    if check and made != page:
        print("heads_index: docs/heads/index.md is not what the heads say; run tools/heads_index.py with the built program")
        return 1
    if not check:
        PAGE.write_text(made)
    print(f"heads_index: {len(facts['heads'])} heads, the page is up to date")
    return 0


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 3 or sys.argv[2:] not in ([], ["--check"]):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], len(sys.argv) == 3))
