"""Decode: packed keys, int8 and e4m3 keys and values, and one token at a time give what prefill gives."""

import numpy as np
import pytest

import headwise as hw

RNG = np.random.default_rng(7)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def same(a, b):
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def test_decode_steps_are_rows_of_the_prefill():
    tokens = 700
    q, k, v = normal(1, tokens, 4, 64), normal(1, tokens, 2, 64), normal(1, tokens, 2, 64)
    whole = hw.attention(q, k, v, hw.Mask.causal())
    packed = hw.pack_keys(k[:, :600], capacity=tokens)
    for at in (600, 601, 650, 699):
        if packed.tokens <= at:
            hw.append_keys(packed, k[:, packed.tokens : at + 1])
        step = hw.attention(q[:, at : at + 1], k[:, : at + 1], v[:, : at + 1], q_start=at)
        from_packed = hw.attention(q[:, at : at + 1], packed, v[:, : at + 1], q_start=at)
        assert same(step, whole[:, at : at + 1]) and same(from_packed, step)


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "sbhd"])
def test_packed_keys_in_any_layout(layout):
    order = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}[layout]
    q, k, v = normal(2, 3, 4, 16), normal(2, 520, 2, 16), normal(2, 520, 2, 16)
    out = hw.attention(q, k, v)
    turned = [np.ascontiguousarray(x.transpose(order)) for x in (q, k, v)]
    packed = hw.pack_keys(turned[1], layout=layout)
    assert (packed.tokens, packed.capacity, packed.batch, packed.kv_heads, packed.dim) == (520, 520, 2, 2, 16)
    assert packed.nbytes == packed.buffer.nbytes and packed.order.startswith("[kv/")
    got = hw.attention(turned[0], packed, turned[2], layout=layout)
    assert same(np.ascontiguousarray(got.transpose(np.argsort(order))), out)
    assert same(hw.unpack_keys(packed, layout=layout), turned[1])
    assert same(hw.unpack_keys(packed, 5), k[:, :5])


def test_quantize_kv_is_its_formula():
    x = normal(2, 9, 3, 40)
    x[0, 0, 0] = 0
    data, scale = hw.quantize_kv(x)
    want = (np.abs(x).max(-1).astype(np.float64) / 127).astype(np.float32)
    assert data.dtype == np.int8 and scale.shape == (2, 9, 3) and same(scale, want)
    with np.errstate(invalid="ignore"):
        number = np.rint(x.astype(np.float64) / scale[..., None].astype(np.float64))
    assert np.array_equal(data, np.nan_to_num(number).astype(np.int8))


def test_quantize_kv_to_e4m3_is_its_formula():
    float8 = pytest.importorskip("ml_dtypes").float8_e4m3fn
    x = normal(2, 9, 3, 40)
    x[0, 0, 0], x[0, 1, 1, 7] = 0, np.nan
    data, scale = hw.quantize_kv(x, dtype="e4m3")
    want = (np.abs(x).max(-1).astype(np.float64) / 448).astype(np.float32)
    assert data.dtype == float8 and scale.shape == (2, 9, 3) and np.array_equal(scale, want, equal_nan=True)
    with np.errstate(invalid="ignore"):
        number = np.nan_to_num(x / scale[..., None]).astype(float8)
    assert np.array_equal(data.view(np.uint8), number.view(np.uint8))


@pytest.mark.parametrize("dtype", ["int8", "e4m3"])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_eight_bit_attention_is_attention_on_its_numbers(layout, dtype):
    pytest.importorskip("ml_dtypes")
    order = (0, 1, 2, 3) if layout == "bshd" else (0, 2, 1, 3)
    plain = (normal(2, 2, 4, 32), normal(2, 600, 2, 32), normal(2, 600, 2, 32))
    q, k, v = (np.ascontiguousarray(x.transpose(order)) for x in plain)
    (k8, k_scale), (v8, v_scale) = (hw.quantize_kv(x, dtype=dtype, layout=layout) for x in (k, v))
    got = hw.attention(q, k8, v8, k_scale=k_scale, v_scale=v_scale, layout=layout)
    k_wide, v_wide = (x.astype(np.float32) * scale[..., None] for x, scale in ((k8, k_scale), (v8, v_scale)))
    wide = hw.attention(q, k_wide, v_wide, layout=layout)
    assert np.abs(got - wide).max() < 1e-5
    packed = hw.pack_keys(k8, layout=layout)
    assert same(hw.attention(q, packed, v8, k_scale=k_scale, v_scale=v_scale, layout=layout), got)


