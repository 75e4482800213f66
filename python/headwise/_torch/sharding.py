"""Rules by which DTensor splits attention: by batch, by heads, or not at all."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import functools
import re
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._op_schema import OpSchema, OpSpec, OpStrategy, RuntimeSchemaInfo
from torch.distributed.tensor._ops.utils import expand_to_full_mesh_op_strategy

from .ops import _HEADS_FIRST, NAMES

_QKV = ("q", "k", "v")
_OWN = ("dout", "out", "lse")  # of the backward
_OF_PLACES = {"all", "causal", "window", "sliding", "prefix", "strided", "global_tokens"}  # other masks count texts or heads


def _ways(given: dict[str, Any], ranks: int) -> list[dict[str, Any]]:
    """Where each tensor may be cut, its gradient too (dq, dk, dv); what is not named is whole."""
    found: list[dict[str, Any]] = [{}]
    tensors = {name for name, x in given.items() if isinstance(x, OpStrategy)}
    if not tensors <= {*_QKV, *_OWN} or given["head"] is not None or given["dropout"]:
        return found  # other tensors, and draws, go by the numbers of whole heads and texts
    q, k = given["q"].shape, given["k"].shape
    axis = len(q) - (3 if given["layout"] in _HEADS_FIRST else 2)
    if len(q) == 4 and given["q_offsets"] is None and given["kv_offsets"] is None and len(given["q_start"]) < 2:
        batch = Shard(1 if given["layout"] == "sbhd" else 0)
        found.append(dict.fromkeys(("q", "k", "v", "dq", "dk", "dv", "dout", "out"), batch) | {"lse": Shard(0)})
    if q[axis] % ranks or given["alibi"]:
        return found
    heads, lse = Shard(axis), Shard(len(q) - 3)
    rows = dict.fromkeys(("q", "dq", "dout", "out"), heads) | {"lse": lse}
    if k[axis] % ranks == 0:
        found.append(rows | dict.fromkeys(("k", "v", "dk", "dv"), heads))
    elif k[axis] == 1:  # all heads read it; each rank's make a part of its gradient
        found.append(rows | dict.fromkeys(("dk", "dv"), Partial()))
    return found


def _strategy(schema: OpSchema, backward: bool) -> OpStrategy:
    given = dict(zip((x.name for x in schema.op._schema.arguments), schema.args_schema)) | schema.kwargs_schema
    mesh = schema.get_mesh_from_args()
    tensors = [name for name in ((*_OWN, *NAMES) if backward else NAMES) if isinstance(given[name], OpStrategy)]
    if backward:
        made = ["d" + word for word in given["wants"]]
    else:
        made = ["out", "lse" if given["lse"] else "nothing"]
    ways = [[way.get(name, Replicate()) for name in (*made, *tensors)] for way in _ways(given, mesh.size())]
    found = expand_to_full_mesh_op_strategy(mesh, schema, ways, input_index=len(made))
    for spec in found.strategies:
        _as_tuple(spec)
    return found


def _as_tuple(spec: OpSpec) -> None:
    if not isinstance(spec.output_specs, tuple):
        spec.output_specs = (spec.output_specs,)


def fitted(mask: Any, *tensors: Any) -> tuple[Any, ...]:
    """Tensors as the mask needs them: whole, where it counts texts or heads."""
    if set(re.findall("[a-z_]+", str(mask or "all"))) <= _OF_PLACES:
        return tensors
    return tuple(x.redistribute(placements=[Replicate()] * x.device_mesh.ndim) if isinstance(x, DTensor) else x for x in tensors)


@functools.cache
def register() -> None:
    """Tells DTensor the rules, once. It keeps what they said by the arguments behind the mask, which no rule reads."""
    told = DTensor._op_dispatcher.sharding_propagator
    behind = NAMES.index("mask") + 1
    for op, backward in ((torch.ops.headwise.attention.default, False), (torch.ops.headwise.attention_backward.default, True)):
        seen = RuntimeSchemaInfo(behind + len(_OWN) * backward, needs_pytree=True)
        told.register_op_strategy(op, functools.partial(_strategy, backward=backward), seen)
