"""hw.Mha, hw.Gqa, ...: one frozen record for each head, made from the fields it names."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from dataclasses import field, fields, make_dataclass
from typing import Any

from . import _core


class Head:
    """A head variant and its settings; `a + b` lets b lie over a."""

    name: str
    settings: str

    def __add__(self, over: Head) -> Joined:
        if not isinstance(over, Head):
            return NotImplemented
        return Joined(self, over)


class Joined(Head):
    """Heads that lie over another: hw.Gqa(heads=8) + hw.Gated(act="silu")."""

    heads: tuple[Head, ...]

    def __init__(self, *heads: Head) -> None:
        self.heads = tuple(h for head in heads for h in (head.heads if isinstance(head, Joined) else (head,)))
        self.name = "+".join(h.name for h in self.heads)
        self.settings = "+".join(h.settings for h in self.heads)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.heads))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Joined) and self.heads == other.heads

    def __hash__(self) -> int:
        return hash(self.heads)


def _settings(self: Any) -> str:
    def text(x: Any) -> str:
        return str(x).lower() if isinstance(x, bool) else str(x)

    return f"{self.name}:" + ",".join(f"{f.name}={text(getattr(self, f.name))}" for f in fields(self))


def _check(self: Any) -> None:
    for f in fields(self):
        given, start, words = getattr(self, f.name), f.default, f.metadata["words"]
        number = isinstance(given, (int, float)) and not isinstance(given, bool)
        if words is not None:
            need, fits = "one of " + ", ".join(words), given in words
        elif isinstance(start, bool):
            need, fits = "True or False", isinstance(given, bool)
        elif isinstance(start, int):
            need, fits = "an integer", number and isinstance(given, int)
        else:
            need, fits = "a number", number
        if not fits:
            raise ValueError(f"{self.name}: {f.name} is {given!r}; give {need}")


def _made(name: str, meets: str, all_fields: tuple[Any, ...]) -> type[Head]:
    lines = [f"    {word}: {help}{'' if words is None else ' (' + ', '.join(words) + ')'}"
             for word, _, words, help in all_fields]  # fmt: skip
    made = make_dataclass(
        name.capitalize(),
        [(word, type(start), field(default=start, metadata={"words": words}))
         for word, start, words, _ in all_fields],
        bases=(Head,),
        namespace={
            "name": name,
            "meets": meets,
            "settings": property(_settings),
            "__post_init__": _check,
            "__doc__": f"The head {name!r}: heads meet {meets}.\n\n" + "\n".join(lines),
        },
        frozen=True,
        kw_only=True,
    )  # fmt: skip
    # Where pickle looks for it. From Python 3.12 on make_dataclass writes its caller's over one of the namespace.
    made.__module__ = "headwise"
    return made


_types: dict[str, Any] = {}


def head_type(name: str) -> Any:
    """The record of the head "gqa" by its name Gqa; made when it is first asked for, and one for all threads."""
    if name not in _types:
        (fields_of,) = (head for head in _core.head_fields() if head[0].capitalize() == name)
        _types.setdefault(name, _made(*fields_of))
    return _types[name]
