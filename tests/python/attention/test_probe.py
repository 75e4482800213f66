"""Probes from inside the kernel against the weights of the formula, and score stages from the reference."""

import itertools

import numpy as np
import pytest
import torch
from oracle import attend, normal, opened

import headwise as hw

MASK = hw.Mask.causal() & hw.Mask.window(40, 0)


@pytest.fixture(scope="module", params=["float32", "float64"])
def case(request):
    """q_start -3: the first three rows are empty."""
    q, k, v = (normal(i, 2, n, h, 16) for i, (n, h) in enumerate([(70, 4), (66, 2), (66, 2)]))
    sinks = np.array([0.0, -2.0, 1.0, 3.0])
    _, _, weights = attend(q, k, v, open=opened(MASK, 2, 4, 70, 66, -3), sinks=sinks)
    words = dict(mask=MASK, q_start=-3, sinks=sinks.astype(request.param))
    arrays = [x.astype(request.param) for x in (q, k, v)]
    return arrays, words, weights, 2e-6 if request.param == "float32" else 1e-12


def probe(case, **asked):
    arrays, words, _, _ = case
    return hw.attention(*arrays, **words, probe=hw.Probe(**asked)).probe


def test_row_statistics(case):
    weights, atol = case[2], case[3]
    got = probe(case, rows=True)
    sink = np.where(weights.sum(-1) > 0, 1 - weights.sum(-1), 1.0)

    def entropy(w):
        return -np.where(w > 0, w * np.log(np.where(w > 0, w, 1)), 0)

    distance = abs(np.arange(70)[:, None] - 3 - np.arange(66))
    assert np.allclose(got.entropy, entropy(weights).sum(-1) + entropy(sink), atol=10 * atol)
    assert np.allclose(got.top_weight, weights.max(-1), atol=atol)
    assert np.allclose(got.second_moment, (weights**2).sum(-1), atol=atol)
    assert np.allclose(got.mean_distance, (weights * distance).sum(-1), atol=40 * atol)
    assert np.allclose(got.sink_mass, sink, atol=atol)
    rows_with_keys = weights.any(-1)
    assert np.array_equal(got.top_position[rows_with_keys], weights.argmax(-1)[rows_with_keys])
    assert (got.top_position[~rows_with_keys] == -1).all() and got.top_position.dtype == np.int64
    assert got.top_keys is None and got.scores is None


ROWS = ("entropy", "top_weight", "top_position", "second_moment", "mean_distance", "sink_mass")


def test_row_statistics_by_name(case):
    """Those named have the bits they have among all; the others are None."""
    whole = probe(case, rows=True)
    for names in [*ROWS, *itertools.combinations(ROWS, 2), list(ROWS)]:
        got = vars(probe(case, rows=names))
        asked = (names,) if isinstance(names, str) else tuple(names)
        assert all(np.array_equal(got.pop(name), getattr(whole, name)) for name in asked), names
        assert all(x is None for x in got.values()), names
    assert probe(case, rows=()) == hw.ProbeResult()
    with pytest.raises(ValueError, match='rows names "median"; there are entropy, top_weight'):
        probe(case, rows=["entropy", "median"])


def test_top_keys_come_heaviest_first(case):
    weights, atol = case[2], case[3]
    got = probe(case, top_k=8)
    order = np.argsort(-weights, axis=-1, kind="stable")[..., :8]
    assert np.allclose(got.top_weights, np.take_along_axis(weights, order, -1), atol=atol)
    open_keys = np.take_along_axis(weights, order, -1) > 0
    assert np.array_equal(got.top_keys[open_keys], order[open_keys])
    assert (got.top_keys[~open_keys] == -1).all()


def test_mass_per_class(case):
    weights, atol = case[2], case[3]
    ids = np.random.default_rng(0).integers(-1, 5, (2, 66))
    want = np.stack([(weights * (ids == c)[:, None, None, :]).sum(-1) for c in range(5)], -1)
    assert np.allclose(probe(case, classes=ids).class_mass, want, atol=atol)
    assert np.allclose(probe(case, classes=ids, num_classes=3).class_mass, want[..., :3], atol=atol)
    shared = probe(case, classes=ids[0].astype(np.int32)).class_mass
    assert np.allclose(shared[0], want[0], atol=atol)


def test_column_sums(case):
    weights, atol = case[2], case[3]
    assert np.allclose(probe(case, columns=True).column_sums, weights.sum(2), atol=70 * atol)


def test_picked_rows(case):
    weights, atol = case[2], case[3]
    picks = [(1, 3, 69), (0, 0, 0), (0, 2, 33), (1, 3, 69)]
    got = probe(case, picks=picks).picked_weights
    assert np.allclose(got, [weights[p] for p in picks], atol=atol)


