"""Layers of transformers that leave out padding (hw.transformers.pack) against transformers' own eager attention."""
# SPDX-License-Identifier: Apache-2.0

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import headwise as hw  # noqa: E402
import headwise.transformers  # noqa: E402, F401
from tiny_transformers import FAMILIES, inputs_of, model_of, real  # noqa: E402

TAKEN = [name for name in FAMILIES if FAMILIES[name][3] in ("encoder", "decoder") and name != "Bloom"] + ["Bart"]
if transformers.__version__ == "5.0.0":
    TAKEN.remove("ModernBERT")


def asked(family, padding):
    given = inputs_of(family, padding)
    if FAMILIES[family][3] != "encoder":
        given["use_cache"] = False
    return given


def widths(model):
    """Batch and tokens of what the feed-forward networks multiply."""
    seen = set()
    for module in model.modules():
        if "MLP" in type(module).__name__ or "Intermediate" in type(module).__name__:
            module.register_forward_pre_hook(lambda _, args: seen.add(tuple(args[0].shape[:2])))
    return seen


@pytest.mark.parametrize("family", TAKEN)
@pytest.mark.parametrize("padding", ["left", "right"])
def test_tokens_have_the_numbers_of_eager_attention(family, padding):
    given = asked(family, padding)
    model = hw.transformers.pack(model_of(family, "headwise"))
    seen = widths(model)
    with torch.no_grad():
        want = real(family, given, model_of(family, "eager")(**given).logits)
        found = real(family, given, model(**given).logits)
    assert (found - want).abs().max() <= 2e-5 * max(1.0, want.abs().max())
    assert all(shape[0] * shape[1] <= given["attention_mask"].sum() for shape in seen)


@pytest.mark.parametrize("family", ["BERT", "Gemma 2"])
def test_gradients_are_those_of_eager_attention(family):
    given, found = asked(family, "right"), {}
    for how in ("eager", "headwise"):
        model = model_of(family, how).train()
        if how == "headwise":
            hw.transformers.pack(model)
        real(family, given, model(**given).logits).sin().sum().backward()
        found[how] = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    assert found["eager"].keys() == found["headwise"].keys()
    for name, want in found["eager"].items():
        assert (found["headwise"][name] - want).abs().max() <= 1e-4 * max(1.0, want.abs().max()), name


def test_padding_gives_zeros_and_a_text_its_own_numbers():
    given = asked("BERT", "right")
    model = hw.transformers.pack(model_of("BERT", "headwise")).bert
    with torch.no_grad():
        states = model(**given).last_hidden_state
        alone = model(given["input_ids"][1:2, :12], attention_mask=given["attention_mask"][1:2, :12]).last_hidden_state
    assert torch.equal(states[given["attention_mask"] == 0], torch.zeros(16, 32))
    assert (states[1, :12] - alone[0]).abs().max() < 2e-6


def test_what_needs_the_padding_keeps_it():
    given = asked("Llama", "left")
    model = hw.transformers.pack(hw.transformers.pack(model_of("Llama", "headwise")))
    eager = model_of("Llama", "eager")
    with torch.no_grad():
        out = model(**given, output_hidden_states=True, output_attentions=True)
        assert [tuple(x.shape) for x in out.hidden_states] == [(3, 17, 32)] * 3
        assert tuple(out.attentions[0].shape) == (3, 4, 17, 17)
        words = dict(max_new_tokens=5, do_sample=False)
        given.pop("use_cache")
        assert torch.equal(model.generate(**given, **words), eager.generate(**given, **words))
    seen = widths(hw.transformers.unpack(model))
    with torch.no_grad():
        model(**given, use_cache=False)
    assert seen == {(3, 17)}


def test_models_without_such_layers_are_refused():
    with pytest.raises(TypeError, match=r"the layers of T5ForConditionalGeneration make a bias"):
        hw.transformers.pack(model_of("T5", "eager"))
    with pytest.raises(TypeError, match=r"Linear has no layers of transformers' own kind"):
        hw.transformers.pack(torch.nn.Linear(2, 2))
