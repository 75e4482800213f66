"""hw.lab on decoders: a cut model and a converted one against transformers, which reads the folders that are written."""
import importlib.util
import json
import math
import pathlib

import numpy as np
import pytest
from tiny_decoder import tokenizer_json

import headwise as hw

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TEXTS = ["the cat and the hat", "an apple in the inn, and another", "where is the end of the line?", "the rain and the train"]
SIZES = {"vocab_size": 272, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 6,
         "num_key_value_heads": 3, "head_dim": 8, "max_position_embeddings": 96, "bos_token_id": None, "eos_token_id": 2}


def write(folder, kind="Llama", **sizes):
    torch.manual_seed(5)
    config = getattr(transformers, kind + "Config")(**(SIZES | sizes))
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.2 if p.dim() == 1 else 0.9 / p.shape[-1] ** 0.5).add_(1.0 if p.dim() == 1 else 0)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return model


def ids_of(folder, text):
    return hw.Decoder(folder, kv_mib=8).tokenize(text)


def logits_with_heads_off(model, ids, off, dim=8):
    """By transformers: what W_O reads of these heads is 0."""
    hooks = []
    for layer, heads in off.items():
        def silence(_, rows, heads=heads):
            rows = rows[0].clone()
            for h in heads:
                rows[..., dim * h : dim * (h + 1)] = 0
            return (rows,)
        hooks.append(model.model.layers[int(layer)].self_attn.o_proj.register_forward_pre_hook(silence))
    try:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].numpy()
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize(("kind", "off", "heads"), [
    ("Llama", {"0": [0, 1], "1": [2, 3], "2": [4, 5]}, (4, 2)),  # a kv head goes with its last query head
    ("Llama", {"0": [2, 4], "1": [0, 4], "2": [0, 2]}, (4, 4)),  # groups of 2, 1 and 1: a kv head stands twice
    ("Llama", {"0": [1, 3, 5]}, (6, 3)),  # layers that keep fewer have empty places
    ("Llama", {"0": [0, 1], "1": [0, 1, 2, 3, 4, 5], "2": [4, 5]}, (4, 2)),  # of a layer its residual path stays alone
    ("Qwen2", {"0": [0, 1, 2], "1": [1, 2, 3], "2": [0, 1, 4]}, (3, 3)),  # biases of q, k and v
    ("Qwen3", {"0": [0, 1], "1": [0, 1], "2": [2, 3]}, (4, 2)),  # norms of every head
])
def test_a_cut_decoder_answers_as_with_its_heads_off(tmp_path, kind, off, heads):
    whole, small = tmp_path / "whole", tmp_path / "small"
    model = write(whole, kind)
    before = (whole / "model.safetensors").read_bytes()
    plan = hw.lab.cut(str(whole), str(small), plan={"heads": [6] * 3, "cut": off})
    assert plan["cut"] == off
    config = json.loads((small / "config.json").read_text())
    assert (config["num_attention_heads"], config["num_key_value_heads"]) == heads
    ids = ids_of(whole, TEXTS[1])
    wanted = logits_with_heads_off(model, ids, off)
    assert np.abs(wanted - logits_with_heads_off(model, ids, {})).max() > 0.05
    np.testing.assert_allclose(hw.Decoder(small, kv_mib=8).logits(ids), wanted, atol=5e-6)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(small, attn_implementation="eager").eval()
    np.testing.assert_allclose(logits_with_heads_off(theirs, ids, {}), wanted, atol=5e-6)
    assert (whole / "model.safetensors").read_bytes() == before


def next_token(model, ids, heads_as, mask=None):
    """Probabilities by transformers, while `heads_as[layer, head]` turns what W_O reads of a head [tokens, dim] into another."""
    hooks = []
    for (layer, head), change in heads_as.items():
        def hook(_, rows, head=head, change=change):
            rows = rows[0].clone()
            rows[0, :, 8 * head : 8 * head + 8] = change(rows[0, :, 8 * head : 8 * head + 8])
            return (rows,)
        hooks.append(model.model.layers[layer].self_attn.o_proj.register_forward_pre_hook(hook))
    try:
        with torch.no_grad():
            return model(torch.tensor([ids]), attention_mask=mask).logits[0, -1].softmax(-1).numpy()
    finally:
        for hook in hooks:
            hook.remove()


