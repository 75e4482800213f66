"""The page on which a sentence is tried, served beside a small recogniser and used in headless Chromium."""
import json
import os
import subprocess

import pytest

import chromium
import contrast

CLI = os.environ.get("HEADWISE_CLI")
if os.environ.get("CI") == "true":
    assert chromium.find(), "chromium is missing; apt.txt names it"
pytestmark = pytest.mark.skipif(not (chromium.find() and CLI), reason="needs chromium and HEADWISE_CLI")
TOKEN = "correct-horse-battery-staple-36"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("try")
    kinds = {"card_lost": ["card", "debit card", "plastic"], "loan_rate": ["loan", "credit", "mortgage"], "贷款利率": ["贷款", "房贷", "信用贷"]}
    asks = ("what about my {}", "tell me of the {}", "i ask for my {}", "show the {}", "the {} please", "once more my {}")
    (folder / "rows.tsv").write_text("".join(f"{ask.format(word)}\t{label}\n" for label, words in kinds.items() for word in words for ask in asks))
    subprocess.run([CLI, "train", folder / "rows.tsv", "--out", folder / "model", "--epochs", "12", "--batch", "8", "--model-dim", "32", "--feed-dim", "64",
                    "--depth", "2", "--heads", "segment:heads=4", "--ngrams", "200", "--may-lose", "0", "--quiet"], check=True, stdout=subprocess.DEVNULL)
    with subprocess.Popen([CLI, "serve", folder / "model", "--port", "0", "--token-env", "TRY_TOKEN", "--threads", "1"], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "TRY_TOKEN": TOKEN}) as process:
        yield process.stdout.readline().split(" at ")[1].strip()
        process.terminate()


@pytest.fixture(scope="module")
def browser():
    with chromium.Chromium() as b:
        yield b


def ask(b, text, token=None):
    """Types and sends; waits until the answer or a word about it is there."""
    if token is not None:
        b.run(f"document.getElementById('token').value = {json.dumps(token)}")
    b.run(f"document.getElementById('text').value = {json.dumps(text)}")
    b.click("#ask")
    return b.run("""new Promise((done) => { const look = () => document.getElementById('ask').disabled ? setTimeout(look, 20)
                    : done(document.getElementById('state').textContent); look(); })""")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_sentence_is_tried(browser, service, scheme, tmp_path):
    b = browser
    b.prefer(scheme)
    b.requests.clear()
    b.errors.clear()
    b.visit(service + "/try")
    assert b.run("document.getElementById('answer').hidden && document.getElementById('door').hidden")
    assert "token" in ask(b, "what about my debit card")
    assert "not its token" in ask(b, "what about my debit card", "wrong-token-of-somebody-else")
    assert ask(b, "what about my debit card", TOKEN) == ""
    assert b.run("document.querySelector('.given li').textContent") == "card_lost"
    assert b.run("[...document.querySelectorAll('.word')].map((e) => e.firstChild.textContent)") == ["what", "about", "my", "debit", "card"]
    assert b.run("document.querySelectorAll('.heads td').length") == 8
    # Numbered from 0, as by the program and the report.
    assert b.run("[...document.querySelectorAll('.heads th')].map((e) => e.textContent).join()") == ",head 0,head 1,head 2,head 3,layer 0,layer 1"
    strongest = b.run("[...document.querySelectorAll('.word')].sort((x, y) => y.style.getPropertyValue('--v') - x.style.getPropertyValue('--v'))[0].firstChild.textContent")
    assert strongest in ("debit", "card")
    seen, weak = contrast.weak_texts(b)
    assert seen > 20 and weak == [], weak
    ask(b, "what about my 房贷")  # bytes and characters part ways
    assert b.run("document.querySelector('.given li').textContent") == "贷款利率"
    assert b.run("document.querySelector('.word:last-child').firstChild.textContent") in ("房贷", "贷")
    ask(b, "<img src=x onerror=alert(1)> card & loan")
    assert b.run("document.querySelectorAll('img').length") == 0 and "<" in b.run("document.querySelector('.words').textContent")
    assert all(u.startswith((service, "data:")) for u in b.requests)
    assert [e for e in b.errors if "401" not in e] == []
    assert b.photograph(tmp_path / f"{scheme}.png") > 10_000
    assert b.run("document.documentElement.outerHTML").find(TOKEN) < 0 and b.run("JSON.stringify({...localStorage})").find(TOKEN) < 0


def test_the_surface_speaks_chinese_and_keeps_to_a_phone(browser, service):
    b = browser
    b.send("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=1, mobile=True)
    b.visit(service + "/try")
    ask(b, "x")
    ask(b, "tell me of the mortgage and of a-very-long-word-" + "x" * 120, TOKEN)
    assert b.run("document.documentElement.scrollWidth") <= 390
    english = b.run("document.querySelector('h1').textContent")
    b.run("(() => { const e = document.getElementById('language'); e.value = 'zh'; e.dispatchEvent(new Event('change')); })()")
    assert english == "Try a sentence" and b.run("document.querySelector('h1').textContent") == "试一句话"
    assert b.run("document.documentElement.lang") == "zh-CN" and "对数几率" in b.run("document.getElementById('answer').textContent")
    assert b.run("document.querySelector('.given li').textContent") == "loan_rate"  # labels are the model's own
    b.visit(service + "/try")
    assert b.run("document.querySelector('h1').textContent") == "试一句话"  # kept
    b.run("localStorage.clear()")
    b.send("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)
