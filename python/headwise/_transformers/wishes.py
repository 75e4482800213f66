"""What a call of a model of transformers wants of its layers beside their outputs."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch

try:  # what gathers the outputs that a call asked for, where this version has it
    from transformers.utils import output_capturing as _capturing

    _collector: Any = _capturing._active_collector
except (ImportError, AttributeError):
    _collector = None

_fields_of = object.__getattribute__  # a configuration's own lookup takes longer than the rest of a small call
_is_compiling = torch.compiler.is_compiling


def recorded() -> Any:
    """Names of what is kept of the layers for the caller: hidden states, weights, router logits."""
    return (None if _collector is None or _is_compiling() else _collector.get()) or ()


def wants_weights(module: torch.nn.Module, words: dict[str, Any]) -> bool:
    if "output_attentions" in words:
        return bool(words["output_attentions"])
    config = module.__dict__.get("config")
    fields = {} if config is None else _fields_of(config, "__dict__")
    wish = fields.get("_output_attentions")
    if wish or (wish is None and getattr(config, "output_attentions", False)):
        return True
    # GPT-2 does not hand the wish to its layers.
    return any(name.endswith("attentions") for name in recorded())
