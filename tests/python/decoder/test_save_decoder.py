"""What is trained here, saved as a folder: hw.Decoder and transformers read it and give the logits of the model itself."""

import json

import numpy as np
import pytest
from tiny_decoder import tokenizer_json

import headwise as hw

LLAMA = {"positions": "rope", "norm": "rms", "feed": "swiglu", "bias": False}
KINDS = {
    "gpt2": {"positions": "learned", "heads": "mha:heads=4,dim=8"},
    "gpt2, tanh, own head": {"positions": "learned", "heads": "mha:heads=2", "feed": "gelu_tanh", "tied": False},
    "llama": LLAMA | {"heads": "gqa:heads=4,kv_heads=2,dim=8"},
    "llama, biases, own head": LLAMA | {"heads": "gqa:heads=4,kv_heads=1,dim=8", "tied": False, "bias": True},
}
SIZES = {"model_dim": 32, "feed_dim": 48, "depth": 2, "max_tokens": 64, "seed": 3}


def make(name, vocabulary=268):
    model = hw.Transformer("decoder", vocabulary, **SIZES, **KINDS[name])
    draw = np.random.default_rng(1)
    for p in model.parameters().values():  # norms and biases that matter
        p += draw.normal(0, 0.05, p.shape).astype(np.float32)
    return model


@pytest.mark.parametrize("name", KINDS)
def test_logits_are_those_of_the_model(tmp_path, name):
    model = make(name)
    model.save_decoder(str(tmp_path / "saved"), tokenizer=json.dumps(tokenizer_json()), ends=[266])
    ids = [1, 5, 9, 200, 33, 33, 7, 250, 12, 88]
    want = model(np.array([ids]))[0]
    decoder = hw.Decoder(tmp_path / "saved", kv_mib=1)
    assert np.abs(decoder.logits(ids) - want).max() < 5e-6
    assert decoder.end_tokens == [266] and decoder.generate("the man", max_tokens=5).finish in ("length", "stop")
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved").eval()
    with torch.no_grad():
        assert np.abs(theirs(torch.tensor([ids])).logits[0].numpy() - want).max() < 5e-6


def test_a_model_that_learned_a_text_writes_it(tmp_path):
    """Trained for a moment on one sentence, saved, and asked for it."""
    model = make("llama")
    tokenizer = json.dumps(tokenizer_json())
    model.save_decoder(str(tmp_path / "first"), tokenizer=tokenizer)
    text = "the cat and the hat"
    ids = np.array(hw.Decoder(tmp_path / "first", kv_mib=1).tokenize(text))
    moments = {n: np.zeros_like(p) for n, p in model.parameters().items()}
    for _ in range(60):
        logits = model.forward(ids[None, :-1], training=True)
        _, slope = hw.cross_entropy(logits[0], ids[1:], gradient=True)
        model.zero_gradients()
        model.backward(slope[None])
        for n, g in model.gradients().items():
            moments[n] = 0.9 * moments[n] + g
            p = model.parameters()[n]
            p -= 0.1 * moments[n]
    model.save_decoder(str(tmp_path / "learned"), tokenizer=tokenizer)
    decoder = hw.Decoder(tmp_path / "learned", kv_mib=1)
    assert "the cat" + decoder.generate("the cat", max_tokens=len(ids) - len(decoder.tokenize("the cat"))).text == text


def test_refusals_name_the_setting(tmp_path):
    other = {"positions": ({"positions": "alibi"}, "positions"), "kind": ({}, "the kind"),
             "heads": ({"heads": "talking:heads=4,dim=8"}, "heads"), "feed": (LLAMA | {"feed": "gelu"}, "norm or feed")}
    for kind, (settings, words) in other.items():
        model = hw.Transformer("encoder" if kind == "kind" else "decoder", 20, **(SIZES | settings))
        with pytest.raises(NotImplementedError, match=words):
            model.save_decoder(str(tmp_path / kind))
        assert not (tmp_path / kind).exists()
