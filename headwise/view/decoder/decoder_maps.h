// Attention maps of a decoder: a text, and what the model writes behind it, with every head of every layer.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/decoder/sampling.h"
#include "headwise/intent/recognizer/recognizer.h"
#include "headwise/view/attention_maps.h"

#pragma GCC visibility push(default)
namespace headwise {

struct DecoderViewOptions {
  Index generate = 0;  // tokens to write behind the text
  SamplingOptions sampling = {};
  std::string circuit = {};  // of which heads: all, or such as 2.5,3.0; empty: none
};

/// A .gguf file, a llama2.c .bin file, or a folder with a config.json and no vocab.txt.
bool is_decoder(const std::string& path);

/// Weights are those of the row probes, computed head by head when they are asked for.
AttentionMaps maps_of_decoder(const std::string& path, const std::string& text,
                              const DecoderViewOptions& options, Session& session);

}  // namespace headwise
#pragma GCC visibility pop
