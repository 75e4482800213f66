"""Tiny decoder folders written by hand: safetensors, config.json and a byte-level tokenizer.json."""

import json
import struct

import numpy as np


def printable_bytes():
    """GPT-2's character for each byte."""
    itself = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in itself]
    table = {b: chr(b) for b in itself} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [table[b] for b in range(256)]


CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are "
    "a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + "
    "message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\n' }}{% endif %}"
)
MERGES = ["t h", "th e", "a n", "Ġ a", "Ġ t", "i n", "e r", "an d", "Ġ and", "Ġ the"]


def tokenizer_json(merges=MERGES, specials=("<|end|>", "<|user|>")):
    pieces = printable_bytes()
    pieces += [merge.replace(" ", "") for merge in merges]
    added = [
        {"id": len(pieces) + i, "content": s, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, s in enumerate(specials)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": byte_level, "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "vocab": {p: i for i, p in enumerate(pieces)}, "merges": merges},
    }


def write_safetensors(path, tensors, dtype=np.float32):
    header, data, kind = {}, b"", {np.float32: "F32", np.float16: "F16"}[dtype]
    for name, x in tensors.items():
        raw = np.ascontiguousarray(x, dtype).tobytes()
        header[name] = {"dtype": kind, "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    path.write_bytes(struct.pack("<Q", len(words)) + words + data)


def write_llama(folder, seed=0, layers=2, positions=96, vocabulary=272, tokenizer=None, chat=None):
    """A llama with random weights: model_dim 32, 4 heads, 2 kv_heads. tokenizer: what tokenizer.json holds. chat: the
    template for conversations."""
    draw = np.random.default_rng(seed)
    d, feed, heads, kv_heads, dim = 32, 48, 4, 2, 8
    matrix = lambda rows, columns: draw.normal(0, 1.2 / columns**0.5, (rows, columns))
    tensors = {"model.embed_tokens.weight": draw.normal(0, 1, (vocabulary, d)), "model.norm.weight": np.ones(d)}
    for i in range(layers):
        at = f"model.layers.{i}."
        for name, rows, columns in (
            ("self_attn.q_proj", heads * dim, d), ("self_attn.k_proj", kv_heads * dim, d),
            ("self_attn.v_proj", kv_heads * dim, d), ("self_attn.o_proj", d, heads * dim),
            ("mlp.gate_proj", feed, d), ("mlp.up_proj", feed, d), ("mlp.down_proj", d, feed),
        ):
            tensors[f"{at}{name}.weight"] = matrix(rows, columns)
        tensors[at + "input_layernorm.weight"] = np.ones(d)
        tensors[at + "post_attention_layernorm.weight"] = np.ones(d)
    tokenizer = tokenizer or tokenizer_json()
    config = {
        "model_type": "llama", "hidden_size": d, "intermediate_size": feed, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocabulary,
        "max_position_embeddings": positions, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
        "eos_token_id": tokenizer["added_tokens"][0]["id"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(config))
    if chat is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": chat}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder
