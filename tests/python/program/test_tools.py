"""Tools of the tree: what they write, and what they refuse to write over."""
# SPDX-License-Identifier: Apache-2.0
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]


def tool(name, *words):
    return subprocess.run([sys.executable, ROOT / "tools" / name, *words], text=True, capture_output=True, check=False)


def test_new_head_writes_a_file_once(tmp_path):
    assert tool("new_head.py", "quiet", tmp_path).returncode == 0
    text = (tmp_path / "quiet.h").read_text()
    assert "static_assert(Head<Quiet>);" in text
    (tmp_path / "quiet.h").write_text("mine")
    again = tool("new_head.py", "quiet", tmp_path)
    assert again.returncode and "quiet.h is there already" in again.stderr
    assert (tmp_path / "quiet.h").read_text() == "mine"


def test_new_head_leaves_heads_that_exist_alone(tmp_path):
    before = (ROOT / "headwise/heads/gqa.h").read_bytes()
    for words in (["gqa"], ["gqa", tmp_path]):  # a second head of that name would be refused by the build, in worse words
        done = tool("new_head.py", *words)
        assert done.returncode and "gqa.h is there already" in done.stderr and not done.stdout
    assert (ROOT / "headwise/heads/gqa.h").read_bytes() == before and not any(tmp_path.iterdir())


def page_faults(tmp_path, text):
    """What check_pages.py says about one page in a tree of its own."""
    docs = tmp_path / "docs"
    docs.mkdir(exist_ok=True)
    (tmp_path / "tools").mkdir(exist_ok=True)
    (tmp_path / "tools/check_pages.py").write_text((ROOT / "tools/check_pages.py").read_text())
    (docs / "index.md").write_text("# Index\n\n[page](page.md)\n")
    (docs / "page.md").write_text(text)
    done = subprocess.run([sys.executable, tmp_path / "tools/check_pages.py", *sorted(docs.glob("*.md"))], text=True,
                          capture_output=True, check=False)
    assert done.returncode == ("read well" not in done.stdout)
    return done.stdout


def test_pages_are_read(tmp_path):
    words = "word " * 36
    assert "read well" in page_faults(tmp_path, "# A page\n\nShort. [Here](#a-page).\n\n    code " + words + "\n\n| " + words + "|\n")
    assert "a sentence of 36 words" in page_faults(tmp_path, f"# A page\n\n- {words.strip()}.\n".replace(" word word.", "\n  word word."))
    assert "leads nowhere" in page_faults(tmp_path, "# A page\n\n[x](gone.md)\n")
    assert "names no heading" in page_faults(tmp_path, "# A page\n\n[x](index.md#gone)\n")
    assert "columns, at most 120" in page_faults(tmp_path, "# A page\n\n" + "x" * 121 + "\n")
    assert '"is none"' in page_faults(tmp_path, "# A page\n\nThere is none.\n")
    assert "there is no file tests/gone.cc" in page_faults(tmp_path, "# A page\n\n| `tests/gone.cc: Name` |\n")
    assert "right below a table" in page_faults(tmp_path, "# A page\n\n| a |\n|---|\n| b |\nText.\n")
    assert "begins with its heads" in page_faults(tmp_path, "# A page\n\nText. | a |\n|---|\n| b |\n")
    (tmp_path / "docs/other.md").write_text("# Other\n")
    assert "other.md: not listed" in page_faults(tmp_path, "# A page\n")


def test_pages_are_wrapped_without_loss(tmp_path):
    page = tmp_path / "page.md"
    long = " ".join(f"w{i}" for i in range(60))
    page.write_text(f"# T\n\n{long} - 1. [a b]({'u' * 70}) `c d`\n\n- {long}\n  end\n\n```sh\n{long}\n```\n")
    words = page.read_text().split()
    assert tool("check_pages.py", "--wrap", page).returncode == 0
    text = page.read_text()
    assert text.split() == words and f"```sh\n{long}\n```" in text
    assert all(len(line) <= 120 for line in text.splitlines() if line != long)
    assert tool("check_pages.py", "--wrap", page).returncode == 0 and page.read_text() == text


