"""transformers with attn_implementation="headwise", or after hw.torch.swap, against its own eager attention, family by
family; the tables of docs/transformers.md are made here: python tests/python/pytorch/test_transformers.py"""
# SPDX-License-Identifier: Apache-2.0

import contextlib
import functools
import os
import pathlib
import pickle
import sys
import warnings

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import headwise as hw  # noqa: E402
import headwise.transformers  # noqa: E402, F401
from tiny_transformers import FAMILIES, SWAPPED, inputs_of, model_of, real  # noqa: E402

PAGE = pathlib.Path(__file__).parents[3] / "docs" / "transformers.md"
OLDEST = "5.0.0"


def marks():
    """Around the table of the installed version: there is one of the oldest, and one of what requirements bring today."""
    which = "oldest" if transformers.__version__ == OLDEST else "newest"
    return f"<!-- {which} families: written by tests/python/pytorch/test_transformers.py -->", f"<!-- /{which} families -->"


def both(family, ask, way="headwise"):
    return [ask(model_of(family, how)) for how in ("eager", way)]


def near(found, want, most=2e-5):
    assert found.shape == want.shape and found.dtype == want.dtype
    assert torch.isfinite(found).all()
    scale = max(1.0, want.abs().max().item())
    assert (found.double() - want.double()).abs().max().item() <= most * scale


def forward(family, way, padding=None):
    given = inputs_of(family, padding)
    with torch.no_grad():
        want, found = both(family, lambda model: real(family, given, model(**given).logits), way)
    near(found, want)


def gradients(family, way):
    given = inputs_of(family, None if FAMILIES[family][3] in ("vision", "speech") else "right")

    def ask(model):
        model.train()
        real(family, given, model(**given).logits).sin().sum().backward()
        return {name: x.grad for name, x in model.named_parameters() if x.grad is not None}

    want, found = both(family, ask, way)
    assert want.keys() == found.keys()
    for name in want:
        near(found[name], want[name], 1e-4)


def generate(family, way):
    kind = FAMILIES[family][3]
    given = inputs_of(family, "left" if kind == "decoder" else "right" if kind == "pair" else None)
    given.pop("decoder_input_ids", None)
    words = dict(max_new_tokens=12, do_sample=False)
    want, found = both(family, lambda model: model.generate(**given, **words), way)
    assert torch.equal(want, found) and want.shape[1] > 9


def pieces(family, way, static):
    """A prompt in three pieces over a cache, past the sliding window."""
    from transformers import DynamicCache, StaticCache

    ids = inputs_of(family)["input_ids"]

    def ask(model):
        kept = StaticCache(model.config, max_cache_len=24) if static else DynamicCache(config=model.config)
        return torch.cat([model(piece, past_key_values=kept).logits for piece in ids.split([9, 5, 3], dim=1)], 1)

    with torch.no_grad():
        want, found = both(family, ask, way)
    near(found, want)


class NoWeights(Exception):
    """The model did not hand the wish for weights to its layers, as GPT-2 and ViT in the first versions."""


