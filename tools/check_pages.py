#!/usr/bin/env python3
"""Pages: short sentences, one line width, links and named files that are there, every page in the index.

Usage: check_pages.py [FILE...]          checks README.md, CONTRIBUTING.md, CHANGELOG.md and docs/, or the named pages
       check_pages.py --wrap FILE...     writes the paragraphs of these pages anew at the one width"""
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDTH, WORDS = 120, 35
PHRASES = ("have come of", "has come of", "is none", "are none", "the bits of", "the bits it")  # what readers had to read twice
LIST = re.compile(r"(\s*)([-*]|\d+\.) +(?=\S)")
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
CODE = re.compile(r"(`+)(.+?)\1")
FILE = re.compile(r"(?:headwise|tests|tools|benchmarks|examples|docs|python)/[\w./-]+\.(?:h|cc|cu|cuh|py|md|txt|json|sh|c|svg)")
ABBREVIATIONS = ("e.g.", "i.e.", "vs.", "etc.", "cf.", "al.")


class Block:
    """Lines of one kind: text, item, table, code, heading, comment or blank."""

    def __init__(self, kind, number, lines):
        self.kind, self.number, self.lines = kind, number, lines

    def text(self):
        return " ".join(line.strip() for line in self.lines)


def kind_of(line, before):
    if not line.strip():
        return "blank"
    if line.startswith("    ") and before in ("blank", "code"):
        return "code"
    if line.lstrip().startswith("|"):
        return "table"
    if line.startswith("#"):
        return "heading"
    if line.startswith("<"):
        return "comment"
    return "item" if LIST.match(line) else "text"


def blocks_of(text):
    blocks, fence, before = [], None, "blank"
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+)", line)
        if fence or mark:
            kind = "fence"
            if not fence:
                blocks.append(Block(kind, number, [line]))
            else:
                blocks[-1].lines.append(line)
            fence = fence if fence and not mark else None if fence else mark[1]
            before = "blank"
            continue
        kind = kind_of(line, before)
        goes_on = kind == "text" and before in ("text", "item") or kind == before and kind in ("table", "code", "blank")
        if goes_on:
            blocks[-1].lines.append(line)
        else:
            blocks.append(Block(kind, number, [line]))
            before = kind
    return blocks


def sentences_of(text):
    lead = LIST.match(text)
    text = LINK.sub(r"\1", CODE.sub("Code", text[lead.end():] if lead else text)).replace("*", "")
    sentence = []
    for word in text.split():
        sentence.append(word)
        end = word.rstrip(")\"'”")
        if end.endswith((".", "!", "?")) and end.lower() not in ABBREVIATIONS:
            yield sentence
            sentence = []
    if sentence:
        yield sentence


def slugs_of(text):
    """Anchors of a page's headings, as GitHub makes them."""
    for block in blocks_of(text):
        if block.kind == "heading":
            title = LINK.sub(r"\1", block.lines[0].lstrip("# ")).replace("`", "").lower()
            yield re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-")


def link_faults(page, blocks):
    for block in blocks:
        if block.kind in ("fence", "code"):
            continue
        for number, line in enumerate(block.lines, block.number):
            for _, target in LINK.findall(CODE.sub("", line)):
                if re.match(r"[a-z]+:", target):
                    continue
                path, _, anchor = target.partition("#")
                file = (page.parent / path) if path else page
                if not file.exists():
                    yield number, f"the link {target} leads nowhere"
                elif anchor and file.suffix == ".md" and anchor not in slugs_of(file.read_text()):
                    yield number, f"the link {target} names no heading of that page"


def file_faults(blocks):
    """A file that is named as `tests/some/file.cc` is there; OUT.json, NAME.h and the like stand for any."""
    for block in blocks:
        if block.kind in ("text", "item", "table"):
            for number, line in enumerate(block.lines, block.number):
                for name in (span[1].split(":")[0] for span in CODE.findall(line)):
                    if FILE.fullmatch(name) and not (ROOT / name).exists():
                        yield number, f"there is no file {name}"


