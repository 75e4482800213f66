"""Benchmarks of language models in turns: weights are the same in every file, and the table says what was seen."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "benchmarks/decoders"))
import load  # noqa: E402
import make_model  # noqa: E402
import turns  # noqa: E402


def test_blocks_hold_the_numbers_that_were_put_in():
    x = np.random.default_rng(3).normal(size=(6, 64)).astype(np.float32)
    eight = make_model.numbers_of(make_model.q8_0_of(x), make_model.Q8_0, x.shape)
    assert np.abs(eight - x).max() < np.abs(x).max() / 127
    block = np.zeros((1, 20), np.uint8)
    block[0, :4] = np.array([0.5, -1], np.float16).view(np.uint8)
    block[0, 4] = 3 | 7 << 4
    four = make_model.numbers_of(block, make_model.Q4_1, (1, 32))
    assert four[0, 0] == 0.5 * 3 - 1 and four[0, 16] == 0.5 * 7 - 1 and four[0, 1] == -1


def test_rows_of_q_and_k_turn_from_pairs_to_halves():
    x = np.arange(8, dtype=np.float32)[:, None]
    assert make_model.turned(x, 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_table_has_medians_and_multiples():
    own = [{"tokens_s": x, "tokens_cpu_s": 1} for x in (8, 6, 40)]
    page = turns.table({"headwise f32": {"batch 4": own}, "openvino f32": {"batch 4": [{"tokens_s": 4, "tokens_cpu_s": 1}]}}, 2)
    assert "| batch 4 | headwise f32 | 8.0 | 6.0, 40.0 | 2.00 x openvino f32 |" in page


def test_goodput_counts_requests_without_long_gaps():
    seen = load.figures([(0.0, [1.0, 1.1, 1.2]), (0.0, [1.0, 2.0])])
    assert seen["tokens/s"] == 2.5 and seen["goodput"] == 1.5
