"""The site: every link leads somewhere, every public name is in the reference, and search works from files, without a network."""
import html
import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

import chromium
import headwise as hw

ROOT = pathlib.Path(__file__).resolve().parents[3]
HAVE = importlib.util.find_spec("sphinx") and importlib.util.find_spec("myst_parser") and importlib.util.find_spec("furo")
if os.environ.get("CI") == "true":
    assert HAVE, "sphinx is missing; site/requirements.txt names it"
pytestmark = pytest.mark.skipif(not HAVE, reason="needs what site/requirements.txt names")


def make(root, out):
    return subprocess.run([sys.executable, root / "tools/make_site.py", out], text=True, capture_output=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "site"
    done = make(ROOT, out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_page_is_there_and_loads_nothing_from_elsewhere(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT)).with_suffix(".html").exists(), page
    for page in site.rglob("*.html"):
        loads = re.findall(r"<(?:script|img|iframe)[^>]+src=\"(?:https?:)?//|<link[^>]+rel=\"stylesheet\"[^>]+href=\"(?:https?:)?//", page.read_text())
        assert not loads, (page, loads)


def test_reference_names_every_function_of_c_and_python(site):
    c = (site / "reference/c.html").read_text()
    for header in ("headwise.h", "decoder.h", "recognizer.h"):
        names = re.findall(r"\b(hw_\w+)\(", (ROOT / "headwise/c" / header).read_text())
        assert names and header in c
        for name in names:
            assert name in c, name
    python = re.sub(r"<[^>]*>", "", (site / "reference/python.html").read_text())
    for name in re.findall(r"^(?:def|class) ([a-zA-Z]\w*)", (ROOT / "python/headwise/_core.pyi").read_text(), re.M):
        if name in hw.__all__:
            assert re.search(rf"\b{name}\b", python), name


def test_reference_holds_every_declaration_of_public_headers(site):
    plain = {p.stem: re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", p.read_text()))) for p in site.glob("reference/cpp*.html")}
    for name in re.findall(r"headwise/[\w/]+\.h", re.sub(r"#.*", "", (ROOT / "cmake/public_headers.cmake").read_text())):
        if name.startswith("headwise/c/"):
            continue
        room = name.split("/")[1].removesuffix(".h")
        assert name in plain["cpp"] and name in plain[f"cpp-{room}"], name
        for line in (ROOT / name).read_text().splitlines():
            if re.match(r"(class|struct|enum class) \w+ .*{$|\w.*\);$", line):
                assert re.sub(r"\s+", " ", line) in plain[f"cpp-{room}"], (name, line)


def test_a_link_to_nowhere_is_an_error(tmp_path):
    for folder in ("python", "headwise", "cmake"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/make_site.py").write_text((ROOT / "tools/make_site.py").read_text())
    (tmp_path / "site/static").mkdir(parents=True)
    (tmp_path / "site/conf.py").write_text((ROOT / "site/conf.py").read_text())
    (tmp_path / "site/index.md").write_text("# First\n")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/c-api.md").write_text("# C\n")
    (tmp_path / "docs/python.md").write_text("# Python\n\n[nothing](nowhere.md)\n")
    (tmp_path / "docs/index.md").write_text("# All\n\n## Start\n\n| [c](c-api.md), [python](python.md) | both |\n")
    for name in ("README.md", "README.zh.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        (tmp_path / name).write_text("# Page\n")
    done = make(tmp_path, tmp_path / "out/site")
    assert done.returncode != 0 and "nowhere.md" in done.stderr, done.stderr
    assert done.stderr.count("WARNING") == 1, done.stderr


@pytest.mark.skipif(not chromium.find(), reason="needs chromium")
def test_search_finds_a_word_without_a_server(site):
    with chromium.Chromium() as browser:
        browser.open(site / "index.html")
        before = len(browser.loads)
        browser.run("(() => { const box = document.querySelector('.sidebar-search'); box.value = 'sparsemax'; box.form.submit(); })()")
        while len(browser.loads) == before:
            browser.read()
        browser.run("""new Promise((done) => { const look = () => document.querySelector('#search-results').innerText.startsWith('Search Results')
                        ? done() : setTimeout(look, 50); look(); })""")
        assert "entmax" in browser.run("document.querySelector('#search-results').innerText")
        assert not browser.errors
        assert all(r.startswith(("file:", "data:")) for r in browser.requests), browser.requests
