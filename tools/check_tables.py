#!/usr/bin/env python3
"""Tables: what pages say of score terms, mask kinds and arguments is what the lists in headwise/spec and python say.

Usage: check_tables.py            says what is out of date
       check_tables.py --write    writes the tables anew"""
import pathlib
import re
import sys

MADE = "made by tools/check_tables.py: {}"
STAGES = {"none": "", "scores": "scores", "weights": "weights", "dropped": "weights, after the normalizer", "out": "output"}


def rows_of(text, name):
    """The rows of `constexpr ... name[] = {...};` as dictionaries: strings without quotes, the rest as it stands."""
    body = text[text.index(f"{name}[] = {{") + len(name) + 5:]
    rows, depth, start = [], 0, 0
    for at, c in enumerate(body):
        if c == "{":
            depth += 1
            start = at + 1 if depth == 2 else start
        elif c == "}":
            depth -= 1
            if depth == 1:
                rows.append(body[start:at])
            elif depth == 0:
                break
    found = []
    for row in rows:
        fields = {}
        for m in re.finditer(r"\.(\w+) =\s+((?:\"(?:[^\"\\]|\\.)*\"\s*)+|\{[^}]*\}|\[\].*?\; \}|[^,]+)", row, re.S):
            value = m[2].strip()
            fields[m[1]] = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', value)) if value.startswith('"') else value
        found.append(fields)
    return found


def last_word(value):
    return value.rsplit("::", 1)[-1]


def gradients(terms):
    lines = ["| gradient | of | sizes | dtype |", "|---|---|---|---|", "| dq, dk, dv | q, k, v | those of its input | that of q, k and v |"]
    for t in terms:
        if "gradient" in t:
            sizes = t.get("gradient_axes", t.get("axes", ""))
            lines.append(f"| {t['gradient_name']} | {t['name']} | {sizes} | {'f32 or f64' if t.get('wide') == 'true' else 'any float'} |")
    return lines


def options(terms):
    lines = ["| score term | says |", "|---|---|"]
    return lines + [f"| `--{t.get('call', t['word'])}` | {t['help']} |" for t in terms if "help" in t]


def terms_table(terms):
    lines = ["| term | in Python and the program | in C++ | sizes | acts on | gradient |", "|---|---|---|---|---|---|"]
    for t in terms:
        where = last_word(t.get("input", t.get("number", "")))
        sizes = t.get("axes") or ("one number" if "number" in t else t.get("gradient_axes", ""))
        call = "`coefficients`" if t.get("of_head") == "true" else f"`{t.get('call', t['word'])}`"
        lines.append(f"| {t['name']} | {call} | `HeadInputs::{where}` | {sizes} | {STAGES[last_word(t.get('stage', 'none'))] or 'scores'} |"
                     f" {t.get('gradient_name', 'none')} |")
    return lines


def masks_table(kinds):
    """Kinds that are built from numbers: what each opens."""
    lines = ["| term | open pairs | in text |", "|---|---|---|"]
    for k in kinds:
        if "help" not in k:
            continue
        words = ", ".join(re.findall(r'"(\w+)"', k.get("arguments", "")))
        several = last_word(k["form"]) in ("list", "offsets")
        said = f"{k['name']}({words + ', ...' if several else words})" if words else k["name"]
        opens = k["help"].rstrip(".").replace("|", "\\|")
        lines.append(f"| `Mask::{k['name']}({words})` | {opens} | `{said}` |")
    return lines


def arguments(rows):
    """An argument without a help stands in the row of the one before; those before the first row are q, k and v."""
    names, helps = [], []
    for a in rows:
        if "help" in a:
            names.append([]), helps.append(a["help"].replace('\\"', '"'))
        if names:
            names[-1].append(f"`{a['name']}`")
    return ["| argument | what it is |", "|---|---|"] + [f"| {', '.join(n)} | {h} |" for n, h in zip(names, helps)]


def gradient_fields(terms):
    """Of the named tuple that attention_backward returns."""
    return [f"    d{t.get('call', t['word'])}: Any" for t in terms if "gradient" in t and t.get("of_head") != "true"]


def tables(root):
    """(page, name, lines) of every table that is made."""
    terms = rows_of((root / "headwise/spec/terms.h").read_text(), "kScoreTerms")
    kinds = rows_of((root / "headwise/spec/mask_terms.h").read_text(), "kMaskKinds")
    words = rows_of((root / "python/attention/arguments.h").read_text(), "kArguments")
    return [("docs/backward.md", "gradients", gradients(terms)), ("docs/terms.md", "score terms", terms_table(terms)),
            ("docs/cli.md", "score terms", options(terms)), ("docs/masks.md", "mask kinds", masks_table(kinds)),
            ("docs/python.md", "arguments", arguments(words)), ("python/headwise/_types.py", "gradients", gradient_fields(terms))]


def main(root, write):
    faults = []
    for page, name, lines in tables(root):
        text = (root / page).read_text()
        code = page.endswith(".py")
        begin, end = (f"# {MADE.format(name)}", "    # end") if code else (f"<!-- {MADE.format(name)} -->", "<!-- end -->")
        gap = "\n" if code else "\n\n"
        if begin not in text:
            faults.append(f"{page}: the line {begin} is gone; put it back where the table stands")
            continue
        before, rest = text.split(begin)
        made = f"{before}{begin}{gap}" + "\n".join(lines) + f"{gap}{end}" + rest.split(end, 1)[1]
        if made != text and write:
            (root / page).write_text(made)
        elif made != text:
            faults.append(f"{page}: its table of {name} is not what the list says; run tools/check_tables.py --write")
    print("\n".join(faults) or "tables: pages say what the lists say")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent, "--write" in sys.argv[1:]))
