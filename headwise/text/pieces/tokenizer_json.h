// tokenizer_json: a tokenizer.json of byte-level or SentencePiece BPE, read or refused by what it asks for.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/text/pieces/tokenizer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// For a model with `rows` rows of logits (0: any number) whose texts end with `ends`. Known: byte-level BPE
/// with the patterns of word_patterns.h, NFC with Qwen2's, special tokens, a template that puts one token
/// before a text; SentencePiece's BPE as Llama 2, Mistral and Gemma have it. bare: whatever the template puts
/// around a text is left out.
std::unique_ptr<Tokenizer> read_json_tokenizer(const std::string& path, Index rows, std::vector<TokenId> ends,
                                               bool bare = false);

}  // namespace headwise
#pragma GCC visibility pop