def weights(family, way):
    given = inputs_of(family)
    with torch.no_grad():
        want, found = both(family, lambda model: model(**given, output_attentions=True), way)
    some = [name for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions") if want.get(name)]
    assert some
    if not found.get(some[0]) or any(x is None for x in found[some[0]]):
        raise NoWeights
    for name in some:
        for a, b in zip(found[name], want[name]):
            near(a, b, 1e-4)  # logits of T5 are large: it does not scale them


def half(family, way, dtype):
    """As near to f32 as eager attention in 16 bits is, up to a factor."""
    given = inputs_of(family)

    def ask(how, dtype):
        cast = {name: x.to(dtype) if x.is_floating_point() else x for name, x in given.items()}
        with torch.no_grad():
            return model_of(family, how).to(dtype)(**cast).logits

    want, plain, found = ask("eager", torch.float32), ask("eager", dtype), ask(way, dtype)
    assert found.dtype == dtype
    error = (found.float() - want).square().mean().sqrt()
    assert error <= 1.5 * (plain.float() - want).square().mean().sqrt() + 1e-6


FEATURES = {
    "logits": forward,
    "right padding": functools.partial(forward, padding="right"),
    "left padding": functools.partial(forward, padding="left"),
    "gradients": gradients,
    "generation": generate,
    "growing cache": functools.partial(pieces, static=False),
    "static cache": functools.partial(pieces, static=True),
    "weights": weights,
    "bf16": functools.partial(half, dtype=torch.bfloat16),
    "f16": functools.partial(half, dtype=torch.float16),
}


def asked(family, feature):
    kind = FAMILIES[family][3]
    if feature.endswith("padding"):
        return kind not in ("vision", "speech")
    if feature.endswith("cache"):
        return kind == "decoder"
    return feature != "generation" or kind not in ("encoder", "vision")


@contextlib.contextmanager
def counted():
    """The calls of attention that reach headwise."""
    calls = []
    places = ((hw.torch, "attention"), (hw.transformers, "_attend"), (hw.transformers, "_attend_layer"),
              (hw._torch.calls, "scaled_dot_product_attention"))  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for where, name in places:
            real = getattr(where, name)
            patch.setattr(where, name, lambda *a, real=real, **w: calls.append(1) or real(*a, **w))
        yield calls


def outcome(family, feature, way):
    """taken: the answers are those of eager attention and come from headwise. own: they come from the model's own attention,
    which did not look at attn_implementation. refused: an error said so. Other errors go through."""
    try:
        with counted() as calls:
            FEATURES[feature](family, way)
        return "taken" if calls else "own"
    except (NotImplementedError, ValueError) as error:
        assert "asking attn_implementation" in str(error) or "does not support" in str(error), error
    except KeyError as error:
        assert error.args == ("headwise",)
    except NoWeights:
        return "none"
    return "refused"


def cell(family, feature):
    """What stands in the table: exact, swap (exact after hw.torch.swap), refused, own, or nothing where there is no such thing."""
    if not asked(family, feature) or not works_in_eager(family, feature):
        return ""
    found = outcome(family, feature, "headwise")
    if found == "taken":
        return "exact"
    if family in SWAPPED and outcome(family, feature, "swap") == "taken":
        return "swap"
    assert hw.torch.swap(model_of(family, "eager")).kept  # it says so
    return found


def works_in_eager(family, feature):
    """A static cache is too long for Bloom's own attention in the first versions."""
    if feature != "static cache" or family not in SWAPPED:
        return True
    try:
        pieces(family, "eager", static=True)
        return True
    except RuntimeError as error:
        assert "expanded size" in str(error)
        return False


def written():
    """The table of the version that is installed, by family and feature."""
    begin, end = marks()
    text = PAGE.read_text()
    assert begin in text, f"{PAGE.name} has no table of transformers {transformers.__version__}; run {__file__} to write it"
    rows = [line.strip(" |").split("|") for line in text.split(begin)[1].split(end)[0].strip().splitlines()]
    names = [name.strip() for name in rows[0][1:]]
    assert names == list(FEATURES)
    return {row[0].strip(): dict(zip(names, (x.strip() for x in (*row[1:], *[""] * len(names))))) for row in rows[2:]}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_family_does_what_its_row_says(family):
    assert {feature: cell(family, feature) for feature in FEATURES} == written()[family]
    assert list(written()) == list(FAMILIES)


def seen_masks(family, given, monkeypatch, way="headwise"):
    """What reaches attention from a forward pass, by either way."""
    seen = []

    def look(attend, *args, **words):
        seen.append((args[3] if len(args) > 3 else words["mask"], words))
        return attend(*args, **words)

    for where, name in ((hw.torch, "attention"), (hw.transformers, "_attend"), (hw.transformers, "_attend_layer")):
        monkeypatch.setattr(where, name, functools.partial(look, getattr(where, name)))
    with torch.no_grad():
        model_of(family, way)(**given)
    assert seen
    return seen


@pytest.mark.parametrize("family", ["BERT", "Mistral", "Gemma 2"])
@pytest.mark.parametrize("padding", [None, "left", "right"])
def test_no_matrix_of_pairs_is_made(family, padding, monkeypatch):
    for mask, words in seen_masks(family, inputs_of(family, padding), monkeypatch):
        assert "bias" not in words and "dense" not in str(mask)
        assert ("q_offsets" in words) == (padding is not None)


def test_padding_between_tokens_is_a_row_of_bias(monkeypatch):
    given = inputs_of("Llama")
    tokens = torch.ones_like(given["input_ids"])
    tokens[1, 4:7] = 0
    given["attention_mask"] = tokens
    for _, words in seen_masks("Llama", given, monkeypatch):
        assert list(words["bias"].shape) == [3, 1, 1, 17]
    monkeypatch.undo()
    with torch.no_grad():
        want, found = both("Llama", lambda model: real("Llama", given, model(**given).logits))
    near(found, want)


@pytest.mark.parametrize("family", ["Llama", "Mistral"])
def test_packed_texts_are_documents(family, monkeypatch):
    ids, places = inputs_of("Llama")["input_ids"][:1], torch.tensor([[*range(10), *range(7)]])
    given = {"input_ids": ids, "position_ids": places, "use_cache": False}
    masks = [str(mask) for mask, _ in seen_masks(family, given, monkeypatch)]
    assert all("documents" in mask and "dense" not in mask for mask in masks)
    monkeypatch.undo()
    with torch.no_grad():
        want, found = both(family, lambda model: model(**given).logits)
    near(found, want)


def test_packed_texts_of_a_batch_are_right_too():
    two = inputs_of("Llama")["input_ids"][:2]
    given = {"input_ids": two, "position_ids": torch.tensor([[*range(10), *range(7)], [*range(3), *range(14)]])}
    with torch.no_grad():
        want, found = both("Llama", lambda model: model(**given, use_cache=False).logits)
    near(found, want)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_of_four_axes_is_taken_as_it_is(dtype):
    given = inputs_of("Llama")
    random = torch.Generator().manual_seed(2)
    open = torch.rand(3, 1, 17, 17, generator=random) > 0.4
    open |= torch.eye(17, dtype=torch.bool)
    bias = torch.zeros(()).masked_fill(~open, torch.finfo(torch.float32).min)
    with torch.no_grad():
        want = model_of("Llama", "eager")(**given, attention_mask=bias).logits
        found = model_of("Llama", "headwise")(**given, attention_mask=open if dtype == torch.bool else bias).logits
    near(found, want)


@pytest.mark.parametrize("family", ["BERT", "Llama", "Gemma 2", "Bloom"] if os.environ.get("HEADWISE_SLOW") else ["Gemma 2"])
def test_one_compiled_graph(family):
    given = inputs_of(family, "right")
    model = model_of(family, "swap" if family in SWAPPED else "headwise")
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    words = {} if family == "BERT" else {"use_cache": False}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        near(real(family, given, compiled(**given, **words).logits), real(family, given, model(**given, **words).logits))


def test_dropout_drops():
    given = inputs_of("Llama")
    model = model_of("Llama", "headwise").train()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    torch.manual_seed(1)
    first = model(**given).logits
    assert not torch.equal(first, model(**given).logits)
    torch.manual_seed(1)
    assert torch.equal(first, model(**given).logits)


def test_gradient_checkpointing_changes_nothing():
    given = inputs_of("Llama", "left")

    def ask(again):
        model = model_of("Llama", "headwise").train()
        if again:
            model.gradient_checkpointing_enable()
        model(**given, use_cache=False).logits.sin().sum().backward()
        return [x.grad for x in model.parameters()]

    for a, b in zip(ask(False), ask(True)):
        assert torch.equal(a, b)


def test_refusals_are_sentences():
    layer = model_of("Llama", "headwise").model.layers[0].self_attn
    x = torch.zeros(1, 4, 5, 8)
    attend = hw.transformers.attention_forward
    with pytest.raises(TypeError, match=r"the mask of LlamaAttention is a tensor \[5, 5\] of torch.bool"):
        attend(layer, x, x, x, torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(TypeError, match="is a str"):
        attend(layer, x, x, x, "causal")
    for mask in (None, hw.transformers.make_mask(1, 5, 5)):
        with pytest.raises(NotImplementedError, match="the cache is a object"):
            attend(layer, x, x, x, mask, cache=object())


def test_swap_exchanges_the_layers_of_bloom(monkeypatch):
    model, given = model_of("Bloom", "eager"), inputs_of("Bloom", "left")
    with torch.no_grad():
        want = real("Bloom", given, model(**given).logits)
        with pytest.raises(NotImplementedError, match=r"call hw.torch.swap\(model\)"):
            model_of("Bloom", "headwise")(**given)
        done = hw.torch.swap(model)
        assert done.replaced == [f"transformer.h.{i}.self_attention" for i in (0, 1)]
        assert list(done.kept) == ["BloomForCausalLM"] and "does not ask transformers" in str(done)
        near(real("Bloom", given, model(**given).logits), want)
        again = pickle.loads(pickle.dumps(model))
        assert torch.equal(again(**given).logits, model(**given).logits)
    for mask, words in seen_masks("Bloom", given, monkeypatch, "swap"):  # padding is skipped, distances are no rows
        assert words["alibi"] is True and "q_offsets" in words and "bias" not in words


def test_bloom_counts_positions_without_padding_between_tokens():
    given = inputs_of("Bloom")
    given["attention_mask"] = torch.ones_like(given["input_ids"])
    given["attention_mask"][1, 4:7] = 0
    with torch.no_grad():
        want, found = both("Bloom", lambda model: real("Bloom", given, model(**given).logits), "swap")
    near(found, want)


def test_the_mask_interface_of_the_first_versions():
    """Before 5.4 the places of the queries came instead of their number."""
    make = hw.transformers.make_mask
    for first in (0, 4):
        found = make(batch_size=1, cache_position=torch.arange(first, first + 3), kv_length=first + 3)
        want = make(batch_size=1, q_length=3, q_offset=first, kv_length=first + 3)
        for name in ("band", "q_start", "q_tokens", "kv_tokens", "alone"):
            assert getattr(found, name) == getattr(want, name)
        assert str(found.made) == str(want.made)
    with pytest.raises(TypeError, match=f"transformers {transformers.__version__} asks for a mask without the number of queries"):
        make(batch_size=1, kv_length=3)


def test_another_name():
    from transformers import AttentionInterface

    hw.transformers.register("another")
    assert "another" in AttentionInterface().valid_keys()


def table():
    lines = ["| family | " + " | ".join(FEATURES) + " |", "|---" * (1 + len(FEATURES)) + "|"]
    lines += ["| " + " | ".join([family, *(cell(family, feature) for feature in FEATURES)]) + " |" for family in FAMILIES]
    return "\n".join(lines)


if __name__ == "__main__":
    begin, end = marks()
    head, rest = PAGE.read_text().split(begin)
    PAGE.write_text(f"{head}{begin}\n{table()}\n{end}{rest.split(end)[1]}")
    sys.exit(0)
