"""Word alignments without headwise: IBM Model 1, merging of two directions, and error rates, for benchmarks and tests."""
# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np

Link = tuple[int, int]  # source word, target word
NULL = "\0"


def split(sentence: str) -> list[str]:
    """Runs of letters and digits, with - ' and its curly form inside; every other sign is a word by itself."""
    return re.findall(r"\w+(?:[-'\u2019]\w+)*|[^\w\s]", sentence)


class Model1:
    """t(target word | source word) of IBM Model 1 (Brown et al. 1993), by EM from uniform chances; every source has a NULL word."""

    def __init__(self, pairs: Sequence[tuple[Sequence[str], Sequence[str]]], rounds: int = 10) -> None:
        sources: dict[str, int] = {NULL: 0}
        targets: dict[str, int] = {}
        ids = []
        for source, target in pairs:
            ids.append(([0] + [sources.setdefault(w, len(sources)) for w in source], [targets.setdefault(w, len(targets)) for w in target]))
        self.sources, self.targets = sources, targets
        # One entry for each target word and each source word of its pair; rows number the target words of the text.
        s = np.concatenate([np.tile(a, len(b)) for a, b in ids])
        t = np.concatenate([np.repeat(b, len(a)) for a, b in ids])
        lengths = np.concatenate([np.full(len(b), len(a)) for a, b in ids])
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        keys, place = np.unique(s.astype(np.int64) * len(targets) + t, return_inverse=True)
        key_source = keys // len(targets)
        chance = np.full(len(keys), 1 / len(targets))
        for _ in range(rounds):
            share = chance[place]
            share /= np.repeat(np.add.reduceat(share, starts), lengths)
            counts = np.bincount(place, share, len(keys))
            chance = counts / np.bincount(key_source, counts, len(sources))[key_source]
        self.keys, self.chance = keys, chance

    def __call__(self, target: str, source: str) -> float:
        """0 where the two never stood in one pair."""
        if target not in self.targets or source not in self.sources:
            return 0.0
        key = self.sources[source] * len(self.targets) + self.targets[target]
        at = int(np.searchsorted(self.keys, key))
        return float(self.chance[at]) if at < len(self.keys) and self.keys[at] == key else 0.0

    def align(self, source: Sequence[str], target: Sequence[str]) -> set[Link]:
        """The likeliest source word of each target word; none where that is NULL."""
        links = set()
        for j, word in enumerate(target):
            chances = [self(word, s) for s in source]
            best = int(np.argmax(chances))
            if chances[best] > self(word, NULL):
                links.add((best, j))
        return links


def merge(forward: set[Link], backward: set[Link], way: str) -> set[Link]:
    """As Koehn, Och and Marcu (2003) and Moses' symal do."""
    both, either = forward & backward, forward | backward
    if way in ("argmax", "intersection", "union"):
        return {"argmax": forward, "intersection": both, "union": either}[way]
    found = set(both)
    near = ((-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))
    grew = True
    while grew:
        grew = False
        for s, t in sorted(found):
            for ds, dt in near:
                new = (s + ds, t + dt)
                if new in either - found and (new[0] not in {a for a, _ in found} or new[1] not in {b for _, b in found}):
                    found.add(new)
                    grew = True
    if way != "grow-diag":
        for links in (forward, backward):
            for s, t in sorted(links):
                free = [s not in {a for a, _ in found}, t not in {b for _, b in found}]
                if all(free) if way == "grow-diag-final-and" else any(free):
                    found.add((s, t))
    return found


def read_gold(lines: Iterable[str]) -> dict[int, tuple[set[Link], set[Link]]]:
    """Line number -> sure links, possible links (the sure ones among them)."""
    gold = {}
    for line in lines:
        line = line.split("#")[0].strip()
        if line:
            number, links = line.split(":")
            found = [re.fullmatch(r"(\d+)([-?])(\d+)", link) for link in links.split()]
            pairs = [((int(m[1]), int(m[3])), m[2]) for m in found if m]
            gold[int(number)] = ({p for p, kind in pairs if kind == "-"}, {p for p, _ in pairs})
    return gold


def scores(found: Iterable[set[Link]], gold: Iterable[tuple[set[Link], set[Link]]]) -> dict[str, float]:
    """Och and Ney (2003), in percent: AER = 1 - (|A and S| + |A and P|) / (|A| + |S|)."""
    links = sure = in_sure = in_possible = 0
    for a, (s, p) in zip(found, gold, strict=True):
        links, sure, in_sure, in_possible = links + len(a), sure + len(s), in_sure + len(a & s), in_possible + len(a & p)
    return {"aer": 100 * (1 - (in_sure + in_possible) / (links + sure)), "precision": 100 * in_possible / max(links, 1),
            "recall": 100 * in_sure / max(sure, 1), "links": links}


def tags_of(conllu: Iterable[str]) -> dict[str, str]:
    """The universal tag that a word form in lower case has most often in a treebank; the first seen of equals."""
    counts: dict[str, Counter[str]] = {}
    for line in conllu:
        cells = line.split("\t")
        if len(cells) > 3 and cells[0].isdigit():
            counts.setdefault(cells[1].lower(), Counter())[cells[3]] += 1
    return {form: found.most_common(1)[0][0] for form, found in counts.items()}


def scores_of(found: Iterable[set[Link]], gold: Iterable[tuple[set[Link], set[Link]]], sentences: Iterable[Sequence[str]],
              wanted: Callable[[str], bool]) -> dict[str, float]:
    """scores() of the links alone whose source word is wanted."""
    def only(links: set[Link], words: Sequence[str]) -> set[Link]:
        return {(s, t) for s, t in links if wanted(words[s])}

    cut = [(only(a, words), (only(s, words), only(p, words))) for a, (s, p), words in zip(found, gold, sentences, strict=True)]
    return scores([a for a, _ in cut], [g for _, g in cut])