def test_heads_are_changed_as_hooks_of_transformers_change_them(tmp_path):
    whole = tmp_path / "whole"
    model = write(whole)
    folder, ids = str(whole), ids_of(whole, TEXTS[1])
    assert len(ids) == len(hw.lab.head_rows(folder, TEXTS[1:2], 0, 0)) // 8
    plain = next_token(model, ids, {})
    np.testing.assert_allclose(hw.lab.answers(folder, TEXTS[1:2])[0], plain, atol=2e-6)
    for change, theirs in [(hw.lab.Change(1, 4), lambda r: 0 * r),
                           (hw.lab.Change(2, 0, "scaled", factor=-0.5), lambda r: -0.5 * r),
                           (hw.lab.Change(0, 3, "mean"), lambda r: r.mean(0, keepdim=True).expand_as(r))]:
        ours = hw.lab.answers(folder, TEXTS[1:2], [change])[0]
        np.testing.assert_allclose(ours, next_token(model, ids, {(change.layer, change.head): theirs}), atol=2e-6, err_msg=change.kind)
        assert np.abs(ours - plain).max() > 1e-5
    other = hw.lab.head_rows(folder, TEXTS[1:2], 1, 3)
    patched = hw.lab.answers(folder, TEXTS[1:2], [hw.lab.Change(1, 2, "patched", rows=other)])[0]
    wanted = next_token(model, ids, {(1, 2): lambda r: torch.tensor(other).reshape(-1, 8)})
    np.testing.assert_allclose(patched, wanted, atol=2e-6)
    noised = [hw.lab.answers(folder, TEXTS[:1], [hw.lab.Change(0, 0, "noised", factor=1.0, seed=s)])[0] for s in (1, 1, 2)]
    assert (noised[0] == noised[1]).all() and (noised[0] != noised[2]).any()


def test_pairs_of_a_decoder_are_knocked_out_as_by_a_mask(tmp_path):
    whole = tmp_path / "whole"
    model = write(whole, num_hidden_layers=1)
    ids = ids_of(whole, TEXTS[0])
    n = len(ids)
    pairs = [(0, 1, n - 1, 0), (0, 1, n - 1, 2), (0, 4, n - 1, n - 1), (0, 4, 3, 1)]
    mask = torch.full((1, 6, n, n), 0.0).masked_fill(~torch.ones(n, n).tril().bool(), float("-inf"))
    for _, head, query, key in pairs:
        mask[0, head, query, key] = float("-inf")
    ours = hw.lab.answers(str(whole), TEXTS[:1], without=pairs)[0]
    np.testing.assert_allclose(ours, next_token(model, ids, {}, mask), atol=2e-6)
    assert np.abs(ours - next_token(model, ids, {})).max() > 1e-5
    for without, words in [([(0, 6, 0, 0)], "it has 6 heads"), ([(1, 0, 0, 0)], "layer 1 of part own"), ([(0, 0, n, 0)], "outside a text"),
                           ([(0, 0, 0, 0, "cross")], "part cross")]:
        with pytest.raises(ValueError, match=words):
            hw.lab.answers(str(whole), TEXTS[:1], without=without)
    with pytest.raises(ValueError, match="leave the states out"):
        hw.lab.answers(str(whole), TEXTS[:1], states=np.zeros((2, 48)))


