"""hw.Recognizer: trained, loaded, asked, explained and judged as by the command line; torch is not needed."""
import json
import os
import subprocess

import numpy as np
import pytest

import headwise as hw

CLI = os.environ.get("HEADWISE_CLI")
THINGS = {"card": ["card", "plastic", "debit card"], "loan": ["loan", "credit", "mortgage"], "rate": ["rate", "interest", "yield"]}
ROWS = [
    (f"{start} my {thing}{end}", label)
    for label, things in THINGS.items()
    for thing in things
    for start in ("show", "what about", "tell me of", "i lost")
    for end in ("", " please", " today")
]


SMALL = dict(epochs=10, batch=16, model_dim=32, depth=1, feed_dim=32, ngrams=200, heads="mha:heads=2", threads=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return hw.Recognizer.train(ROWS, tmp_path_factory.mktemp("recognizer") / "m", dev=ROWS[::4], strangers="none", **SMALL)


def test_it_learns_and_loads(model):
    assert model.labels == ["card", "loan", "rate"] and not model.multi_label
    assert model.evaluate(ROWS)["exact"]["value"] > 0.9
    again = hw.Recognizer.load(model.folder, threads=1)
    assert again.predict("show my loan") == model.predict("show my loan")
    one, two = model.predict(["show my loan", "show my card"], top=1)
    assert one["labels"] == ["loan"] and two["labels"] == ["card"] and len(one["likeliest"]) == 1


def test_it_explains_what_was_missed(model):
    (why,) = model.explain("show my loan")["explanations"]
    assert why["given"] and why["lacks"] == 0 and why["label"] == "loan"
    assert [w["text"] for w in why["words"]] == ["show", "my", "loan"]
    assert max(why["words"], key=lambda w: w["importance"])["text"] == "loan"
    (missed,) = model.explain("show my loan", label="card")["explanations"]
    assert not missed["given"] and missed["rival"] == "loan" and missed["lacks"] > 0
    assert missed["probability"] < missed["needed"]


def test_unknown_texts_are_refused(model):
    assert model.out_of_scope > 1 / 3
    text = open(os.path.join(model.folder, "card.md")).read()
    assert "a text is answered as out of scope" in text and "held out" in text


def test_few_rows_learn_from_strangers(model, tmp_path):
    few = hw.Recognizer.train(ROWS, tmp_path / "m", dev=ROWS[::4], **SMALL)
    assert "everyday texts" in (tmp_path / "m/card.md").read_text()
    assert [one["labels"] for one in few.predict(["show my loan", "tell me of my card please"])] == [["loan"], ["card"]]
    strangers = ["will it rain in Madrid tomorrow", "a recipe for apple pie", "asdf qwer zxcv", "hello", "who was Mozart", "good evening"]

    def sure(one):
        return np.mean([answer["confidence"] for answer in one.predict(strangers)])

    assert sure(few) < sure(model) - 0.1
    assert any(answer["out_of_scope"] for answer in few.predict(strangers))
    with pytest.raises(ValueError, match="give auto, none or built-in"):
        hw.Recognizer.train(ROWS, tmp_path / "n", dev=ROWS[::4], strangers="some", **SMALL)


def test_the_command_line_says_the_same(model, tmp_path):
    if not CLI:
        pytest.skip("HEADWISE_CLI is not set")
    texts = ["show my loan", "what about yield"]
    out = subprocess.run([CLI, "predict", model.folder, *texts, "--json", "--explain"], capture_output=True, encoding="utf-8")
    assert [json.loads(line) for line in out.stdout.splitlines()] == model.explain(texts)
    data = tmp_path / "rows.tsv"
    data.write_text("text\tlabel\n" + "".join(f"{t}\t{label}\n" for t, label in ROWS))
    out = subprocess.run([CLI, "eval", model.folder, data, "--json"], capture_output=True, encoding="utf-8")
    assert json.loads(out.stdout)["exact"] == model.evaluate(data)["exact"]


def test_it_writes_a_report(model, tmp_path):
    model.report(ROWS[:12], tmp_path / "report.html", mistakes=3)
    assert (tmp_path / "report.html").read_text().lstrip().startswith("<!")
    model.report(ROWS[:12], tmp_path / "report_zh.html", mistakes=3, language="zh")
    assert "<h2>错误</h2>" in (tmp_path / "report_zh.html").read_text()
    with pytest.raises(ValueError, match="give en or zh"):
        model.report(ROWS[:12], tmp_path / "no.html", language="fr")
    assert not (tmp_path / "no.html").exists()


def test_a_device_is_chosen_by_its_name(model):
    assert model.device == "cpu"
    if not hw.cuda_devices():
        assert hw.Recognizer.load(model.folder, threads=1, device="auto").device == "cpu"
        with pytest.raises(NotImplementedError, match="CUDA device 0 cannot be used"):
            hw.Recognizer(model.folder, device="cuda")
    with pytest.raises(ValueError, match='device is "gpu"; give cpu, cuda, cuda:0 and on, or auto'):
        hw.Recognizer(model.folder, device="gpu")


def test_refusals(model, tmp_path):
    with pytest.raises(ValueError, match="there is no option \"epoch\""):
        hw.Recognizer.train(ROWS, tmp_path / "x", epoch=3)
    with pytest.raises(ValueError, match="epochs is \"many\"; give a number"):
        hw.Recognizer.train(ROWS, tmp_path / "x", epochs="many")
    with pytest.raises(ValueError, match="--positions: got \"here\"; give one of none, learned, sinusoidal"):
        hw.Recognizer.train(ROWS, tmp_path / "x", positions="here")
    with pytest.raises(ValueError, match="row 0 is 'a'|row 0"):
        hw.Recognizer.train([("a",)], tmp_path / "x")
    with pytest.raises(ValueError, match="give a second class"):
        hw.Recognizer.train([("a", "x"), ("b", "x")], tmp_path / "x")
    with pytest.raises(ValueError, match="there is no label \"fee\""):
        model.explain("x", label="fee")
    with pytest.raises(ValueError, match="never learnt"):
        model.evaluate([("a", "other")])
    assert not (tmp_path / "x").exists()
