"""torch.nn.MultiheadAttention on headwise's kernels, and the exchange of it inside of models."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._core import Mask
from .._types import Scores

_CAUSAL = Mask.causal()


class MultiheadAttention(nn.MultiheadAttention):
    """torch.nn.MultiheadAttention with its arguments, parameters and masks; what attends is hw.torch.attention.

    Weights (need_weights=True) carry no gradient and are those before dropout. Rows without an open key give zeros.
    """

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, key_padding_mask: Tensor | None = None, need_weights: bool = True,
        attn_mask: Tensor | None = None, average_attn_weights: bool = True, is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        if is_causal and attn_mask is None:
            raise ValueError("MultiheadAttention: is_causal says what attn_mask holds, and none was given; give both")
        alone = query.dim() == 2
        if alone:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        q, k, v = self._project(query, key, value)
        k, v = self._lengthen(k, v)
        mask, bias = self._read_masks(q, k, attn_mask, key_padding_mask, is_causal and not need_weights)
        terms: dict[str, Any] = {} if bias is None else {"bias": bias}
        if self.training and self.dropout > 0.0:
            terms.update(dropout=self.dropout, seed=int(torch.randint(2**62, ()).item()))
        weights = None
        if need_weights:
            found = attention(q, k, v, mask=mask, probe=Scores("weights"), **terms)
            out, weights = found.out, found.probe.scores.to(q.dtype)
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            out = attention(q, k, v, mask=mask, **terms)
        out = self.out_proj(out.flatten(2))
        if alone:
            return out.squeeze(0), None if weights is None else weights.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """[batch tokens heads dim] of each."""
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        if self._qkv_same_embed_dim and query is key is value:
            both = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            return tuple(both.unflatten(-1, (3, self.num_heads, self.head_dim)).unbind(2))
        weights = (
            self.in_proj_weight.chunk(3)
            if self._qkv_same_embed_dim
            else (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        )
        given = zip((query, key, value), weights, biases)
        return tuple(F.linear(x, w, b).unflatten(-1, (self.num_heads, self.head_dim)) for x, w, b in given)

    def _lengthen(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """The learned key and the key of zeros that stand behind all others."""
        size = (k.shape[0], 1, self.num_heads, self.head_dim)
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                torch.cat([x, extra.view(1, 1, *size[2:]).expand(size)], 1) for x, extra in ((k, self.bias_k), (v, self.bias_v))
            )
        if self.add_zero_attn:
            k, v = (torch.cat([x, x.new_zeros(size)], 1) for x in (k, v))
        return k, v

    def _read_masks(
        self, q: Tensor, k: Tensor, attn_mask: Tensor | None, padding: Tensor | None, causal: bool
    ) -> tuple[Mask | None, Tensor | None]:
        """torch's masks are true where a pair may not attend; floats are added."""
        batch, keys = q.shape[0], k.shape[1]
        terms = []
        mask = _CAUSAL if causal and q.shape[1] == keys else None
        if attn_mask is not None and mask is None:
            if attn_mask.dim() == 3:
                attn_mask = attn_mask.view(batch, self.num_heads, *attn_mask.shape[1:])
            attn_mask = _widen(attn_mask, keys)
            if attn_mask.dtype == torch.bool and not attn_mask.is_cuda and not torch.compiler.is_compiling() and not attn_mask.is_meta:
                mask = Mask.from_blocked(attn_mask)
            else:
                terms.append(_added(attn_mask, q.dtype))
        if padding is not None:
            if list(padding.shape) != [batch, keys - self._extra_keys()]:
                raise ValueError(
                    f"MultiheadAttention: key_padding_mask is {list(padding.shape)}; give "
                    f"[{batch}, {keys - self._extra_keys()}], a row for each text"
                )
            terms.append(_added(_widen(padding, keys), q.dtype)[:, None, None, :])
        return mask, None if not terms else terms[0] if len(terms) == 1 else terms[0] + terms[1]

    def _extra_keys(self) -> int:
        return int(self.bias_k is not None) + int(self.add_zero_attn)


def _widen(mask: Tensor, keys: int) -> Tensor:
    missing = keys - mask.shape[-1]
    return mask if missing <= 0 else F.pad(mask, (0, missing))


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype == torch.bool:
        return torch.zeros((), dtype=dtype, device=mask.device).masked_fill(mask, -torch.inf)
    return mask.to(dtype)


@dataclass
class Swapped:
    """What swap did: names of modules that attend through headwise now, and of those that do not, with the reason."""

    replaced: list[str] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"replaced: {name}" for name in self.replaced]
        return "\n".join(lines + [f"kept: {name}: {why}" for name, why in self.kept.items()])


def swap(model: nn.Module) -> Swapped:
    """Lets a model attend through headwise, in place: parameters, hooks and state dict stay, and it can be pickled.

    torch.nn.MultiheadAttention becomes hw.torch.MultiheadAttention; models of transformers get
    attn_implementation="headwise", or layers of ours where they do not ask for it; in other modules calls of torch's
    scaled_dot_product_attention are answered by hw.torch's. What computes attention by itself is left and named.
    """
    done = Swapped()
    guests: list[str] = []
    for name, module in [*model.named_modules()]:
        if _of_transformers(module) and not any(not outer or name.startswith(f"{outer}.") for outer in guests):
            guests.append(name)
            _swap_transformers(module, name, done)
        if name not in done.replaced:
            _swap_one(module, name or type(module).__name__, done)
    return done


def _swap_one(module: nn.Module, name: str, done: Swapped) -> None:
    kind = type(module)
    if kind is nn.MultiheadAttention:
        module.__class__ = MultiheadAttention
        done.replaced.append(name)
    elif isinstance(module, MultiheadAttention) or is_attending(module):
        done.kept[name] = "attends through headwise already"
    elif isinstance(module, nn.MultiheadAttention):
        done.kept[name] = f"{kind.__name__} has a forward of its own"
    elif isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0  # torch's own kernel would pass self_attn by in eval mode
    elif calls_sdpa(kind):
        if "forward" in vars(module):
            done.kept[name] = "its forward was set on the module; take that away first"
            return
        module.__class__ = attending_class(kind)
        done.replaced.append(name)
    elif has_own_scores(kind) and not _asks(module):
        done.kept[name] = f"{kind.__name__} takes a softmax by itself; give its q, k and v to hw.torch.attention there"


def _of_transformers(module: nn.Module) -> bool:
    guest = sys.modules.get("transformers")
    return guest is not None and isinstance(module, guest.PreTrainedModel)


def _asks(module: Any) -> bool:
    """A layer of transformers whose file asks which attention is wanted."""
    return hasattr(sys.modules.get(type(module).__module__), "ALL_ATTENTION_FUNCTIONS")


def _swap_transformers(module: Any, name: str, done: Swapped) -> None:
    import importlib

    families = importlib.import_module("headwise._transformers.families")
    if module._can_set_attn_implementation():
        if module.config._attn_implementation != "headwise":
            module.set_attn_implementation("headwise")
        done.replaced.append(name or type(module).__name__)
    else:
        done.replaced += families.exchange(module, name)
        done.kept[name or type(module).__name__] = f"{type(module).__name__} does not ask transformers which attention is wanted; its layers stand one by one"


from .calls import attending_class, calls_sdpa, has_own_scores, is_attending  # noqa: E402  they use what follows
from ..torch import attention  # noqa: E402  hw.torch names what stands here
