"""Layers in 16 bits, and their parameters in safetensors files that the package `safetensors` reads and writes too."""

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import headwise as hw

NUMPY = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


def block(dtype, seed=1):
    return hw.Block("gqa:heads=4,kv_heads=2,dim=8", 32, 64, feed="gelu", dtype=dtype, seed=seed)


def distance(a, b):
    a, b = (np.asarray(v, np.float64) for v in (a, b))
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_layer_in_16_bits_follows_the_one_in_32(dtype):
    narrow, wide = block(dtype), block("f32")
    for name, value in narrow.parameters().items():
        assert value.dtype == NUMPY[dtype]
        wide.parameters()[name][...] = value.astype(np.float32)
    x, dy = (np.random.default_rng(s).normal(size=(2, 9, 32)).astype(NUMPY[dtype]) for s in (1, 2))
    y = narrow.forward(x, mask=hw.Mask.causal())
    assert y.dtype == NUMPY[dtype]
    most = 0.03 if dtype == "bf16" else 0.004
    assert distance(y, wide.forward(x.astype(np.float32), mask=hw.Mask.causal())) < most
    assert distance(narrow.backward(dy), wide.backward(dy.astype(np.float32))) < most
    for name, gradient in narrow.gradients().items():
        # The bias of keys has no gradient but rounding: a shift of all scores changes nothing.
        if name != "block.attention.k.bias":
            assert distance(gradient, wide.gradients()[name]) < 2 * most, name


@pytest.mark.parametrize("dtype", NUMPY)
def test_parameters_go_through_safetensors_and_back(dtype, tmp_path):
    layer, other, path = block(dtype), block(dtype, seed=2), tmp_path / "layer.safetensors"
    layer.save(str(path))
    found = safetensors.numpy.load_file(path)
    assert found.keys() == layer.parameters().keys()
    for name, value in layer.parameters().items():
        assert found[name].dtype == value.dtype and found[name].tobytes() == value.tobytes(), name
    theirs = tmp_path / "theirs.safetensors"
    safetensors.numpy.save_file(found, theirs)
    other.load(str(theirs))
    assert all(other.parameters()[n].tobytes() == v.tobytes() for n, v in found.items())


def test_another_layers_file_is_refused_in_one_sentence(tmp_path):
    path = str(tmp_path / "layer.safetensors")
    hw.MultiHead("mha:heads=2,dim=8", 16).save(path)
    layer = block("f32")
    before = {n: v.copy() for n, v in layer.parameters().items()}
    with pytest.raises(ValueError, match='holds "attention.k.bias", which the layer has not'):
        layer.load(path)
    assert all(np.array_equal(before[n], v) for n, v in layer.parameters().items())
    with pytest.raises(ValueError):
        layer.load(str(tmp_path / "none.safetensors"))


def test_a_refused_file_changes_nothing(tmp_path):
    path = str(tmp_path / "gqa.safetensors")
    hw.MultiHead("gqa:heads=4,kv_heads=2,dim=8", 32, seed=1).save(path)
    layer = hw.MultiHead("mha:heads=4,dim=8", 32, seed=2)
    before = {n: v.copy() for n, v in layer.parameters().items()}
    with pytest.raises(ValueError, match=r"attention\.k\.weight\" is F32 \[16 32\] but f32 \[32 32\] was asked"):
        layer.load(path)
    assert all(np.array_equal(layer.parameters()[n], v) for n, v in before.items())


def test_a_path_with_a_nul_is_refused(tmp_path):
    layer = hw.MultiHead("mha:heads=2,dim=8", 16)
    for call in (layer.save, layer.load):
        with pytest.raises(ValueError, match="the name holds a NUL"):
            call(str(tmp_path / "q\0r"))
    assert not list(tmp_path.iterdir())
