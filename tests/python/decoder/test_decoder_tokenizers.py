"""Tokenizers of decoders against the library `tokenizers`: the same ids for many strings, the same text back."""

import json
import os
import random

import pytest
from tiny_decoder import write_llama

import headwise as hw

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers  # noqa: E402

STRINGS = 20_000 if os.environ.get("HEADWISE_SLOW") == "1" else 1_000
TEXTS = [
    "The quick brown fox's 12 dogs weren't HERE; they'll be back at 10:45, won't they?\n\n\tYES! we'Re",
    "我们今天去北京，明天回上海。你好，世界！这是第一百二十三个句子。", "こんにちは世界、カタカナとひらがな。 한국어 문장도 있다.",
    "emoji 😀👍🏽👨‍👩‍👧‍👦🇩🇪 and e\u0301 é ﬁ Ａ １２３ ½ ² ٣", "x = [i**2 for i in range(100)]  # tabs\tand   spaces\r\n  if x>=3:\r\n",
    "Straße, naïve, Ελληνικά, русский текст, עברית, العربية, हिन्दी भाषा", "0123456789 1 22 333 4444 55555", "   ", "\n", " \n \n  a", "",
    "<|end|> <|end|>x<|end|>", "a\u00a0b\u2003c\u3000d\u200be", "'s 'S 'ſ 'LL ''ll don''t", "!!!???...,,,;;; --- ___ ***",
]
LETTERS = list("aäbcdeEßfghi'sTtdDmMlLvVrR  \t\n\r0123456789.,!?-_<>|") + [
    "我", "们", "的", "😀", "👍🏽", "é", "e\u0301", "\u00a0", "\u3000", "٣", "½", "\u200d", "ſ", "Ⅷ", "한", "ि", "<|end|>", "the ", "\u2581", "<0x41>"]
GPT4_HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
GPT4_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def strings(seed, count=STRINGS):
    draw = random.Random(seed)
    yield from TEXTS
    for _ in range(count):
        if draw.random() < 0.5:
            yield "".join(draw.choice(LETTERS) for _ in range(draw.randint(1, 24)))
        else:
            text = draw.choice(TEXTS)
            at = draw.randrange(len(text) + 1)
            yield text[at : at + draw.randint(1, 40)] + draw.choice(LETTERS) + draw.choice(TEXTS)[:20]


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def byte_level(name):
    """Trained by the library itself on a little text, with the pattern of a model everybody knows."""
    made = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    plain, bare = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cuts = {"gpt2": plain, "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain]),
            "llama3": pre_tokenizers.Sequence([split(GPT4_HEAD + "{1,3}" + GPT4_TAIL), bare]),
            "qwen2": pre_tokenizers.Sequence([split(GPT4_HEAD + GPT4_TAIL), bare])}
    made.pre_tokenizer = cuts[name]
    if name == "qwen2":
        made.normalizer = normalizers.NFC()
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
                                  special_tokens=["<|end|>", "<|begin|>"])
    made.train_from_iterator(TEXTS * 3, trainer)
    if name == "llama3":
        begin = made.token_to_id("<|begin|>")
        made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single="<|begin|> $A", pair=None, special_tokens=[("<|begin|>", begin)])])
    return made


def decoder_with(folder, theirs):
    return hw.Decoder(write_llama(folder, layers=1, vocabulary=theirs.get_vocab_size(), tokenizer=json.loads(theirs.to_str())), kv_mib=1)


@pytest.mark.parametrize("name", ["gpt2", "smollm", "llama3", "qwen2"])
def test_byte_level_ids_are_those_of_tokenizers(tmp_path, name):
    theirs = byte_level(name)
    ours = decoder_with(tmp_path, theirs)
    for text in strings(name):
        want = theirs.encode(text).ids
        got = ours.tokenize(text)
        assert got == want, f"{text!r}: {[theirs.id_to_token(i) for i in got]} {[theirs.id_to_token(i) for i in want]}"
        assert ours.detokenize(got) == theirs.decode(want)


SPACE = "\u2581"


def sentence_piece(name):
    """SentencePiece's BPE as Llama 2, the newer Llama and Mistral files, and Gemma have it."""
    fallback = name != "unknown"
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=fallback))
    bytes_ = [f"<0x{b:02X}>" for b in range(256)] if fallback else []
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, special_tokens=["<unk>", "<s>", "</s>", *bytes_])
    known = [t for t in TEXTS if "한" not in t and "😀" not in t]  # the others fall back to bytes
    made.train_from_iterator([SPACE + t.replace(" ", SPACE) for t in known * 3], trainer)
    state = json.loads(made.to_str())
    state["added_tokens"] = [t | {"normalized": False} for t in state["added_tokens"] if t["content"] in ("<unk>", "<s>", "</s>")]
    made = Tokenizer.from_str(json.dumps(state))
    replace, prepend = normalizers.Replace(" ", SPACE), normalizers.Prepend(SPACE)
    ends = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if name in ("llama2", "unknown"):
        made.normalizer = normalizers.Sequence([prepend, replace])
    elif name == "gemma":
        made.normalizer = replace
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme=name.split()[1], split="split" in name)
    if name not in ("gemma", "metaspace never"):
        ends.append(decoders.Strip(" ", 1, 0))
    made.decoder = decoders.Sequence(ends)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", pair=None, special_tokens=[("<s>", made.token_to_id("<s>"))])
    return made


@pytest.mark.parametrize("name", ["llama2", "unknown", "gemma", "metaspace first", "metaspace always", "metaspace never", "metaspace first split"])
def test_sentence_piece_ids_are_those_of_tokenizers(tmp_path, name):
    theirs = sentence_piece(name)
    ours = decoder_with(tmp_path, theirs)
    for text in strings(name):
        text = text.replace("<|end|>", "</s>")
        want = theirs.encode(text).ids
        got = ours.tokenize(text)
        assert got == want, f"{text!r}: {[theirs.id_to_token(i) for i in got]} {[theirs.id_to_token(i) for i in want]}"
        if name != "unknown" and SPACE not in text and "</s>" not in text:
            kept = not text.startswith(" ") or name in ("llama2", "gemma", "metaspace never")
            assert ours.detokenize(got) == theirs.decode(want) == (text if kept else text[1:])
