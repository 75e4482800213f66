"""hw.Recognizer: the intents of texts, trained, asked, explained and judged in the words of the command line."""
# SPDX-License-Identifier: Apache-2.0

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from . import _core

Rows = str | os.PathLike[str] | Sequence[Any]


def _rows(op: str, data: Rows | None) -> tuple[list[str], list[str], list[list[str]]]:
    """Files by name, or (text, label) and (text, [labels]) pairs, as the binding takes them."""
    if data is None:
        return [], [], []
    if isinstance(data, str | os.PathLike):
        return [os.fspath(data)], [], []
    rows = list(data)
    if not rows:
        raise ValueError(f"{op}: got no rows; give files of labelled texts, or pairs of text and labels")
    if all(isinstance(r, str | os.PathLike) for r in rows):
        return [os.fspath(r) for r in rows], [], []
    texts, labels = [], []
    for i, row in enumerate(rows):
        if not isinstance(row, Sequence) or isinstance(row, str) or len(row) != 2 or not isinstance(row[0], str):
            raise ValueError(f"{op}: row {i} is {row!r}; give a text and its label, or a list of labels")
        texts.append(row[0])
        labels.append([row[1]] if isinstance(row[1], str) else [str(label) for label in row[1]])
    return [], texts, labels


def _option(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


class Recognizer:
    """A recogniser that `headwise train` or `Recognizer.train` wrote. Threads may share it; they take turns."""

    def __init__(self, folder: str | os.PathLike[str], *, threads: int = 0, device: str = "cpu") -> None:
        self._core = _core.RecognizerCore(os.fspath(folder), threads, device)
        self.folder = os.fspath(folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, threads: int = 0, device: str = "cpu") -> "Recognizer":
        """From its folder; a damaged one is refused in one sentence. device: cpu, cuda, cuda:1 or auto, of the encoder."""
        return cls(folder, threads=threads, device=device)

    @classmethod
    def train(
        cls,
        data: Rows,
        out: str | os.PathLike[str],
        *,
        dev: Rows | None = None,
        text_column: str = "",
        label_column: str = "",
        label_separator: str = "#",
        threads: int = 0,
        quiet: bool = True,
        **options: Any,
    ) -> "Recognizer":
        """Learns from files or from pairs of text and labels, writes the folder `out`, and loads it.

        options: those of `headwise train` with underscores: epochs, heads, model_dim, compound, may_lose, ...; a folder of a
        pretrained encoder is `from_`. Without dev, 1 in 20 of the rows judge.
        """
        said: list[tuple[str, str]] = []
        for name, value in options.items():
            option = name.rstrip("_").replace("_", "-")
            values = value if isinstance(value, list | tuple) else [value]
            said += [(option, _option(v)) for v in values]
        columns = (text_column, label_column, label_separator)
        metrics = _core.recognizer_train(
            _rows("train", data), _rows("train", dev), os.fspath(out), said, columns, (threads, quiet)
        )
        if not metrics:
            raise KeyboardInterrupt("train: stopped before it was done; nothing was written")
        return cls(out, threads=threads)

    @property
    def device(self) -> str:
        """Where the encoder runs: "cpu", "cuda:0"."""
        return str(self._core.device)

    @property
    def labels(self) -> list[str]:
        """In the order of labels.txt."""
        return list(self._core.labels)

    @property
    def multi_label(self) -> bool:
        """Whether a text may have several labels."""
        return bool(self._core.thresholds[0])

    @property
    def threshold(self) -> float:
        """Of several labels: the probability from which one is given."""
        return float(self._core.thresholds[1])

    @property
    def out_of_scope(self) -> float:
        """The confidence below which nothing is claimed."""
        return float(self._core.thresholds[2])

    def predict(self, texts: str | Sequence[str], *, top: int = 3) -> Any:
        """A dict for one text, a list of them for several: labels, confidence, out_of_scope, likeliest, spans."""
        return self._answers(texts, top, False, "")

    def explain(self, texts: str | Sequence[str], *, label: str = "", top: int = 3) -> Any:
        """The same with `explanations`: words and heads for each given label, or for `label`, given or not."""
        return self._answers(texts, top, True, label)

    def _answers(self, texts: str | Sequence[str], top: int, explain: bool, label: str) -> Any:
        several = [texts] if isinstance(texts, str) else list(texts)
        answers = [json.loads(a) for a in self._core.predict(several, top, explain, label)]
        return answers[0] if isinstance(texts, str) else answers

    def evaluate(
        self,
        data: Rows,
        *,
        text_column: str = "",
        label_column: str = "",
        label_separator: str = "#",
        out_of_scope: str = "oos",
    ) -> Mapping[str, Any]:
        """The figures of `headwise eval --json` on files or pairs."""
        columns = (text_column, label_column, label_separator)
        figures: Mapping[str, Any] = json.loads(self._core.evaluate(_rows("evaluate", data), columns, out_of_scope))
        return figures

    def report(
        self,
        data: Rows,
        out: str | os.PathLike[str],
        *,
        text_column: str = "",
        label_column: str = "",
        label_separator: str = "#",
        mistakes: int = 500,
        redact: bool = False,
        language: str = "en",
    ) -> None:
        """Writes the page of `headwise report`; language is that of what it says, en or zh."""
        columns = (text_column, label_column, label_separator)
        self._core.report(_rows("report", data), os.fspath(out), columns, (mistakes, redact, language))
