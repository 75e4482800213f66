"""hw.onnx.to_folder: a BERT of transformers, exported in two ways, read back as a folder and held against transformers."""
# SPDX-License-Identifier: Apache-2.0

import json
import os
import string
import subprocess
import sys

import numpy as np
import pytest

import headwise as hw

if os.environ.get("CI") != "true":
    for guest in ("torch", "onnx", "onnxscript", "transformers"):
        pytest.importorskip(guest)
import onnx  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.onnx warns of itself
NAMES = ["input_ids", "attention_mask", "token_type_ids"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase, *(f"##{c}" for c in string.ascii_lowercase)]
TEXTS = ["abc de f", "z", "the quick brown fox"]


class Last(torch.nn.Module):
    def __init__(self, act="gelu"):
        super().__init__()
        torch.manual_seed(1)
        config = transformers.BertConfig(
            vocab_size=len(PIECES), hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
            max_position_embeddings=40, hidden_act=act,
        )  # fmt: skip
        self.inner = transformers.BertModel(config)
        for name, x in self.inner.named_parameters():
            if "bias" in name or "LayerNorm" in name:
                torch.nn.init.normal_(x, mean=0.3, std=0.2)
            elif "self" in name:
                torch.nn.init.normal_(x, std=0.3)
        self.eval()

    def forward(self, *given):
        return self.inner(**dict(zip(NAMES, given))).last_hidden_state


def write(path, model, opset, dynamo=False):
    """By torch.onnx: opset 14 has no LayerNormalization, 23 has Attention and Gelu."""
    given = tuple(torch.ones(1, 7, dtype=torch.int64) for _ in NAMES)
    words = dict(dynamic_axes={name: {0: "batch", 1: "tokens"} for name in NAMES})
    if dynamo:
        axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
        words = dict(dynamic_shapes=((axes,) * 3,), verbose=False)
    torch.onnx.export(model, given, str(path), dynamo=dynamo, opset_version=opset, input_names=NAMES, **words)


@pytest.fixture(scope="module")
def room(tmp_path_factory):
    """A folder with the pieces and one file, and the model it was made of."""
    folder = tmp_path_factory.mktemp("onnx")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    model = Last()
    write(folder / "model.onnx", model, 14)
    return folder, model


def agree(folder, model):
    encoder = hw.TextEncoder(str(folder), normalized=False)
    for text, found in zip(TEXTS, encoder.embed(TEXTS)):
        with torch.no_grad():
            wanted = model.inner(torch.tensor([encoder.tokens(text)])).last_hidden_state.mean(1)[0]
        np.testing.assert_allclose(found, wanted.numpy(), atol=2e-6)


def test_norms_of_many_operators(room):
    folder, model = room
    config = hw.onnx.to_folder(folder / "model.onnx", folder / "old")
    assert config["num_attention_heads"] == 4 and config["layer_norm_eps"] == 1e-12 and config["hidden_act"] == "gelu"
    assert json.loads((folder / "old/config.json").read_text()) == config
    agree(folder / "old", model)


def test_the_operator_attention_and_another_activation(room):
    folder, _ = room
    model = Last("gelu_new")
    write(folder / "new.onnx", model, 23, dynamo=True)
    kinds = {node.op_type for node in onnx.load(folder / "new.onnx").graph.node}
    assert {"Attention", "LayerNormalization"} <= kinds
    assert hw.onnx.to_folder(folder / "new.onnx", folder / "new")["hidden_act"] == "gelu_new"
    agree(folder / "new", model)


def test_the_command(room):
    folder, model = room
    command = [sys.executable, "-m", "headwise.onnx", folder / "model.onnx"]
    done = subprocess.run([*command, folder / "by_command"], capture_output=True, text=True)
    assert done.returncode == 0 and "2 layers, 4 heads, 32 wide" in done.stdout, done.stderr
    agree(folder / "by_command", model)
    done = subprocess.run([*command, folder / "by_command"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr == f"error: onnx.to_folder: {folder}/by_command exists; give the name of a new folder\n"


def changed(folder, change):
    """The file with one thing changed."""
    model = onnx.load(folder / "model.onnx")
    change(model.graph)
    onnx.save(model, folder / "changed.onnx")
    return folder / "changed.onnx"


def other_operator(kind, other):
    def change(graph):
        node = next(node for node in graph.node if node.op_type == kind)
        node.op_type = other

    return change


def other_weight(graph):
    """Keys and queries of the first layer are scaled unlike BERT's."""
    node = next(node for node in graph.node if node.op_type == "Softmax")
    graph.node.insert(list(graph.node).index(node), onnx.helper.make_node("Add", [node.input[0], node.input[0]], ["doubled"]))
    node.input[0] = "doubled"


def other_input(graph):
    graph.input.append(onnx.helper.make_tensor_value_info("pixel_values", 1, [1, 3, 8, 8]))


REFUSED = {
    'the input "pixel_values"': other_input,
    "something else than a BERT-style encoder does": other_weight,
    "stand .*; gelu and relu are read": lambda graph: [setattr(n, "op_type", "Sigmoid") for n in graph.node if n.op_type == "Erf"],
    "no Softmax and no Attention": lambda graph: [setattr(n, "op_type", "Identity") for n in graph.node if n.op_type == "Softmax"],
    "MatMulInteger: its weights are quantized": other_operator("MatMul", "MatMulInteger"),
    "4 layer norms were found": other_operator("Sqrt", "Abs"),
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_other_graphs_are_refused(room, sentence):
    folder, _ = room
    path = changed(folder, REFUSED[sentence])
    with pytest.raises(ValueError, match=f"^onnx.to_folder: .*{sentence}"):
        hw.onnx.to_folder(path, folder / "refused")
    assert not (folder / "refused").exists()


def test_files_that_are_none(room, tmp_path):
    folder, _ = room
    (tmp_path / "text.onnx").write_text("no model at all")
    with pytest.raises(ValueError, match="no vocab.txt beside"):
        hw.onnx.to_folder(tmp_path / "text.onnx", tmp_path / "out")
    with pytest.raises(ValueError, match="is no ONNX file"):
        hw.onnx.to_folder(tmp_path / "text.onnx", tmp_path / "out", vocab=folder / "vocab.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["text.onnx"]