def test_cross_heads_of_a_decoder(tmp_path):
    """With one state left open a head gives that state's value to every token; a patch with its own rows changes nothing."""
    where = pathlib.Path(__file__).parents[1] / "decoder/test_whisper.py"
    spec = importlib.util.spec_from_file_location("whisper_files", where)
    whisper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(whisper)
    whisper.VOCABULARY = 272
    path = str(whisper.write_tiny(tmp_path / "tiny"))
    (tmp_path / "tiny/tokenizer.json").write_text(json.dumps(tokenizer_json(specials=("<|endoftext|>", "<|user|>"))))
    states = np.random.default_rng(3).standard_normal((9, whisper.DIM)).astype(np.float32)
    asked = {"texts": ["the cat"], "states": states}
    plain = hw.lab.answers(path, **asked)
    assert plain.shape == (1, 272) and plain.sum() == pytest.approx(1, abs=1e-5)
    rows = hw.lab.head_rows(path, **asked, layer=1, head=1, part="cross").reshape(-1, 8)
    same = hw.lab.answers(path, **asked, changes=[hw.lab.Change(1, 1, "patched", part="cross", rows=rows)])
    np.testing.assert_array_equal(same, plain)
    off = [hw.lab.answers(path, **asked, changes=[hw.lab.Change(1, 1, part=part)]) for part in ("own", "cross")]
    assert np.abs(off[0] - plain).max() > 1e-4 and np.abs(off[1] - off[0]).max() > 1e-4
    one = [(1, 1, query, key, "cross") for query in range(len(rows)) for key in range(9) if key != 4]
    knocked = hw.lab.answers(path, **asked, without=one)
    alone = {**asked, "states": states[4:5]}  # v of state 4
    value = np.tile(hw.lab.head_rows(path, **alone, layer=1, head=1, part="cross").reshape(-1, 8)[0], (len(rows), 1))
    np.testing.assert_allclose(hw.lab.answers(path, **asked, changes=[hw.lab.Change(1, 1, "patched", part="cross", rows=value)]), knocked, atol=1e-6)
    with pytest.raises(ValueError, match="give them"):
        hw.lab.answers(path, ["the cat"])


def test_heads_are_ranked_by_the_next_tokens_loss(tmp_path):
    whole = tmp_path / "whole"
    model = write(whole)
    with torch.no_grad():  # heads that give nothing are the first to go
        for layer, head in ((0, 3), (1, 0), (2, 5)):
            model.model.layers[layer].self_attn.o_proj.weight[:, 8 * head : 8 * head + 8] = 0
    model.save_pretrained(whole)
    for rank in ("off", "greedy"):
        plan = hw.lab.cut(str(whole), str(tmp_path / rank), keep=15, texts=TEXTS[:2], rank=rank)
        losses = []
        for layer in range(3):
            assert len(plan["cut"].get(str(layer), [])) <= 5
        ids = ids_of(whole, TEXTS[0])
        for folder in (whole, tmp_path / rank):
            logits = torch.tensor(hw.Decoder(folder, kv_mib=8).logits(ids)[:-1])
            losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:])).item())
        assert losses[1] <= losses[0] + 0.2
    with pytest.raises(NotImplementedError, match="without gradients"):
        hw.lab.cut(str(whole), str(tmp_path / "no"), keep=15, texts=TEXTS, rank="michel")
    with pytest.raises(ValueError, match="no layer would keep a head"):
        hw.lab.cut(str(whole), str(tmp_path / "no"), plan={"heads": [6] * 3, "cut": {str(i): [0, 1, 2, 3, 4, 5] for i in range(3)}})
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
def test_a_converted_decoder_is_read_by_transformers(tmp_path, kind):
    whole = tmp_path / "whole"
    model = write(whole, kind, num_key_value_heads=6)
    made = {by: hw.lab.convert(str(whole), str(tmp_path / by), kv_heads=2, by=by, texts=TEXTS) for by in ("mean", "first", "aligned")}
    for layer in range(3):
        mean, aligned = (made[by].keys[layer] + made[by].values[layer] for by in ("mean", "aligned"))
        assert aligned <= mean + 1e-12
    ids = [ids_of(whole, text) for text in TEXTS]
    for by, c in made.items():
        theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / by, attn_implementation="eager").eval()
        kl = []
        for row in ids:
            p, q = (torch.log_softmax(torch.tensor(logits_with_heads_off(m, row, {})).double(), -1) for m in (model, theirs))
            kl += (p.exp() * (p - q)).sum(-1).tolist()
        assert c.kl == pytest.approx(np.mean(kl), abs=1e-4), by
        assert math.isnan(c.cosine) or c.cosine == 0