def test_torch_tensors_and_bf16():
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q, k, v = (torch.from_numpy(normal(1, n, 2, 32)).to(dtype) for n in (1, 600, 600))
        out = hw.attention(q, k, v)
        packed = hw.pack_keys(k, 640)
        assert torch.equal(hw.attention(q, packed, v), out) and out.dtype == dtype
        assert torch.equal(hw.unpack_keys(packed), k)
        for name, eight in (("int8", torch.int8), ("e4m3", torch.float8_e4m3fn)):
            (k8, ks), (v8, vs) = hw.quantize_kv(k, dtype=name), hw.quantize_kv(v, dtype=name)
            assert k8.dtype == eight and ks.dtype == torch.float32
            near = hw.attention(q, k8, v8, k_scale=ks, v_scale=vs)
            assert near.dtype == dtype and (near.float() - out.float()).abs().max() < 0.05
            assert not torch.equal(near, out)
            grown = hw.torch.attention(q, k8, v8, k_scale=ks, v_scale=vs)
            assert torch.equal(grown, near)
            with torch.autocast("cpu", torch.bfloat16):
                cast = hw.torch.attention(q, k8, v8, k_scale=ks, v_scale=vs)
            assert torch.equal(cast, hw.attention(q.bfloat16(), k8, v8, k_scale=ks, v_scale=vs))
            assert f"kv {name}".replace("int8", "i8") in str(hw.explain(q, k8, v8, k_scale=ks, v_scale=vs))


def test_sequences_of_their_own_lengths():
    k, v, more = normal(2, 600, 2, 16), normal(2, 600, 2, 16), normal(2, 1, 2, 16)
    packed = hw.pack_keys(k)
    hw.append_keys(packed, more, starts=[599, 530])
    k[0, 599], k[1, 530] = more[0, 0], more[1, 0]
    q, mask = normal(2, 1, 4, 16), hw.Mask.lengths([600, 531])
    assert same(hw.attention(q, packed, v, mask), hw.attention(q, k, v, mask))


def test_sentences():
    k = normal(1, 10, 2, 8)
    packed = hw.pack_keys(k, capacity=11)
    with pytest.raises(ValueError, match="a cache cannot be longer than its buffer"):
        hw.append_keys(packed, k[:, :2])
    assert packed.tokens == 10
    with pytest.raises(ValueError, match="unpack_keys: tokens is 11 but 10 are packed"):
        hw.unpack_keys(packed, 11)
    with pytest.raises(ValueError, match="pack_keys: k is f32 .* but 4 axes are needed"):
        hw.pack_keys(k[0])
    with pytest.raises(TypeError, match="packed_keys: packed keys hold f64"):
        hw.pack_keys(k.astype(np.float64))
    with pytest.raises(TypeError, match="quantize_kv: x is i8"):
        hw.quantize_kv(hw.quantize_kv(k)[0])
    with pytest.raises(ValueError, match='quantize_kv: dtype is "fp8"; give "int8" or "e4m3"'):
        hw.quantize_kv(k, dtype="fp8")
    with pytest.raises(NotImplementedError, match="packed keys hold one padded batch"):
        hw.attention(normal(3, 2, 8), packed, normal(10, 2, 8), q_offsets=[0, 3], kv_offsets=[0, 10])


KEYS = np.ones((1, 4, 2, 8), np.float32)
PACKED = hw.pack_keys(KEYS)
ARRAY = "is a NoneType; give a NumPy array or a torch tensor (numpy.from_dlpack reads others without a copy)"
REFUSALS = {
    "append to None": (lambda: hw.append_keys(None, KEYS), TypeError, "append_keys: packed is a NoneType; give the headwise.PackedKeys that pack_keys made"),
    "append to an array": (lambda: hw.append_keys(KEYS, KEYS), TypeError, "append_keys: packed is a numpy.ndarray; give the headwise.PackedKeys that pack_keys made"),
    "append None": (lambda: hw.append_keys(PACKED, None), TypeError, f"append_keys: k {ARRAY}"),
    "pack None": (lambda: hw.pack_keys(None), TypeError, f"pack_keys: k {ARRAY}"),
    "unpack None": (lambda: hw.unpack_keys(None), TypeError, "unpack_keys: packed is a NoneType; give the headwise.PackedKeys that pack_keys made"),
    "quantize None": (lambda: hw.quantize_kv(None), TypeError, f"quantize_kv: x {ARRAY}"),
    "three axes": (lambda: hw.quantize_kv(KEYS[0]), ValueError, "quantize_kv: x is f32 [4 2 8] but 4 axes are needed, [batch tokens heads dim]"),
    "capacity": (lambda: hw.pack_keys(KEYS, capacity=2**70), ValueError, "pack_keys: capacity is an int of more than 64 bits; give a smaller one"),
    "capacity of bool": (lambda: hw.pack_keys(KEYS, capacity=True), TypeError, "pack_keys: capacity is a bool; give a 64-bit integer"),
    "gradients": (
        lambda: hw.attention_backward(KEYS, KEYS, PACKED, KEYS, KEYS, np.zeros((1, 2, 4), np.float32)),
        NotImplementedError,
        "attention_backward: k is packed, which has no gradient; give the plain keys of headwise.unpack_keys(k)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_are_one_sentence(case):
    call, exception, sentence = REFUSALS[case]
    with pytest.raises(exception) as caught:
        call()
    assert str(caught.value) == sentence
