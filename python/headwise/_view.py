"""hw.view: attention on a page, in a notebook or in a file."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import base64
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from . import _core

_PARTS = ("encoder", "decoder", "cross")
_SPECIAL = {"[CLS]", "[SEP]", "[PAD]", "<s>", "</s>", "<pad>", "<bos>", "<eos>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"}


class View:
    """A page of attention: shows itself in a notebook, and saves itself."""

    def __init__(self, page: str, left_out: float, warnings: list[str]) -> None:
        self.html, self.left_out, self.warnings = page, left_out, warnings

    def save(self, path: str | os.PathLike[str]) -> pathlib.Path:
        """Writes the page; open it in a browser."""
        file = pathlib.Path(path)
        file.write_text(self.html, encoding="utf-8")
        return file

    def _repr_html_(self) -> str:
        data = base64.b64encode(self.html.encode()).decode()
        return f'<iframe src="data:text/html;base64,{data}" style="width:100%;height:820px;border:0" sandbox="allow-scripts allow-downloads"></iframe>'

    def __repr__(self) -> str:
        return f"<headwise.View of {len(self.html):,} bytes; save(path) writes it>"


def _array(value: Any, rank: int, name: str) -> Any:
    """float32 [rank sizes]; leading sizes of 1, such as a batch of one text, fall off."""
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().float().cpu().numpy()
    array = np.asarray(value)
    if array.ndim > rank and all(size == 1 for size in array.shape[: array.ndim - rank]):
        array = array.reshape(array.shape[array.ndim - rank :])
    if array.ndim != rank:
        raise ValueError(f"view: {name} has the shape {array.shape}; give {rank} axes, of one text")
    return np.ascontiguousarray(array, dtype=np.float32)


def _layers(value: Any, rank: int, name: str) -> list[Any]:
    """A tuple of layers, or one array with layers in front."""
    if isinstance(value, Sequence):
        return [_array(layer, rank, f"{name}[{n}]") for n, layer in enumerate(value) if layer is not None]
    if getattr(value, "ndim", 0) == rank + 1:
        return [_array(layer, rank, f"{name}[{n}]") for n, layer in enumerate(value)]
    return [_array(value, rank, name)]


def _words(tokens: Sequence[str]) -> list[int]:
    """Pieces joined by the marks of WordPiece (##), SentencePiece and byte-level BPE; without marks each token is a word."""
    marked = any(t.startswith(("##", "\u2581", "\u0120")) for t in tokens)
    bert = any(t.startswith("##") for t in tokens)
    if not marked:
        return []
    numbers: list[int] = []
    for n, token in enumerate(tokens):
        inside = token.startswith("##") if bert else not token.startswith(("\u2581", "\u0120"))
        inside = inside and n > 0 and token not in _SPECIAL and tokens[n - 1] not in _SPECIAL
        numbers.append(numbers[-1] + (not inside) if numbers else 0)
    return numbers


def _clean(token: str) -> str:
    return token.replace("\u2581", " ").replace("\u0120", " ").strip() or token


def _part(name: str, weights: list[Any], queries: Sequence[str], keys: Sequence[str], norms: list[Any]) -> _core.ViewPart:
    if not weights:
        raise ValueError(f"view: {name} has no layers; give the weights of at least one")
    part = _core.ViewPart(name, [_clean(str(t)) for t in queries], [_clean(str(t)) for t in keys], weights, norms)
    part.words(_words(list(queries)), _words(list(keys)))
    part.special([n for n, t in enumerate(queries) if t in _SPECIAL], [n for n, t in enumerate(keys) if t in _SPECIAL])
    return part


def _numbered(tokens: Sequence[str] | None, count: int) -> list[str]:
    return [str(t) for t in tokens] if tokens is not None else [str(n) for n in range(count)]


def _from_vectors(q: Any, k: Any, tokens: Sequence[str] | None, options: dict[str, Any]) -> _core.ViewPart:
    """Weights from queries and keys [heads tokens head_dim] a layer: attention whose values are rows of the identity."""
    import numpy as np

    for word in ("layout", "return_lse", "probe", "q_offsets", "kv_offsets", "pages"):
        if word in options:
            raise TypeError(f"view: {word}= changes what comes back, not the weights; leave it out")
    qs, ks = _layers(q, 3, "q"), _layers(k, 3, "k")
    if len(qs) != len(ks):
        raise ValueError(f"view: q has {len(qs)} layers and k has {len(ks)}; give as many of each")
    weights = []
    for one, other in zip(qs, ks, strict=True):
        keys = other.shape[1]
        values = np.broadcast_to(np.eye(keys, dtype=np.float32)[None, :, None, :], (1, keys, other.shape[0], keys)).copy()
        rows = _core.attention(one.transpose(1, 0, 2)[None].copy(), other.transpose(1, 0, 2)[None].copy(), values, **options)
        weights.append(np.ascontiguousarray(rows[0].transpose(1, 0, 2)))
    part = _part("self", weights, _numbered(tokens, qs[0].shape[1]), _numbered(tokens if qs[0].shape[1] == ks[0].shape[1] else None, ks[0].shape[1]), [])
    if all(one.shape[0] == other.shape[0] for one, other in zip(qs, ks, strict=True)):
        # The page divides sums by sqrt(head_dim): queries that carry another scale give the scores that were used.
        scale = options.get("scale")
        part.vectors(qs if scale is None else [one * np.float32(scale * np.sqrt(one.shape[2])) for one in qs], ks)
    return part


def view(
    attention: Any = None,
    tokens: Sequence[str] | None = None,
    *,
    text: str | None = None,
    pair: str = "",
    generate: int = 0,
    temperature: float = 0.0,
    seed: int = 0,
    circuit: str = "",
    other: str | os.PathLike[str] = "",
    encoder_attention: Any = None,
    decoder_attention: Any = None,
    cross_attention: Any = None,
    encoder_tokens: Sequence[str] | None = None,
    decoder_tokens: Sequence[str] | None = None,
    q: Any = None,
    k: Any = None,
    value_norms: Any = None,
    name: str = "attention",
    language: str = "",
    **options: Any,
) -> View:
    """A page on which attention is looked at, head by head.

    attention: a tuple of layers [1 heads tokens tokens], one array [layers heads tokens tokens], the outputs of a
    Hugging Face model that was asked for its attentions, or the path of a model (then give `text`).
    generate: tokens that a decoder writes behind the text, drawn by `temperature` and `seed`; the page shows each step.
    circuit: QK and OV of a decoder's heads token by token: "all", or such as "2.5,3.0".
    other: the path of a second model, which reads the same text; the page shows the difference.
    encoder_attention, decoder_attention, cross_attention: the same of an encoder-decoder, with the tokens of both.
    q, k: queries and keys, [heads tokens head_dim] a layer; `options` go to hw.attention, such as mask= and scale=;
    the view of neurons shows q times scale * sqrt(head_dim), so that its sums are the scores.
    value_norms: what a key adds to the output, [heads tokens] a layer.
    """
    if isinstance(attention, (str, os.PathLike)):
        if text is None:
            raise ValueError("view: a model needs a text to look at; give text=")
        what = _core.ModelText(text, pair, generate, temperature, seed, circuit)
        return View(*_core.view_model_page(os.fspath(attention), os.fspath(other), what, language))
    if generate or other or circuit:
        raise ValueError("view: generate=, circuit= and other= belong to a model's path; weights are shown as they are")
    if q is not None or k is not None:
        if q is None or k is None:
            raise ValueError("view: q and k belong together; give both")
        return View(*_core.view_page([_from_vectors(q, k, tokens, options)], name, language))
    if options:
        raise TypeError(f"view: {sorted(options)[0]}= belongs to q and k; weights are shown as they are")
    parts = []
    if attention is not None and hasattr(attention, "encoder_attentions"):
        encoder_attention, decoder_attention = attention.encoder_attentions, attention.decoder_attentions
        cross_attention, attention = attention.cross_attentions, None
    attention = getattr(attention, "attentions", attention)
    if attention is not None:
        weights = _layers(attention, 3, "attention")
        norms = [n[..., None] for n in _layers(value_norms, 2, "value_norms")] if value_norms is not None else []
        queries, keys = weights[0].shape[1:]
        parts.append(_part("self", weights, _numbered(tokens, queries), _numbered(tokens if queries == keys else None, keys), norms))
    given = {"encoder": encoder_attention, "decoder": decoder_attention, "cross": cross_attention}
    for kind in _PARTS:
        if given[kind] is None:
            continue
        weights = _layers(given[kind], 3, f"{kind}_attention")
        queries, keys = weights[0].shape[1:]
        parts.append(_part(kind, weights, _numbered(encoder_tokens if kind == "encoder" else decoder_tokens, queries),
                           _numbered(decoder_tokens if kind == "decoder" else encoder_tokens, keys), []))
    if not parts:
        raise ValueError("view: nothing to look at; give attention=, encoder_attention= and so on, q= and k=, or a model's folder with text=")
    return View(*_core.view_page(parts, name, language))


def write_atnv(
    path: str | os.PathLike[str],
    q: Any,
    k: Any,
    *,
    lse: Any = None,
    mask: str = "full",
    window: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    q_start: int = 0,
    tokens: Sequence[str] = (),
    key_tokens: Sequence[str] = (),
    name: str = "attention",
) -> pathlib.Path:
    """Queries and keys of one text, for `headwise view FILE --open` and hw.LongMap.

    q, k: [heads tokens head_dim] a layer, as they meet in the scores (after RoPE); k may have fewer heads.
    lse: [heads tokens] a layer; computed when looked at where it is not given.
    mask: full, causal, window (`window` keys, itself included) or prefix (causal, and `window` keys for all).
    """
    qs, ks = _layers(q, 3, "q"), _layers(k, 3, "k")
    sums = [one[..., None] for one in _layers(lse, 2, "lse")] if lse is not None else []
    if len(qs) != len(ks) or (sums and len(sums) != len(qs)):
        raise ValueError(f"write_atnv: q has {len(qs)} layers, k {len(ks)} and lse {len(sums)}; give as many of each")
    terms = (mask, window, q_start, float(scale or 0.0), float(softcap), [str(t) for t in tokens], [str(t) for t in key_tokens], name)
    _core.write_atnv(os.fspath(path), qs, ks, sums, terms)
    return pathlib.Path(path)
