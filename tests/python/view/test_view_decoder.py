"""Decoders on the page of attention: what they write step by step, compared with transformers, and two models side by side."""
import base64
import json
import os
import pathlib
import shutil
import subprocess

import numpy as np
import pytest

import chromium
import headwise as hw
import tiny_decoder

needs_browser = pytest.mark.skipif(not chromium.find(), reason="needs chromium")
TEXT = "the man and the <b>cat</b> in"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_decoder.write_llama(tmp_path_factory.mktemp("view") / "llama")


@pytest.fixture(scope="module")
def page(model):
    return hw.view(model, text=TEXT, generate=12).save(model / "view.html")


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium(width=1400) as b:
        yield b


DENSE = "(() => { state.words = 0; state.sinks = 0; const s = rowsOf(partNow(), %d, %d); return [...Array(s.q.count).keys()].map((i) => [...rowValues(s, i)]); })()"


@needs_browser
def test_weights_and_figures_are_those_of_transformers(browser, model, page):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    tokens = hw.Decoder(model)
    ids = tokens.tokenize(TEXT) + tokens.generate(TEXT, max_tokens=12).tokens
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    with torch.no_grad():
        out = theirs(torch.tensor([ids]), output_attentions=True)
    want = [a[0].numpy() for a in out.attentions]
    browser.go(page)
    prompt, written = browser.run("[partNow().g.prompt, partNow().g.t]")
    assert len(written) == len(ids) and prompt == len(ids) - browser.run("partNow().g.steps.length")
    for layer in range(2):
        for head in range(4):
            assert np.allclose(browser.run(DENSE % (layer, head)), want[layer][head], rtol=0.036, atol=2e-6)
            for step in (0, 5, 11):
                row = want[layer][head][prompt - 1 + step].astype(np.float64)
                seen = browser.run(f"['entropy', 'largest', 'first'].map((f) => figureAt(partNow(), f, {step}, {layer}, {head}))")
                assert np.allclose(seen, [-(row * np.log(row + 1e-30)).sum(), row.max(), row[0]], rtol=2e-3, atol=2e-3)
    logits = torch.softmax(out.logits[0, prompt - 1 + 3].double(), -1)
    assert browser.run("partNow().g.steps[3].p") == pytest.approx(float(logits[ids[prompt + 3]]), abs=1e-4)
    assert browser.run("partNow().g.steps[3].l.map((l) => l[1])") == pytest.approx(logits.topk(5)[0].tolist(), abs=1e-4)


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_steps_by_keys_and_slider(browser, page, tmp_path, scheme):
    browser.prefer(scheme)
    browser.errors.clear()
    browser.go(page)
    assert browser.run("state.view") == "generation"
    step = lambda: browser.run("[state.step, Number(document.querySelector('.written .drawn').dataset.token) - partNow().g.prompt, document.querySelector('#stepping output').textContent]")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert step() == [2, 2, "3 / 12"]
    browser.press("End")
    assert step()[0] == 11
    browser.press("ArrowRight")
    assert step()[0] == 11  # nothing behind it
    browser.run("(() => { const e = document.getElementById('step'); e.value = 4; e.dispatchEvent(new Event('input')); })()")
    assert step()[0] == 4
    browser.click("#step-back")
    assert step()[0] == 3 and browser.run("document.activeElement.id") == "step-back"
    browser.click("button.step[data-layer='1'][data-head='2']")
    assert browser.run("[state.layer, state.head]") == [1, 2]
    top = browser.run("topKeys(partNow(), 1, 2, queryOf(partNow()), 1)[0][0]")
    assert browser.run("document.querySelector('#top-keys b').textContent").strip() in browser.run(f"named(partNow().g.t[{top}])")
    assert browser.run("document.querySelectorAll('#written b, img').length") == 0  # tokens stay text
    assert "<b>" in browser.run("document.getElementById('written').textContent").replace("\u00b7", "")
    link = browser.run("location.hash")
    browser.go(page, link)
    assert step()[0] == 3 and browser.run("[state.layer, state.head]") == [1, 2]
    assert len(browser.run("csvText()").splitlines()) == 1 + 12 * 8
    assert browser.photograph(tmp_path / f"generation-{scheme}.png") > 10_000 and browser.errors == []


@needs_browser
def test_narrow(page):
    with chromium.Chromium(width=390) as b:
        b.go(page)
        assert b.run("document.documentElement.scrollWidth") <= 390


@needs_browser
def test_two_models_are_subtracted(browser, model, page, tmp_path):
    other = tiny_decoder.write_llama(tmp_path / "other", seed=4)
    same = shutil.copytree(model, tmp_path / "same")
    browser.errors.clear()
    browser.go(hw.view(model, text=TEXT, other=other).save(tmp_path / "two.html"))
    assert browser.run("[state.view, state.against]") == ["model", 1]
    browser.click(".thumb[data-layer='1'][data-head='3']")
    assert browser.run("[state.view, ...state.minus]") == ["map", 1, 3, 1]
    a, b = (np.array(browser.run((DENSE % (1, 3)).replace("partNow()", f"data.parts[{p}]"))) for p in (0, 1))
    assert browser.run("(state.words = 0, state.sinks = 0, drawAll(), valueAt(5, 3))") == pytest.approx(a[5, 3] - b[5, 3], abs=1e-6)
    assert float(browser.run("document.getElementById('difference').textContent").split()[1][:-1]) == pytest.approx(np.abs(a - b).sum() / 2 / len(a), abs=1e-3)
    browser.go(tmp_path / "two.html", "sort=difference")
    shown = browser.run("[...document.querySelectorAll('.thumb')].map((t) => Number(t.textContent.split(' ')[1]))")
    assert shown == sorted(shown, reverse=True) and shown[0] > 0
    assert browser.photograph(tmp_path / "two.png") > 10_000 and browser.errors == []
    browser.go(hw.view(model, text=TEXT, other=same).save(tmp_path / "one.html"), "sort=difference")
    assert browser.run("Math.max(...[...document.querySelectorAll('.thumb')].map((t) => Number(t.textContent.split(' ')[1])))") == 0


