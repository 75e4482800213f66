"""An ONNX file of a BERT-style encoder, written as the folder that hw.TextEncoder and the program read."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import json
import math
import pathlib
import shutil
import tempfile
from typing import Any

import numpy as np

from .graph import Graph, Linear, refuse

_IDS = ("input_ids", "attention_mask", "token_type_ids")
_BESIDE = ("vocab.txt", "tokenizer_config.json", "sentence_bert_config.json", "1_Pooling/config.json")
_TOKENS, _PADDING = 5, 2


def to_folder(model: Any, folder: Any, *, vocab: Any = None) -> dict[str, Any]:
    """Reads, checks by one run, writes; returns config.json. Nothing is written where something is refused."""
    try:
        import onnx
    except ImportError:
        refuse("the package onnx is not installed; pip install onnx")
    path, made = pathlib.Path(model), pathlib.Path(folder)
    if made.exists():
        refuse(f"{made} exists; give the name of a new folder")
    beside = _beside(path, vocab)
    try:
        graph = Graph(onnx.load(path))
    except (OSError, ValueError):
        raise
    except Exception as fault:  # protobuf's own
        refuse(f"{path} is no ONNX file ({type(fault).__name__})")
    config, weights = _read(graph)
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as room:
        new = pathlib.Path(room) / "new"
        new.mkdir()
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        _write_safetensors(new / "model.safetensors", weights)
        for name, source in beside.items():
            (new / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, new / name)
        new.rename(made)
    return config


def _beside(path: pathlib.Path, vocab: Any) -> dict[str, pathlib.Path]:
    """What the file does not hold: pieces and how texts are read, from its own folder or the one above."""
    found: dict[str, pathlib.Path] = {}
    for name in _BESIDE:
        for place in (path.parent / name, path.parent.parent / name):
            if place.is_file():
                found.setdefault(name, place)
    if vocab is not None:
        found["vocab.txt"] = pathlib.Path(vocab)
    if "vocab.txt" not in found:
        refuse(f"there is no vocab.txt beside {path}; give vocab=, a file with one piece a line")
    return found


def _read(graph: Graph) -> tuple[dict[str, Any], dict[str, Any]]:
    if unknown := set(graph.inputs) - set(_IDS):
        refuse(f'the graph has the input "{min(unknown)}"; an encoder has {", ".join(_IDS)}')
    linears, norms, tables = graph.linears(), graph.norms(), _tables(graph)
    by_value = {linear.made: linear for linear in linears}
    blocks = [_block(graph, node, by_value) for node in graph.nodes if node.op_type in ("Softmax", "Attention")]
    depth = len(blocks)
    if depth == 0:
        refuse("the graph has no Softmax and no Attention; an encoder attends")
    if len(norms) < 2 * depth + 1:
        refuse(f"{depth} layers attend and {len(norms)} layer norms were found; a BERT-style encoder has {2 * depth + 1}")
    last = norms[2 * depth].made
    inside = graph.behind(last, lambda name: False)
    attends = {id(linear) for block in blocks for linear in block}
    others = [x for x in linears if id(x) not in attends and x.made in inside]
    if len(others) != 3 * depth:
        refuse(f"{depth} layers attend and {len(others)} more products follow; a BERT-style encoder has {3 * depth}")
    weights, prefix = dict(tables), "encoder.layer."
    for name, norm in zip(_norm_names(depth), norms):
        weights[f"{name}.weight"], weights[f"{name}.bias"] = norm.scale, norm.shift
    for i in range(depth):
        parts = ("attention.self.query", "attention.self.key", "attention.self.value")
        more = ("attention.output.dense", "intermediate.dense", "output.dense")
        for part, x in zip((*parts, *more), (*blocks[i], *others[3 * i : 3 * i + 3])):
            weights[f"{prefix}{i}.{part}.weight"], weights[f"{prefix}{i}.{part}.bias"] = x.weight.T, x.bias
    words = tables["embeddings.word_embeddings.weight"]
    feeds = _feeds(graph, len(words))
    values = graph.run(feeds)
    config = {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(words), "hidden_size": words.shape[1],
        "num_hidden_layers": depth, "num_attention_heads": _heads(graph, values),
        "intermediate_size": others[1].weight.shape[1],
        "hidden_act": _activation(graph, others[1], others[2]),
        "max_position_embeddings": len(tables["embeddings.position_embeddings.weight"]),
        "type_vocab_size": len(tables["embeddings.token_type_embeddings.weight"]),
        "layer_norm_eps": float(f"{norms[0].eps:.6g}"),
    }  # fmt: skip
    weights = {name: np.ascontiguousarray(x, np.float32) for name, x in weights.items()}
    _check(config, weights, feeds, values[last])
    return config, weights


def _norm_names(depth: int) -> list[str]:
    layers = ("attention.output.LayerNorm", "output.LayerNorm")
    return ["embeddings.LayerNorm", *(f"encoder.layer.{i}.{name}" for i in range(depth) for name in layers)]


def _tables(graph: Graph) -> dict[str, Any]:
    """Rows that are looked up: by ids, by types, and by place where no input leads to the numbers."""
    found: dict[str, Any] = {}
    for node in graph.nodes:
        table = graph.constant.get(node.input[0]) if node.op_type == "Gather" else None
        if table is None or table.ndim != 2 or graph.words(node).get("axis", 0) != 0 or table.dtype.kind != "f":
            continue
        inputs = graph.behind(node.input[1], lambda name: False) & set(graph.inputs)
        name = "word" if "input_ids" in inputs else "token_type" if "token_type_ids" in inputs else "position"
        if found.setdefault(f"embeddings.{name}_embeddings.weight", table) is not table:
            refuse(f"the graph looks up two tables as {name} embeddings; a BERT-style encoder has one")
    for name in ("word", "position"):
        if f"embeddings.{name}_embeddings.weight" not in found:
            refuse(f"the graph looks up no table of {name} embeddings; a BERT-style encoder has one")
    words = found["embeddings.word_embeddings.weight"]
    types = found.setdefault("embeddings.token_type_embeddings.weight", np.zeros((2, words.shape[1]), words.dtype))
    if not words.shape[1] == found["embeddings.position_embeddings.weight"].shape[1] == types.shape[1]:
        refuse("the tables of embeddings differ in width; embeddings narrower than the model are not read")
    return found


def _block(graph: Graph, node: Any, by_value: dict[str, Linear]) -> tuple[Linear, ...]:
    """The products that make q, k and v of one attention."""
    if node.op_type == "Attention":
        names = list(node.input[:3])
    else:
        scores, mixed = _product_behind(graph, node), _product_after(graph, node)
        names = [*scores.input[:2], next((x for x in mixed.input if node.output[0] not in graph.behind(x, lambda _: False)), "")]
    found = []
    for role, name in zip(("q", "k", "v"), names):
        behind = graph.behind(name, lambda value: value in by_value) & set(by_value)
        if len(behind) != 1:
            refuse(f"{role} of {node.op_type} {node.name} comes from {len(behind)} products; in a BERT-style encoder it is one")
        found.append(by_value[behind.pop()])
    if len({id(x) for x in found}) != 3:
        refuse(f"q, k and v of {node.op_type} {node.name} share a product; give the file before its products were joined")
    return tuple(found)


def _product_behind(graph: Graph, node: Any) -> Any:
    found = [graph.maker[x] for x in graph.behind(node.input[0], lambda x: x in graph.maker and graph.maker[x].op_type == "MatMul")
             if x in graph.maker and graph.maker[x].op_type == "MatMul"]  # fmt: skip
    if len(found) != 1:
        refuse(f"Softmax {node.name} stands behind {len(found)} products; behind one it attends")
    return found[0]


def _product_after(graph: Graph, node: Any) -> Any:
    todo, seen = list(node.output), set()
    while todo:
        name = todo.pop()
        for user in graph.users.get(name, []):
            if user.op_type == "MatMul":
                return user
            if name not in seen:
                todo += user.output
        seen.add(name)
    return refuse(f"nothing multiplies what Softmax {node.name} makes; in attention values do")


def _feeds(graph: Graph, pieces: int) -> dict[str, Any]:
    """A text with two paddings behind it, where the file takes a mask."""
    feeds: dict[str, Any] = {}
    for name, given in graph.inputs.items():
        sizes = [d.dim_value for d in given.type.tensor_type.shape.dim]
        tokens = sizes[1] if len(sizes) == 2 and sizes[1] else _TOKENS + _PADDING
        if len(sizes) != 2 or sizes[0] > 1 or tokens <= _PADDING:
            refuse(f"the input {name} is {sizes}; give a file that takes [batch tokens] of any size")
        kind = {6: np.int32, 7: np.int64}.get(given.type.tensor_type.elem_type, np.int64)
        row = np.zeros(tokens, kind)
        if name == "input_ids":
            row[:] = np.random.default_rng(7).integers(0, pieces, tokens)
        elif name == "attention_mask":
            row[: tokens - _PADDING] = 1
        feeds[name] = row[None]
    return feeds


def _heads(graph: Graph, values: dict[str, Any]) -> int:
    found = set()
    for node in graph.nodes:
        if node.op_type == "Softmax":
            found.add(values[node.output[0]].shape[1])
        elif node.op_type == "Attention":
            found.add(graph.words(node).get("q_num_heads") or values[node.input[0]].shape[1])
    if len(found) != 1:
        refuse(f"the layers have {sorted(found)} heads; files whose layers have as many are read")
    return int(found.pop())


def _activation(graph: Graph, first: Linear, second: Linear) -> str:
    """By the operators between the two products of a feed-forward layer."""
    names = graph.behind(second.given, lambda x: x == first.made) - {first.made}
    found = [graph.maker[x] for x in names if x in graph.maker]
    ops = {node.op_type for node in found}
    if "Gelu" in ops:
        tanh = any(graph.words(node).get("approximate") == b"tanh" for node in found if node.op_type == "Gelu")
        return "gelu_new" if tanh else "gelu"
    for op, name in (("Erf", "gelu"), ("Tanh", "gelu_new"), ("Relu", "relu")):
        if op in ops:
            return name
    return str(refuse(f"between the products of a layer stand {', '.join(sorted(ops)) or 'no operators'}; gelu and relu are read"))


def _check(config: dict[str, Any], weights: dict[str, Any], feeds: dict[str, Any], found: Any) -> None:
    """The weights that were found, by the formulas of Devlin et al. 2019, give what the file gives."""
    ids = feeds["input_ids"][0]
    if "attention_mask" in feeds:
        ids = ids[:-_PADDING]
    wanted = _forward(config, weights, ids)
    off = float(np.abs(found[0, : len(ids)].astype(np.float64) - wanted).max() / max(1.0, np.abs(wanted).max()))
    most = 2e-2 if found.dtype.itemsize == 2 else 2e-5
    if not off <= most:
        refuse(f"the graph computes something else than a BERT-style encoder does with its weights (off by {off:.2g})")


def _forward(config: dict[str, Any], weights: dict[str, Any], ids: Any) -> Any:
    """[tokens hidden_size] in double."""
    w = {name: x.astype(np.float64) for name, x in weights.items() if not name.startswith("embeddings.w")}

    def linear(name: str, x: Any) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + config["layer_norm_eps"])
        return x * w[f"{name}.weight"] + w[f"{name}.bias"]

    tokens, heads = len(ids), config["num_attention_heads"]
    x = weights["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    x = x + w["embeddings.position_embeddings.weight"][:tokens] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm("embeddings.LayerNorm", x)
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        parts = (linear(f"{at}attention.self.{part}", x) for part in ("query", "key", "value"))
        q, k, v = (part.reshape(tokens, heads, -1).swapaxes(0, 1) for part in parts)
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(tokens, -1)
        x = norm(f"{at}attention.output.LayerNorm", x + linear(f"{at}attention.output.dense", mixed))
        inner = _ACTIVATIONS[config["hidden_act"]](linear(f"{at}intermediate.dense", x))
        x = norm(f"{at}output.LayerNorm", x + linear(f"{at}output.dense", inner))
    return x


_ACTIVATIONS: dict[str, Any] = {
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gelu_new": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
}


def _write_safetensors(path: pathlib.Path, tensors: dict[str, Any]) -> None:
    header, at = {}, 0
    for name, x in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for x in tensors.values():
            file.write(x.tobytes())
