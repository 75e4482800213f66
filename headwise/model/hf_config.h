// hf_config: the settings files beside a pretrained BERT-style encoder, read as ours or refused by key.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/layers/transformer/transformer.h"
#include "headwise/model/json_object.h"
#include "headwise/model/word_rules.h"

#pragma GCC visibility push(default)
namespace headwise {

/// config.json: model_type "bert", or architectures that begin with "Bert". Post-norm blocks, learned
/// positions, token types and a norm behind the embeddings are what such a model is; its sizes, activation,
/// eps and dropouts are read. Keys that change the mathematics in a way we do not compute (is_decoder,
/// relative positions, ...) are refused with their value; keys that do not are passed over. pruned_heads
/// makes layers of fewer heads, num_key_value_heads and headwise_heads heads that share keys and values.
TransformerConfig bert_config(const JsonObject& json);
TransformerConfig read_bert_config(const std::string& path);

/// What tokenizer_config.json says of a BERT vocabulary.
struct BertTokenizerConfig {
  WordRules words = {};
  Index max_tokens = 0;  // with [CLS] and [SEP]; 0: not said
};
BertTokenizerConfig bert_tokenizer_config(const JsonObject& json);
/// Without the file: an uncased vocabulary.
BertTokenizerConfig read_bert_tokenizer_config(const std::string& path);

}  // namespace headwise
#pragma GCC visibility pop
