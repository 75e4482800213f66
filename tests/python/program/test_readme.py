"""README.zh.md says what README.md says: the same headings, blocks, commands, links and speed table, in the same order."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[3]
COMMENT = re.compile(r"\s*(//|# ).*$", re.M)  # comments are translated, code is not


def parts(name):
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    return {
        "headings": [mark for mark in re.findall(r"^(#+) ", prose, re.M)],
        "blocks": [(language, COMMENT.sub("", body)) for language, body in blocks],
        "commands": re.findall(r"`(make \w+|headwise [^`]+|pip [^`]+|cmake [^`]+|pkg-config [^`]+)`", prose),
        "code": sorted(re.findall(r"`([^`\n]+)`", prose)),
        "links": [to for to in re.findall(r"\]\(([^)]+)\)", prose) if not to.startswith("README")],
        "items": len(re.findall(r"^- ", prose, re.M)),
        "speed": re.findall(r"^\|.*\|$", prose[prose.index("<!-- speed") : prose.index("<!-- /speed")], re.M),
        "rows": len(re.findall(r"^\|.*\|$", prose, re.M)),
        "other": re.findall(r"\]\((README[^)]*)\)", prose),
    }


def test_the_chinese_readme_is_in_step():
    english, chinese = parts("README.md"), parts("README.zh.md")
    assert english["other"] == ["README.zh.md"] and chinese["other"] == ["README.md"]
    for what in english.keys() - {"other"}:
        assert chinese[what] == english[what], what


def test_every_link_leads_somewhere():
    for link in parts("README.md")["links"]:
        assert (ROOT / link).exists(), link
