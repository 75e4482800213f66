"""hw.Decoder: texts whole, streamed, many at once and from many threads; stops, log-probs, heads, refusals, Ctrl-C."""

import gc
import json
import os
import pathlib
import signal
import struct
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from tiny_decoder import write_llama, write_safetensors

import headwise as hw

DATA = os.environ.get("HEADWISE_DATA", "")
SAMPLED = {"max_tokens": 24, "temperature": 0.9, "top_p": 0.95, "seed": 5, "ignore_end": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llama(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def model(folder):
    return hw.Decoder(folder, kv_mib=4)


def stream_of(iterator):
    """The pieces, and what the iterator returns."""
    pieces = []
    while True:
        try:
            pieces.append(next(iterator))
        except StopIteration as end:
            return pieces, end.value


def test_a_stream_is_the_whole_text(model):
    whole = model.generate("the man and", **SAMPLED)
    pieces, last = stream_of(model.generate("the man and", stream=True, **SAMPLED))
    assert "".join(pieces) == whole.text == str(last) and last == whole
    assert whole.finish == "length" and len(whole.tokens) == 24 and whole.seed == 5
    prompt = model.tokenize("the man and")
    assert model.detokenize(whole.tokens) == whole.text
    assert model.generate(prompt, **SAMPLED) == whole


def test_many_texts_at_once_are_those_alone(model):
    prompts = ["the", "and an", "thin man", model.tokenize("in the end")]
    alone = [model.generate(p, **SAMPLED) for p in prompts]
    assert model.generate(prompts, **SAMPLED) == alone
    pieces, last = stream_of(model.generate(prompts, stream=True, **SAMPLED))
    assert last == alone
    assert ["".join(p.text for p in pieces if p.prompt == i) for i in range(4)] == [a.text for a in alone]


def test_threads_share_the_model(model):
    want = [model.generate(f"text {i}", **SAMPLED) for i in range(6)]
    got = [None] * 6

    def work(i):
        got[i] = model.generate(f"text {i}", **SAMPLED)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == want


def test_greedy_is_the_largest_logit(model):
    ids = model.tokenize("an end")
    made = model.generate(ids, max_tokens=6, logprobs=3, ignore_end=True)
    logits = model.logits(ids + made.tokens)
    assert logits.dtype == np.float32 and logits.shape == (len(ids) + 6, model.config["vocabulary"])
    known = 268  # ids behind the tokenizer's are never drawn
    for i, (token, drawn) in enumerate(zip(made.tokens, made.logprobs)):
        row = logits[len(ids) - 1 + i].astype(np.float64)
        p = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert token == drawn.token == int(row[:known].argmax())
        assert abs(drawn.logprob - p[token]) < 1e-9
        assert [t for t, _ in drawn.top] == sorted(range(len(p)), key=lambda t: (-p[t], t))[:3]


def test_heads_are_those_of_the_prompt(model):
    ids = model.tokenize("the thing and the end")
    stats = model.heads(ids)
    assert stats.entropy.shape == (len(ids), 2, 4)
    assert np.all(stats.entropy[0] == 0) and np.all(stats.first_mass[0] == 1) and np.all(stats.top_weight[0] == 1)
    rows = np.arange(1, len(ids) + 1)[:, None, None]
    assert np.all(stats.entropy <= np.log(rows) + 1e-5) and np.all(stats.entropy >= 0)
    assert np.all(stats.top_weight >= 1 / rows - 1e-6) and np.all(stats.first_mass <= stats.top_weight + 1e-6)
    made = model.generate(ids, max_tokens=5, heads=True, ignore_end=True)
    after = model.heads(ids + made.tokens)
    assert np.abs(made.heads.entropy - after.entropy[len(ids) - 1 : -1]).max() < 1e-5
    none = model.generate(ids, max_tokens=0, heads=True)
    assert none.text == "" and none.heads.entropy.shape == (0, 2, 4)


def test_a_stop_text_is_not_shown(model):
    options = SAMPLED | {"logit_bias": {model.tokenize(c)[0]: 20.0 for c in "abcdefgh"}}
    whole = model.generate("and", **options)
    stop = whole.text[6:8]
    short = model.generate("and", stop=stop, **options)
    assert short.finish == "stop" and short.text == whole.text[: whole.text.index(stop)]
    assert model.generate("and", stop=["never here", stop], **options) == short


def test_options_move_the_text(model):
    plain = model.generate("the", max_tokens=12, ignore_end=True)
    other = [i for i in range(256) if i not in plain.tokens][0]
    biased = model.generate("the", max_tokens=12, logit_bias={other: 100.0}, ignore_end=True)
    assert biased.tokens == [other] * 12
    fresh = model.generate("the", max_tokens=12, logit_bias={other: 100.0}, presence_penalty=2.0, frequency_penalty=2.0,
                           repetition_penalty=100.0, ignore_end=True)
    assert fresh.tokens.count(other) < 12
    assert model.generate("the", temperature=5.0, top_k=1, max_tokens=12, ignore_end=True).tokens == plain.tokens
    seeds = {model.generate("the", max_tokens=8, temperature=1.5).seed for _ in range(3)}
    assert len(seeds) == 3


def test_a_text_ends_where_the_model_does(model):
    made = model.generate("the " * 20, max_tokens=1000, ignore_end=True)
    assert len(model.tokenize("the " * 20)) + len(made.tokens) == model.config["positions"] + 1
    assert made.finish == "length"


def test_an_iterator_that_is_closed_gives_its_pages_back(folder):
    model = hw.Decoder(folder, kv_mib=1)
    for _ in range(200):  # a page that stayed held would end this early
        it = model.generate("the man in the", stream=True, max_tokens=60, ignore_end=True)
        next(it)
        it.close()
    it = model.generate("the", stream=True, max_tokens=60, ignore_end=True)
    next(it)
    del it
    gc.collect()
    assert model.generate("an end", max_tokens=4, ignore_end=True).finish == "length"


def test_refusals_are_sentences(model, folder, tmp_path):
    with pytest.raises(ValueError, match="the prompt has no token"):
        model.generate("")
    with pytest.raises(ValueError, match="the prompt has token 9999"):
        model.generate([1, 9999])
    with pytest.raises(ValueError, match="temperature"):
        model.generate("a", temperature=-1.0)
    with pytest.raises(ValueError, match="top_p"):
        model.generate("a", top_p=0.0)
    with pytest.raises(TypeError, match="speed"):
        model.generate("a", speed=9)
    with pytest.raises(ValueError, match="dtype is stored, f32, bf16 or f16"):
        hw.Decoder(folder, dtype="int4")
    with pytest.raises(ValueError, match="the model has 96 positions"):
        model.logits([1] * 97)
    with pytest.raises(ValueError, match="config.json"):
        hw.Decoder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ValueError, match="model_type"):
        hw.Decoder(tmp_path)
    with pytest.raises(ValueError, match="do not fit|positions"):
        model.generate("the " * 200)


def test_control_c_ends_a_long_text(folder):
    code = f"""
        import signal
        import headwise as hw
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it
        signal.alarm(600)
        model = hw.Decoder({str(folder)!r}, kv_mib=4)
        try:
            print("ready", flush=True)
            while True:
                model.generate("the", max_tokens=90, ignore_end=True)
        except KeyboardInterrupt:
            print("ended", model.generate("an", max_tokens=3, ignore_end=True).finish, flush=True)
    """
    package = pathlib.Path(hw.__file__).parents[1]
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True,
                             env=os.environ | {"PYTHONPATH": str(package)})
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "ended length\n" and child.wait(300) == 0


