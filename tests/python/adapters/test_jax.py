"""headwise.jax against JAX's own attention: values, jit, vmap and gradients."""
import numpy as np
import pytest

import headwise as hw

jax = pytest.importorskip("jax", reason="needs jax")
import jax.numpy as jnp  # noqa: E402

from headwise.jax import attention  # noqa: E402

RNG = np.random.default_rng(0)


def arrays(batch=2, q_tokens=17, kv_tokens=17, heads=4, kv_heads=2, dim=8, value_dim=8, dtype=jnp.float32):
    shapes = (batch, q_tokens, heads, dim), (batch, kv_tokens, kv_heads, dim), (batch, kv_tokens, kv_heads, value_dim)
    return [jnp.asarray(RNG.standard_normal(s), dtype) for s in shapes]


def plain(q, k, v, causal=False, window=None, scale=None):
    """JAX's own, in the same layout."""
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal, local_window_size=window, scale=scale, implementation="xla")


@pytest.mark.parametrize("dtype,least", [(jnp.float32, 2e-6), (jnp.bfloat16, 2e-2), (jnp.float16, 3e-3)])
def test_values_are_those_of_jax(dtype, least):
    q, k, v = arrays(dtype=dtype)
    for mask, words in ((None, {}), (hw.Mask.causal(), {"causal": True}), (hw.Mask.causal() & hw.Mask.window(3, 0), {"causal": True, "window": (3, 0)})):
        ours, theirs = attention(q, k, v, mask), plain(q, k, v, **words)
        assert ours.dtype == dtype and ours.shape == theirs.shape
        assert np.abs(np.asarray(ours, np.float32) - np.asarray(theirs, np.float32)).max() < least


def test_the_bits_are_those_of_headwise():
    q, k, v = arrays(value_dim=5, q_tokens=3)
    for words in ({}, {"scale": 0.3}, {"softcap": 5.0}, {"q_start": hw.end}):
        ours = attention(q, k, v, hw.Mask.causal(), **words)
        direct = hw.attention(*(np.array(x) for x in (q, k, v)), hw.Mask.causal(), **words)
        assert np.array_equal(np.asarray(ours), direct), words
    out, lse = attention(q, k, v, return_lse=True)
    direct = hw.attention(*(np.array(x) for x in (q, k, v)), return_lse=True)
    assert np.array_equal(np.asarray(lse), direct.lse) and np.array_equal(np.asarray(out), direct.out)


def test_jit_gives_the_same_bits():
    q, k, v = arrays()
    quick = jax.jit(lambda q, k, v: attention(q, k, v, hw.Mask.causal()))
    assert np.array_equal(np.asarray(quick(q, k, v)), np.asarray(attention(q, k, v, hw.Mask.causal())))


def test_vmap_is_a_loop():
    q, k, v = (jnp.stack([x, 2 * x, -x]) for x in arrays())
    at_once = jax.jit(jax.vmap(lambda q, k, v: attention(q, k, v, hw.Mask.causal())))(q, k, v)
    for i in range(3):
        assert np.array_equal(np.asarray(at_once[i]), np.asarray(attention(q[i], k[i], v[i], hw.Mask.causal())))
    shared = jax.vmap(attention, in_axes=(0, None, None))(q, k[0], v[0])
    assert np.array_equal(np.asarray(shared[1]), np.asarray(attention(q[1], k[0], v[0])))


@pytest.mark.parametrize("batched", [False, True])
def test_gradients_are_those_of_jax(batched):
    q, k, v = arrays()
    weights = jnp.asarray(RNG.standard_normal(q.shape), jnp.float32)

    def loss(way, **words):
        def one(q, k, v):
            return (way(q, k, v, **words) * weights).sum()

        return (lambda q, k, v: jax.vmap(one)(q[None], k[None], v[None]).sum()) if batched else one

    ours = jax.jit(jax.grad(loss(attention, mask=hw.Mask.causal(), scale=0.4), (0, 1, 2)))(q, k, v)
    theirs = jax.jit(jax.grad(loss(plain, causal=True, scale=0.4), (0, 1, 2)))(q, k, v)
    for mine, other in zip(ours, theirs):
        assert np.abs(np.asarray(mine) - np.asarray(other)).max() < 2e-5


def test_gradients_of_f64_against_differences():
    with jax.enable_x64(True):
        q, k, v = (jnp.asarray(np.asarray(x), jnp.float64) for x in arrays(batch=1, q_tokens=5, kv_tokens=5))
        from jax.test_util import check_grads

        check_grads(lambda q, k, v: attention(q, k, v, hw.Mask.causal(), softcap=3.0), (q, k, v), order=1, modes=["rev"], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    "spoil,sentence",
    [
        (lambda q, k, v: (q[0], k, v, None), r"q has shape \(17, 4, 8\); it must be \[batch tokens heads dim\]"),
        (lambda q, k, v: (q, k, v.astype(jnp.bfloat16), None), "v is bfloat16 but q is float32"),
        (lambda q, k, v: (q[:, :, :3], k, v, None), "q has 3 heads and k has 2"),
        (lambda q, k, v: (q.astype(jnp.int32),) + (k.astype(jnp.int32), v.astype(jnp.int32), None), "q is int32"),
        (lambda q, k, v: (q, k, v[:, :9], None), "do not fit"),
        (lambda q, k, v: (q, k, v, hw.Mask.dense(np.ones((17, 17), bool))), "mask has bits of its own"),
        (lambda q, k, v: (q, k, v, hw.Mask.per_head([hw.Mask.causal()] * 3)), "3"),
    ],
)  # fmt: skip
def test_what_cannot_work_is_said(spoil, sentence):
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=sentence):
        attention(*spoil(*arrays()))
    with pytest.raises(TypeError, match="mask is a ndarray"):
        attention(*arrays(), np.ones((17, 17)))
