"""Heads over ranks inside torch: the plan by which parallelize_module cuts an attention module."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from .._core import head_info

# Names of W_Q, W_K, W_V and W_O, as modules have them.
NAMES = (("q_proj", "k_proj", "v_proj", "o_proj"), ("q_proj", "k_proj", "v_proj", "out_proj"), ("q", "k", "v", "o"),
         ("q", "k", "v", "out"), ("query", "key", "value", "out"))
# Heads whose parameters beside W_Q, W_K, W_V, W_O are none: cut by heads they are whole heads.
PLAIN = ("mha", "gqa")


class _SumBack(torch.autograd.Function):
    """What it is given, forward; backward, the sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Tensor, None]:
        total = dx.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class KvCopies(ParallelStyle):
    """W_K or W_V with fewer heads than ranks: whole on every rank, which reads the kv head of its queries. Its gradients
    are summed over the ranks."""

    def __init__(self, kv_heads: int) -> None:
        super().__init__()
        self.kv_heads = kv_heads

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group = device_mesh.get_group()
        own = device_mesh.get_local_rank() * self.kv_heads // device_mesh.size()

        def total(gradient: Tensor) -> Tensor:
            gradient = gradient.contiguous().clone()
            dist.all_reduce(gradient, group=group)
            return gradient

        def columns(_module: nn.Module, _inputs: Any, out: Tensor) -> Tensor:
            width = out.shape[-1] // self.kv_heads
            return out[..., own * width : (own + 1) * width]

        for parameter in module.parameters():
            parameter.register_hook(total)
        module.register_forward_pre_hook(lambda _module, inputs: (_SumBack.apply(inputs[0], group), *inputs[1:]))
        module.register_forward_hook(columns)
        return module


def _count(module: nn.Module, given: int | None, *words: str) -> int | None:
    for holder in (module, getattr(module, "config", None)):
        for word in words:
            if given is None and isinstance(getattr(holder, word, None), int):
                given = getattr(holder, word)
    return given


def head_plan(
    module: nn.Module, mesh: DeviceMesh, *, heads: int | None = None, kv_heads: int | None = None, head: str = "gqa"
) -> dict[str, ParallelStyle]:
    """The plan that cuts an attention module over the ranks of a mesh of one axis: parallelize_module(module, mesh, plan).

    W_Q, W_K and W_V are cut by heads without gathering, W_O reads what is cut. kv_heads below the ranks: each kv head
    lies on several ranks. Heads that cannot be cut are refused.
    """
    if head.split(":")[0] not in PLAIN or "+" in head:
        head_info(head, 64)  # an unknown head is refused by its name
        raise NotImplementedError(
            f"head_plan: {head} shares or mixes what its heads have; torch cuts {' and '.join(PLAIN)} over ranks alone, "
            "cut the data instead"
        )
    names = next((n for n in NAMES if all(isinstance(getattr(module, x, None), nn.Linear) for x in n)), None)
    if names is None:
        raise ValueError(
            f"head_plan: {type(module).__name__} has no linear maps named as {', '.join(NAMES[0])} are; give the module "
            "that holds W_Q, W_K, W_V and W_O"
        )
    heads = _count(module, heads, "num_heads", "num_attention_heads")
    if heads is None:
        raise ValueError(f"head_plan: {type(module).__name__} does not say how many heads it has; give heads")
    kv_heads = _count(module, kv_heads, "num_key_value_heads", "num_kv_heads") or heads
    ranks = mesh.size()
    if mesh.ndim != 1:
        raise ValueError(f"head_plan: the mesh has {mesh.ndim} axes; give the one that heads are cut over, as mesh['tp']")
    if heads % ranks:
        raise ValueError(f"head_plan: {heads} heads cannot be cut over {ranks} ranks; take a number that divides them")
    if kv_heads % ranks and ranks % kv_heads:
        raise ValueError(f"head_plan: {kv_heads} kv_heads cannot be cut over {ranks} ranks; take a number of ranks that "
                         "divides them or is a multiple")
    q, k, v, out = names
    side: Any = ColwiseParallel() if kv_heads % ranks == 0 else None
    return {
        q: ColwiseParallel(),
        k: side or KvCopies(kv_heads),
        v: ColwiseParallel() if side else KvCopies(kv_heads),
        out: RowwiseParallel(),
    }
