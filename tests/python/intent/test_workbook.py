"""Workbooks as spreadsheets and openpyxl write them, through the program: the rows of the sheet, and cells that are refused."""
import csv
import os
import pathlib
import subprocess
import zipfile

import pytest

CLI = os.environ.get("HEADWISE_CLI")
pytestmark = pytest.mark.skipif(not CLI, reason="needs HEADWISE_CLI")
PARTS = {
    "[Content_Types].xml": "<Types/>",
    "xl/workbook.xml": '<?xml version="1.0"?><workbook xmlns:r="r"><sheets><sheet name="May" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": '<Relationships><Relationship Id="rId1" Type="t/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
}
KINDS = {"card": ["card", "plastic", "debit card"], "loan": ["loan", "credit", "mortgage"]}
ROWS = [(f"{ask} my {word}, “now”; 请 & <b>", label) for label, words in KINDS.items() for word in words for ask in ("block", "show", "i lost", "what of")]


def workbook(path, cells):
    """One sheet of inline texts, packed as spreadsheets pack it."""
    escape = {ord(c): f"&#{ord(c)};" for c in "&<>"}
    body = "".join(
        f'<row r="{r}">' + "".join(f'<c r="{c}{r}" t="inlineStr"><is><t>{text.translate(escape)}</t></is></c>' for c, text in zip("ABC", row)) + "</row>"
        for r, row in enumerate(cells, 1))
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        for name, text in {**PARTS, "xl/worksheets/sheet1.xml": f"<worksheet><sheetData>{body}</sheetData></worksheet>"}.items():
            z.writestr(name, text)


def train(*words):
    return subprocess.run([CLI, "train", *map(str, words), "--epochs", "1", "--model-dim", "16", "--feed-dim", "16", "--depth", "1", "--heads", "mha:heads=2",
                           "--ngrams", "0", "--threads", "1", "--quiet"], capture_output=True, text=True)


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def by_csv(tmp_path_factory):
    """The same rows as CSV; trained from them, the model has these weights."""
    folder = tmp_path_factory.mktemp("csv")
    with open(folder / "rows.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("Utterance", "Category"), *ROWS])
    made = train(folder / "rows.csv", "--out", folder / "m")
    assert made.returncode == 0, made.stderr
    return weights(folder / "m")


def test_a_workbook_is_its_rows(by_csv, tmp_path):
    workbook(tmp_path / "rows.xlsx", [("ID", "Category", "Utterance"), *((str(i), label, text) for i, (text, label) in enumerate(ROWS))])
    made = train(tmp_path / "rows.xlsx", "--out", tmp_path / "m")
    assert made.returncode == 0, made.stderr
    assert weights(tmp_path / "m") == by_csv


def test_what_openpyxl_writes(by_csv, tmp_path):
    openpyxl = pytest.importorskip("openpyxl", reason="openpyxl is not installed: pip install openpyxl")
    book = openpyxl.Workbook()
    for row in [("Utterance", "Category"), *ROWS]:
        book.active.append(row)
    book.save(tmp_path / "rows.xlsx")
    made = train(tmp_path / "rows.xlsx", "--out", tmp_path / "m")
    assert made.returncode == 0 and weights(tmp_path / "m") == by_csv, made.stderr
    book.active["B7"] = "=A7"
    book.save(tmp_path / "formula.xlsx")
    made = train(tmp_path / "formula.xlsx", "--out", tmp_path / "f")
    assert made.returncode == 1 and made.stderr.count("\n") == 1 and "row 7, column B (cell B7) holds a formula" in made.stderr
    assert not (tmp_path / "f").exists() and not pathlib.Path(f"{tmp_path}/f.run").exists()


def test_damage_is_said(tmp_path):
    path = tmp_path / "rows.xlsx"
    workbook(path, [("Utterance", "Category"), *ROWS])
    whole = path.read_bytes()
    at = whole.index(b"worksheets/sheet1.xml") + 60
    for bytes_, words in ((whole[: len(whole) // 2], "damaged zip"), (whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :], "damaged zip")):
        path.write_bytes(bytes_)
        made = train(path, "--out", tmp_path / "m")
        assert made.returncode == 1 and words in made.stderr and made.stderr.count("\n") == 1, made.stderr
        assert sorted(os.listdir(tmp_path)) == ["rows.xlsx"]
