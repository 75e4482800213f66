"""What docs/facts.md states about maps and their numbers, and that each of its lines names a test that exists."""

import pathlib
import re

import numpy as np
import pytest

import headwise as hw

ROOT = pathlib.Path(__file__).resolve().parents[3]


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_rows_of_one_head_are_independent():
    """One head has as many parallel rows as eight: each query alone has its bits among all."""
    q, k, v = normal(1, 1, 40, 1, 16), normal(2, 1, 40, 1, 16), normal(3, 1, 40, 1, 16)
    whole = hw.attention(q, k, v)
    for t in (0, 17, 39):
        assert np.array_equal(hw.attention(q[:, t : t + 1], k, v), whole[:, t : t + 1])


def test_sparse_is_not_low_rank():
    """A map with one weight a row can have full rank; its scores have at most the rank of head_dim."""
    tokens = 12
    eye = np.eye(tokens, dtype=np.float32)[None, :, None]
    weights = hw.attention(60 * eye, 60 * eye, eye)[0, :, 0]  # v is the identity, so out is the map
    assert np.count_nonzero(weights) == tokens and np.linalg.matrix_rank(weights) == tokens
    q, k = normal(4, tokens, 3).astype(np.float64), normal(5, tokens, 3).astype(np.float64)
    assert np.linalg.matrix_rank(q @ k.T) == 3
    narrow = hw.attention(q[None, :, None], k[None, :, None], np.eye(tokens)[None, :, None])[0, :, 0]
    assert np.linalg.matrix_rank(narrow) > 3  # the normalizer is not linear: the map has a higher rank than its scores


def test_scores_are_x_wq_wk_transposed_x():
    layer = hw.MultiHead("mha:heads=2,dim=4", 8, bias=False)
    x = normal(6, 1, 5, 8)
    _, weights = layer(x, weights=True)
    named = layer.parameters()
    wq, wk = (next(value for name, value in named.items() if name.endswith(f"{word}.weight")) for word in ("q", "k"))
    for h in range(2):
        rows = slice(4 * h, 4 * h + 4)
        scores = x[0] @ wq[rows].T @ wk[rows] @ x[0].T / 2  # our W are [out in]: W_Q W_K^T of the formula
        want = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        assert np.allclose(weights[0, h], want, atol=1e-6)


def test_every_head_reads_the_whole_x():
    layer = hw.MultiHead("mha:heads=4,dim=2", 8, bias=False)
    x = normal(7, 1, 5, 8)
    _, before = layer(x, weights=True)
    for column in range(8):
        moved = x.copy()
        moved[0, 2, column] += 1
        _, after = layer(moved, weights=True)
        assert (np.abs(after - before).max(axis=(0, 2, 3)) > 1e-6).all()  # each of the four heads


def test_softmax_underflows_and_entmax_is_zero_sooner():
    values = np.eye(3, dtype=np.float32)[None, :, None]
    q = np.ones((1, 1, 1, 3), np.float32)
    far = np.array([0, -2, -200], np.float32)[None, :, None, None] * np.ones(3, np.float32) / 3
    weights = hw.attention(q, far, values, scale=1.0).ravel()
    assert weights[1] > 0 and weights[2] == 0  # exp(-200) is no float
    alpha = {"alpha": np.full(1, 2, np.float32)}
    sparse = hw.attention(q, far, values, scale=1.0, head=hw.Entmax(heads=1, alpha=2.0), coefficients=alpha).ravel()
    assert sparse.tolist() == [1, 0, 0]  # exp(-2) was 0.13


def test_contiguous_copies_only_what_is_not():
    torch = pytest.importorskip("torch")
    x = torch.zeros(4, 6)
    assert x.contiguous().data_ptr() == x.data_ptr()
    assert x.T.contiguous().data_ptr() != x.data_ptr()


def test_every_line_of_the_page_names_what_exists():
    lines = [line for line in (ROOT / "docs/facts.md").read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(line.split("|")[1]) for line in lines] == list(range(1, 35))
    for line in lines:
        shown = re.findall(r"`((?:tests|examples)/[\w./]+)(?:: (\w+))?`", line.split("|")[-2])
        assert shown, line
        for file, name in shown:
            assert (ROOT / file).exists(), f"{file}: {line}"
            assert not name or name in (ROOT / file).read_text(), f"{file} has no {name}"
