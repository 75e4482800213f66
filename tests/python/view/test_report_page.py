"""The report page in headless Chromium: clicked through in light and dark, by mouse and keyboard, with and without scripts."""
import os
import pathlib
import subprocess

import pytest

import chromium
import contrast

CLI = os.environ.get("HEADWISE_CLI")
SLOW = os.environ.get("HEADWISE_SLOW") == "1"
PROGRAM = pathlib.Path(CLI).parents[2] / "tests/write_page" if CLI else None
if os.environ.get("CI") == "true":
    assert chromium.find(), "chromium is missing; apt.txt names it"
pytestmark = pytest.mark.skipif(not (chromium.find() and PROGRAM and PROGRAM.exists()), reason="needs chromium, HEADWISE_CLI and the program write_page")


def page(folder, *words):
    path = folder / "report.html"
    subprocess.run([PROGRAM, path, *map(str, words)], check=True, stdout=subprocess.DEVNULL)
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return page(tmp_path_factory.mktemp("page"), 2, 8, 30)


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as b:
        yield b


def count(browser, selector):
    return browser.run(f"document.querySelectorAll({selector!r}).length")


def brightness(browser):
    return sum(map(int, browser.run("getComputedStyle(document.body).backgroundColor").strip("rgb()").split(", ")))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_click_through(browser, small, tmp_path, scheme):
    browser.prefer(scheme)
    browser.run("try { localStorage.clear() } catch {}")
    browser.requests.clear()
    browser.open(small)
    assert (brightness(browser) > 380) == (scheme == "light")
    assert [u for u in browser.requests if not u.startswith(("file:", "data:"))] == []  # no network
    assert count(browser, ".head") == 16 and count(browser, "details.case") == 30

    browser.click("[data-figure=entropy]")
    assert "nats" in browser.run("document.getElementById('head-1-3').textContent")
    browser.click("#head-1-3")
    assert "Layer 1, head 3" in browser.run("document.getElementById('chosen').textContent")
    assert browser.run("document.querySelectorAll('#chips [aria-pressed=true]').length") == 1  # the head alone
    browser.press("ArrowRight")
    browser.press("Enter")
    assert "Layer 1, head 4" in browser.run("document.getElementById('chosen').textContent")

    browser.click("#chips .chip:last-child")  # all heads of the layer
    everything = count(browser, ".flow path")
    assert everything > 20
    browser.click(".flow g[data-side=q][data-token='3']")
    side = browser.run("document.getElementById('side').textContent")
    assert "leaves it for" in side and "reaches it from" in side and "head" in side
    browser.press("ArrowDown")
    browser.press("Enter")
    assert browser.run("document.querySelector('.word.picked').dataset.token") == "4"
    browser.click("#layers button")
    for control, value in (("mode", "'least'"), ("slider", "0.4")):
        browser.run(f"(() => {{ const e = document.getElementById('{control}'); e.value = {value}; e.dispatchEvent(new Event('change')); }})()")
    assert count(browser, ".flow path") < everything
    browser.run("(() => { const e = document.getElementById('pick'); e.value = 2; e.dispatchEvent(new Event('change')); })()")
    assert browser.run("[...document.querySelectorAll('.flow g[data-side=q]')].map((g) => g.textContent).join('')") == "[CLS]第2年第3次调整[SEP]"

    browser.click("details.case summary")
    for _ in range(40):  # drawn when it is opened: a frame or a few later on a busy machine
        if count(browser, "details.case[open] canvas.map"):
            break
        browser.settle()
    assert count(browser, "details.case[open] canvas.map") == 1
    browser.click("details.case[open] .chip:nth-of-type(2)")
    assert browser.run("document.querySelectorAll('details.case[open] .chip')[1].ariaPressed") == "true"
    assert browser.photograph(tmp_path / f"{scheme}.png") > 50_000

    browser.click("#theme")
    assert (brightness(browser) > 380) == (scheme == "dark")
    assert browser.errors == []


