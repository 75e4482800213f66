"""WordPiece against the package tokenizers: ids and spans of 10,000 random lines, and of every code point between two letters."""
import os
import pathlib
import random
import subprocess
import unicodedata

import pytest

CLI = os.environ.get("HEADWISE_CLI")
PROGRAM = pathlib.Path(CLI).parents[2] / "tests/wordpiece_lines" if CLI else None
DATA = os.environ.get("HEADWISE_DATA")
# Letters, digits, signs, spaces, controls, accents, Greek, Cyrillic, Arabic, Devanagari, Hangul, kana, Chinese, emoji, private use.
BLOCKS = [(0x20, 0x7E), (0x20, 0x7E), (0x61, 0x7A), (0x61, 0x7A), (0x00, 0x1F), (0xA0, 0x17F), (0x300, 0x36F), (0x370, 0x4FF),
          (0x600, 0x6FF), (0x900, 0x97F), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x20A0, 0x2BFF), (0x3000, 0x30FF),
          (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFAFF), (0xFE00, 0xFFFD), (0x1D100, 0x1D1FF), (0x1F300, 0x1F9FF),
          (0x20000, 0x2A6DF), (0x2F800, 0x2FA1F)]


def rival(vocabulary, uncased):
    tokenizers = pytest.importorskip("tokenizers")
    rival = tokenizers.Tokenizer(tokenizers.models.WordPiece.from_file(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    rival.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=uncased)
    rival.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return rival


def ours(vocabulary, lines, *more):
    out = subprocess.run([PROGRAM, vocabulary, *more], input="".join(line.encode().hex() + "\n" for line in lines), text=True,
                         capture_output=True, check=True).stdout.split("\n")[:-1]
    assert len(out) == len(lines)
    return [[tuple(map(int, token.split(":"))) for token in line.split()] for line in out]


def compare(name, lines, uncased=True):
    vocabulary = f"{DATA}/bert_vocab/{name}"
    encoded = rival(vocabulary, uncased).encode_batch(lines, add_special_tokens=False)
    for line, got, wanted in zip(lines, ours(vocabulary, lines, *([] if uncased else ["cased"])), encoded):
        places = [0]
        for char in line:
            places.append(places[-1] + len(char.encode()))
        assert [token[0] for token in got] == wanted.ids, ascii(line)
        # Marks that survive and change their order keep their own place here, that of their neighbour there.
        if not any(unicodedata.category(c) == "Mc" and unicodedata.combining(c) for c in unicodedata.normalize("NFD", line)):
            assert [token[1:] for token in got] == [(places[a], places[b]) for a, b in wanted.offsets], ascii(line)


def random_lines(count, words, seed):
    draw = random.Random(seed)
    lines = []
    for _ in range(count):
        parts = []
        for _ in range(draw.randrange(12)):
            if draw.random() < 0.5:
                parts.append(draw.choice(words))
            else:
                parts.append("".join(chr(draw.randint(*draw.choice(BLOCKS))) for _ in range(draw.randrange(1, 12))))
        lines.append(draw.choice(["", " ", " ", ", "]).join(parts))
    return lines


needs = pytest.mark.skipif(not (DATA and PROGRAM and PROGRAM.exists()), reason="needs HEADWISE_DATA and the program wordpiece_lines")


@needs
@pytest.mark.parametrize("name, uncased", [("bert-base-uncased-vocab.txt", True), ("bert-base-chinese-vocab.txt", True),
                                           ("bert-base-chinese-vocab.txt", False)])
def test_random_lines(name, uncased):
    words = pathlib.Path(DATA, "bert_vocab", name).read_text().split("\n")[:-1]
    words = [w.removeprefix("##") for w in words] + [w.upper() for w in words[2000:]]
    compare(name, random_lines(10_000, words, 6), uncased)


@needs
def test_every_code_point():
    points = [c for c in range(0x30000) if not 0xD800 <= c < 0xE000]
    compare("bert-base-uncased-vocab.txt", ["a" + "".join(f"{chr(c)}b " for c in points[i:i + 64]) for i in range(0, len(points), 64)])
