"""hw.Mha, hw.Gqa, ... and hw.attention(head=...), against formulas in NumPy."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from oracle import normal

import headwise as hw


def softmax_out(q, k, v, scale):
    """[batch tokens heads dim], heads as they come."""
    s = np.einsum("bihd,bjhd->bhij", q, k) * scale
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("bhij,bjhd->bihd", p / p.sum(-1, keepdims=True), v)


def test_every_head_is_a_record_of_its_settings():
    names = [name for name, _, _ in hw._core.head_fields()]
    assert {"mha", "gqa", "overlapped", "collaborative", "gated", "differential", "knocking"} <= set(names)
    for name in names:
        made = getattr(hw, name.capitalize())
        head = made()
        assert name.capitalize() in hw.__all__ and isinstance(head, hw.Head)
        assert head == made() and hash(head) == hash(made()) and made.__doc__.startswith(f"The head {name!r}")
        assert head.settings.split(":")[0] == name
        with pytest.raises(dataclasses.FrozenInstanceError):
            head.heads = 3


def test_heads_are_pickled_and_copied():
    for head in (hw.Gqa(heads=4), hw.Gqa(heads=4) + hw.Gated(act="silu")):
        for again in (pickle.loads(pickle.dumps(head)), copy.copy(head), copy.deepcopy(head)):
            assert again == head and again.settings == head.settings
    assert hw.Gqa.__module__ == "headwise"  # from Python 3.12 on make_dataclass writes one of its own


def test_settings_are_checked_by_name():
    assert hw.Gqa(heads=16, kv_heads=4).settings == "gqa:heads=16,kv_heads=4,dim=0,value_dim=0"
    assert repr(hw.Gqa(heads=16)) == "Gqa(heads=16, kv_heads=2, dim=0, value_dim=0)"
    joined = hw.Gqa(heads=16) + hw.Gated(act="silu", bias=True)
    assert joined.settings.endswith("source=input,act=silu,grain=element,bias=true") and joined.name == "gqa+gated"
    assert joined == hw.Gqa(heads=16) + hw.Gated(act="silu", bias=True) != hw.Gqa(heads=16) + hw.Gated()
    with pytest.raises(TypeError):
        hw.Gqa(kvheads=2)
    with pytest.raises(ValueError, match="gated: act is 'elu'; give one of sigmoid, silu, gelu, linear"):
        hw.Gated(act="elu")
    with pytest.raises(ValueError, match="gqa: heads is 2.5; give an integer"):
        hw.Gqa(heads=2.5)
    with pytest.raises(ValueError, match="gated: bias is 1; give True or False"):
        hw.Gated(bias=1)


def test_head_info_says_what_a_layer_needs():
    info = hw.head_info(hw.Gqa(heads=8, kv_heads=2) + hw.Gated(grain="head"), model_dim=64)
    assert info["widths"] == {"q": 64, "k": 16, "v": 16, "out": 64}
    assert info["parameters"] == {"over1.gate": (8, 64)}
    assert info["settings"].startswith("gqa:heads=8,kv_heads=2,dim=8+gated:heads=8")
    assert "group" in info["meets"]
    with pytest.raises(ValueError, match=r"gqa: model_dim \(30\) must be a multiple of heads \(8\)"):
        hw.head_info(hw.Gqa(), model_dim=30)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_overlapped_heads_read_their_neighbours(kind):
    heads, dim, rim = 3, 4, 2
    q, k, v = (normal(i, 2, 5, heads, dim) for i in range(3))

    def wide(x):
        padded = np.pad(x.reshape(2, 5, heads * dim), ((0, 0), (0, 0), (rim, rim)))
        return np.stack([padded[..., h * dim : h * dim + dim + 2 * rim] for h in range(heads)], 2)

    got = hw.attention(*map(kind, (q, k, v)), head=hw.Overlapped(heads=heads, schedule="constant", rim=rim))
    assert np.allclose(got, softmax_out(wide(q), wide(k), wide(v), dim**-0.5), atol=1e-13)


@pytest.mark.parametrize("heads, dim", [(1, 4), (3, 1), (1, 1)])
def test_overlapped_heads_of_any_steps(heads, dim):
    # An axis of size 1 may have any step: these views have steps that fit no packed tensor.
    head = hw.Overlapped(heads=heads, schedule="constant", rim=1)
    parts = [normal(i, 2, 5, heads, dim) for i in range(3)]
    want = hw.attention(*parts, head=head)
    odd = [np.lib.stride_tricks.as_strided(x, x.shape, (*x.strides[:2], 8 * dim if heads > 1 else 808, 8 if dim > 1 else 888))
           for x in parts]  # fmt: skip
    assert np.array_equal(hw.attention(*odd, head=head), want)
    assert np.array_equal(hw.attention(*map(torch.from_numpy, odd), head=head).numpy(), want)


def test_gqa_and_differential_are_layouts():
    q, k, v = normal(1, 2, 5, 4, 8), normal(2, 2, 6, 2, 8), normal(3, 2, 6, 2, 8)
    assert np.array_equal(hw.attention(q, k, v, head=hw.Gqa(heads=4, kv_heads=2)), hw.attention(q, k, v))
    assert np.array_equal(hw.attention(q, k, v, head="gqa:heads=4,kv_heads=2"), hw.attention(q, k, v))
    v2 = normal(4, 2, 6, 2, 16)
    k2 = normal(5, 2, 6, 4, 8)
    maps = hw.attention(q, k2, v2, head=hw.Differential(heads=2))
    assert np.allclose(maps, softmax_out(q, k2, np.repeat(v2, 2, 2), 8**-0.5), atol=1e-13)


def test_collaborative_heads_share_one_key():
    mixed, k, v = normal(1, 2, 5, 4, 6), normal(2, 2, 7, 1, 6), normal(3, 2, 7, 4, 3)
    content = normal(4, 2, 4, 1, 7)
    head = hw.Collaborative(heads=4, dim=3, shared=6)
    got = hw.attention(mixed, k, v, head=head, bias=content)
    s = (np.einsum("bihd,bjd->bhij", mixed, k[:, :, 0])) * (4 / 6) ** 0.5 + content
    p = np.exp(s - s.max(-1, keepdims=True))
    want = np.einsum("bhij,bjhd->bihd", p / p.sum(-1, keepdims=True), v)
    assert np.allclose(got, want, atol=1e-13)
    with pytest.raises(ValueError, match="computes bias from its layer's input; give it ready as bias"):
        hw.attention(mixed, k, v, head=head)


def test_ready_gates_are_given():
    q, k, v, gate = normal(1, 2, 5, 4, 8), normal(2, 2, 5, 4, 8), normal(3, 2, 5, 4, 8), normal(4, 2, 5, 4)
    head = hw.Mha(heads=4) + hw.Gated(grain="head")
    assert np.array_equal(hw.attention(q, k, v, head=head, gate=gate), hw.attention(q, k, v, gate=gate))
    with pytest.raises(ValueError, match="computes gate from its layer's input; give it ready as gate"):
        hw.attention(q, k, v, head=head)


def test_explain_takes_a_head():
    q = normal(1, 1, 8, 4, 8).astype(np.float32)
    said = hw.explain(q, q, q, head=hw.Overlapped(heads=4, schedule="constant", rim=1))
    assert "chosen" in said


BAD = {
    "unknown head": ({"head": "gga"}, 'heads: there is no head "gga"; there are '),
    "no head": ({"head": 3}, "attention: head is an int; give a head such as headwise.Gqa"),
    "tensors that do not fit": ({"head": hw.Mha(heads=4, dim=8)}, "attention: q is "),
    "rows apart": (
        {"head": hw.Overlapped(heads=2, dim=4, schedule="constant", rim=1), "layout": "bhsd"},
        "attention: q is f64 .* but this head reads 8 columns of a token that lie side by side",
    ),
    "no dict": ({"coefficients": [1]}, "attention: coefficients is a list; give a dict of arrays by name"),
    "unknown coefficient": (
        {"coefficients": {"mix": np.eye(2)}},
        'attention: coefficients holds "mix"; it may hold mix_before, mix_after, mix_q, mix_k, alpha, rows',
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_heads_are_refused_in_a_sentence(name):
    words, sentence = BAD[name]
    q = normal(1, 2, 2, 2, 4)
    with pytest.raises((ValueError, TypeError), match=sentence):
        hw.attention(q, q, q, **words)


def test_talking_heads_by_their_matrices():
    q, k, v = (normal(i, 2, 5, 4, 8) for i in range(3))
    before, after = normal(5, 4, 4), normal(6, 4, 4)
    got = hw.attention(q, k, v, head=hw.Talking(heads=4), coefficients={"mix_before": before, "mix_after": after})
    s = np.einsum("bmij,mh->bhij", np.einsum("bihd,bjhd->bhij", q, k) * 8**-0.5, before)
    p = np.exp(s - s.max(-1, keepdims=True))
    u = np.einsum("bhij,hv->bvij", p / p.sum(-1, keepdims=True), after)
    assert np.allclose(got, np.einsum("bvij,bjvd->bivd", u, v), atol=1e-12)


def test_terms_count_the_heads_with_a_softmax():
    q, k, v = normal(0, 2, 5, 2, 8), normal(1, 2, 5, 2, 8), normal(2, 2, 5, 3, 8)
    mixes = {"mix_before": normal(5, 2, 4), "mix_after": normal(6, 4, 3)}
    slopes, bias = 2.0 ** -(2 * np.arange(1, 5)), normal(7, 2, 4, 5, 5)
    head = hw.Talking(heads=4, key_heads=2, value_heads=3, dim=8)
    for words in ({"head": head}, {}):
        want = hw.attention(q, k, v, alibi=slopes, bias=bias, coefficients=mixes, **words)
        assert np.array_equal(hw.attention(q, k, v, alibi=True, bias=bias.reshape(8, 5, 5), coefficients=mixes, **words), want)


def test_slopes_of_double_are_double():
    q = normal(0, 1, 9, 3, 8)
    slopes = np.array([2.0**-4, 2.0**-8, 2.0**-2])
    assert np.array_equal(hw.attention(q, q, q, alibi=True), hw.attention(q, q, q, alibi=slopes))
    q = normal(0, 1, 9, 12, 8)
    exact = np.exp2(np.array([-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5]))
    assert np.array_equal(hw.attention(q, q, q, alibi=True), hw.attention(q, q, q, alibi=exact))
    assert not np.array_equal(hw.attention(q, q, q, alibi=True), hw.attention(q, q, q, alibi=exact.astype(np.float32)))


def test_entmax_brings_its_alpha():
    q = normal(0, 2, 9, 4, 8)
    want = hw.attention(q, q, q, head="entmax:heads=4", coefficients={"alpha": np.full(4, 1.25)})
    assert np.array_equal(hw.attention(q, q, q, head=hw.Entmax(heads=4, alpha=1.25)), want)
    with pytest.raises(ValueError, match="this head learns an alpha for each head; give them ready as coefficients"):
        hw.attention(q, q, q, head=hw.Entmax(heads=4, learned=True))
    leaf = torch.from_numpy(q).requires_grad_()
    hw.torch.attention(leaf, leaf, leaf, head=hw.Entmax(heads=4, alpha=1.25)).sum().backward()
    assert leaf.grad.isfinite().all()


def test_refusals_speak_of_what_was_asked():
    x = normal(0, 2, 5, 32).astype(np.float32)
    with pytest.raises(NotImplementedError, match="heads are mixed, so that no head has weights of its own to show; leave out"):
        hw.MultiHead("talking:heads=4,dim=8", 32)(x, weights=True)
    q = normal(1, 1, 5, 4, 8).astype(np.float32)
    with pytest.raises(NotImplementedError, match='every kernel of "cpu/entmax" refused; add ref to the list'):
        hw.attention(q, q, q, kernels="cpu/entmax")
    with pytest.raises(ValueError, match=r"mix_before is f32 \[3 3\] but q has 4 heads; give \[q_heads heads\]"):
        hw.attention(q, q, q, coefficients={"mix_before": np.eye(3, dtype=np.float32)})
    with pytest.raises(ValueError, match="this head computes mix_q and mix_k from its layer's input"):
        hw.attention(q, q, q, head=hw.Dcmha(heads=4))
    with pytest.raises(NotImplementedError, match='tensors are on the CPU but the list "cuda/hopper" allows no kernel for it'):
        hw.attention(q, q, q, kernels="cuda/hopper")