@pytest.mark.parametrize("width", [390, 800, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(small, tmp_path, scheme, width):
    """WCAG's 4.5:1 for each text, whatever lies behind it; nothing sticks out of the screen."""
    with chromium.Chromium(width=width) as b:
        b.prefer(scheme)
        b.open(small)
        assert (brightness(b) > 380) == (scheme == "light")
        b.run("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        b.settle()
        for figure in ("hurt", "entropy", "importance"):
            b.click(f"[data-figure={figure}]")
            seen, weak = contrast.weak_texts(b)
            assert seen > 400 and weak == [], (seen, weak[:8])
        b.click("#head-1-2")
        b.click(".flow g[data-side=q][data-token='3']")
        assert contrast.weak_texts(b)[1] == []
        assert b.run("document.documentElement.scrollWidth") <= width
        b.photograph(tmp_path / f"{scheme}-{width}.png")


def test_contrast_is_measured(browser, tmp_path):
    """The script itself: known pairs of colours, opacity, alpha and a picture."""
    grey = "<body style='background:#fff;color:#767676'>plain<p style='color:#777'>weak</p><p style='color:#000;opacity:.5'>faded</p>"
    over = "<p style='background:#000'><b style='background:rgba(255,255,255,.5);color:#fff'>alpha</b></p>"
    drawn = "<svg><rect width='99' height='40' fill='#00f'/><text y='20' fill='#000'>drawn</text></svg>"
    (tmp_path / "c.html").write_text(grey + over + drawn)
    browser.open(tmp_path / "c.html")
    seen, weak = contrast.weak_texts(browser)
    assert seen == 5 and [(ratio, text) for ratio, text, _ in weak] == [(2.44, "drawn"), (3.98, "faded"), (3.98, "alpha"), (4.48, "weak")]


def test_long_texts_are_whole_and_pieces_are_words(browser, small, tmp_path):
    browser.open(small)
    at = browser.run("sentences().findIndex((s) => s.t.length > 48)")
    browser.run(f"showSentence({at})")
    assert browser.run("partNow().s.t.length") > 100
    n, drawn = browser.run("[sideOf(partNow().queries, 1).count, document.querySelectorAll('.flow g[data-side=q]').length]")
    assert n == drawn == len(set(browser.run("partNow().s.g"))) < browser.run("partNow().s.t.length")
    assert browser.run("document.querySelectorAll('.flow path').length") == 3 * n  # the strongest first
    sums = browser.run("(() => { const r = rowsIn(partNow().s)[0]; return [...Array(partNow().s.t.length).keys()].map((i) => [r.from[i + 1] - r.from[i], r.weights.slice(r.from[i], r.from[i + 1]).reduce((a, b) => a + b, 0) + r.rest[i]]); })()")
    assert max(count for count, _ in sums) == 24 and all(abs(total - 1) < 0.02 for _, total in sums)
    assert browser.photograph(tmp_path / "long.png") > 50_000 and browser.errors == []


def test_texts_are_text(browser, small):
    browser.open(small)
    assert browser.run("document.title") == "Untrained <model>: what its heads do"  # no script of the data ran
    assert browser.run("document.images.length") == 0
    text = browser.run("document.getElementById('mistakes').textContent")
    for piece in ("<script>document.title = 'run'</script> pay 40", "<U+202E>evil<U+202C> <img src=x onerror=alert(1)>", "characters more",
                  "bytes \ufffd\ufffd\ufffd that are no text", "Anna <b>pays</b> \"Mr Li\" 300 &amp; ${1} </script>"):
        assert piece in text
    assert browser.run("Math.max(...[...document.querySelectorAll('main *')].map((e) => e.scrollWidth))") < 1300  # 10 KB words break
    browser.run("document.querySelectorAll('details.case').forEach((d) => { d.open = true; })")
    assert browser.run("document.title") == "Untrained <model>: what its heads do"
    assert browser.errors == []


def test_without_scripts(small, tmp_path):
    with chromium.Chromium(scripts=False) as b:
        b.open(small)
        text = b.send("DOM.getOuterHTML", nodeId=b.send("DOM.getDocument")["root"]["nodeId"])["outerHTML"]
        assert text.count("<details class=\"case\">") == 30 and "Labels, weakest first" in text and "All figures as a table" in text
        assert b.photograph(tmp_path / "plain.png") > 30_000


def test_redacted(tmp_path):
    text = page(tmp_path, 1, 2, 12, "redact").read_text()
    assert "masked by dots" in text and "Mr Li" not in text and "pay 40" not in text


def test_500_mistakes_of_6_layers_x_12_heads(browser, tmp_path):
    path = page(tmp_path, 6, 12, 500)
    assert path.stat().st_size < 10e6
    quick = False
    for _ in range(5 if SLOW else 1):  # a machine that stalls makes a page late once, one that is slow is so every time
        browser.open(path)
        begun = browser.run("""new Promise((done) => new PerformanceObserver((list) => list.getEntries().filter((e) => e.name === 'first-contentful-paint')
                               .forEach((e) => done(e.startTime))).observe({ type: 'paint', buffered: true }))""")
        done = browser.run("performance.timing.domContentLoadedEventEnd - performance.timing.navigationStart")
        quick = quick or 0 < begun < 1000 and 0 < done < 5000
    assert begun > 0 and done > 0, (begun, done)
    assert quick or not SLOW, (begun, done)  # alone on its CPUs
    assert count(browser, ".head") == 72 and count(browser, "details.case") == 500
    browser.click("details.case summary")
    assert count(browser, "canvas.map") == 1
    assert browser.errors == []


def test_the_program_speaks_chinese_and_shows_my_sentence_first(tmp_path):
    rows = [(f"{ask} my {word}", word) for word in ("card", "loan") for ask in ("block", "what about", "i lost", "show", "tell me of")]
    (tmp_path / "rows.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    subprocess.run([CLI, "train", tmp_path / "rows.tsv", "--out", tmp_path / "model", "--epochs", "1", "--model-dim", "16", "--feed-dim", "16", "--depth", "1",
                    "--heads", "mha:heads=2", "--ngrams", "0", "--quiet"], check=True, capture_output=True)
    for words, variable, language in (([], "en_GB.UTF-8", "en"), ([], "zh_CN.UTF-8", "zh"), (["--language", "zh"], "C", "zh")):
        subprocess.run([CLI, "report", tmp_path / "model", tmp_path / "rows.tsv", "--out", tmp_path / "report.html", "--sentence", "where is my loan", *words],
                       check=True, capture_output=True, env={**os.environ, "LC_ALL": variable})
        page = (tmp_path / "report.html").read_text()
        assert f'<html lang="{language}">' in page and ("<h2>错误</h2>" in page) == (language == "zh")
        assert '"gallery":[{"x":"where is my loan"' in page
