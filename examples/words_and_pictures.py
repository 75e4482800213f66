"""Words that find their patch: cross-attention from a caption to a picture of 7 x 7 patches, trained without a label of any patch.

A scene has three shapes in three colours on a grid of patches. Its caption says "red circle top left, ...". The model reads
one word of a phrase and guesses the others of it, which it can only do by looking at the right patch. Six pairs of colour and
shape are never seen in training; the scenes that are judged have no others.

    python examples/words_and_pictures.py --steps 1000 --page scene.html
"""
# SPDX-License-Identifier: Apache-2.0

import argparse
import time

import numpy as np

import headwise as hw
from adam import Adam

SIDE, PIXELS, WIDTH = 7, 8, 64
COLOURS = {"red": (0.9, 0.1, 0.1), "green": (0.1, 0.7, 0.2), "blue": (0.1, 0.25, 0.9), "yellow": (0.9, 0.8, 0.1), "purple": (0.7, 0.1, 0.8), "cyan": (0.1, 0.75, 0.8)}
SHAPES = ("circle", "square", "triangle", "cross", "ring", "bar")
PLACES = ("top", "middle", "bottom"), ("left", "centre", "right")
WORDS = [*COLOURS, *SHAPES, *PLACES[0], *PLACES[1]]
GROUPS = [slice(0, 6), slice(6, 12), slice(12, 15), slice(15, 18)]  # colour, shape, row, column: each guessed among its own
HELD_OUT = {(i, (i + 2) % 6) for i in range(6)}  # pairs of colour and shape that training never shows
SEEN = [(c, s) for c in range(6) for s in range(6) if (c, s) not in HELD_OUT]


def outline(shape):
    """A shape as [PIXELS PIXELS] of 0 and 1."""
    y, x = np.mgrid[:PIXELS, :PIXELS] - (PIXELS - 1) / 2
    far = np.hypot(x, y)
    return {"circle": far < 2.8, "square": np.maximum(abs(x), abs(y)) < 2.4, "triangle": (y < 2.6) & (abs(x) < (y + 3) / 2), "cross": np.minimum(abs(x), abs(y)) < 1,
            "ring": (far > 1.8) & (far < 3.3), "bar": abs(y) < 1.1}[shape].astype(np.float32)


def scenes(count, pairs, rng, noise=0.05):
    """Pictures [count 49 192] whose colours vary by `noise`, phrases [count 3 4] of words, and where each thing lies [count 3]."""
    patches = rng.normal(0, 0.05, (count, SIDE * SIDE, PIXELS, PIXELS, 3)).astype(np.float32)
    phrases, places = np.zeros((count, 3, 4), np.int64), np.zeros((count, 3), np.int64)
    shades, outlines = np.array(list(COLOURS.values()), np.float32), [outline(s) for s in SHAPES]
    for n in range(count):
        places[n] = rng.permutation(SIDE * SIDE)[:3]
        chosen = []
        for c, s in (pairs[i] for i in rng.permutation(len(pairs))):  # no colour and no shape twice
            if len(chosen) < 3 and all(c != a and s != b for a, b in chosen):
                chosen.append((c, s))
        for m, (c, s) in enumerate(chosen):
            row, column = divmod(int(places[n, m]), SIDE)
            drawn = np.roll(outlines[s], rng.integers(-1, 2, 2), (0, 1))[..., None]
            patches[n, places[n, m]] = patches[n, places[n, m]] * (1 - drawn) + drawn * (shades[c] * rng.uniform(0.6, 1.4) + rng.normal(0, noise, 3))
            phrases[n, m] = c, 6 + s, 12 + row * 3 // SIDE, 15 + column * 3 // SIDE
    return patches.reshape(count, SIDE * SIDE, -1), phrases, places


