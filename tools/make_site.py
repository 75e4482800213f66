#!/usr/bin/env python3
"""Makes the site: every page under docs/, the two READMEs, and a reference of C, C++ and Python made from headers and stubs.
It works from files, search included; a link that leads nowhere is an error.

Usage: make_site.py [OUT]      OUT is a folder, by default build/site; its index.html is the first page"""
import ast
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)\s]*)?\)")
PAGES = ["README.md", "README.zh.md", "CHANGELOG.md", "CONTRIBUTING.md"]
PUBLIC = ROOT / "cmake/public_headers.cmake"


def groups():
    """The headings of docs/index.md and the pages under each: the one list of what the site shows."""
    found, title = {}, "Start"
    for line in (ROOT / "docs/index.md").read_text().splitlines():
        if line.startswith("## "):
            title = line[3:].strip()
        elif line.startswith("|"):
            for target in re.findall(r"\]\(([^)#]+\.md)\)", line.split("|")[1]):
                page = str((ROOT / "docs" / target).resolve().relative_to(ROOT))
                if page not in found.setdefault(title, []):
                    found[title].append(page)
    return found


def copy_pages(source):
    """Pages keep their places, so their links do too. Whatever else a page links to comes along as a file."""
    pages = [ROOT / name for name in PAGES] + sorted((ROOT / "docs").rglob("*.md"))
    for page in pages:
        place = source / page.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = re.sub(r"<!-- made by[^>]*-->|<!-- end -->|<!-- /?speed[^>]*-->", "", page.read_text())
        place.write_text(text)
        for _, target, _ in LINK.findall(text):
            file = (page.parent / target).resolve()
            if "://" in target or not file.is_file() or file in pages:
                continue
            if not file.is_relative_to(ROOT):
                sys.exit(f"make_site: {page.relative_to(ROOT)}: the link {target} leads out of the project")
            there = source / file.relative_to(ROOT)
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, there)
        for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
            there = place.parent / picture
            there.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page.parent / picture, there)


def tree(pages, caption=""):
    """The menu of some pages."""
    lines = ["```{toctree}", ":hidden:", *([f":caption: {caption}"] if caption else []), "", *(p.removesuffix(".md") for p in pages), "```", ""]
    return "\n".join(lines)


def write_index(source, reference):
    """The first page with the menu of all; an index of a folder gets the menu of its folder."""
    menus = {**groups(), "Reference from the source": reference}
    menus["The project"] = [*PAGES, "docs/index.md", *sorted(str(p.relative_to(source)) for p in source.glob("benchmarks/**/*.md"))]
    menus["Start"] = [p for p in menus["Start"] if p not in PAGES]
    (source / "index.md").write_text((ROOT / "site/index.md").read_text() + "\n" + "\n".join(tree(p, t) for t, p in menus.items()))
    for index in source.glob("docs/*/index.md"):
        pages = sorted(p.name for p in index.parent.glob("*.md") if p != index)
        index.write_text(index.read_text() + "\n" + tree(pages))


# ---- C ----

def c_declarations(text):
    """(heading or None, comment, code) for every declaration of the header, in order."""
    text = text[text.index('extern "C" {'):]
    comment, code, depth = [], [], 0
    for line in text.splitlines():
        if not code and (heading := re.match(r"// ---- (.*) ----", line)):
            yield heading[1], "", ""
            comment = []
        elif not code and line.startswith(("///", "// ")):
            comment.append(line.lstrip("/ ").rstrip())
        elif not code and (not line.strip() or line.startswith("#")):
            comment = [] if not line.strip() else comment
        elif line.startswith(("extern", "}  //", "#")) and depth == 0:
            continue
        else:
            code.append(line)
            depth += line.count("{") - line.count("}")
            if depth == 0 and line.split("//")[0].rstrip().endswith(";"):
                yield None, " ".join(comment), "\n".join(code)
                comment, code = [], []


def c_reference():
    names = [p.name for p in sorted((ROOT / "headwise/c").glob("*.h")) if f"headwise/c/{p.name}" in PUBLIC.read_text()]
    names.sort(key=lambda name: name != "headwise.h")  # the others build on it
    brought = ", ".join(f"`<headwise/c/{name}>`" for name in names)
    out = ["# C\n", f"Headers: {brought}. How they are used: [c-api](../docs/c-api.md).\n"]
    for name in names:
        out.append(f"## {name}\n")
        for heading, comment, code in c_declarations((ROOT / "headwise/c" / name).read_text()):
            out.append(f"### {heading}\n" if heading else f"```c\n{code}\n```\n\n{escaped(comment)}\n")
    return "\n".join(out)


def escaped(text):
    return re.sub(r"([<>*_\[\]|])", r"\\\1", text)


# ---- Python ----