def test_what_cannot_be_is_one_sentence(model, tmp_path):
    for call, sentence in ((lambda: hw.view(model, text=TEXT, pair="x"), "a decoder reads one"), (lambda: hw.view(model, text=""), "needs a text"),
                           (lambda: hw.view(model, text="a" * 96, generate=5), "give a shorter text"), (lambda: hw.view(model, text="a" * 200), "the model takes 1 to 96"),
                           (lambda: hw.view(np.ones((1, 1, 2, 2)), generate=3), "belong to a model")):
        with pytest.raises(ValueError, match=sentence):
            call()
    (tmp_path / "m").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(pathlib.Path(model) / name, tmp_path / "m" / name)
    with pytest.raises(ValueError, match="no tokenizer lies beside"):
        hw.view(tmp_path / "m", text=TEXT)


@pytest.mark.skipif(not os.environ.get("HEADWISE_CLI"), reason="needs HEADWISE_CLI")
def test_the_program_writes_the_page_of_python(model, page, tmp_path):
    run = lambda *words: subprocess.run([os.environ["HEADWISE_CLI"], "view", *map(str, words)], capture_output=True, text=True, timeout=300)
    said = run(model, "--text", TEXT, "--generate", 12, "--out", tmp_path / "a.html")
    assert said.returncode == 0 and "8 heads" in said.stdout, said
    assert (tmp_path / "a.html").read_text() == page.read_text()
    np.save(tmp_path / "w.npy", np.ones((1, 1, 1, 1), np.float32))
    said = run(tmp_path / "w.npy", "--with", model)
    assert said.returncode == 1 and "--with compares models" in said.stderr


def parts(path):
    return json.loads(path.read_text().split('id="data">')[1].split("</script>")[0])["parts"]


def halves(text):
    return np.frombuffer(base64.b64decode(text), np.float16).astype(np.float64)


def tensors(path):
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    at = lambda t: np.frombuffer(raw[8 + size :][slice(*t["data_offsets"])], np.float32).reshape(t["shape"]).astype(np.float64)
    return {name: at(t) for name, t in header.items()}


def test_circuits_are_the_products_of_the_weights(model, tmp_path):
    """W_E W_QK W_E^T and W_E W_OV W_U of one head, written out in double."""
    page = hw.view(model, text=TEXT, circuit="1.3,0.0").save(tmp_path / "circuit.html")
    got = parts(page)[0]["circuit"]
    assert [(h["layer"], h["head"]) for h in got["heads"]] == [(0, 0), (1, 3)] and got["read"] == got["vocabulary"] == 268  # 4 of 272 rows are padding
    w = tensors(model / "model.safetensors")
    e = w["model.embed_tokens.weight"][:268]
    x = e / np.sqrt((e**2).mean(1, keepdims=True) + 1e-5)
    take = lambda name, head: w[f"model.layers.1.self_attn.{name}_proj.weight"][8 * head : 8 * head + 8]
    qk = (x @ take("q", 3).T) @ (x @ take("k", 1).T).T / np.sqrt(8)  # two heads share a key head
    ov = (x @ take("v", 1).T) @ w["model.layers.1.self_attn.o_proj.weight"][:, 24:32].T @ e.T
    ids = list(dict.fromkeys(hw.Decoder(model).tokenize(TEXT)))
    for key, top, want in (("qk", "topQk", qk), ("ov", "topOv", ov)):
        want = want - want.mean(1, keepdims=True)
        assert np.allclose(halves(got["heads"][1][key]).reshape(len(ids), -1), want[np.ix_(ids, ids)], rtol=2e-3, atol=2e-3)
        assert np.allclose([p[2] for p in got["heads"][1][top]], np.sort(want.ravel())[::-1][:24], atol=2e-3)


@needs_browser
@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (390, "dark")])
def test_the_view_of_circuits(model, tmp_path, width, scheme):
    page = hw.view(model, text=TEXT, circuit="1.3,0.0").save(tmp_path / "circuit.html")
    with chromium.Chromium(width=width) as b:
        b.prefer(scheme)
        b.go(page, "view=circuit&layer=1&head=3")
        assert b.run("[...document.querySelectorAll('#top-qk tbody tr')].length") == 24
        first = b.run("document.querySelector('#top-ov tbody tr').textContent")
        assert b.run("signedText(circuitOf(partNow()).topOv[0][2])") in first
        assert b.run("document.documentElement.scrollWidth") <= width and b.run("document.querySelectorAll('#picture b, img').length") == 0
        assert b.run("csvText().split('\\n')[1]").startswith("0,0,qk,")
        assert b.photograph(tmp_path / f"circuit-{width}.png") > 10_000
        b.run("look({ layer: 1, head: 0 })")
        b.click("#picture .chip")  # one of those that the page has
        assert b.run("[state.layer, state.head, !!circuitOf(partNow())]") == [0, 0, True] and b.errors == []


@pytest.mark.parametrize("words", ["2.0", "0.4", "1", "x.y", "0.0,", "-1.0"])
def test_heads_that_are_none_are_refused(model, words):
    with pytest.raises(ValueError, match="is no head; give all"):
        hw.view(model, text=TEXT, circuit=words)
