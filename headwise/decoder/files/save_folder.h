// save_decoder: a model trained here as a folder of Hugging Face, which decoders and other libraries read.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/layers/transformer/transformer.h"

#pragma GCC visibility push(default)
namespace headwise {

struct DecoderSaveOptions {
  std::string tokenizer_json = {};  // the text of tokenizer.json; "": none is written
  std::vector<Index> ends = {};     // tokens that end a text
};

/// What NextToken trains, as config.json and model.safetensors: a gpt2 (learned positions, layer norms, mha
/// of model_dim columns, biases) or a llama (rope, RMS norms, swiglu, mha or gqa). Other settings are
/// refused by name. config.json is written last: a folder cut short is no model.
void save_decoder(const std::string& folder, const Transformer& model, ParamSet& params,
                  const DecoderSaveOptions& options = {});

}  // namespace headwise
#pragma GCC visibility pop
