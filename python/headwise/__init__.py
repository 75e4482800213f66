"""headwise: multi-head attention in which the head is the unit.

NumPy arrays and torch tensors go in, the same kind comes out, nothing is copied on the CPU.
"""
# SPDX-License-Identifier: Apache-2.0

import importlib
from typing import TYPE_CHECKING, Any

from . import _main  # noqa: F401  before the module is loaded
from ._core import (  # noqa: I001
    Block,
    Context,
    Layer,
    LongMap,
    Mask,
    MultiHead,
    PackedKeys,
    PackedWeight,
    RopeScaling,
    Stack,
    TextEncoder,
    Transformer,
    __version__,
    append_keys,
    attention,
    attention_backward,
    binary_cross_entropy,
    cross_entropy,
    cuda_devices,
    explain,
    get_threads,
    head_info,
    l2_norm,
    linear,
    pack_keys,
    quantize_kv,
    rms_norm,
    rope,
    set_threads,
    suggest_heads,
    unpack_keys,
)
from . import _core, distributed
from ._types import T5, AttentionGradients, AttentionResult, Pages, Probe, ProbeResult, Scores, end

if TYPE_CHECKING:
    from . import flash_attn as flash_attn  # no names of `import *` and dir: their guests may not be installed
    from . import jax as jax
    from . import lab, onnx
    from . import torch as torch
    from . import transformers as transformers
    from ._align import Aligned, align
    from ._decoder import Decoder, Generation, HeadStats, Piece, TokenLogprob
    from ._heads import Head
    from ._recognizer import Recognizer
    from ._view import View, view, write_atnv

__all__ = [
    "Aligned",
    "AttentionGradients",
    "AttentionResult",
    "Block",
    "Context",
    "Decoder",
    "Generation",
    "Head",
    "HeadStats",
    "Layer",
    "LongMap",
    "Mask",
    "MultiHead",
    "PackedKeys",
    "PackedWeight",
    "Pages",
    "Piece",
    "Probe",
    "ProbeResult",
    "Recognizer",
    "RopeScaling",
    "Scores",
    "Stack",
    "T5",
    "TextEncoder",
    "TokenLogprob",
    "Transformer",
    "View",
    "__version__",
    "align",
    "append_keys",
    "attention",
    "attention_backward",
    "binary_cross_entropy",
    "cross_entropy",
    "cuda_devices",
    "distributed",
    "end",
    "explain",
    "get_threads",
    "head_info",
    "l2_norm",
    "lab",
    "linear",
    "onnx",
    "pack_keys",
    "quantize_kv",
    "rms_norm",
    "rope",
    "set_threads",
    "suggest_heads",
    "unpack_keys",
    "view",
    "write_atnv",
]

# Every head of headwise/heads: hw.Mha, hw.Gqa, ...
_HEADS = frozenset(name.capitalize() for name, *_ in _core.head_fields())
__all__ += sorted(_HEADS)

# What is imported when it is first used: torch and other guests may be slow or missing, and making records
# takes time.
_MODULES = frozenset(("flash_attn", "jax", "lab", "onnx", "torch", "transformers"))
_PLACES = {
    name: module
    for module, names in {
        "_align": "Aligned align",
        "_decoder": "Decoder Generation HeadStats Piece TokenLogprob",
        "_heads": "Head",
        "_recognizer": "Recognizer",
        "_view": "View view write_atnv",
    }.items()
    for name in names.split()
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f".{name}", __name__)
    if name in _PLACES:
        found = getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)
    elif name in _HEADS:
        found = importlib.import_module("._heads", __name__).head_type(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