@pytest.mark.skipif(not DATA, reason="HEADWISE_DATA names no folder")
def test_stories_are_those_of_llama2c():
    folder = pathlib.Path(DATA) / "weights_stories260K"
    model = hw.Decoder(folder / "stories260K.bin")
    golden = np.fromfile(folder / "golden_logits_16steps.f32", np.float32).reshape(16, 513)
    ids = golden[:, 0].view(np.int32).tolist()
    assert np.abs(model.logits(ids) - golden[:, 1:]).max() < 2e-4
    assert model.generate("", max_tokens=256).text + "\n" == (folder / "golden_greedy_256.txt").read_text()


def test_weights_run_as_the_file_has_them(tmp_path):
    folder = write_llama(tmp_path / "f32")
    raw = (folder / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    tensors = {name: np.frombuffer(raw[8 + size :][slice(*t["data_offsets"])], np.float32).reshape(t["shape"])
               for name, t in header.items()}
    short = write_llama(tmp_path / "f16")
    write_safetensors(short / "model.safetensors", tensors, np.float16)
    write_safetensors(folder / "model.safetensors", {n: x.astype(np.float16) for n, x in tensors.items()})
    stored, wide, asked = hw.Decoder(short), hw.Decoder(folder), hw.Decoder(short, dtype="f32")
    numbers = sum(x.size for x in tensors.values() if x.ndim == 2)
    assert asked.config["weight_bytes"] == wide.config["weight_bytes"]
    assert wide.config["weight_bytes"] - stored.config["weight_bytes"] == 2 * numbers
    ids = [1, 17, 4, 250, 99, 3]
    assert np.array_equal(asked.logits(ids), wide.logits(ids))
    assert np.abs(stored.logits(ids) - wide.logits(ids)).max() < 1e-5
    with pytest.raises(ValueError, match='rows is exact or i8, not "i4"'):
        hw.Decoder(short, rows="i4")
