"""A graph of ONNX as its reader sees it: constants, who makes a value, matrix products, norms, and one run of the whole."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


def refuse(sentence: str) -> Any:
    raise ValueError(f"onnx.to_folder: {sentence}")


@dataclass(eq=False)
class Linear:
    """x W + b; `made` is what stands behind the bias."""

    given: str
    made: str
    weight: Any  # [in out]
    bias: Any


@dataclass(eq=False)
class Norm:
    """A layer norm with its scale, shift and eps."""

    made: str
    scale: Any
    shift: Any
    eps: float


class Graph:
    """Nodes in the file's order, which the standard promises to be one of computing."""

    def __init__(self, model: Any) -> None:
        from onnx import helper, numpy_helper

        self.model, self.nodes = model, list(model.graph.node)
        for node in self.nodes:
            if node.domain not in ("", "ai.onnx") or any(a.HasField("g") for a in node.attribute):
                refuse(f"the graph holds {node.op_type} of {node.domain or 'a branch'}; operators of the standard alone are read")
            if "Quantize" in node.op_type or "Integer" in node.op_type:
                refuse(f"the graph holds {node.op_type}: its weights are quantized; give the file of floats")
        self.words: Callable[[Any], dict[str, Any]] = lambda node: {
            a.name: helper.get_attribute_value(a) for a in node.attribute
        }
        self.constant = {x.name: numpy_helper.to_array(x) for x in model.graph.initializer}
        self.inputs = {x.name: x for x in model.graph.input if x.name not in self.constant}
        self.maker = {name: node for node in self.nodes for name in node.output if name}
        self.users: dict[str, list[Any]] = {}
        for node in self.nodes:
            for name in node.input:
                self.users.setdefault(name, []).append(node)
        self._fold()

    def _fold(self) -> None:
        """Constants behind Identity, Cast, Transpose and the like count as constants too."""
        from onnx.reference import ReferenceEvaluator

        for node in self.nodes:
            if node.op_type == "Constant" or (
                node.op_type in ("Identity", "Cast", "Transpose", "Reshape", "Unsqueeze", "Squeeze")
                and all(name in self.constant for name in node.input if name)
            ):
                feeds = {name: self.constant[name] for name in node.input if name}
                opset = {x.domain: x.version for x in self.model.opset_import}
                self.constant[node.output[0]] = ReferenceEvaluator(node, opsets=opset).run(None, feeds)[0]

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """Every value of one run, by onnx's reference."""
        from onnx.reference import ReferenceEvaluator

        found: dict[str, Any] = ReferenceEvaluator(self.model).run(None, feeds, intermediate=True)
        return found

    def behind(self, name: str, stop: Callable[[str], bool]) -> set[str]:
        """Values that `name` is made of, up to those where `stop` holds; sizes of values are not followed."""
        seen, todo = set(), [name]
        while todo:
            at = todo.pop()
            if at in seen or not at:
                continue
            seen.add(at)
            node = self.maker.get(at)
            if not stop(at) and node is not None and node.op_type not in ("Shape", "Size"):
                todo += node.input
        return seen

    def linears(self) -> list[Linear]:
        found = []
        for node in self.nodes:
            weight = self.constant.get(node.input[1]) if len(node.input) > 1 else None
            if node.op_type not in ("MatMul", "Gemm") or weight is None or weight.ndim != 2 or node.input[0] in self.constant:
                continue
            words = self.words(node)
            if node.op_type == "Gemm":
                bias = self.constant.get(node.input[2]) if len(node.input) > 2 else None
                made, weight = node.output[0], weight.T if words.get("transB") else weight
                if words.get("transA") or words.get("alpha", 1) != 1 or words.get("beta", 1) != 1:
                    refuse(f"Gemm {node.name} turns or scales; plain products are read")
            else:
                made, bias = self._behind_bias(node.output[0], weight.shape[1])
            found.append(Linear(node.input[0], made, weight, np.zeros(weight.shape[1], weight.dtype) if bias is None else bias))
        return found

    def _behind_bias(self, name: str, columns: int) -> tuple[str, Any]:
        users = self.users.get(name, [])
        if len(users) == 1 and users[0].op_type == "Add":
            for other in users[0].input:
                if other in self.constant and self.constant[other].shape == (columns,):
                    return users[0].output[0], self.constant[other]
        return name, None

    def norms(self) -> list[Norm]:
        found = []
        for node in self.nodes:
            if node.op_type == "LayerNormalization":
                scale = self.constant.get(node.input[1])
                shift = self.constant.get(node.input[2]) if len(node.input) > 2 else None
                if scale is not None and shift is not None:
                    found.append(Norm(node.output[0], scale, shift, self.words(node).get("epsilon", 1e-5)))
            elif node.op_type == "Mul":
                found += self._norm_of_parts(node)
        return found

    def _norm_of_parts(self, node: Any) -> list[Norm]:
        """scale * ((x - mean) / sqrt(variance + eps)) + shift, as files before opset 17 have it."""
        scale = next((self.constant[x] for x in node.input if x in self.constant and self.constant[x].ndim == 1), None)
        other = next((x for x in node.input if x not in self.constant), None)
        maker = self.maker.get(other or "")
        if scale is None or maker is None or maker.op_type != "Div":
            return []
        root = self.maker.get(maker.input[1])
        raised = self.maker.get(root.input[0]) if root is not None and root.op_type == "Sqrt" else None
        made, shift = self._behind_bias(node.output[0], scale.shape[0])
        if raised is None or raised.op_type != "Add" or shift is None:
            return []
        eps = [self.constant[x] for x in raised.input if x in self.constant]
        return [Norm(made, scale, shift, float(eps[0].reshape(-1)[0]))] if eps else []