def test_shared_heads_that_are_turned_copies_lose_nothing(tmp_path):
    """Keys of one group differ by rotations of RoPE's pairs, values by any rotation: aligned finds them, mean does not."""
    whole = tmp_path / "whole"
    model = write(whole, num_key_value_heads=6)
    draw = np.random.default_rng(3)
    with torch.no_grad():
        for layer in model.model.layers:
            k, v = layer.self_attn.k_proj.weight, layer.self_attn.v_proj.weight
            for h in (1, 2, 4, 5):
                base = 8 * (h // 3 * 3)
                turn = np.zeros((8, 8))
                for pair in range(4):
                    angle = draw.uniform(0, 6.28)
                    i, j = pair, pair + 4
                    turn[i, i] = turn[j, j] = math.cos(angle)
                    turn[i, j], turn[j, i] = -math.sin(angle), math.sin(angle)
                free, _ = np.linalg.qr(draw.normal(size=(8, 8)))
                k[8 * h : 8 * h + 8] = torch.tensor(turn, dtype=torch.float32) @ k[base : base + 8]
                v[8 * h : 8 * h + 8] = torch.tensor(free, dtype=torch.float32) @ v[base : base + 8]
    model.save_pretrained(whole)
    aligned = hw.lab.convert(str(whole), str(tmp_path / "aligned"), kv_heads=2, by="aligned", texts=TEXTS)
    mean = hw.lab.convert(str(whole), str(tmp_path / "mean"), kv_heads=2, by="mean", texts=TEXTS)
    assert aligned.kl < 1e-5 < mean.kl
    ids = ids_of(whole, TEXTS[2])
    np.testing.assert_allclose(hw.Decoder(tmp_path / "aligned", kv_mib=8).logits(ids), logits_with_heads_off(model, ids, {}), atol=2e-3)


def test_what_cannot_be_cut_or_shared_is_refused_in_words(tmp_path):
    write(tmp_path / "qwen3", "Qwen3")
    with pytest.raises(NotImplementedError, match="norms every head"):
        hw.lab.convert(str(tmp_path / "qwen3"), str(tmp_path / "out"), kv_heads=1, by="mean", texts=TEXTS)
    write(tmp_path / "llama")
    with pytest.raises(ValueError, match="a divisor of 3"):
        hw.lab.convert(str(tmp_path / "llama"), str(tmp_path / "out"), kv_heads=2, by="mean", texts=TEXTS)
    with pytest.raises(ValueError, match="own folder"):
        hw.lab.convert(str(tmp_path / "llama"), str(tmp_path / "llama"), kv_heads=1, by="mean", texts=TEXTS)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(NotImplementedError, match="is one file"):
        hw.lab.cut(str(tmp_path / "model.gguf"), str(tmp_path / "out"), keep=3, texts=TEXTS)
    assert not (tmp_path / "out").exists()


def test_a_survey_of_a_decoder_sees_the_weights_of_transformers(tmp_path):
    model = write(tmp_path / "whole")
    s = hw.lab.survey(str(tmp_path / "whole"), TEXTS, tokens=64)
    own, first = [], []
    for text in TEXTS:
        ids = ids_of(tmp_path / "whole", text)
        with torch.no_grad():
            maps = torch.cat([m[0] for m in model(torch.tensor([ids]), output_attentions=True).attentions]).numpy()
        rows = np.arange(1, len(ids))
        own.append(maps[:, rows, rows].mean(-1))
        first.append(maps[:, 1:, 0].mean(-1))
    np.testing.assert_allclose(s.figures["self"], np.mean(own, 0), atol=2e-5)
    np.testing.assert_allclose(s.figures["first"], np.mean(first, 0), atol=2e-5)
