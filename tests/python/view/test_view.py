"""hw.view and its page in headless Chromium: every view, both themes, wide and narrow, clicked through and compared with the arrays."""
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import chromium
import headwise as hw

CLI = os.environ.get("HEADWISE_CLI")
if os.environ.get("CI") == "true":
    assert chromium.find(), "chromium is missing; apt.txt names it"
needs_browser = pytest.mark.skipif(not chromium.find(), reason="needs chromium")

TOKENS = "[CLS] the an ##im ##al crossed the street <img src=x> \u202eevil مرحبا 积木 [SEP]".split()
TOKENS[8:10] = ["<img src=x onerror=alert(1)>"]


def weights(layers, heads, n, seed=0):
    """Rows that sum to 1; head 0 looks at the token before, head 1 at the first."""
    rng = np.random.default_rng(seed)
    s = rng.normal(size=(layers, heads, n, n)) * 2
    i = np.arange(n)
    s[:, 0, i[1:], i[:-1]] += 8
    s[:, 1 % heads, :, 0] += 8
    e = np.exp(s - s.max(-1, keepdims=True))
    return (e / e.sum(-1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    n = len(TOKENS)
    norms = np.ones((3, 6, n), np.float32)
    norms[:, :, 0] = 0  # a first token that adds nothing
    return hw.view(weights(3, 6, n), TOKENS, value_norms=norms, name="three layers").save(tmp_path_factory.mktemp("view") / "view.html")


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium(width=1400) as b:
        yield b


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", ["heads", "model", "map", "neurons"])
def test_every_view_in_both_themes(browser, page, tmp_path, view, scheme):
    browser.prefer(scheme)
    browser.requests.clear()
    browser.errors.clear()
    browser.go(page, f"view={view}")
    browser.click(f"#tab-{view}")
    assert browser.run("document.querySelector('[role=tab][aria-selected=true]').id") == f"tab-{view}"
    assert browser.photograph(tmp_path / f"{view}-{scheme}.png") > 10_000
    assert browser.errors == []
    assert [u for u in browser.requests if not u.startswith(("file:", "data:", "blob:"))] == []  # no network
    assert browser.run("document.querySelectorAll('img, #picture b, #picture script').length") == 0  # tokens stay text


@needs_browser
def test_the_page_holds_the_arrays(browser, page):
    browser.go(page, "words=0&sinks=0&view=map&layer=1&head=3&pair=[4,2]")
    seen = browser.run("Number(document.getElementById('value').textContent)")
    assert seen == pytest.approx(weights(3, 6, len(TOKENS))[1, 3, 4, 2], rel=0.035, abs=1e-4)
    rows = browser.run("(() => { const s = rowsOf(partNow(), 2, 5); return [...Array(s.q.count).keys()].map((i) => [...rowValues(s, i)]); })()")
    assert np.allclose(rows, weights(3, 6, len(TOKENS))[2, 5], rtol=0.035, atol=1e-7)


@needs_browser
def test_pieces_are_pooled_as_the_formula_says(browser, page):
    """Keys of a word are summed, its queries averaged."""
    browser.go(page, "sinks=0")
    group = [0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    group = group[: len(TOKENS)]
    n, pool = len(TOKENS), np.zeros((max(group) + 1, len(TOKENS)))
    pool[group, np.arange(n)] = 1
    want = (pool / pool.sum(1, keepdims=True)) @ weights(3, 6, n)[0, 2] @ pool.T
    rows = browser.run("(() => { const s = rowsOf(partNow(), 0, 2); return [...Array(s.q.count).keys()].map((i) => [...rowValues(s, i)]); })()")
    assert browser.run("rowsOf(partNow(), 0, 2).q.texts")[2] == "animal"
    assert np.allclose(rows, want, rtol=0.04, atol=1e-6)


@needs_browser
def test_heads_filters_search_and_link(browser, page):
    browser.prefer("light")
    browser.go(page)
    before = browser.run("document.querySelectorAll('.flow path').length")
    assert before == 3 * browser.run("rowsOf(partNow(), 0, 0).q.count")
    browser.run("(() => { const e = document.getElementById('mode'); e.value = 'none'; e.dispatchEvent(new Event('change')); })()")
    assert browser.run("document.querySelectorAll('.flow path').length") > before
    browser.run("(() => { const e = document.getElementById('mode'); e.value = 'top'; e.dispatchEvent(new Event('change')); })()")
    assert browser.run("document.querySelectorAll('.flow path').length") <= 2 * 6 * len(TOKENS)
    browser.click("#chips .chip:nth-of-type(1)")
    assert browser.run("state.on.length") == 5
    browser.run("(() => { const e = document.getElementById('find'); e.value = 'STREET'; e.dispatchEvent(new Event('change')); })()")
    assert browser.run("document.querySelectorAll('.word.found').length") == 2
    browser.click(".flow g[data-side=q][data-token='3']")
    side = browser.run("document.getElementById('side').textContent")
    assert "crossed" in side and "leaves it for" in side and "reaches it from" in side
    link = browser.run("location.hash")
    browser.open(page)
    browser.run(f"(location.hash = {link!r}, 0)")
    browser.settle()
    assert browser.run("[state.mode, state.on.length, state.find, state.token[1]]") == ["top", 5, "STREET", 3]
    browser.press("Escape")


@needs_browser
def test_values_take_weight_from_what_adds_nothing(browser, page):
    browser.go(page, "words=0&sinks=0&view=map&layer=0&head=1")
    first = "weightAt(rowsOf(partNow(), 0, 1), 5, 0)"
    assert browser.run(first) > 0.7
    browser.click("#values")
    assert browser.run(first) == 0


@needs_browser
def test_the_map_zooms_holds_and_compares(browser, page):
    browser.go(page, "view=map&words=0")
    browser.run("document.querySelector('canvas.big').focus()")
    browser.press("+")
    browser.run("document.querySelector('canvas.big').dispatchEvent(new KeyboardEvent('keydown', {key: '+'}))")
    assert browser.run("state.box[2] - state.box[0]") < len(TOKENS)
    browser.run("document.querySelector('canvas.big').dispatchEvent(new KeyboardEvent('keydown', {key: '0'}))")
    assert browser.run("state.box") is None
    browser.click("canvas.big")
    assert browser.run("Array.isArray(state.pair)")
    browser.run("(() => { const e = document.getElementById('minus'); e.value = '0,0,0'; e.dispatchEvent(new Event('change')); })()")
    assert browser.run("valueAt(3, 2)") == 0  # a head minus itself
    assert browser.run("csvText().split('\\n').length") > 50
    assert browser.run("svgText().startsWith('<svg')")


@needs_browser
def test_a_script_draws_what_a_page_shows(page, tmp_path):
    script, drawn = pathlib.Path(__file__).parents[3] / "tools/draw_views.py", tmp_path / "heads.svg"
    subprocess.run([sys.executable, script, page, "view=heads&layer=1&words=0", drawn], check=True, timeout=300)
    text = drawn.read_text(encoding="utf-8")
    assert text.startswith("<svg") and "crossed" in text and text.count("<path") > 5 and "<img" not in text


@needs_browser
def test_neurons_multiply_to_the_score(browser, tmp_path):
    rng = np.random.default_rng(5)
    q, k = (rng.normal(size=(1, 2, 5, 8)).astype(np.float32) for _ in range(2))
    browser.errors.clear()
    browser.go(hw.view(q=q, k=k, tokens=list("abcde")).save(tmp_path / "neurons.html"), "view=neurons&head=1&pair=[3,0]")
    rows = browser.run("[...document.querySelectorAll('.neurons tbody tr')].map((r) => [r.cells[0].textContent, Number(r.cells[3].textContent)])")
    scores = q[0, 1, 3] @ k[0, 1].T / np.sqrt(8)
    assert [name for name, _ in rows] == ["abcde"[j] for j in np.argsort(-scores)]  # the heaviest key first
    assert np.allclose([s for _, s in rows], np.sort(scores)[::-1], atol=0.02)
    assert browser.errors == []


@needs_browser
def test_neurons_sum_to_the_scores_of_another_scale(browser, tmp_path):
    rng = np.random.default_rng(6)
    q, k = (rng.normal(size=(1, 1, 4, 8)).astype(np.float32) for _ in range(2))
    browser.go(hw.view(q=q, k=k, scale=0.7, tokens=list("abcd")).save(tmp_path / "scaled.html"), "view=neurons&pair=[2,0]")
    seen = browser.run("[...document.querySelectorAll('.neurons tbody tr')].map((r) => Number(r.cells[3].textContent))")
    assert np.allclose(seen, np.sort(0.7 * q[0, 0, 2] @ k[0, 0].T)[::-1], atol=0.02)


@needs_browser
def test_chinese_and_narrow(page, tmp_path):
    with chromium.Chromium(width=390) as b:
        b.go(page)
        b.run("(() => { const e = document.getElementById('language'); e.value = 'zh'; e.dispatchEvent(new Event('change')); })()")
        assert "全模型" in b.run("document.getElementById('tabs').textContent")
        assert b.run("document.documentElement.scrollWidth") <= 390  # nothing sticks out
        for view in ("heads", "model", "map"):
            b.click(f"#tab-{view}")
            assert b.run("document.documentElement.scrollWidth") <= 390, view


def test_a_page_of_512_tokens_and_144_heads_is_small():
    w = weights(12, 12, 512)
    v = hw.view(w)
    assert len(v.html) <= 12e6 and v.left_out <= 0.2, (len(v.html), v.left_out)


def test_the_forms_that_bertviz_takes():
    torch = pytest.importorskip("torch")
    w = torch.from_numpy(weights(2, 3, 5))
    layers = tuple(layer[None] for layer in w)
    tokens = list("abcde")
    whole = hw.view(layers, tokens)
    assert whole.html == hw.view(w.numpy(), tokens).html and "iframe" in whole._repr_html_()

    class Outputs:
        attentions = layers

    assert hw.view(Outputs(), tokens).html == whole.html
    cross = torch.softmax(torch.randn(2, 1, 3, 4, 5), -1)
    three = hw.view(encoder_attention=layers, decoder_attention=tuple(torch.softmax(torch.randn(2, 1, 3, 4, 4), -1)), cross_attention=tuple(cross),
                    encoder_tokens=tokens, decoder_tokens=list("wxyz"))
    assert all(f'"name":"{name}"' in three.html for name in ("encoder", "decoder", "cross"))


def test_queries_and_keys_give_the_weights_of_attention():
    rng = np.random.default_rng(3)
    q, k = (rng.normal(size=(2, 4, 6, 8)).astype(np.float32) for _ in range(2))
    s = np.einsum("lhqd,lhkd->lhqk", q, k) / np.sqrt(8) + np.where(np.tril(np.ones((6, 6))), 0, -np.inf)
    want = np.exp(s - s.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    one = hw.view(q=q, k=k, mask=hw.Mask.causal(), tokens=list("abcdef"))
    other = hw.view(want.astype(np.float32), list("abcdef"))
    pick = [v.html.split('"p":"')[1].split('"')[0] for v in (one, other)]
    assert pick[0] == pick[1] and '"dim":8' in one.html


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda: hw.view(weights(1, 1, 4), list("abc")), "3 query tokens"),
    (lambda: hw.view(), "nothing to look at"),
    (lambda: hw.view(np.ones((2, 2, 2, 3, 4, 5))), "one text"),
    (lambda: hw.view(q=np.ones((1, 2, 3))), "give both"),
    (lambda: hw.view(weights(1, 1, 2), mask=None, scale=2), "belongs to q and k"),
    (lambda: hw.view(q=np.ones((1, 2, 4)), k=np.ones((1, 2, 4)), return_lse=True), "leave it out"),
    (lambda: hw.view("/no/such/folder", text="x"), "neither a recogniser"),
    (lambda: hw.view(weights(1, 1, 2), language="xx"), "give en or zh"),
])
def test_bad_input_is_one_sentence(call, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        call()


@pytest.mark.skipif(not CLI, reason="needs HEADWISE_CLI")
def test_the_program_reads_files_of_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", attention=weights(2, 3, 5), tokens=np.array(["a", "b", "世界", "d", "e"]))
    out = tmp_path / "a.html"
    run = subprocess.run([CLI, "view", tmp_path / "a.npz", "--out", out], capture_output=True, text=True)
    assert run.returncode == 0 and "6 heads, 5 tokens" in run.stdout, run
    assert "世界" in out.read_text() and '"name":"self"' in out.read_text()
    np.savez_compressed(tmp_path / "c.npz", attention=weights(2, 3, 5))
    run = subprocess.run([CLI, "view", tmp_path / "c.npz", "--out", out], capture_output=True, text=True)
    assert run.returncode == 1 and "np.savez" in run.stderr and pathlib.Path(out).exists()
    half = (tmp_path / "a.npz").read_bytes()[:300]
    (tmp_path / "h.npz").write_bytes(half)
    run = subprocess.run([CLI, "view", tmp_path / "h.npz", "--out", tmp_path / "h.html"], capture_output=True, text=True)
    assert run.returncode == 1 and "is it a .npz" in run.stderr and not (tmp_path / "h.html").exists()
