"""hw.onnx.export_ops: torch models that attend through headwise, written by torch.onnx and run by onnx's own evaluator."""
# SPDX-License-Identifier: Apache-2.0

import os

import numpy as np
import pytest

import headwise as hw

if os.environ.get("CI") != "true":
    for guest in ("torch", "onnx", "onnxscript"):
        pytest.importorskip(guest)
import onnx  # noqa: E402
import torch  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.onnx warns of itself
HEADS, DIM = 4, 8


class Attends(torch.nn.Module):
    """One call of hw.torch.attention over projected tokens; kv_heads share keys."""

    def __init__(self, kv_heads=HEADS, layout="bshd", **words):
        super().__init__()
        self.kv_heads, self.layout, self.words = kv_heads, layout, words
        self.q = torch.nn.Linear(16, HEADS * DIM)
        self.kv = torch.nn.Linear(16, 2 * kv_heads * DIM)

    def forward(self, x):
        q = self.q(x).unflatten(-1, (HEADS, DIM))
        k, v = self.kv(x).unflatten(-1, (2, self.kv_heads, DIM)).unbind(2)
        if self.layout == "bhsd":
            q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        found = hw.torch.attention(q, k, v, layout=self.layout, **self.words)
        return found.out * found.lse.transpose(1, 2)[..., None] if isinstance(found, tuple) else found


def exported(model, given, **words):
    words = {"opset_version": 23, **words}
    return torch.onnx.export(
        model.eval(), given, dynamo=True, custom_translation_table=hw.onnx.export_ops(), verbose=False, **words
    ).model_proto


def agree(written, model, given, calls=1):
    """The file runs without headwise and says what the model says; attention stands in it as the standard's operator."""
    onnx.checker.check_model(written)
    kinds = [node.op_type for node in written.graph.node]
    assert kinds.count("Attention") == calls and all(node.domain == "" for node in written.graph.node), kinds
    names = [x.name for x in written.graph.input]
    found = ReferenceEvaluator(written).run(None, {name: x.numpy() for name, x in zip(names, given)})
    with torch.no_grad():
        wanted = model(*given)
    for a, b in zip(found, wanted if isinstance(wanted, tuple) else (wanted,)):
        np.testing.assert_allclose(a, b.numpy(), atol=2e-6)


M = hw.Mask
CASES = {
    "plain": {},
    "causal": dict(mask=M.causal()),
    "grouped, heads first": dict(kv_heads=2, layout="bhsd", mask=M.causal(), scale=0.3),
    "one key head": dict(kv_heads=1, softcap=2.5),
    "window": dict(mask=M.causal() & M.window(2, 0)),
    "prefix": dict(mask=M.causal() | M.prefix(2)),
    "lengths": dict(mask=M.lengths([3, 6])),
    "lengths and steps": dict(mask=(M.strided(3) | M.window(1, 1)) & M.lengths([6, 4])),
    "start": dict(mask=M.causal(), q_start=2),
    "start of each text": dict(mask=M.causal(), q_start=[1, 0]),
    "bias": dict(mask=M.causal(), bias=torch.linspace(-1, 1, 36).reshape(6, 6)),
    "bias in a window": dict(mask=M.window(2, 1), bias=torch.linspace(-1, 1, 144).reshape(4, 6, 6)),
    "slopes": dict(mask=M.causal(), alibi=torch.tensor([0.5, 0.25, 0.125, 0.0625])),
    "scale of each head": dict(scale=torch.tensor([0.1, 0.2, 0.3, 0.4])),
    "log sums": dict(mask=M.causal(), return_lse=True),
    "gate": dict(gate=torch.linspace(0, 1, 48).reshape(2, 6, 4)),
}


class Many(torch.nn.Module):
    """Every case in one graph, for an export takes longer than what it writes; and modules that swap replaces."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.calls = torch.nn.ModuleList(Attends(**words) for words in CASES.values())
        layer = torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x, open):
        alone = x[:, None]
        pairs = hw.torch.scaled_dot_product_attention(alone, alone, alone, attn_mask=open)
        return (pairs, self.layers(x), *(call(x) for call in self.calls))


def test_calls_become_operators():
    model, given = Many(), (torch.randn(2, 6, 16), torch.ones(6, 6, dtype=torch.bool).tril())
    assert len(hw.torch.swap(model).replaced) == 2
    agree(exported(model, given), model, given, calls=len(CASES) + 4)  # log sums are asked of a second one


def test_sizes_may_stay_open():
    model = Attends(mask=M.causal() & M.window(3, 0), kv_heads=2)
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    written = exported(model, (torch.randn(2, 6, 16),), dynamic_shapes=(axes,))
    for sizes in ((1, 9, 16), (3, 4, 16)):
        agree(written, model, (torch.randn(*sizes),))


@pytest.mark.skipif(not os.environ.get("HEADWISE_SLOW"), reason="a long form: HEADWISE_SLOW=1")
def test_a_model_of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(1)
    inner = transformers.LlamaModel(config).eval()
    assert hw.torch.swap(inner).replaced

    class Last(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, ids):
            return self.inner(input_ids=ids).last_hidden_state

    given = (torch.randint(50, (2, 7)),)
    model = Last()
    agree(exported(model, given), model, given, calls=2)


REFUSED = {
    "has sinks, which Attention of ONNX has not": dict(sinks=torch.zeros(HEADS)),
    "a relative table": dict(table=torch.zeros(8, HEADS)),
    "ragged offsets": dict(q_offsets=torch.tensor([0, 6])),
    "a head by name": dict(head="talking"),
    "alibi is True; give the slopes": dict(alibi=True),
    "dropout is 0.1; call model.eval": dict(dropout=0.1),
    'layout is "sbhd"; give bshd or bhsd': dict(layout="sbhd"),
    r'the mask is "documents\(0, 3, 6\)"; what can be written': dict(mask=M.documents([0, 3, 6])),
    'the mask is "dense': dict(mask=M.dense(np.ones((6, 6), bool))),
    r'the mask is "per_head\(': dict(mask=M.per_head([M.causal(), M.all()])),
    "outside of torch.onnx.export": {},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_the_operator_has_not_is_refused(sentence):
    ((op, translate),) = hw.onnx.export_ops().items()
    plain = dict(alibi=False, bidirectional=True, max_distance=0, dropout=0.0, seed=0, q_start=[0], layout="bshd", lse=False)
    names = [x.name for x in op._schema.arguments]
    with pytest.raises(ValueError, match=f"^onnx.export_ops: .*{sentence}"):
        translate(*({**plain, **REFUSED[sentence]}.get(name) for name in names))


def test_an_opset_without_attention_is_refused():
    with pytest.raises(Exception) as caught:
        exported(Attends(), (torch.randn(2, 6, 16),), opset_version=20)
    said, fault = "", caught.value
    while fault is not None:
        said, fault = f"{said}\n{fault}", fault.__cause__
    assert "onnx.export_ops: opset_version is 20, and Attention exists from 23 on" in said
