"""Families of transformers that do not ask which attention is wanted: their layers, with headwise inside."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch import Tensor, nn

from ..transformers import NAME, attention_forward
from .mask import Open

_BLOOM = "transformers.models.bloom.modeling_bloom"
_T5 = "transformers.models.t5.modeling_t5"


def exchange(model: Any, name: str) -> list[str]:
    """Lets the layers of a model that is of a family here attend through headwise; returns their names."""
    done = []
    for inner, module in model.named_modules():
        made = _made_for(type(module))
        if made is not None:
            module.__class__ = made
            done.append(inner)
    for outer, module in model.named_modules():  # T5's stacks have a configuration of their own
        if hasattr(module, "config") and any(inner.startswith(f"{outer}." if outer else "") for inner in done):
            module.config._attn_implementation_internal = NAME  # its masks come as values then
    return [f"{name}.{inner}" if name else inner for inner in done]


def _made_for(kind: type) -> Any:
    """Ours in the place of a family's class, or None."""
    made = _CLASSES.get(kind.__name__)
    return made() if made is not None and kind.__module__ in (_BLOOM, _T5) else None


def __getattr__(name: str) -> Any:
    if name in _CLASSES:  # by this name pickle finds the class
        return _CLASSES[name]()
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


@functools.cache
def t5_class() -> Any:
    """For versions whose T5 does not ask which attention is wanted, as 5.0.0."""
    theirs: Any = sys.modules.get(_T5) or __import__(_T5, fromlist=["T5Attention"])

    class T5Attention(theirs.T5Attention):  # type: ignore[misc]
        """transformers' layer with its parameters and answers; masks stay out of its position bias."""

        __module__, __qualname__ = __name__, "T5Attention"
        _headwise_of = theirs.T5Attention

        def forward(
            self, hidden_states: Tensor, mask: Any = None, key_value_states: Tensor | None = None,
            position_bias: Tensor | None = None, past_key_values: Any = None, query_length: Any = None,
            use_cache: bool = False, output_attentions: bool = False, cache_position: Any = None,
        ) -> tuple[Any, ...]:  # fmt: skip
            crossed, tokens = key_value_states is not None, hidden_states.shape[1]
            q = self._by_heads(self.q(hidden_states))
            k, v = self._keys(key_value_states if crossed else hidden_states, crossed, past_key_values, cache_position)
            if position_bias is None and self.has_relative_attention_bias:
                last = query_length if query_length is not None else cache_position[-1] + 1
                found = self.compute_bias(last, k.shape[2], device=q.device, cache_position=cache_position)
                position_bias = found[:, :, -tokens:]
            out, weights = attention_forward(
                self, q, k, v, mask, dropout=self.dropout if self.training else 0.0, scaling=1.0,
                is_causal=self.is_decoder and not crossed, position_bias=position_bias, output_attentions=output_attentions,
            )  # fmt: skip
            answer = (self.o(out.flatten(2)), position_bias)
            return (*answer, weights) if output_attentions else answer

        def _by_heads(self, x: Tensor) -> Tensor:
            return x.unflatten(2, (self.n_heads, self.key_value_proj_dim)).transpose(1, 2)

        def _keys(self, states: Tensor, crossed: bool, cache: Any, places: Any) -> tuple[Tensor, Tensor]:
            """Keys and values, those of the cache before them; another text's are computed once a generation."""
            both = isinstance(cache, theirs.EncoderDecoderCache)
            kept = (cache.cross_attention_cache if crossed else cache.self_attention_cache) if both else cache
            if crossed and both and cache.is_updated.get(self.layer_idx):
                return kept.layers[self.layer_idx].keys, kept.layers[self.layer_idx].values
            k, v = self._by_heads(self.k(states)), self._by_heads(self.v(states))
            if kept is not None:
                k, v = kept.update(k, v, self.layer_idx, {"cache_position": None if crossed else places})
                if crossed and both:
                    cache.is_updated[self.layer_idx] = True
            return k, v

    return T5Attention


_CLASSES = {"BloomAttention": bloom_class, "T5Attention": t5_class}
