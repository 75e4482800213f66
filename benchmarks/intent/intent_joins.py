"""Pieces of joined texts, and joins made afresh, for the BiLSTM that learns by the recipe of cutting: what headwise/intent/compound does."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import collections
import itertools
import re
import zlib

import numpy as np

JOIN = re.compile(r"\s*,\s*|\s+and\s+(?:then|also)\s+|\s+and\s+")
SHORT_JOIN = re.compile(r"\s*,\s*|\s+and\s+")
CONNECTORS = (",", "and", "and then", "and also")  # MixBANKING77 was built with them
CHARS = (3, 4)  # lengths of n-grams of a word
MOST_NGRAMS = 24  # of a token's word; longer words lose the last ones


def places_of(text: str) -> list[tuple[int, int]]:
    """Where a connector stands; "and then" may be one of two words or of one."""
    found = {m.span() for pattern in (JOIN, SHORT_JOIN) for m in pattern.finditer(text) if 0 < m.start() and m.end() < len(text)}
    return sorted(found)


def ways_of(text: str, count: int) -> list[tuple[str, ...]]:
    """All ways to cut a text into `count` pieces."""
    ways = []
    for chosen in itertools.combinations(places_of(text), count - 1):
        begins, ends = [0, *(e for _, e in chosen)], [*(b for b, _ in chosen), len(text)]
        if all(b < e for b, e in zip(begins, ends)):
            ways.append(tuple(text[b:e].strip() for b, e in zip(begins, ends)))
    return ways


def key_of(text: str) -> str:
    return re.sub(r"\W+", " ", text.lower()).strip()


def pieces_of(rows: list[list[str]]) -> tuple[dict[str, list[str]], int]:
    """(texts of every label, number of rows that could not be cut): rows whose pieces are known teach nothing new, of the others the
    one unknown piece gets a vote; two votes, or one where nothing else moves, make it known."""
    known: dict[str, dict[str, str]] = collections.defaultdict(dict)  # by key
    used: dict[str, dict[str, str]] = collections.defaultdict(dict)
    open_rows = []
    for text, labels, *_ in rows:
        names = labels.split("#")
        if len(names) == 1:
            known[names[0]][key_of(text)] = used[names[0]][key_of(text)] = text.strip()
        else:
            open_rows.append((names, ways_of(text, len(names))))
    single = False
    while open_rows:
        votes: collections.Counter = collections.Counter()
        left = []
        for names, ways in open_rows:
            missing = [[i for i, (p, n) in enumerate(zip(way, names)) if key_of(p) not in known[n]] for way in ways]
            if whole := [way for way, m in zip(ways, missing) if not m]:
                for name, piece in zip(names, min(whole, key=lambda way: sum(map(len, way)))):
                    used[name].setdefault(key_of(piece), piece)
                continue
            left.append((names, ways))
            own = {(names[m[0]], way[m[0]], sum(map(len, way))) for way, m in zip(ways, missing) if len(m) == 1}
            if single and own:
                own = {min(own, key=lambda vote: vote[2])}
            votes.update({vote[:2] for vote in own})
        moved = len(left) < len(open_rows)
        open_rows, learnt = left, False
        for (name, text), count in votes.items():
            if count >= 2 or single:
                known[name].setdefault(key_of(text), text)
                learnt = True
        if not moved and not learnt and single:
            break
        single = not moved and not learnt
    return {name: sorted(texts.values()) for name, texts in sorted(used.items())}, len(open_rows)


class Tokens:
    """Ids of a text and, for every token, the hashed n-grams of its whole word; 0 stands for none."""

    def __init__(self, tokenizer, buckets: int) -> None:
        self.tokenizer, self.buckets, self.words = tokenizer, buckets, {}

    def ngrams(self, word: str) -> np.ndarray:
        if word not in self.words:
            marked = f"<{word}>"
            found = [marked[i:i + n] for n in CHARS for i in range(len(marked) - n + 1)][:MOST_NGRAMS]
            bag = np.zeros(MOST_NGRAMS, np.int64)
            bag[:len(found)] = [1 + zlib.crc32(g.encode()) % (self.buckets - 1) for g in found]
            self.words[word] = bag
        return self.words[word]

    def __call__(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        coded = self.tokenizer.encode(text, add_special_tokens=False)
        words: list[list[str]] = []
        for piece in coded.tokens:
            if piece.startswith("##") and words:
                words[-1].append(piece[2:])
            else:
                words.append([piece])
        bags = [self.ngrams("".join(parts)) for parts in words for _ in parts]
        return np.array(coded.ids, np.int64), np.array(bags, np.int64).reshape(-1, MOST_NGRAMS)


class Joins:
    """Draws compounds and single pieces: rows of one flat table of tokens, what each token is, and the labels."""

    def __init__(self, pieces: dict[str, list[str]], labels: list[str], shares: list[float], tokens: Tokens, seed: int) -> None:
        self.draw, self.labels, self.shares = np.random.default_rng(seed), len(labels), np.cumsum(shares)
        ids, bags, at = [], [], 0
        def add(text: str) -> tuple[int, int]:
            nonlocal at
            i, b = tokens(text)
            ids.append(i), bags.append(b)
            at += len(i)
            return at - len(i), at
        self.by_label, self.breaks = [], {}
        for name in labels:
            spans = []
            for text in pieces.get(name, []):
                begin, end = add(text)
                if begin == end:
                    continue
                spans.append((begin, end))
                cuts = [(len(tokens(text[:b])[0]), len(tokens(text[:e])[0])) for b, e in places_of(text)]
                self.breaks[begin, end] = [(f, l) for f, l in cuts if 0 < f < l < end - begin]
            self.by_label.append(spans)
        self.connectors = [add(text) for text in CONNECTORS]
        self.ids, self.bags = np.concatenate(ids), np.concatenate(bags)

    def piece(self, label: int) -> tuple[int, int]:
        spans = self.by_label[label]
        return spans[self.draw.integers(len(spans))]

    def compound(self) -> tuple[np.ndarray, np.ndarray, list[int]]:
        """(places in the table, for every token 0 or 1 + place of its label or -1 for a connector, labels in order)."""
        count = 1 + int(np.searchsorted(self.shares, self.draw.random() * self.shares[-1], side="right"))
        chosen = self.draw.choice(self.labels, count, replace=False).tolist()
        places, marks = [], []
        for i, label in enumerate(chosen):
            if i:
                b, e = self.connectors[self.draw.integers(len(self.connectors))]
                places.append(np.arange(b, e)), marks.append(np.full(e - b, -1))
            b, e = self.piece(label)
            places.append(np.arange(b, e)), marks.append(np.full(e - b, i))
        return np.concatenate(places), np.concatenate(marks), chosen

    def single(self) -> tuple[np.ndarray, int]:
        """One piece of a label, or half of one, whose label is the number of labels."""
        label = int(self.draw.integers(self.labels))
        b, e = self.piece(label)
        cuts = self.breaks[b, e]
        if cuts and self.draw.random() < 0.3:
            first, last = cuts[self.draw.integers(len(cuts))]
            return (np.arange(b, b + first) if self.draw.random() < 0.5 else np.arange(b + last, e)), self.labels
        return np.arange(b, e), label
