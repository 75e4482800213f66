"""Attention recorded by torch's own gradient node: aten's overridable attention op, with headwise's kernels behind it.

An autograd function in Python takes longer than a small attention. The op is one that torch leaves to others on CPU and
CUDA; torch records it in C++, keeps what its gradient needs and calls headwise for both."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import _core

_OP = "_scaled_dot_product_fused_attention_overrideable"
_ARGUMENTS = (
    "query key value attn_bias dropout_p is_causal return_debug_mask scale",
    "grad_out query key value attn_bias grad_input_mask out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p is_causal "
    "philox_seed philox_offset scale",
)
_RETURNS = (9, 4)
_MOST = 256  # kinds of calls; the next go through Python
_KINDS: dict[str, tuple[type, ...]] = {  # words that are the same in every call of a kind
    "layout": (str,),
    "scale": (float, int),
    "softcap": (float, int),
    "kernels": (str,),
    "alibi": (bool,),
    "q_start": (int,),
}
native: Any = _core  # its names with an underscore are in no stub
_places: dict[Any, float] = {}
_library: Any = None  # registrations last as long as this


def _open() -> Any:
    """The op, or None where this torch has none like it."""
    global _library
    if not hasattr(Tensor, "__dlpack_c_exchange_api__"):
        return None
    try:
        ops = [getattr(torch.ops.aten, name).default for name in (_OP, f"{_OP}_backward")]
        for op, arguments, returns in zip(ops, _ARGUMENTS, _RETURNS):
            if " ".join(a.name for a in op._schema.arguments) != arguments or len(op._schema.returns) != returns:
                return None
        taken = [torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_OP}", key) for key in ("CPU", "CUDA")]
        if any(taken):
            return None
        _library = torch.library.Library("aten", "IMPL")
        for key in ("CPU", "CUDA"):
            _library.impl(_OP, native._node_forward, key)
            _library.impl(f"{_OP}_backward", native._node_backward, key)
            _library.impl(f"{_OP}_backward", native._node_backward, f"Autograd{key}")
        native._node_open(ops[0]._op, torch.empty(0))
        return ops[0]._op
    except (AttributeError, RuntimeError):
        return None


_op = _open()
_transformed = getattr(torch._C, "_are_functorch_transforms_active", lambda: True)
_forward_ad: Any = torch.autograd.forward_ad


def place_of(mask: Any, words: dict[str, Any]) -> float | None:
    """What the op is told of this call beside its tensors; None: it cannot be told."""
    if _op is None or _transformed() or getattr(_forward_ad, "_current_level", 0) >= 0:
        return None
    for word, x in words.items():
        if type(x) not in _KINDS.get(word, ()) and not (word == "bias" and type(x) is Tensor):
            return None
    plain = {word: x for word, x in words.items() if word != "bias"}
    key = (mask, *plain.items())
    found = _places.get(key)
    if found is None and len(_places) < _MOST and (made := native._node_words(mask, plain)):
        found = _places[key] = made
    return found


def attend(q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None, place: float) -> tuple[Tensor, Tensor]:
    """out and lse of a call that `place_of` knows."""
    result = _op(q, k, v, bias, place)
    return result[0], result[1]
