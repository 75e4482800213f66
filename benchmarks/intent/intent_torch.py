"""A recogniser's model folder in torch: the same weights, the same sums; fused attention of torch's or materialised by hand."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import pathlib
import re

import numpy as np
import torch
from tokenizers import BertWordPieceTokenizer
from torch.nn import functional as F


def read_safetensors(path: pathlib.Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = {}
    for name, about in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in about["data_offsets"])
        values = np.frombuffer(data[begin:end], dtype={"F32": np.float32}[about["dtype"]])
        tensors[name] = torch.from_numpy(values.reshape(about["shape"]).copy())
    return tensors


class Recognizer:
    """mha or mha+gated heads, RMS norm first, SwiGLU, learned positions, attention pooling: what `headwise train` makes by default."""

    def __init__(self, folder: pathlib.Path, materialised: bool = False):
        self.config = json.loads((folder / "config.json").read_text())
        heads = re.fullmatch(r"mha:heads=(\d+)(\+gated:source=input,act=silu)?", self.config["heads"])
        wanted = {"feed": "swiglu", "positions": "learned", "norm": "rms", "norm_first": True, "final_norm": True,
                  "ngram_buckets": 0, "pooling": "attention", "share_layers": 1, "scaled_embedding": False}
        others = {k: self.config[k] for k, v in wanted.items() if self.config[k] != v}
        if not heads or others:
            raise SystemExit(f"{folder}: heads {self.config['heads']}, {others}: the torch side computes the default kind of model alone")
        self.heads, self.gated, self.materialised = int(heads[1]), bool(heads[2]), materialised
        self.weights = read_safetensors(folder / "model.safetensors")
        self.labels = (folder / "labels.txt").read_text(encoding="utf-8").splitlines()
        self.tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=self.config["lower_case"])

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weights[f"{name}.weight"], self.config["norm_eps"])

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.linear(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"])

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, closed: torch.Tensor | None) -> torch.Tensor:
        if not self.materialised:
            return F.scaled_dot_product_attention(q, k, v, None if closed is None else ~closed)
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        return torch.softmax(scores if closed is None else scores.masked_fill(closed, -torch.inf), -1) @ v

    @torch.no_grad()
    def logits(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """ids [texts tokens], padded with anything behind each length."""
        texts, tokens = ids.shape
        whole = bool((lengths == tokens).all())
        padding = None if whole else torch.arange(tokens)[None] >= lengths[:, None]
        closed = None if whole else padding[:, None, None]
        x = self.weights["embed.table"][ids] + self.weights["embed.positions"][:tokens]
        for layer in range(self.config["depth"]):
            at = f"stack.layers.{layer}"
            inner = self.norm(x, f"{at}.norm1")
            q, k, v = (self.linear(inner, f"{at}.attention.{n}").view(texts, tokens, self.heads, -1).transpose(1, 2) for n in "qkv")
            y = self.attend(q, k, v, closed).transpose(1, 2).reshape(texts, tokens, -1)
            if self.gated:
                y = y * F.silu(F.linear(inner, self.weights[f"{at}.attention.over1.gate"]))
            x = x + self.linear(y, f"{at}.attention.out")
            inner = self.norm(x, f"{at}.norm2")
            x = x + self.linear(F.silu(self.linear(inner, f"{at}.feed.gate")) * self.linear(inner, f"{at}.feed.in"), f"{at}.feed.out")
        x = self.norm(x, "stack.norm")
        scores = self.weights["pooling.query"] @ x.transpose(1, 2) * x.shape[-1] ** -0.5  # [texts queries tokens]
        shares = torch.softmax(scores if whole else scores.masked_fill(padding[:, None], -torch.inf), -1)
        return self.linear((shares @ x).reshape(texts, -1), "labels")

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.sigmoid() if self.config["multi_label"] else logits.softmax(-1)

    def predict(self, texts: list[str]) -> torch.Tensor:
        ids = [torch.tensor(e.ids[: self.config["chunk_tokens"]]) for e in self.tokenizer.encode_batch(texts)]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        return self.probabilities(self.logits(padded, torch.tensor([len(i) for i in ids])))
