// Sharing keys and values in a decoder: MHA to GQA and MQA, with turns that RoPE lets pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <vector>

#include "headwise/lab/decoder/lab_decoder.h"
#include "headwise/lab/matrix/merge.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Inner products of one layer's key and value heads over texts.
struct DecoderGrams {
  std::vector<HeadGram> keys = {}, values = {};  // by layer
};
DecoderGrams kv_grams(const LabDecoder& model, std::span<const LabDecoder::Text> texts, Context& ctx);

struct ConvertedDecoder {
  EditedDecoder edited = {};
  std::vector<LayerMerge> layers = {};
};
/// Every layer with kv_heads key/value heads. As many as it has: the same weights. Models whose heads of k
/// have norms (qwen3, gemma3) are refused: a norm's own weights stand between W_K and the turn.
ConvertedDecoder share_kv(const LabDecoder& model, Index kv_heads, MergeBy by, const DecoderGrams& grams);

}  // namespace headwise
#pragma GCC visibility pop
