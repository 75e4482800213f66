"""hw.torch.MultiHead and hw.torch.Block: layers as modules, with the numbers and the weights of hw.MultiHead and hw.Block."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import _core
from .._core import Mask
from .._heads import Head
from .ops import COEFFICIENTS

_FEEDS: dict[str, Any] = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "swiglu": F.silu}


class MultiHead(nn.Module):
    """Projections to queries, keys and values, a head's attention between them, and W_O, on the CPU or a CUDA device.

    Heads are those that attention computes alone: mha, gqa, talking, overlapped, entmax. Their weights and names are those
    of hw.MultiHead(...).torch_state(), so mha has the state dict of torch.nn.MultiheadAttention.
    """

    def __init__(
        self, heads: Head | str, model_dim: int, *, bias: bool = True, dropout: float = 0.0, rope: bool = False, seed: int = 0,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        text = heads if isinstance(heads, str) else heads.settings
        info = _core.head_info(text, model_dim)
        widths, beside = info["widths"], [n for n in info["parameters"] if n not in COEFFICIENTS]
        if beside or info["settings"].split(":")[0] not in _ALONE:
            raise ValueError(
                f"MultiHead: {text} computes beside attention, which no module does; give one of {', '.join(_ALONE)}, or take hw.MultiHead"
            )
        if rope and info["settings"].startswith("overlapped"):
            raise ValueError("MultiHead: heads of overlapped share columns, which rope cannot turn; leave out rope")
        self.settings, self.dropout, self.rope = info["settings"], dropout, rope
        self.widths, self.dim = (widths["q"], widths["k"], widths["v"]), _setting(info["settings"], "dim")
        self.value_dim = _setting(info["settings"], "value_dim") or self.dim
        like = _core.MultiHead(text, model_dim, bias=bias, seed=seed)
        made = {n: torch.from_numpy(x.copy()).to(device, dtype) for n, x in like.parameters().items()}

        def joined(kind: str) -> nn.Parameter:
            return nn.Parameter(torch.cat([made[f"attention.{part}.{kind}"] for part in "qkv"]))

        self.in_proj_weight = joined("weight")
        self.in_proj_bias = joined("bias") if bias else None
        self.out_proj = nn.Linear(widths["out"], model_dim, bias, device, dtype)
        with torch.no_grad():
            self.out_proj.weight.copy_(made["attention.out.weight"])
            if bias:
                self.out_proj.bias.copy_(made["attention.out.bias"])
        self.coefficients = [n for n in info["parameters"]]
        for name in self.coefficients:
            self.register_parameter(name, nn.Parameter(next(x for n, x in made.items() if n.endswith("." + name))))

    def extra_repr(self) -> str:
        return str(self.settings)

    def forward(self, x: Tensor, keys: Tensor | None = None, values: Tensor | None = None, mask: Mask | None = None) -> Tensor:
        """x [batch tokens model_dim]; keys and values default to x. rope turns where keys are not given."""
        if keys is None and values is not None:
            raise ValueError("MultiHead: values are given without keys; give both, or keys alone")
        turns = self.rope and keys is None
        keys = x if keys is None else keys
        values = keys if values is None else values
        q, k, v = self._project(x, keys, values)
        if turns:
            q, k = _turned(q), _turned(k)
        terms: dict[str, Any] = {}
        if self.training and self.dropout > 0.0:
            terms.update(dropout=self.dropout, seed=int(torch.randint(2**62, ()).item()))
        if "+" in self.settings or self.settings.split(":")[0] not in ("mha", "gqa"):
            terms.update(head=self.settings)
        if self.coefficients:
            terms.update(coefficients={name: getattr(self, name) for name in self.coefficients})
        return self.out_proj(attention(q, k, v, mask=mask, **terms).flatten(2))

    def _project(self, x: Tensor, keys: Tensor, values: Tensor) -> list[Tensor]:
        if x is keys and keys is values:
            rows = F.linear(x, self.in_proj_weight, self.in_proj_bias).split(self.widths, -1)
        else:
            weights = self.in_proj_weight.split(self.widths)
            biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.split(self.widths)
            rows = tuple(F.linear(r, w, b) for r, w, b in zip((x, keys, values), weights, biases))
        return [r.unflatten(-1, (-1, dim)) for r, dim in zip(rows, (self.dim, self.dim, self.value_dim))]


_ALONE = ("mha", "gqa", "talking", "overlapped", "entmax")


def _setting(settings: str, field: str) -> int:
    """A field of the first head of settings that are filled in; 0 where they leave it out."""
    found = re.search(rf"[:,]{field}=(\d+)", settings)
    return int(found[1]) if found else 0


def _turned(x: Tensor) -> Tensor:
    """Rotary embedding of the halves of each head, from position 0; in f32, or in f64 where x is."""
    half, kept = x.shape[-1] // 2, torch.promote_types(x.dtype, torch.float32)
    rates = 10000.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = torch.arange(x.shape[1], dtype=torch.float64, device=x.device)[:, None] * rates
    cos, sin = (f.to(kept)[:, None, :] for f in (angles.cos(), angles.sin()))
    a, b = x[..., :half].to(kept), x[..., half:].to(kept)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Block(nn.Module):
    """One layer of an encoder or a decoder: attention and a feed-forward, each with a norm and a residual.

    Weights, names and numbers are those of hw.Block(...).torch_state(); with mha and relu or gelu the state dict is that of
    torch.nn.TransformerEncoderLayer.
    """

    def __init__(
        self, heads: Head | str, model_dim: int, feed_dim: int, *, feed: str = "relu", norm: str = "layer",
        norm_first: bool = True, bias: bool = True, dropout: float = 0.0, attention_dropout: float = 0.0, eps: float = 1e-5,
        rope: bool = False, seed: int = 0, device: torch.device | str | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        if feed not in _FEEDS or norm not in ("layer", "rms"):
            raise ValueError(f"Block: feed is {feed!r} and norm {norm!r}; give one of {', '.join(_FEEDS)}, and layer or rms")
        where: dict[str, Any] = dict(device=device, dtype=dtype)
        self.feed_kind, self.norm_first, self.dropout = feed, norm_first, dropout
        self.self_attn = MultiHead(heads, model_dim, bias=bias, dropout=attention_dropout, rope=rope, seed=seed, **where)
        self.linear1 = nn.Linear(model_dim, feed_dim, bias, **where)
        self.linear2 = nn.Linear(feed_dim, model_dim, bias, **where)
        if feed == "swiglu":
            self.feed = nn.ModuleDict({"gate": nn.Linear(model_dim, feed_dim, bias, **where)})
        made = (lambda: nn.LayerNorm(model_dim, eps, bias=bias, **where)) if norm == "layer" else (lambda: nn.RMSNorm(model_dim, eps, **where))
        self.norm1, self.norm2 = made(), made()

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """x [batch tokens model_dim]."""
        if self.norm_first:
            x = x + self._drop(self.self_attn(self.norm1(x), mask=mask))
            return x + self._drop(self._fed(self.norm2(x)))
        x = self.norm1(x + self._drop(self.self_attn(x, mask=mask)))
        return self.norm2(x + self._drop(self._fed(x)))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training) if self.dropout > 0.0 else x

    def _fed(self, x: Tensor) -> Tensor:
        act = _FEEDS[self.feed_kind]
        inner = act(self.feed["gate"](x)) * self.linear1(x) if self.feed_kind == "swiglu" else act(self.linear1(x))
        return self.linear2(self._drop(inner))


from ..torch import attention  # noqa: E402  hw.torch names what stands here
