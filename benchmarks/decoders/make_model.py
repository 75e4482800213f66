#!/usr/bin/env python3
"""The same weights for every program: files of one Llama model, from a GGUF file or from its header alone.

Usage: make_model.py FROM.gguf OUT_FOLDER [--random SEED] [--cycle N] [--kinds stored,f32,f16,q8_0,folder]

Writes stored.gguf (with --random), f32.gguf, f16.gguf, q8_0.gguf and hf/ (config.json, model.safetensors in f32). --random: FROM may end behind its header; numbers are
drawn, which speed does not notice. --cycle: texts of the random model repeat every N tokens, so that guesses from the
text come true."""
import argparse
import json
import math
import pathlib
import struct

import numpy as np

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8
BLOCKS = {F32: (1, 4), F16: (1, 2), Q4_1: (32, 20), Q8_0: (32, 34)}
SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class Gguf:
    """Header and tensors of a file; tensors are (name, shape as rows and columns, kind, offset)."""

    def __init__(self, path):
        self.bytes = np.fromfile(path, np.uint8)
        self.at = 4
        self.version, tensors, keys = self.read("I"), self.read("Q"), self.read("Q")
        begin = self.at
        self.keys = {}
        for _ in range(keys):
            name = self.text()
            self.keys[name] = self.value(self.read("I"))
        self.raw_keys, self.key_count = self.bytes[begin : self.at].tobytes(), keys
        self.tensors = []
        for _ in range(tensors):
            name = self.text()
            shape = [self.read("Q") for _ in range(self.read("I"))][::-1]
            self.tensors.append((name, shape, self.read("I"), self.read("Q")))
        self.data = -(-self.at // 32) * 32

    def read(self, kind):
        size = struct.calcsize("<" + kind)
        (value,) = struct.unpack("<" + kind, self.bytes[self.at : self.at + size].tobytes())
        self.at += size
        return value

    def text(self):
        size = self.read("Q")
        self.at += size
        return self.bytes[self.at - size : self.at].tobytes().decode("utf-8", "replace")

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind != 9:
            return self.read(SIZES[kind])
        each, count = self.read("I"), self.read("Q")
        return [self.value(each) for _ in range(count)]

    def blocks(self, tensor):
        _, shape, kind, offset = tensor
        numbers, size = BLOCKS[kind]
        count = math.prod(shape) // numbers
        return self.bytes[self.data + offset : self.data + offset + count * size].reshape(count, size)


def halves(blocks, first):
    return np.ascontiguousarray(blocks[:, first : first + 2]).view(np.float16).astype(np.float32)


def numbers_of(blocks, kind, shape):
    """Blocks as f32."""
    if kind == F32:
        return np.ascontiguousarray(blocks).view(np.float32).reshape(shape)
    if kind == F16:
        return np.ascontiguousarray(blocks).view(np.float16).astype(np.float32).reshape(shape)
    if kind == Q8_0:
        return (halves(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)).reshape(shape)
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)
    return (halves(blocks, 0) * codes + halves(blocks, 2)).reshape(shape)


def q8_0_of(x):
    x = x.reshape(-1, 32)
    scale = (np.abs(x).max(1, keepdims=True) / 127).astype(np.float16)
    codes = np.rint(x / np.maximum(scale.astype(np.float32), 1e-30)).clip(-127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8).reshape(-1, 2), codes.view(np.uint8)], 1)


def drawn(name, shape, kind, rng):
    """Random blocks whose numbers are about as large as a model's; those that end a sublayer are small."""
    if kind == F32:
        return np.ones(shape, np.float32).view(np.uint8).reshape(-1, 4)
    numbers, size = BLOCKS[kind]
    count = math.prod(shape) // numbers
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    quiet = 1e-3 if name.endswith(("attn_output.weight", "ffn_down.weight")) else 1.0
    large = quiet / math.sqrt(shape[-1])
    if kind == Q4_1:
        blocks[:, 0:2] = np.full((count, 1), large / 4, np.float16).view(np.uint8)
        blocks[:, 2:4] = np.full((count, 1), -large * 15 / 8, np.float16).view(np.uint8)
    else:
        blocks[:, 0:2] = np.full((count, 1), large / 64, np.float16).view(np.uint8)
    return blocks


