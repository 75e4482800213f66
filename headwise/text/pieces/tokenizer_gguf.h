// tokenizer_gguf: the tokenizer inside a GGUF file: byte-level BPE ("gpt2") or SentencePiece BPE ("llama").
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/model/gguf/gguf.h"
#include "headwise/text/pieces/tokenizer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// For a model with `rows` rows of logits: no more tokens than these; 0: any number. Other kinds of
/// tokenizer, and patterns that are not known, are refused by name.
std::unique_ptr<Tokenizer> read_gguf_tokenizer(const Gguf& file, Index rows);

}  // namespace headwise
#pragma GCC visibility pop