def sentence_faults(blocks):
    for block in blocks:
        if block.kind not in ("text", "item", "heading"):
            continue
        for sentence in sentences_of(block.text()):
            count = sum(any(c.isalnum() for c in word) for word in sentence)
            if count > WORDS:
                yield block.number, f"a sentence of {count} words, at most {WORDS}: {' '.join(sentence[:8])} ..."
        for phrase in PHRASES:
            if phrase in CODE.sub("", block.text()):
                yield block.number, f'"{phrase}": say it in common words'


def width_faults(blocks):
    for block in blocks:
        for number, line in enumerate(block.lines, block.number):
            if len(line) > WIDTH and block.kind not in ("table", "fence", "code", "comment") and not LINK.search(line):
                yield number, f"{len(line)} columns, at most {WIDTH}; check_pages.py --wrap mends it"


def table_faults(blocks):
    for block, after in zip(blocks, blocks[1:]):
        if block.kind == "table" and after.kind == "text":
            yield after.number, "text right below a table becomes a row of it; leave a line free"
    for block in blocks:
        if block.kind == "table" and re.fullmatch(r"[\s|:-]+", block.lines[0]):
            yield block.number, "a table begins with its heads; they may stand in the text above"


def is_note(page):
    return page.is_relative_to(ROOT / "docs/notes")


def faults_of(page):
    blocks = blocks_of(page.read_text())
    faults = [*link_faults(page, blocks), *table_faults(blocks)]
    if page.name != "CHANGELOG.md":  # which may name what is gone
        faults += file_faults(blocks)
    if page.name != "README.zh.md":
        faults += width_faults(blocks)
        faults += [] if is_note(page) else sentence_faults(blocks)
    return [f"{page.relative_to(ROOT)}:{number}: {what}" for number, what in sorted(faults)]


def index_faults(pages):
    """A page stands in docs/index.md, or in the index of its own folder."""
    index = ROOT / "docs/index.md"
    listed = {(file.parent / target.partition("#")[0]).resolve()
              for file in [index, *(ROOT / "docs").glob("*/index.md")] for _, target in LINK.findall(file.read_text())}
    return [f"{page.relative_to(ROOT)}: not listed in docs/index.md" for page in pages
            if page.is_relative_to(ROOT / "docs") and page != index and page.resolve() not in listed]


def wrapped(block):
    """Text and items at the one width; links and code stay in one piece."""
    if block.kind not in ("text", "item"):
        return block.lines
    first = LIST.match(block.lines[0])
    lead = first[0] if block.kind == "item" else re.match(r"\s*", block.lines[0])[0]
    text = block.text()[len(lead.strip()):].strip() if block.kind == "item" else block.text()
    # U+E000 holds code and links together while the lines are filled, and keeps a line from beginning as a list would.
    text = re.sub(r"`[^`]+`|!?\[[^\]]*\]\([^)]*\)", lambda m: m[0].replace(" ", "\ue000"), text)
    text = re.sub(r" (?=([-+*#|]|\d+\.)( |$))", "\ue000", text)
    lines = textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead), break_long_words=False,
                          break_on_hyphens=False)
    return [line.replace("\ue000", " ") for line in lines]


def main(words):
    if words[:1] == ["--wrap"]:
        for page in map(pathlib.Path, words[1:]):
            page.write_text("\n".join(line for block in blocks_of(page.read_text()) for line in wrapped(block)) + "\n")
        return 0
    everything = [ROOT / name for name in ("README.md", "README.zh.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    everything += sorted((ROOT / "docs").rglob("*.md"))
    pages = [pathlib.Path(word).resolve() for word in words] or everything
    faults = [fault for page in pages for fault in faults_of(page)] + index_faults(pages)
    print("\n".join(faults) or f"pages: {len(pages)} pages read well")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
