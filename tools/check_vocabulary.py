#!/usr/bin/env python3
"""Vocabulary: one word for one thing, names without praise or history, own macros HW_FN alone, no unfinished sentences."""
import pathlib
import re
import sys

from check_lengths import tracked

# Words in a name that say nothing about what it does. "optional", "news" and the like are whole other words.
EMPTY_WORDS = {"fast", "faster", "new", "newer", "v2", "v3", "opt", "optimized", "improved", "my", "tmp2"}
# Other projects' abbreviations for our sizes.
FOREIGN = {"ne", "nb", "nh", "nkv", "seqlen", "seq_len", "num_heads", "num_kv_heads", "n_heads", "n_head", "headdim",
           "head_size", "hidden_size", "embed_dim", "d_model", "d_k", "d_v", "bsz", "batch_size"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
NAME = re.compile(r"\b[A-Za-z_][A-Za-z0-9_]*\b")
MACRO = re.compile(r"^\s*#\s*define\s+(\w+)", re.M)
KEYWORDS = {"new"}
PUBLISHED = {"beta_fast"}  # YaRN's own word, as configuration files write it


def words_of(name):
    """attend_fast, attendFast and AttendFast all hold the word fast."""
    return [w.lower() for w in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+[0-9]*|[0-9]+", name)]


def faults_in(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        if UNFINISHED.search(line):
            yield f"{name}:{number}: {UNFINISHED.search(line)[0]}: finish it or leave it out"
    for macro in MACRO.findall(text):
        if macro != "HW_FN" and not (name.startswith("headwise/c/") and macro.startswith(("HEADWISE_", "HW_"))):
            yield f"{name}: macro {macro}: own macros are HW_FN alone"
    code = COMMENT_OR_STRING.sub(lambda m: "\n" * m[0].count("\n"), text)
    code = re.sub(r"^\s*#\s*include[^\n]*", "", code, flags=re.M)
    for number, line in enumerate(code.splitlines(), 1):
        for found in NAME.findall(line):
            if found in FOREIGN:
                yield f"{name}:{number}: {found}: say batch, q_tokens, kv_tokens, heads, kv_heads, head_dim, value_dim, model_dim"
            elif found not in KEYWORDS | PUBLISHED and EMPTY_WORDS & set(words_of(found)):
                yield f"{name}:{number}: {found}: a name says what it does, not that it is good or recent"


def main(root):
    faults = []
    for file in tracked(root):
        name = file.relative_to(root).as_posix()
        if name.startswith("headwise/") and file.suffix in {".h", ".cc", ".cu", ".cuh", ".inc"}:
            faults += faults_in(name, file.read_text())
            if EMPTY_WORDS & set(words_of(file.stem)):
                faults.append(f"{name}: a file name says what it does")
        elif file.suffix in {".h", ".cc", ".c", ".py", ".md", ".cmake", ".sh"} and name != "tools/check_vocabulary.py":
            for number, line in enumerate(file.read_text().splitlines(), 1):
                if UNFINISHED.search(line):
                    faults.append(f"{name}:{number}: {UNFINISHED.search(line)[0]}: finish it or leave it out")
    print("\n".join(faults) or "vocabulary: one word for one thing")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(__file__).resolve().parent.parent))