def signature(node):
    if any(getattr(d, "id", "") == "property" for d in node.decorator_list):
        return f"{node.name}: {ast.unparse(node.returns) if node.returns else 'Any'}"
    body = ast.unparse(node.args)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({body}){result}"


def python_members(body, prefix=""):
    for node in body:
        if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
            yield prefix + signature(node), ast.get_docstring(node) or ""
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield f"class {prefix}{node.name}", ast.get_docstring(node) or ""
            yield from python_members(node.body, f"{prefix}{node.name}.")


def exported():
    """What `from headwise import *` brings, and the modules beside it."""
    tree = ast.parse((ROOT / "python/headwise/__init__.py").read_text())
    lists = [ast.literal_eval(n.value) for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "__all__"]
    return set(lists[0])


def python_reference():
    out = ["# Python\n", "How it is used: [python](../docs/python.md).\n"]
    package, names = ROOT / "python/headwise", exported()
    files = [package / "_core.pyi", package / "_decoder.py", package / "_view.py", package / "_align.py", package / "_types.py", package / "_heads.py"]
    files += sorted(p for p in package.glob("*.py") if not p.name.startswith("_"))
    for file in files:
        name = "headwise" if file.name.startswith("_") else f"headwise.{file.stem}"
        body = ast.parse(file.read_text()).body
        if file.name.startswith("_"):
            body = [n for n in body if getattr(n, "name", "") in names]
        members = [m for m in python_members(body) if m[1] or "__init__" in m[0] or "." not in m[0].split("(")[0]]
        if not members:
            continue
        title = name if file.suffix == ".py" and not file.name.startswith("_") else f"{name} ({file.stem.strip('_')})"
        out.append(f"## {title}\n")
        for code, words in members:
            out.append(f"```python\n{code.replace('.__init__(self, ', '(').replace('.__init__(self)', '()')}\n```\n")
            out.append(escaped(words) + "\n")
    return "\n".join(out)


# ---- C++ ----

def public_headers():
    """Names of what is installed, those of the heads with it, by room."""
    listed = re.findall(r"headwise/[\w/]+\.h", re.sub(r"#.*", "", PUBLIC.read_text()))
    heads = [str(p.relative_to(ROOT)) for p in (ROOT / "headwise/heads").glob("*.h") if "static_assert(Head<" in p.read_text()]
    rooms = {}
    for name in sorted({*listed, *heads}):
        if not name.startswith("headwise/c/"):
            rooms.setdefault(name.split("/")[1].removesuffix(".h"), []).append(name)
    return rooms


def first_words(name):
    found = []
    for line in (ROOT / name).read_text().splitlines():
        if not line.startswith("//") or line.startswith("// SPDX"):
            break
        found.append(line.lstrip("/ "))
    return " ".join(found)


def declared(name):
    """A header without what only a compiler reads: its first lines, includes and pragmas."""
    text = re.sub(r"^(//.*\n)+", "", (ROOT / name).read_text())
    return re.sub(r"^#(pragma|include).*\n", "", text, flags=re.M).strip()


def cpp_reference():
    """{page: text}: the list of installed headers with what each is for, and a page a room with their declarations."""
    first = ["# C++\n", "`#include <headwise/headwise.h>` brings what most programs need. Every installed header:\n",
             "| header | what it is for |", "|---|---|"]
    pages = {}
    for room, names in public_headers().items():
        page = f"reference/cpp-{room}.md"
        first += [f"| [{name}]({pathlib.Path(page).name}#{anchor(name)}) | {escaped(first_words(name))} |" for name in names]
        parts = [f"## {name}\n\n{escaped(first_words(name))}\n\n```cpp\n{declared(name)}\n```\n" for name in names]
        pages[page] = "\n".join([f"# C++: {room}\n", *parts])
    return {"reference/cpp.md": "\n".join(first) + "\n", **pages}


def anchor(heading):
    """As the generator names a heading."""
    return re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-"))


def main(out):
    out = out.resolve()
    source = out.parent / (out.name + ".source")
    for folder in (out, source):
        shutil.rmtree(folder, ignore_errors=True)
    (source / "reference").mkdir(parents=True)
    shutil.copyfile(ROOT / "site/conf.py", source / "conf.py")
    shutil.copytree(ROOT / "site/static", source / "_static")
    copy_pages(source)
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (ROOT / "site/index.md").read_text())
    for picture in pictures:
        shutil.copyfile(ROOT / picture, source / picture)
    reference = {"reference/python.md": python_reference(), "reference/c.md": c_reference(), **cpp_reference()}
    for name, text in reference.items():
        (source / name).write_text(text)
    write_index(source, list(reference))
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-j", "2", "-b", "html", "-d", source / ".doctrees",
               source, out]
    if subprocess.run([str(c) for c in command]).returncode:
        sys.exit("make_site: the words above say what is wrong with a page")
    print(f"{out / 'index.html'}: {len(list(out.rglob('*.html')))} pages")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/site"))
