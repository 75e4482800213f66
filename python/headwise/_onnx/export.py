"""hw.torch.attention inside of a torch graph, written as the Attention operator of ONNX."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from .._torch.ops import COEFFICIENTS, NAMES

LEAST_OPSET = 23
_MANY = ("bshd", "bsnh"), ("bhsd", "bnsh")  # before and after tokens and heads change places
_UNKNOWN = {
    "table": "a relative table",
    "sinks": "sinks",
    "q_offsets": "ragged offsets",
    "head": "a head by name",
    **{name: "coefficients" for name in (*COEFFICIENTS, "row_offsets")},
}


def export_ops() -> dict[Any, Any]:
    """A table for torch.onnx.export(..., custom_translation_table=...)."""
    import torch

    return {torch.ops.headwise.attention.default: _translate}


def _refuse(sentence: str) -> None:
    raise ValueError(f"onnx.export_ops: {sentence}")


def _opset() -> Any:
    """The operators of the version that is being written."""
    from onnxscript import evaluator

    op: Any = getattr(evaluator.default(), "opset", None)
    if op is None:
        _refuse("it was called outside of torch.onnx.export; hand the table to its custom_translation_table")
    if op.version < LEAST_OPSET:
        _refuse(f"opset_version is {op.version}, and Attention exists from {LEAST_OPSET} on; give opset_version={LEAST_OPSET}")
    return op


def _translate(*given: Any) -> tuple[Any, Any]:
    g = dict(zip((*NAMES, "lse", "kernels"), given))
    _check(g)
    text = "all" if g["mask"] is None else str(g["mask"])
    terms = _terms_of(text)
    op = _opset()
    tokens_first = g["layout"] in _MANY[0]
    q, k, v = (op.Transpose(g[x], perm=[0, 2, 1, 3]) if tokens_first else g[x] for x in ("q", "k", "v"))
    scale = g["scale"]
    if g["scales"] is not None:
        q, scale = op.Mul(q, op.Unsqueeze(op.CastLike(g["scales"], q), _numbers(op, [1, 2]))), 1.0
    places = _Places(op, q, k, g)
    causal = text == "causal" and places.starts_at_0
    open = g["open"]
    if not causal and text != "all":
        band = _Band(op, places).write(terms)
        open = band if open is None else op.And(open, band)
    words: dict[str, Any] = {"is_causal": int(causal)}
    if scale is not None:
        words["scale"] = float(scale)
    if g["softcap"] is not None:
        words["softcap"] = float(g["softcap"])
    seen = _added(op, g, q, open, places)
    y, *_ = op.Attention(q, k, v, seen, **words)
    y = op.Transpose(y, perm=[0, 2, 1, 3]) if tokens_first else y
    if g["gate"] is not None:
        axes = [0, 1, 2] if tokens_first else [0, 2, 1]
        y = op.Mul(y, op.Unsqueeze(op.Transpose(op.CastLike(g["gate"], y), perm=axes), _numbers(op, [3])))
    return y, _log_sum(op, (q, k, v, seen), words) if g["lse"] else op.Constant(value_floats=[])


def _check(g: dict[str, Any]) -> None:
    for word, name in _UNKNOWN.items():
        if g[word] is not None:
            _refuse(f"the call has {name}, which Attention of ONNX has not; leave it away, or export without hw.torch there")
    if g["alibi"]:
        _refuse("alibi is True; give the slopes as a tensor")
    if g["dropout"]:
        _refuse(f"dropout is {g['dropout']}; call model.eval() before")
    if g["layout"] not in (*_MANY[0], *_MANY[1]):
        _refuse(f'layout is "{g["layout"]}"; give bshd or bhsd')


def _numbers(op: Any, values: Any) -> Any:
    import onnx_ir

    return op.Constant(value=onnx_ir.tensor(np.asarray(values, np.int64)))


def _log_sum(op: Any, given: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """From scores of its own: where nobody reads it, the exporter takes the whole of it out."""
    *_, scores = op.Attention(*given, qk_matmul_output_mode=2, **words)
    return op.Cast(op.ReduceLogSumExp(scores, _numbers(op, [-1]), keepdims=0), to=1)


def _added(op: Any, g: dict[str, Any], q: Any, open: Any, places: _Places) -> Any:
    """What stands at attn_mask: bits alone, or floats with -inf at closed pairs."""
    bias = g["bias"]
    if g["slopes"] is not None:
        away = op.CastLike(op.Neg(op.Abs(op.Sub(places.j, places.i))), q)
        slopes = op.Mul(op.Unsqueeze(op.CastLike(g["slopes"], q), _numbers(op, [1, 2])), away)
        bias = slopes if bias is None else op.Add(bias, slopes)
    if bias is None or open is None:
        return open if bias is None else bias
    return op.Where(open, bias, op.CastLike(op.Constant(value_float=float("-inf")), bias))


class _Places:
    """Positions of queries, [q 1] or [batch 1 q 1], and of keys, [kv]."""

    def __init__(self, op: Any, q: Any, k: Any, g: dict[str, Any]) -> None:
        self._op, self._q, self._k = op, q, k
        self._starts, self._list = g["q_starts"], list(g["q_start"] or [0])
        self.starts_at_0 = self._starts is None and not any(self._list)

    def _count(self, x: Any) -> Any:
        op = self._op
        size = op.Squeeze(op.Shape(x, start=2, end=3), _numbers(op, [0]))
        return op.Range(_numbers(op, 0), size, _numbers(op, 1))

    @property
    def i(self) -> Any:
        op = self._op
        rows = op.Unsqueeze(self._count(self._q), _numbers(op, [1]))
        if self.starts_at_0:
            return rows
        if self._starts is None and len(self._list) == 1:
            return op.Add(rows, _numbers(op, self._list[0]))
        starts = _numbers(op, self._list) if self._starts is None else op.Cast(self._starts, to=7)
        return op.Add(op.Unsqueeze(starts, _numbers(op, [1, 2, 3])), rows)

    @property
    def j(self) -> Any:
        return self._count(self._k)


def _terms_of(text: str) -> Any:
    """A mask's text as a tree: what can be written of its grammar is one of Python's expressions."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        tree = None
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} if tree is not None else {""}
    if not names <= {"all", "causal", "window", "prefix", "strided", "lengths"}:
        _refuse(
            f'the mask is "{text}"; what can be written is causal, window, prefix, strided and lengths, joined by & and |; '
            "give other masks as a tensor to hw.torch.scaled_dot_product_attention"
        )
    return tree