def write(path, source, tensors):
    """tensors: (name, shape, kind, blocks)."""
    infos, at = b"", 0
    for name, shape, kind, blocks in tensors:
        word = name.encode()
        infos += struct.pack("<Q", len(word)) + word + struct.pack("<I", len(shape))
        infos += b"".join(struct.pack("<Q", n) for n in shape[::-1]) + struct.pack("<IQ", kind, at)
        at += -(-blocks.nbytes // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", source.version, len(tensors), source.key_count) + source.raw_keys + infos
    with open(path, "wb") as file:
        file.write(head + b"\0" * (-len(head) % 32))
        for *_, blocks in tensors:
            file.write(blocks.tobytes())
            file.write(b"\0" * (-blocks.nbytes % 32))


def turned(x, heads):
    """Rows of q and k as Hugging Face has them: halves instead of pairs."""
    each = x.shape[0] // heads
    return np.ascontiguousarray(x.reshape(heads, each // 2, 2, -1).swapaxes(1, 2)).reshape(x.shape)


NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def hf_name(name):
    flat = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
            "output.weight": "lm_head.weight"}
    if name in flat:
        return flat[name]
    _, layer, part, last = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{last}"


def write_folder(folder, source, tensors):
    folder.mkdir(exist_ok=True)
    key = lambda name: source.keys["llama." + name]  # noqa: E731
    width, heads = key("embedding_length"), key("attention.head_count")
    names = [t[0] for t in tensors]
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "dtype": "float32",
              "hidden_size": width, "intermediate_size": key("feed_forward_length"), "num_hidden_layers": key("block_count"),
              "num_attention_heads": heads, "num_key_value_heads": key("attention.head_count_kv"), "head_dim": width // heads,
              "vocab_size": dict((t[0], t[1]) for t in tensors)["token_embd.weight"][0], "max_position_embeddings": key("context_length"),
              "rope_theta": key("rope.freq_base"), "rms_norm_eps": key("attention.layer_norm_rms_epsilon"),
              "tie_word_embeddings": "output.weight" not in names, "attention_bias": False, "mlp_bias": False,
              "bos_token_id": source.keys.get("tokenizer.ggml.bos_token_id", 1), "eos_token_id": source.keys.get("tokenizer.ggml.eos_token_id", 2)}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    header, at, parts = {}, 0, []
    for name, shape, kind, blocks in tensors:
        x = numbers_of(blocks, kind, shape)
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            x = turned(x, heads if "attn_q" in name else key("attention.head_count_kv"))
        header[hf_name(name)] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
        parts.append(x)
    words = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    words += b" " * (-len(words) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(words)) + words)
        for x in parts:
            file.write(x.astype("<f4", copy=False).tobytes())


def weights_of(source, a):
    if a.random is None:
        return [(*t[:3], source.blocks(t)) for t in source.tensors]
    rng = np.random.default_rng(a.random)
    tensors = [(name, shape, kind, drawn(name, shape, kind, rng)) for name, shape, kind, _ in source.tensors]
    if a.cycle:  # token t is followed by the next one of its circle
        name, shape, kind, blocks = next(t for t in tensors if t[0] == "token_embd.weight")
        before = np.arange(shape[0])
        start = before // a.cycle * a.cycle
        size = np.minimum(a.cycle, shape[0] - start)
        before = start + (before - start - 1) % size
        tensors.append(("output.weight", shape, kind, blocks.reshape(shape[0], -1)[before].reshape(blocks.shape)))
    return tensors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--random", type=int)
    parser.add_argument("--cycle", type=int, default=0)
    parser.add_argument("--kinds", default="stored,f32,f16,q8_0,folder")
    a = parser.parse_args()
    source, kinds = Gguf(a.source), a.kinds.split(",")
    tensors = weights_of(source, a)
    a.out.mkdir(parents=True, exist_ok=True)
    if "stored" in kinds and a.random is not None:
        write(a.out / "stored.gguf", source, tensors)
    if "f32" in kinds:
        write(a.out / "f32.gguf", source, [(n, s, F32, numbers_of(b, k, s).view(np.uint8)) for n, s, k, b in tensors])
    if "f16" in kinds:
        half = [(n, s, k, b) if len(s) < 2 else (n, s, F16, numbers_of(b, k, s).astype(np.float16).view(np.uint8)) for n, s, k, b in tensors]
        write(a.out / "f16.gguf", source, half)
    if "q8_0" in kinds:
        eight = [(n, s, k, b) if k in (F32, Q8_0) else (n, s, Q8_0, q8_0_of(numbers_of(b, k, s))) for n, s, k, b in tensors]
        write(a.out / "q8_0.gguf", source, eight)
    if "folder" in kinds:
        write_folder(a.out / "hf", source, tensors)


if __name__ == "__main__":
    main()
