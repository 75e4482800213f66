"""A small vision transformer on scikit-learn's 1,797 digits of 8 x 8 pixels: plain heads against overlapped ones (MOHSA).

A picture is 16 patches of 2 x 2 pixels. They go through four blocks; their mean is the picture's vector. Every kind of head
gets the same splits, seeds and steps. One third of the pictures is judged and never seen in training.

    python examples/digits.py --seeds 5 --out digits.json --page digits.html
"""
# SPDX-License-Identifier: Apache-2.0

import argparse
import json
import time

import numpy as np

import headwise as hw
from adam import Adam

SIDE, WIDTH, DEPTH = 4, 48, 4
KINDS = {"plain": "mha:heads=4,dim=12", "overlapped, rim 1": "overlapped:heads=4,dim=12,schedule=constant,rim=1",
         "overlapped, rim = layer": "overlapped:heads=4,dim=12,schedule=layer", "plain, wider": "mha:heads=4,dim=13"}


def digits(seed):
    """Patches [pictures 16 4] from -1 to 1 and classes, of two thirds for training and of one third to judge."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise SystemExit("digits: scikit-learn is not installed, and the pictures come with it; pip install scikit-learn") from None
    data = load_digits()
    x = (data.images / 8 - 1).astype(np.float32).reshape(-1, SIDE, 2, SIDE, 2).transpose(0, 1, 3, 2, 4).reshape(-1, SIDE * SIDE, 4)
    order = np.random.default_rng(seed).permutation(len(x))
    cut = 2 * len(x) // 3
    return (x[order[:cut]], data.target[order[:cut]]), (x[order[cut:]], data.target[order[cut:]])


class Reader:
    """Patches to columns, a stack of blocks, the mean over patches, a class."""

    def __init__(self, heads, seed):
        rng = np.random.default_rng(seed)
        draw = lambda *sizes: rng.normal(0, sizes[0] ** -0.5, sizes).astype(np.float32)
        self.stack = hw.Stack(heads, WIDTH, 2 * WIDTH, DEPTH, feed="gelu", dropout=0.1, seed=seed)
        self.own = {"patch": draw(4, WIDTH), "place": draw(SIDE * SIDE, WIDTH), "out": draw(WIDTH, 10), "bias": np.zeros(10, np.float32)}
        self.adam = Adam()

    def parameters(self):
        return self.own | {f"stack.{k}": v for k, v in self.stack.parameters().items()}

    def logits(self, x):
        return self.stack(x @ self.own["patch"] + self.own["place"]).mean(1) @ self.own["out"] + self.own["bias"]

    def learn(self, x, classes, rate):
        """One step; the mean cross entropy before it."""
        h = self.stack.forward(x @ self.own["patch"] + self.own["place"], training=True, seed=1, step=self.adam.steps)
        pooled = h.mean(1)
        z = pooled @ self.own["out"] + self.own["bias"]
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        loss = -np.log(p[np.arange(len(p)), classes] + 1e-9).mean()
        p[np.arange(len(p)), classes] -= 1
        p /= len(p)
        self.stack.zero_gradients()
        dh = np.repeat((p @ self.own["out"].T / h.shape[1])[:, None], h.shape[1], 1).astype(np.float32)
        dx = self.stack.backward(dh)
        gradients = {"out": pooled.T @ p, "bias": p.sum(0), "patch": np.einsum("bpi,bpd->id", x, dx), "place": dx.sum(0)}
        self.adam.step(self.parameters(), gradients | {f"stack.{k}": v for k, v in self.stack.gradients().items()}, rate)
        return float(loss)


def train(heads, seed, epochs, batch=64):
    """The accuracy on the pictures to judge after the last epoch, the number of parameters, and the model."""
    (x, y), (x_judge, y_judge) = digits(seed)
    model, rng = Reader(heads, seed), np.random.default_rng(seed)
    steps = epochs * (len(x) // batch)
    for step in range(steps):
        if step % (len(x) // batch) == 0:
            order = rng.permutation(len(x))
        part = order[step % (len(x) // batch) * batch:][:batch]
        model.learn(x[part], y[part], 3e-3 * min(1, (step + 1) / 50) * (1 + np.cos(np.pi * step / steps)) / 2)
    right = model.logits(x_judge).argmax(1) == y_judge
    return float(right.mean()), sum(v.size for v in model.parameters().values()), model


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--seeds", type=int, default=5)
    args.add_argument("--epochs", type=int, default=40)
    args.add_argument("--out", help="write the accuracies as JSON")
    args.add_argument("--page", help="write the heads of one digit as a page of the viewer")
    o = args.parse_args()
    table = {}
    for name, heads in KINDS.items():
        begun = time.monotonic()
        seen, sizes, models = zip(*(train(heads, seed, o.epochs) for seed in range(o.seeds)))
        table[name] = {"heads": heads, "parameters": sizes[0], "accuracy": [round(a, 4) for a in seen]}
        print(f"{name}: {100 * np.mean(seen):.2f} % (least {100 * min(seen):.2f}, most {100 * max(seen):.2f}), "
              f"{sizes[0]:,} parameters, {(time.monotonic() - begun) / o.seeds:.0f} s a seed", flush=True)
        if o.page and name == "plain":
            show(models[0], o.page)
    if o.out:
        with open(o.out, "w") as file:
            json.dump({"epochs": o.epochs, "kinds": table}, file, indent=1)
            file.write("\n")
    return table


def show(model, page):
    """Who looks at whom among the patches of the first judged digit: the plain model's layers, one after the other."""
    x = digits(0)[1][0][:1] @ model.own["patch"] + model.own["place"]
    block, attention = hw.Block(KINDS["plain"], WIDTH, 2 * WIDTH, feed="gelu"), hw.MultiHead(KINDS["plain"], WIDTH)
    seen, weights = [], model.stack.parameters()
    for layer in range(DEPTH):
        for part, prefix in ((block, "block."), (attention, "")):
            for name, value in part.parameters().items():
                value[...] = weights[f"stack.layers.{layer}." + name.removeprefix(prefix)]
        scale, shift = (weights[f"stack.layers.{layer}.norm1.{k}"] for k in ("weight", "bias"))
        normed = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * scale + shift
        seen.append(attention(normed.astype(np.float32), weights=True)[1][0])
        x = block(x)
    hw.view(attention=seen, tokens=[f"{i // SIDE},{i % SIDE}" for i in range(SIDE * SIDE)], name="patches of a digit").save(page)


if __name__ == "__main__":
    main()
