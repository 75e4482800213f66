"""hw.Decoder: a language model from its file; texts from prompts, as they come or whole, and what its heads did."""
# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ._core import Context, DecoderCore, DecoderMemory


class HeadStats(NamedTuple):
    """What heads did with each token: NumPy arrays [tokens layers heads], float32."""

    entropy: Any
    """Of the weights, in nats."""
    top_weight: Any
    """The largest weight."""
    first_mass: Any
    """The weight on the text's first token."""
    cross: Any = None
    """Of models with cross-attention: the weights on every state of the encoder, [tokens layers heads states]."""


class TokenLogprob(NamedTuple):
    """A token that was drawn, its log-probability, and the likeliest ones in its place: (token, log-probability)."""

    token: int
    logprob: float
    top: list[tuple[int, float]]


@dataclass
class Generation:
    """A text that was written. str() of it is the text."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: str = "none"
    """Why it ended: stop, length, cancelled or error."""
    seed: int = 0
    logprobs: list[TokenLogprob] | None = None
    heads: HeadStats | None = None

    def __str__(self) -> str:
        return self.text


class Piece(NamedTuple):
    """Text of one prompt of several, as it comes."""

    prompt: int
    text: str


Prompt = str | Sequence[int]


def _is_one(prompt: Any) -> bool:
    """A text or ids, and not a list of such."""
    if isinstance(prompt, str):
        return True
    return len(prompt) > 0 and all(not isinstance(p, str) and not hasattr(p, "__len__") for p in prompt)


class _Answer:
    """What came of one request so far."""

    def __init__(self, seed: int, logprobs: bool, heads: bool) -> None:
        self.made = Generation(seed=seed, logprobs=[] if logprobs else None)
        self.heads: list[tuple[Any, ...]] = []
        self.watched = heads
        self.error = ""

    def take(self, event: tuple[Any, ...]) -> str:
        _, tokens, text, drawn, heads, finish, self.error = event
        self.made.text += text
        self.made.tokens += tokens
        self.made.finish = finish
        if self.made.logprobs is not None:
            self.made.logprobs += [TokenLogprob(*d) for d in drawn]
        if heads is not None:
            self.heads.append(heads)
        return str(text)

    def whole(self, empty: tuple[int, int, int]) -> Generation:
        if self.watched:
            import numpy as np

            joined = [np.concatenate(parts) for parts in zip(*self.heads)]
            self.made.heads = HeadStats(*(joined or [np.zeros(empty, np.float32) for _ in range(3)]))
        if self.made.finish == "error":
            raise RuntimeError(self.error)
        return self.made


class Decoder:
    """A language model: a folder of Hugging Face, a .gguf file, a llama2.c .bin file, or the decoder of a Whisper
    model.bin of CTranslate2.

    dtype: of the weights, "stored" (as the file has them), or rounded to "f32", "bf16" or "f16". rows: what meets
    quantized weights, "exact" or "i8", rounded to 8 bits. kv_dtype: "f32", "bf16", "f16", "i8" or "e4m3".
    kv_mib: memory for keys and values, which all texts of this object share.

    A text depends on model, prompt, options and seed alone. Threads may generate at once: their texts share steps.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dtype: str = "stored",
        rows: str = "exact",
        kv_dtype: str = "f32",
        kv_mib: int = 256,
        ctx: Context | None = None,
    ) -> None:
        self._core = DecoderCore(os.fspath(path), dtype, rows, kv_dtype, kv_mib, ctx)
        self._ctx = ctx
        self._path = os.fspath(path)

    def __repr__(self) -> str:
        c = self.config
        return (
            f"hw.Decoder({self._path!r}: {c['family']}, {c['layers']} layers, {c['heads']} heads, "
            f"{c['kv_heads']} kv_heads, {c['vocabulary']} tokens)"
        )

    @property
    def config(self) -> dict[str, Any]:
        """family, layers, model_dim, feed_dim, heads, kv_heads, head_dim, vocabulary, positions, weight_bytes; of
        models with cross-attention alignment_heads, the (layer, head) that the file lists."""
        return self._core.config

    @property
    def begin_token(self) -> int:
        """The token that stands before a text; -1: the model has none."""
        return self._core.begin_token

    @property
    def end_tokens(self) -> list[int]:
        """Tokens that end a text."""
        return self._core.end_tokens

    def tokenize(self, text: str, *, specials: bool = True, begin: bool = True) -> list[int]:
        """The ids of a text. specials: special tokens spelt out in it become themselves. begin: the model's first token
        stands first, where it has one."""
        return self._core.tokenize(text, specials=specials, begin=begin)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        return self._core.token_bytes(ids).decode("utf-8", "replace")

    def chat_tokens(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The ids of a conversation up to where the model answers: messages of "role" (system, user, assistant) and
        "content", by the model's own template. Templates that are not known are refused."""
        return self._core.chat_tokens([(m["role"], m["content"]) for m in messages])

    def remember(self, states: Any) -> DecoderMemory:
        """An encoder's states [states model_dim] as the cross heads of this model look at them; for `memory`."""
        import numpy as np

        return self._core.remember(np.ascontiguousarray(states, np.float32), self._ctx)

    def logits(self, prompt: Prompt, *, memory: DecoderMemory | None = None) -> Any:
        """A NumPy array [tokens vocabulary], float32: the logits of the token behind each one of the prompt."""
        return self._core.logits(self._ids(prompt), memory, self._ctx)

    def heads(self, prompt: Prompt, *, memory: DecoderMemory | None = None) -> HeadStats:
        """What every head did with each token of the prompt."""
        return HeadStats(*self._core.watch(self._ids(prompt), memory, self._ctx))

    def generate(
        self,
        prompt: Any,
        *,
        max_tokens: int = 256,
        min_tokens: int = 0,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] = (),
        logprobs: int | None = None,
        heads: bool = False,
        ignore_end: bool = False,
        priority: int = 0,
        memory: DecoderMemory | None = None,
        stream: bool = False,
    ) -> Any:
        """Goes on with a prompt, or with a list of prompts at once; a prompt is a text or a list of ids.

        One prompt gives a Generation, a list a list of them. stream=True gives an iterator instead: of pieces of text,
        for a list of Piece(prompt, text); the Generation is what it returns at its end. Closing the iterator ends the work.

        max_tokens: at most so many; with a text that begins near the model's longest, fewer. temperature 0: always the
        likeliest. min_p, top_k, top_p: what may be drawn, in this order. seed: of the noise; None: one is drawn.
        stop: texts that end it, not shown. logprobs: so many likeliest tokens beside the drawn one. heads: HeadStats.
        memory: what a model with cross-attention looks at, from remember().
        """
        one = _is_one(prompt)
        prompts = [self._ids(p) for p in ([prompt] if one else prompt)]
        key = int.from_bytes(os.urandom(8), "little") >> 1 if seed is None else seed
        options: dict[str, Any] = {
            "min_tokens": min_tokens,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "frequency_penalty": frequency_penalty,
            "presence_penalty": presence_penalty,
            "logit_bias": list((logit_bias or {}).items()),
            "seed": key,
            "stop": [stop] if isinstance(stop, str) else list(stop),
            "logprobs": -1 if logprobs is None else logprobs,
            "heads": heads,
            "ignore_end": ignore_end,
            "priority": priority,
            "memory": memory,
        }
        made: list[Generation] = []
        run = self._run(prompts, max_tokens, options, made)
        if not stream:
            for _ in run:
                pass
            return made[0] if one else made
        return self._texts(run, made) if one else self._pieces(run, made)

    @staticmethod
    def _texts(run: Generator[Piece, None, None], made: list[Generation]) -> Generator[str, None, Generation]:
        try:
            for piece in run:
                yield piece.text
        finally:
            run.close()
        return made[0]

    @staticmethod
    def _pieces(run: Generator[Piece, None, None], made: list[Generation]) -> Generator[Piece, None, list[Generation]]:
        yield from run
        return made

    def _ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        return [int(i) for i in prompt]

    def _run(
        self, prompts: list[list[int]], max_tokens: int, options: dict[str, Any], made: list[Generation]
    ) -> Generator[Piece, None, None]:
        """Each next() computes one step at most, so signals are seen between steps."""
        asked: dict[int, int] = {}
        answers = [_Answer(options["seed"], options["logprobs"] >= 0, options["heads"]) for _ in prompts]
        try:
            for i, ids in enumerate(prompts):
                room = max(self.config["positions"] - len(ids) + 1, 1)
                asked[self._core.add(ids, options | {"max_tokens": min(max_tokens, room)})] = i
            while asked:
                for event in self._core.next(list(asked), self._ctx):
                    place = asked[event[0]]
                    text = answers[place].take(event)
                    if event[5] != "none":
                        del asked[event[0]]
                    if text:
                        yield Piece(place, text)
        finally:
            self._core.drop(list(asked))
        made += [a.whole((0, self.config["layers"], self.config["heads"])) for a in answers]