class Finder:
    """Patches, each by itself, through a block; then cross-attention from words to patches; then a guess at the other words."""

    def __init__(self, seed=0):
        rng = np.random.default_rng(seed)
        self.block = hw.Block("mha:heads=2", WIDTH, 2 * WIDTH, feed="gelu", seed=seed)
        self.find = hw.MultiHead("mha:heads=2", WIDTH, seed=seed + 1)
        draw = lambda *sizes: rng.normal(0, sizes[0] ** -0.5, sizes).astype(np.float32)
        self.own = {"patch": draw(PIXELS * PIXELS * 3, WIDTH), "place": 0.1 * draw(SIDE * SIDE, WIDTH), "word": draw(len(WORDS), WIDTH), "out": draw(WIDTH, len(WORDS))}
        self.adam = Adam()

    def parameters(self):
        return self.own | {f"block.{k}": v for k, v in self.block.parameters().items()} | {f"find.{k}": v for k, v in self.find.parameters().items()}

    def look(self, patches, words, weights=False):
        """Logits [batch words 18], and where asked the weights [batch heads words 49]. Each patch sees itself alone."""
        x = self.block((patches @ self.own["patch"] + self.own["place"]).astype(np.float32), mask=hw.Mask.sliding(1))
        y = self.find(self.own["word"][words], x, weights=weights)
        y, seen = y if weights else (y, None)
        return y @ self.own["out"], seen

    def learn(self, patches, phrases, rate):
        """One step on the words of colour and of shape; the loss is the mean cross entropy of the other three words."""
        words = phrases[:, :, :2].reshape(len(phrases), -1)
        x = self.block.forward((patches @ self.own["patch"] + self.own["place"]).astype(np.float32), mask=hw.Mask.sliding(1))
        y = self.find.forward(np.ascontiguousarray(self.own["word"][words]), x)
        logits, slope, loss = y @ self.own["out"], np.zeros(y.shape[:2] + (len(WORDS),), np.float32), 0.0
        wanted = np.repeat(phrases, 2, axis=1)  # the phrase of each word
        for kind, group in enumerate(GROUPS):
            asked = np.ones(words.shape, bool) if kind > 1 else words // 6 != kind  # not its own kind
            p = np.exp(logits[..., group] - logits[..., group].max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            right = wanted[..., kind] - group.start
            loss -= np.log(np.take_along_axis(p, right[..., None], -1)[..., 0][asked] + 1e-9).mean()
            p[np.arange(len(p))[:, None], np.arange(p.shape[1]), right] -= 1
            slope[..., group] = p * asked[..., None] / asked.sum()
        gradients = {"out": np.einsum("bwd,bwv->dv", y, slope)}
        self.block.zero_gradients(), self.find.zero_gradients()
        dwords, dx = self.find.backward((slope @ self.own["out"].T).astype(np.float32))
        dpatches = self.block.backward(dx)
        gradients["word"] = np.zeros_like(self.own["word"])
        np.add.at(gradients["word"], words, dwords)
        gradients["patch"], gradients["place"] = np.einsum("bpi,bpd->id", patches, dpatches), dpatches.sum(0)
        gradients |= {f"block.{k}": v for k, v in self.block.gradients().items()} | {f"find.{k}": v for k, v in self.find.gradients().items()}
        self.adam.step(self.parameters(), gradients, rate)
        return loss


def pointing(model, pairs, count, seed):
    """Share of words whose heads' heaviest patch is the one with their thing: [heads colour-or-shape], and of the heads' mean."""
    patches, phrases, places = scenes(count, pairs, np.random.default_rng(seed))
    _, seen = model.look(patches, phrases[:, :, :2].reshape(count, -1), weights=True)
    right = lambda w: (w.argmax(-1).reshape(count, 3, 2) == places[..., None]).mean((0, 1))
    return np.array([right(seen[:, h]) for h in range(seen.shape[1])]), right(seen.mean(1))


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--steps", type=int, default=1000)
    args.add_argument("--seed", type=int, default=0)
    args.add_argument("--page", help="write a scene with its caption's weights as a page of the viewer")
    o = args.parse_args()
    rng, model, begun = np.random.default_rng(o.seed), Finder(o.seed), time.monotonic()
    for step in range(o.steps):
        patches, phrases, _ = scenes(32, SEEN, rng, noise=0.08)  # more than in the scenes that are judged
        loss = model.learn(patches, phrases, 3e-3 * min(1, (step + 1) / 50) * (1 - step / o.steps) ** 0.5)
        if step % 250 == 249:
            print(f"step {step + 1}: loss {loss:.3f}, {time.monotonic() - begun:.0f} s")
    held = sorted(HELD_OUT)
    chosen = pointing(model, SEEN, 200, 7)[0].argmax(0)  # of each kind of word the head that points best on pairs that were seen
    heads, mean = pointing(model, held, 500, 8)
    best = heads[chosen, [0, 1]]
    print(f"pointing on held-out pairs: colour words {best[0]:.1%} (head {chosen[0]}), shape words {best[1]:.1%} (head {chosen[1]}); mean of heads {mean[0]:.1%}, {mean[1]:.1%}; chance {1 / SIDE**2:.1%}")
    if o.page:
        patches, phrases, places = scenes(1, held, np.random.default_rng(11))
        words = phrases[0, :, :2].ravel()
        _, seen = model.look(patches, words[None], weights=True)
        names = [f"{i // SIDE},{i % SIDE}" for i in range(SIDE * SIDE)]
        for m in range(3):
            names[places[0, m]] += f" {WORDS[phrases[0, m, 0]]} {WORDS[phrases[0, m, 1]]}"
        hw.view(cross_attention=[seen[0]], decoder_tokens=[WORDS[w] for w in words], encoder_tokens=names, name="words and patches").save(o.page)
    return float(best.min())


if __name__ == "__main__":
    main()
