"""hw.onnx against every node case of the installed package onnx for the operators it has."""
# SPDX-License-Identifier: Apache-2.0

import importlib
import os

import numpy as np
import pytest

import headwise as hw

if os.environ.get("CI") != "true":
    pytest.importorskip("onnx")
import ml_dtypes  # noqa: E402
import onnx  # noqa: E402

ops = hw.onnx
MODULES = {
    "attention": ("Attention", 70),
    "rotaryembedding": ("RotaryEmbedding", 6),
    "rmsnormalization": ("RMSNormalization", 15),
    "layernormalization": ("LayerNormalization", 15),
}


def cases_of(module):
    """(name, node, inputs, outputs) of every case of one module, by running what makes them."""
    found = []
    cases = importlib.import_module(f"onnx.backend.test.case.node.{module}")
    keep, cases.expect = cases.expect, lambda node, inputs, outputs, name, **_: found.append((name, node, inputs, outputs))
    try:
        for thing in vars(cases).values():
            if isinstance(thing, type) and thing.__module__ == cases.__name__:
                for name in dir(thing):
                    if name.startswith("export"):
                        getattr(thing, name)()
    finally:
        cases.expect = keep
    return found


def run(node, inputs):
    """One node by hw.onnx; a list as long as its outputs."""
    words = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    given = iter(inputs)
    arrays = [next(given) if name else None for name in node.input]
    if node.op_type == "Attention":
        if len(node.output) > 3 and node.output[3]:
            words.setdefault("qk_matmul_output_mode", 0)
        else:
            words.pop("qk_matmul_output_mode", None)
        found = ops.attention(*arrays, **words)
    elif node.op_type == "RotaryEmbedding":
        found = [ops.rotary_embedding(*arrays, **words)]
    elif node.op_type == "RMSNormalization":
        found = [ops.rms_normalization(*arrays, **words)]
    else:
        found = ops.layer_normalization(*arrays, **words)
    return [x for name, x in zip(node.output, found) if name]


def compare(name, found, want):
    assert len(found) == len(want), name
    for a, b in zip(found, want):
        assert a.shape == b.shape and a.dtype == b.dtype, name
        most = {2: 4e-3, 4: 1e-5, 8: 1e-7}[b.dtype.itemsize] if b.dtype != ml_dtypes.bfloat16 else 4e-2
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=max(most, 1e-3 if b.dtype.itemsize == 2 else 1e-5), atol=most, err_msg=name)


@pytest.mark.parametrize("module", MODULES)
def test_every_case_of_the_standard(module):
    kind, least = MODULES[module]
    cases = [case for case in cases_of(module) if case[1].op_type == kind]
    assert len(cases) >= least
    faults = []
    for name, node, inputs, outputs in cases:
        try:
            compare(name, run(node, inputs), outputs)
        except Exception as error:  # all of them are wanted, not the first
            faults.append(f"{name}: {type(error).__name__} {str(error).strip()[:300]}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("module", MODULES)
def test_torch_gives_the_same(module):
    torch = pytest.importorskip("torch")

    def tensor(x):
        return torch.from_numpy(np.ascontiguousarray(x)) if isinstance(x, np.ndarray) else x

    for name, node, inputs, _ in cases_of(module):
        if node.op_type != MODULES[module][0] or any(x.dtype == ml_dtypes.bfloat16 for x in inputs):
            continue
        for a, b in zip(run(node, [tensor(x) for x in inputs]), run(node, inputs)):
            np.testing.assert_allclose(a.numpy().astype(np.float64), b.astype(np.float64), rtol=1e-3, atol=1e-6, err_msg=name)


def test_gradients_reach_q_k_and_v():
    torch = pytest.importorskip("torch")
    given = [torch.randn(2, 3, 5, 8, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    mask = torch.rand(5, 5) > 0.3
    ours = torch.autograd.grad(ops.attention(*given, mask, is_causal=1).Y.sin().sum(), given)
    open = mask & torch.ones(5, 5, dtype=torch.bool).tril()
    scores = (given[0] @ given[1].mT / 8**0.5).masked_fill(~open, -torch.inf)
    weights = torch.where(open.any(-1, keepdim=True), scores, 0.0).softmax(-1) * open.any(-1, keepdim=True)
    for a, b in zip(ours, torch.autograd.grad((weights @ given[2]).sin().sum(), given)):
        assert torch.allclose(a, b, atol=1e-10)


@pytest.mark.parametrize(
    "words, sentence",
    [
        (dict(left_window_size=-2), "left_window_size is -2"),
        (dict(qk_matmul_output_mode=4), "qk_matmul_output_mode is 4"),
        (dict(softmax_precision=3), "softmax_precision is 3"),
        (dict(softcap=-1.0), "softcap is -1.0"),
        (dict(past_key=np.zeros((1, 1, 2, 4), np.float32)), "one of past_key and past_value"),
        (dict(attn_mask=np.ones((2, 9), bool)), "attn_mask has 9 columns for 2 keys"),
    ],
)
def test_attributes_out_of_range_are_named(words, sentence):
    x = np.zeros((1, 1, 2, 4), np.float32)
    with pytest.raises(ValueError, match=sentence):
        ops.attention(x, x, x, **words)


def test_other_arrays_are_refused():
    with pytest.raises(TypeError, match="got a list"):
        ops.rms_normalization([1.0], np.ones(1))
    with pytest.raises(ValueError, match="axis is 3 for 2 axes"):
        ops.rms_normalization(np.ones((2, 2)), np.ones(2), axis=3)
    with pytest.raises(ValueError, match="X has 3 axes, so num_heads"):
        ops.rotary_embedding(np.ones((1, 2, 8)), np.ones((1, 2, 4)), np.ones((1, 2, 4)))