def test_probes_do_not_change_the_output(case):
    arrays, words, _, _ = case
    plain = hw.attention(*arrays, **words)
    asked = hw.Probe(rows=True, top_k=3, classes=np.zeros(66, int), columns=True, picks=[(0, 0, 5)])
    result = hw.attention(*arrays, **words, probe=asked, return_lse=True)
    assert np.array_equal(result.out, plain)
    alone = hw.attention(*arrays, **words, probe=hw.Probe(top_k=3)).probe
    assert np.array_equal(alone.top_keys, result.probe.top_keys)


def test_the_fused_kernel_takes_every_probe():
    q, k, v = (normal(i, 1, 9, 2, 8).astype(np.float32) for i in range(3))
    asked = hw.Probe(rows=True, top_k=3, classes=np.zeros(9, int), columns=True, picks=[(0, 0, 5)])
    got = hw.attention(q, k, v, probe=asked, kernels="cpu/online").probe
    exact = hw.attention(q, k, v, probe=asked, kernels="ref").probe
    for name, values in vars(exact).items():
        if name != "scores":
            assert np.allclose(getattr(got, name), values, atol=2e-5), name


def test_tensors_give_tensors():
    q, k, v = (torch.from_numpy(normal(i, 1, 9, 2, 8)).to(torch.bfloat16) for i in range(3))
    got = hw.attention(q, k, v, probe=hw.Probe(rows=True, top_k=2)).probe
    assert got.entropy.dtype == torch.float32 and got.top_keys.dtype == torch.int64
    assert got.top_keys.shape == (1, 2, 9, 2)


def test_ragged_probes_run_over_tokens():
    q, k, v = (normal(i, 30, 2, 8).astype(np.float32) for i in range(3))
    at = [0, 12, 30]
    asked = hw.Probe(rows=True, top_k=2, columns=True, classes=np.arange(30) % 3, picks=[(1, 1, 17)])
    got = hw.attention(q, k, v, hw.Mask.causal(), q_offsets=at, kv_offsets=at, probe=asked).probe
    assert (
        got.entropy.shape == (2, 30)
        and got.column_sums.shape == (2, 30)
        and got.class_mass.shape == (2, 30, 3)
    )
    for b, (first, last) in enumerate(zip(at, at[1:])):
        part = (x[None, first:last] for x in (q, k, v))
        picks = [(0, 1, 17)] if b == 1 else None
        one = hw.attention(
            *part,
            hw.Mask.causal(),
            probe=hw.Probe(rows=True, top_k=2, columns=True, classes=np.arange(first, last) % 3, picks=picks),
        ).probe
        assert np.array_equal(got.entropy[:, first:last], one.entropy[0])
        assert np.array_equal(got.top_keys[:, first:last], one.top_keys[0])
        assert np.array_equal(got.class_mass[:, first:last], one.class_mass[0])
        assert np.array_equal(got.column_sums[:, first:last], one.column_sums[0])
        if picks:
            assert np.array_equal(got.picked_weights[:, :18], one.picked_weights)


@pytest.mark.parametrize("stage", ["scaled", "softcapped", "biased", "weights"])
def test_score_stages(stage):
    q, k, v = (normal(i, 2, n, 3, 8) for i, n in enumerate([5, 7, 7]))
    bias = normal(5, 3, 5, 7)
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) * 0.5
    capped = 2 * np.tanh(scores / 2)
    open = opened(hw.Mask.causal(), 2, 3, 5, 7)
    want = {
        "scaled": np.where(open, scores, -np.inf),
        "softcapped": np.where(open, capped, -np.inf),
        "biased": np.where(open, capped + bias, -np.inf),
        "weights": attend(q, k, v, open, bias, 0.5, 2.0)[2],
    }[stage]
    words = dict(scale=0.5, softcap=2.0, bias=bias)
    got = hw.attention(q, k, v, hw.Mask.causal(), **words, probe=hw.Scores(stage))
    assert np.allclose(got.probe.scores, want, atol=1e-12)
    number = ["scaled", "softcapped", "biased", "weights"].index(stage)
    assert np.array_equal(
        hw.attention(q, k, v, hw.Mask.causal(), **words, probe=hw.Scores(number)).probe.scores,
        got.probe.scores,
    )


def test_a_probe_that_asks_for_nothing_gives_an_empty_answer():
    x = np.ones((1, 2, 1, 4), np.float32)
    result = hw.attention(x, x, x, probe=hw.Probe())
    assert result.probe == hw.ProbeResult() and result.lse is None


def test_entropy_of_scores_near_the_largest_float():
    """Scores of 3e37 with a scale of 1e-37: their sum is no float, their weights are ordinary."""
    q, k = np.zeros((1, 9, 1, 16), np.float32), np.zeros((1, 300, 1, 16), np.float32)
    q[..., 0] = 1e18
    k[0, :, 0, 0] = -3e19 * np.random.default_rng(5).random(300)
    got = hw.attention(q, k, k * np.float32(1e-20), scale=1e-37, probe=hw.Probe(rows=True)).probe
    logits = 1e-37 * 1e18 * k[0, :, 0, 0].astype(np.float64)
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    assert np.allclose(got.entropy, -(weights * np.log(weights)).sum(), atol=1e-4)
