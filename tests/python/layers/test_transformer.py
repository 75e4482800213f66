"""hw.Transformer and the losses: against torch, learning, ragged rows, refusals."""

import numpy as np
import pytest
import torch
from oracle import normal

import headwise as hw

SMALL = {"model_dim": 16, "feed_dim": 32, "depth": 2, "heads": "mha:heads=2,dim=8", "max_tokens": 16}
IDS = np.random.default_rng(1).integers(0, 11, (3, 7))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_is_torchs(smoothing):
    x, y = normal(1, 4, 5, 9), np.random.default_rng(2).integers(0, 9, (4, 5))
    y[1, 2:] = -100
    leaf = torch.from_numpy(x).requires_grad_()
    want = torch.nn.functional.cross_entropy(leaf.flatten(0, 1), torch.from_numpy(y).flatten(), label_smoothing=smoothing)
    want.backward()
    loss, dx = hw.cross_entropy(x, y, label_smoothing=smoothing, gradient=True)
    assert abs(loss - float(want.detach())) < 1e-13 and np.allclose(dx, leaf.grad.numpy(), atol=1e-15)
    assert hw.cross_entropy(x, y, label_smoothing=smoothing) == loss


def test_binary_cross_entropy_is_torchs():
    x, y = normal(1, 6, 4), (normal(2, 6, 4) > 0).astype(np.float64)
    leaf = torch.from_numpy(x).requires_grad_()
    want = torch.nn.functional.binary_cross_entropy_with_logits(leaf, torch.from_numpy(y))
    want.backward()
    loss, dx = hw.binary_cross_entropy(x, y, gradient=True)
    assert abs(loss - float(want.detach())) < 1e-14 and np.allclose(dx, leaf.grad.numpy(), atol=1e-15)
    assert hw.binary_cross_entropy(x, y.astype(np.uint8)) == loss


@pytest.mark.parametrize("positions", ["learned", "rope", "alibi"])
def test_a_decoder_learns_and_its_past_alone_counts(positions):
    model = hw.Transformer("decoder", 11, positions=positions, **SMALL)
    values, slopes = model.parameters(), model.gradients()
    ids, labels = np.ascontiguousarray(IDS[:, :-1]), np.ascontiguousarray(IDS[:, 1:])
    losses = []
    for step in range(40):
        loss, dlogits = hw.cross_entropy(model.forward(ids, training=True, step=step), labels, gradient=True)
        model.zero_gradients()
        model.backward(dlogits)
        for name in values:
            values[name] -= 0.5 * slopes[name]
        losses.append(loss)
    assert losses[-1] < 0.5 * losses[0]
    other = ids.copy()
    other[:, 4:] = 0
    assert np.array_equal(model(ids)[:, :4], model(other)[:, :4])


def test_encoder_decoders_take_both_sides():
    model = hw.Transformer("encoder_decoder", 11, source_vocabulary=5, **SMALL)
    source = np.random.default_rng(3).integers(0, 5, (3, 4))
    logits = model.forward(IDS, source)
    assert logits.shape == (3, 7, 11)
    model.backward(np.ones_like(logits))
    assert all(np.isfinite(g).all() for g in model.gradients().values())
    ragged = model(IDS.ravel(), source.ravel(), offsets=[0, 7, 14, 21], source_offsets=[0, 4, 8, 12])
    assert np.array_equal(ragged.reshape(3, 7, 11), logits)


def test_encoders_give_rows_or_outputs():
    assert hw.Transformer("encoder", 11, **SMALL)(IDS).shape == (3, 7, 16)
    assert hw.Transformer("encoder", 11, outputs=4, **SMALL)(torch.from_numpy(IDS)).shape == (3, 7, 4)


def test_the_same_seed_gives_the_same_bits_for_any_threads():
    outs = []
    for threads in (1, 2, 3):
        ctx = hw.Context(threads=threads)
        model = hw.Transformer("decoder", 11, dropout=0.1, attention_dropout=0.1, seed=3, **SMALL)
        logits = model.forward(IDS, training=True, seed=5, step=2, ctx=ctx)
        model.backward(logits, ctx=ctx)
        outs.append([logits, *model.gradients().values()])
    assert all(np.array_equal(a, b) for other in outs[1:] for a, b in zip(outs[0], other, strict=True))


BAD = {
    "kind": (lambda: hw.Transformer("coder", 11), 'transformer: kind is "coder"; give one of encoder, decoder, encoder_decoder'),
    "ids": (lambda: hw.Transformer("decoder", 5, **SMALL)(IDS), "embedding: ids["),
    "long": (lambda: hw.Transformer("decoder", 11, **SMALL)(np.zeros((1, 17), np.int64)), "the longest sequence has 17 tokens but there are positions for 16"),
    "float": (lambda: hw.Transformer("decoder", 11, **SMALL)(normal(1, 3, 7)), "transformer: ids is f64 [3 7]; give contiguous int64"),
    "source": (lambda: hw.Transformer("decoder", 11, **SMALL)(IDS, IDS), "only an encoder_decoder reads source_ids"),
    "labels": (lambda: hw.cross_entropy(normal(1, 2, 3), np.array([0, 3])), "labels[1] is 3 but there are 3 classes"),
    "offsets": (lambda: hw.Transformer("decoder", 11, **SMALL)(IDS.ravel(), offsets=[0, 30]), "offsets must rise from 0 to the 21 tokens"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_words(case):
    call, sentence = BAD[case]
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert sentence in str(caught.value)
