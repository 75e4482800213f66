"""The few array functions that hw.onnx needs, for NumPy and for torch."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _core


class Arrays:
    """NumPy's."""

    attend: Any = staticmethod(_core.attention)
    sqrt: Any = staticmethod(np.sqrt)

    def join(self, parts: Sequence[Any], axis: int) -> Any:
        return np.concatenate(parts, axis)

    def pad_last(self, x: Any, count: int, value: Any) -> Any:
        return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count)], constant_values=value)

    def spread(self, x: Any, shape: tuple[int, ...]) -> Any:
        return np.broadcast_to(x, shape)

    def is_bool(self, x: Any) -> bool:
        return bool(x.dtype == np.bool_)

    def is_double(self, x: Any) -> bool:
        return bool(x.dtype == np.float64)

    def same_dtype(self, x: Any, like: Any) -> bool:
        return bool(x.dtype == like.dtype)

    def cast(self, x: Any, dtype: Any) -> Any:
        return x.astype(dtype, copy=False)

    def cast_like(self, x: Any, like: Any) -> Any:
        return x.astype(like.dtype)

    def double(self, x: Any) -> Any:
        return x.astype(np.float64)

    def plain(self, x: Any) -> Any:
        return x

    def stash(self, x: Any, kind: int) -> Any:
        """The type in which the standard asks for mean and deviation: 1 is float, 11 double, others are as X."""
        wide = {1: np.float32, 11: np.float64}.get(kind)
        return x if wide is None or x.dtype == np.float64 else x.astype(wide)


class TorchArrays(Arrays):
    def __init__(self) -> None:
        import torch

        from ..torch import attention

        self.torch: Any = torch
        self.attend, self.sqrt = attention, torch.sqrt

    def join(self, parts: Sequence[Any], axis: int) -> Any:
        return self.torch.cat(list(parts), axis)

    def pad_last(self, x: Any, count: int, value: Any) -> Any:
        return self.torch.nn.functional.pad(x, (0, count), value=value)

    def spread(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.expand(shape)

    def is_bool(self, x: Any) -> bool:
        return bool(x.dtype == self.torch.bool)

    def is_double(self, x: Any) -> bool:
        return bool(x.dtype == self.torch.float64)

    def cast(self, x: Any, dtype: Any) -> Any:
        return x.to(dtype)

    def cast_like(self, x: Any, like: Any) -> Any:
        return x.to(like.dtype)

    def double(self, x: Any) -> Any:
        return x.double()

    def plain(self, x: Any) -> Any:
        return x.detach()

    def stash(self, x: Any, kind: int) -> Any:
        wide = {1: self.torch.float32, 11: self.torch.float64}.get(kind)
        return x if wide is None or x.dtype == self.torch.float64 else x.to(wide)


_NUMPY = Arrays()


def arrays_of(x: Any) -> Arrays:
    """By the type of an array; torch is imported where somebody brings a tensor."""
    if isinstance(x, np.ndarray):
        return _NUMPY
    if type(x).__module__.partition(".")[0] == "torch":
        return TorchArrays()
    raise TypeError(f"onnx: got a {type(x).__name__}; give NumPy arrays or torch tensors")
