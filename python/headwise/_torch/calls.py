"""Calls of scaled_dot_product_attention inside of modules that nobody here wrote, answered by headwise."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
import copyreg
import dis
import functools
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_CALL = torch.nn.functional.scaled_dot_product_attention
_NAME = "scaled_dot_product_attention"
_OWN_SCORES = {"softmax", "Softmax"}


class _Answers(TorchFunctionMode):  # type: ignore[misc]
    """While it is on, torch's scaled_dot_product_attention is headwise's; everything else is what it was."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (_answer if func is _CALL else func)(*args, **(kwargs or {}))


def _answer(query: Tensor, key: Tensor, value: Tensor, *args: Any, **words: Any) -> Tensor:
    ours = query.layout is torch.strided and not query.is_nested  # others are torch's alone
    return (scaled_dot_product_attention if ours else _CALL)(query, key, value, *args, **words)


def attending_class(kind: type) -> Any:
    """`kind` with every call of torch's scaled_dot_product_attention in its forward answered by headwise."""
    found = _MADE.get(kind)
    if found is None:
        found = _MADE[kind] = _make(kind)
    return found


_MADE: dict[type, type] = {}


def _make(kind: Any) -> type:
    """A subclass whose methods are those of `kind`, with ours in the place of the call.

    Where the call is reached through something that cannot be written again, a mode answers it: right, but no graph.
    """

    def reduce(self: Any, protocol: Any) -> Any:
        made = super(found, self).__reduce_ex__(protocol)
        return (_again, (kind,), *made[2:]) if made[0] is copyreg.__newobj__ else made  # type: ignore[attr-defined]

    found: Any = None
    body = {"__reduce_ex__": reduce, "__module__": kind.__module__, "__doc__": kind.__doc__, "_headwise_of": kind}
    found = type(kind.__name__, (kind,), {**body, **(_Rewritten(kind).methods or {"forward": _answered(kind)})})
    return found  # type: ignore[no-any-return]


def _answered(kind: Any) -> Any:
    @functools.wraps(kind.forward)
    def forward(self: Any, *args: Any, **words: Any) -> Any:
        with _Answers():
            return kind.forward(self, *args, **words)

    return forward


class _Rewritten:
    """The methods of a class that come to the call, as copies that find headwise's function by the same name."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.copies, self.scopes = kind, dict[Any, Any](), dict[int, dict[str, Any]]()
        self.reaching = {x for x in _reached(kind) if self._reaches(x, set())}
        self.plain = all(answered for x in self.reaching for answered in _loads(x))
        self.methods: dict[str, Any] = {}
        for function in self.reaching:
            name = function.__name__
            if vars_of(kind, name) is function:
                self.methods[name] = self._copy(function)
        if not self.plain or "forward" not in self.methods:
            self.methods = {}

    def _reaches(self, function: types.FunctionType, seen: set[Any]) -> bool:
        if function in seen:
            return False
        seen.add(function)
        return any(True for _ in _loads(function)) or any(self._reaches(other, seen) for other in _callees(function, self.kind))

    def _copy(self, function: types.FunctionType) -> Any:
        found = self.copies.get(function)
        if found is None:
            scope = self.scopes.get(id(function.__globals__))
            if scope is None:
                scope = self.scopes[id(function.__globals__)] = {}
                scope.update({name: self._seen(x) for name, x in function.__globals__.items() if name != "__name__"})
            made: Any = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)
            found = self.copies[function] = functools.update_wrapper(made, function)
            made.__kwdefaults__ = function.__kwdefaults__
            del made.__wrapped__
        return found

    def _seen(self, x: Any) -> Any:
        """What a global of the module stands for in the copy."""
        if x is _CALL:
            return _answer
        if isinstance(x, types.ModuleType) and x.__name__ in _TORCH:
            return _torch_like(x.__name__)
        if isinstance(x, types.FunctionType):
            self.plain &= not any(f in self.reaching for f in _functions(x)) or x in self.reaching
            return self._copy(x) if x in self.reaching else x
        if type(x) is dict and any(f in self.reaching for f in _functions(x)):
            return {key: self._seen(value) for key, value in x.items()}
        return x


_TORCH = ("torch", "torch.nn", "torch.nn.functional")


@functools.cache
def _torch_like(name: str) -> types.ModuleType:
    """A copy of a module of torch that names our function."""
    real = sys.modules[name]
    found = types.ModuleType(name, real.__doc__)
    found.__dict__.update(vars(real))
    if name == _TORCH[-1]:
        found.__dict__[_NAME] = _answer
    else:
        below = _TORCH[_TORCH.index(name) + 1]
        found.__dict__[below.rpartition(".")[2]] = _torch_like(below)
    return found


def vars_of(kind: type, name: str) -> Any:
    """What a class or its bases hold under a name, as it was written."""
    return next((vars(owner)[name] for owner in kind.__mro__ if name in vars(owner)), None)


def _again(kind: type) -> Any:
    made = attending_class(kind)
    return made.__new__(made)


def is_attending(module: nn.Module) -> bool:
    return hasattr(type(module), "_headwise_of")


def calls_sdpa(kind: type) -> bool:
    """Whether the methods of this class, or functions that they call by name, call torch's attention."""
    return _sort(kind) == "calls"