class _Band:
    """A mask's terms as operators over positions."""

    def __init__(self, op: Any, places: _Places) -> None:
        self._op, self._i, self._j = op, places.i, places.j

    def write(self, terms: Any) -> Any:
        if isinstance(terms, ast.BinOp):
            sides = self.write(terms.left), self.write(terms.right)
            return self._op.And(*sides) if isinstance(terms.op, ast.BitAnd) else self._op.Or(*sides)
        name = terms.id if isinstance(terms, ast.Name) else terms.func.id
        return getattr(self, f"_write_{name}")(*(ast.literal_eval(x) for x in getattr(terms, "args", ())))

    def _write_causal(self) -> Any:
        return self._op.LessOrEqual(self._j, self._i)

    def _write_window(self, back: int, ahead: int) -> Any:
        op = self._op
        first, last = op.Sub(self._i, _numbers(op, back)), op.Add(self._i, _numbers(op, ahead))
        return op.And(op.GreaterOrEqual(self._j, first), op.LessOrEqual(self._j, last))

    def _write_prefix(self, keys: int) -> Any:
        op = self._op  # a mask of [q kv] whatever the term
        return op.Less(op.Add(self._j, op.Mul(self._i, _numbers(op, 0))), _numbers(op, keys))

    def _write_strided(self, stride: int, width: int = 1) -> Any:
        op = self._op
        away = op.Mod(op.Abs(op.Sub(self._i, self._j)), _numbers(op, stride))
        return op.Less(away, _numbers(op, width))

    def _write_lengths(self, *lengths: int) -> Any:
        op = self._op
        ends = op.Unsqueeze(_numbers(op, lengths), _numbers(op, [1, 2, 3]))
        return op.Less(op.Add(self._j, op.Mul(self._i, _numbers(op, 0))), ends)
