"""The formula in NumPy and float64, and the bounds that results are held to."""
# SPDX-License-Identifier: Apache-2.0

import numpy as np

# Relative L2 error against float64 on unit-normal data (tolerance policy T2).
BOUND = {"float64": 1e-13, "float32": 1e-6, "float16": 3.2e-4, "bfloat16": 2.5e-3}


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape)


def opened(mask, batch, heads, q_tokens, kv_tokens, q_start=0):
    """[batch heads q kv] of bools: Mask.may_attend asked pair by pair."""
    starts = np.broadcast_to(q_start, batch)
    return np.array(
        [
            [
                [
                    [mask.may_attend(int(starts[b]) + i, j, b, h, int(starts[b])) for j in range(kv_tokens)]
                    for i in range(q_tokens)
                ]
                for h in range(heads)
            ]
            for b in range(batch)
        ],
        bool,
    ).reshape(batch, heads, q_tokens, kv_tokens)


def attend(q, k, v, open=True, bias=0.0, scale=None, softcap=None, sinks=None):
    """q, k, v [batch tokens heads dim] in float64; returns out, lse and weights [batch heads q kv]."""
    heads = q.shape[2]
    k, v = (np.repeat(x, heads // x.shape[2], axis=2) if x.shape[2] else x for x in (k, v))
    scale = np.asarray(1 / np.sqrt(q.shape[3]) if scale is None else scale, np.float64).reshape(-1, 1, 1)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    scores = np.where(open, scores + bias, -np.inf)
    sink = (
        np.full((heads, 1, 1), -np.inf) if sinks is None else np.asarray(sinks, np.float64).reshape(-1, 1, 1)
    )
    top = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), sink)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        total = np.exp(scores - top).sum(-1, keepdims=True) + np.exp(sink - top)
        weights = np.where(total > 0, np.exp(scores - top) / total, 0.0)
        lse = (np.log(total) + top)[..., 0]
    return np.einsum("bhqk,bkhd->bqhd", weights, v), lse, weights


def close(got, want, dtype="float32"):
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    finite = np.isfinite(want)
    np.testing.assert_array_equal(np.where(finite, 0, got), np.where(finite, 0, want))
    norm = np.linalg.norm(want[finite])
    error = np.linalg.norm(got[finite] - want[finite])
    assert error <= BOUND[dtype] * norm, f"relative error {error / norm if norm else error}"
