"""Families of transformers that do not ask which attention is wanted: their layers, with headwise inside."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor, nn

from ._transformers_mask import Open
from .transformers import NAME, attention_forward

_BLOOM = "transformers.models.bloom.modeling_bloom"


def exchange(model: Any, name: str) -> list[str]:
    """Lets the layers of a model that is of a family here attend through headwise; returns their names."""
    theirs = sys.modules.get(_BLOOM)
    done = []
    for inner, module in model.named_modules():
        if theirs is not None and type(module) is theirs.BloomAttention:
            module.__class__ = bloom_class()
            done.append(f"{name}.{inner}" if name else inner)
    if done:
        model.config._attn_implementation_internal = NAME  # its masks come as values then
    return done


def __getattr__(name: str) -> Any:
    if name == "BloomAttention":  # by this name pickle finds the class
        return bloom_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def bloom_class() -> Any:
    theirs: Any = sys.modules.get(_BLOOM) or __import__(_BLOOM, fromlist=["BloomAttention"])

    class BloomAttention(theirs.BloomAttention):  # type: ignore[misc]
        """transformers' layer with its parameters and answers; its scores are never written down."""

        __module__, __qualname__ = __name__, "BloomAttention"
        _headwise_of = theirs.BloomAttention

        def forward(
            self, hidden_states: Tensor, residual: Tensor, alibi: Tensor, attention_mask: Any, layer_past: Any = None,
            use_cache: bool = False, output_attentions: bool = False, **words: Any,
        ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
            q, k, v = self._reshape(self.query_key_value(hidden_states))
            if layer_past is not None:
                place = words.get("cache_position")
                k, v = layer_past.update(k, v, self.layer_idx, *(() if place is None else ({"cache_position": place},)))
            out, weights = attention_forward(
                self, q, k, v, attention_mask, dropout=self.attention_dropout.p if self.training else 0.0,
                scaling=self.inv_norm_factor, output_attentions=output_attentions, **_distances(attention_mask, alibi, k),
            )  # fmt: skip
            out = theirs.dropout_add(_project(self, out.flatten(2)), residual, self.hidden_dropout, self.training)
            return out, weights

    return BloomAttention


def _distances(mask: Any, alibi: Tensor, k: Tensor) -> dict[str, Any]:
    """ALiBi by slopes where positions are places of tokens; the model's own rows where padding stands between tokens."""
    if isinstance(mask, Open) and (mask.padding is None or mask.starts is not None):
        return {"alibi": True}
    return {"position_bias": alibi.view(k.shape[0], k.shape[1], 1, -1)[..., : k.shape[2]]}


def _project(layer: Any, x: Tensor) -> Tensor:
    if layer.pretraining_tp == 1 or not layer.slow_but_exact:
        return layer.dense(x)
    parts = zip(x.chunk(layer.pretraining_tp, 2), layer.dense.weight.chunk(layer.pretraining_tp, 1))
    return torch.stack([nn.functional.linear(a, w) for a, w in parts]).sum(0)
