"""headwise: multi-head attention in which the head is the unit.

NumPy arrays and torch tensors go in, the same kind comes out, nothing is copied on the CPU.
"""
# SPDX-License-Identifier: Apache-2.0

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
from . import distributed, lab
from ._align import Aligned, align
from ._decoder import Decoder, Generation, HeadStats, Piece, TokenLogprob
from ._heads import TYPES as _HEADS
from ._heads import Head
from ._recognizer import Recognizer
from ._types import T5, AttentionGradients, AttentionResult, Pages, Probe, ProbeResult, Scores, end
from ._view import View, view, write_atnv

if TYPE_CHECKING:
    from . import flash_attn as flash_attn  # no names of `import *`: their guests may not be installed
    from . import jax as jax
    from . import onnx, torch
    from . import transformers as transformers

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
    "torch",
    "unpack_keys",
    "view",
    "write_atnv",
]

# Every head of headwise/heads: hw.Mha, hw.Gqa, ...
globals().update(_HEADS)
__all__ += list(_HEADS)


def __getattr__(name: str) -> Any:
    # torch is imported when hw.torch is first used, never before; the other guests likewise.
    if name in ("flash_attn", "jax", "onnx", "torch", "transformers"):
        import importlib

        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