def has_own_scores(kind: type) -> bool:
    """Whether this looks like attention that takes its own softmax."""
    return _sort(kind) == "own"


@functools.lru_cache(maxsize=1024)
def _sort(kind: Any) -> str:
    """calls, own, or nothing. Modules beside this one may have been swapped: what cannot be read or made is left, with no error."""
    try:
        reached = _reached(kind)
        if any(True for function in reached for _ in _loads(function)):
            attending_class(kind)  # an error of it comes here
            return "calls"
        names = {kind.__name__}.union(*(_names_in(function.__code__) for function in reached))
        named = "attention" in kind.__name__.lower() or _NAME in names
        return "own" if named and not _OWN_SCORES.isdisjoint(names) else ""
    except Exception as error:
        with contextlib.suppress(Warning):  # where warnings are errors
            warnings.warn(f"hw.torch.swap leaves {kind.__name__}, which it cannot read: {error!r}", stacklevel=2)
        return ""


def _reached(kind: Any) -> set[types.FunctionType]:
    """forward, the methods that it calls, and functions of the same package beside them."""
    left, found = [*_functions(getattr(kind, "forward", None))], set()  # scripted modules have no forward to read
    while left:
        function = left.pop()
        home = function.__module__ or ""  # fx writes functions that are of no module
        if function not in found and home.partition(".")[0] == kind.__module__.partition(".")[0]:
            found.add(function)
            left += _callees(function, kind)
    return found


_Value = tuple[Any, bool]
_UNKNOWN: _Value = (None, False)


def _loads(function: types.FunctionType) -> Iterator[bool]:
    """The places that load torch's attention; each says whether other globals change what stands there.

    Its name alone says nothing: a class or a file may have a function of that name, which is not torch's.
    """
    filled = (x for x in zip(function.__code__.co_freevars, function.__closure__ or ()) if x[1] != types.CellType())
    return _loads_in(function.__code__, function.__globals__, {name: (cell.cell_contents, False) for name, cell in filled})


def _loads_in(code: types.CodeType, scope: dict[str, Any], known: dict[str, _Value]) -> Iterator[bool]:
    """Follows globals, attributes of modules, imports, and variables that hold one of these; an argument may be anything."""
    value = outer = _UNKNOWN
    steps = [x for x in dis.get_instructions(code) if x.opname not in ("EXTENDED_ARG", "NOP")]
    for at, step in enumerate(steps):
        name, does = step.argval, step.opname
        first, last = (name[0], name[-1]) if isinstance(name, tuple) and name else (name, name)  # 3.13 joins two steps
        if does in ("LOAD_GLOBAL", "LOAD_NAME"):
            value = (scope.get(name), True)
        elif does in ("LOAD_ATTR", "LOAD_METHOD"):
            value = _attribute(value, name)
        elif does == "IMPORT_NAME":  # after its level and the names wanted of it; without names it gives the package
            level, wanted = steps[at - 2].argval, steps[at - 1].argval
            value = outer = (None if level else sys.modules.get(name if wanted else name.partition(".")[0]), False)
        elif does == "IMPORT_FROM":
            value = _attribute(outer, name)
        elif does == "SWAP":  # import a.b as c goes down by one
            outer = value
        elif does.startswith(("STORE_FAST", "STORE_DEREF")):
            if value[0] is not None:
                known[first] = value
            value = known.get(last, _UNKNOWN) if "LOAD_FAST" in does else _UNKNOWN
        elif does.startswith(("LOAD_FAST", "LOAD_DEREF")):
            value = known.get(last, _UNKNOWN)
        elif does != "POP_TOP":
            value = _UNKNOWN
        if value[0] is _CALL:
            yield value[1]
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _loads_in(inner, scope, dict(known))


def _attribute(value: _Value, name: str) -> _Value:
    owner, written = value
    if not isinstance(owner, types.ModuleType):
        return _UNKNOWN
    return vars(owner).get(name), written and owner.__name__ in _TORCH


def _callees(function: types.FunctionType, kind: Any) -> list[types.FunctionType]:
    names = _names_in(function.__code__)
    return [f for name in names for x in (getattr(kind, name, None), function.__globals__.get(name)) for f in _functions(x)]


def _names_in(code: types.CodeType) -> set[str]:
    inner = [_names_in(x) for x in code.co_consts if isinstance(x, types.CodeType)]
    return {*code.co_names}.union(*inner)


def _functions(x: Any) -> list[types.FunctionType]:
    """Plain functions in `x`: itself, what a decorator wraps, or the values of a dict."""
    found = []
    one: Any
    for one in x.values() if isinstance(x, dict) else (x,):
        one = getattr(one, "__func__", one)
        while hasattr(one, "__wrapped__"):
            one = one.__wrapped__
        if isinstance(one, types.FunctionType):
            found.append(one)
    return found


from ..torch import scaled_dot_product_attention  # noqa: E402  it uses what stands above