def test_gpu_tables_follow_the_log(tmp_path):
    def row(group, case, ours, rival):
        times = {"headwise": {"median_ms": 0.5, "spread": 0.01}}
        return {"group": group, "case": case, "unit": "TFLOP/s", "value": {"headwise": ours, "cudnn": rival}, "times": times}

    rows = [row("short", "D64 32/32 B8 2048 full", 300.0, 200.0), row("odd", "some case", 10.0, 20.0)]
    late = [{"case": "forward D64 32/32 B8 2048 full", "unit": "TFLOP/s", "headwise": 330.0, "cudnn": 220.0, "us": 1.0},
            {"case": "decode B1 keys", "headwise": 9.0, "cudnn": 1.0, "host_bound": ["cudnn"]}]
    log = {"tables": {"device": "0: GPU", "torch": "2", "rows": rows}, "later": {"what": "after it", "rows": late},
           "single": {"what": "one change", "rows": [{"case": "x", "before": 2.0, "after": 1.0}]},
           "laws": {"passed": 7, "failed": 0}}
    file = tmp_path / "gpu-x.json"
    file.write_text(json.dumps(log))
    script = ROOT / "benchmarks/gpu/gpu_report.py"
    run = lambda *words: subprocess.run([sys.executable, script, *words], capture_output=True, check=False).returncode  # noqa: E731
    assert run(file, "--check") == 1 and run(file) == 0 and run(file, "--check") == 0
    page = file.with_suffix(".md").read_text()
    assert "| D64 full | 330 / 220 (1.50x) |" in page  # the newest figure of a case
    assert "## Odd" in page and "cudnn 20 (0.50x)" in page  # a group nobody named, and a rival that wins
    assert "| x | 2.0 | 1.0 |" in page and "| `laws` | 7 | 0 |" in page and "B1 keys" not in page


def test_plots_are_what_their_scripts_draw(tmp_path):
    for name in ("cost", "speed"):
        assert tool(f"plot_{name}.py", tmp_path / f"{name}.svg").returncode == 0
        assert (tmp_path / f"{name}.svg").read_text() == (ROOT / f"docs/{name}.svg").read_text(), f"tools/plot_{name}.py draws it anew"


def test_each_picture_names_its_script():
    for page in [*(ROOT / "docs").rglob("*.md")]:
        english = page.with_name(page.name.replace(".zh.md", ".md")).read_text()
        if re.search(r"!\[[^\]]*\]\([^)]+\)", page.read_text()):
            named = re.findall(r"\b(?:tools|benchmarks|examples)/[\w/]+\.py", english)
            assert any("svg" in (ROOT / script).read_text() for script in named), f"{page.name}: no script of its picture is named"


def test_a_public_header_includes_public_ones_only(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/check_floors.py").write_text((ROOT / "tools/check_floors.py").read_text())
    (tmp_path / "headwise/base").mkdir(parents=True)
    (tmp_path / "headwise/heads").mkdir()
    (tmp_path / "cmake").mkdir()
    (tmp_path / "headwise/base/open.h").write_text('#include "headwise/base/inside.h"\n')
    (tmp_path / "headwise/base/inside.h").write_text("")
    for listed, words in (("headwise/base/open.h", "headwise/base/inside.h, which"), ("headwise/base/gone.h", "there is no headwise/base/gone.h"),
                          ("headwise/base/inside.h headwise/base/inside.h", "stands twice"), ("headwise/base/inside.h", "")):
        (tmp_path / "cmake/public_headers.cmake").write_text(f"set(HEADWISE_PUBLIC_HEADERS {listed})\n")
        done = subprocess.run([sys.executable, tmp_path / "tools/check_floors.py"], text=True, capture_output=True, check=False)
        assert words in done.stdout and done.returncode == (1 if words else 0), done.stdout


def test_tables_of_pages_follow_the_lists(tmp_path):
    for name in ("tools/check_tables.py", "headwise/spec/terms.h", "headwise/spec/mask_terms.h", "docs/backward.md", "docs/terms.md",
                 "docs/cli.md", "docs/masks.md", "docs/python.md", "python/attention/arguments.h", "python/headwise/_types.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    run = [sys.executable, tmp_path / "tools/check_tables.py"]
    assert subprocess.run(run, check=False).returncode == 0
    terms = tmp_path / "headwise/spec/terms.h"
    terms.write_text(terms.read_text().replace('.axes = "[buckets heads]"', '.axes = "[heads buckets]"'))
    done = subprocess.run(run, text=True, capture_output=True, check=False)
    assert done.returncode == 1 and "docs/backward.md" in done.stdout and "docs/terms.md" in done.stdout and "docs/cli.md" not in done.stdout
    assert subprocess.run([*run, "--write"], check=False).returncode == 0
    assert "| [heads buckets] |" in (tmp_path / "docs/terms.md").read_text() and subprocess.run(run, check=False).returncode == 0
