// DecoderMemory: an encoder's states as the cross heads of a decoder look at them: keys and values, computed
// once.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/decoder/forward/decoder.h"

#pragma GCC visibility push(default)
namespace headwise {

class DecoderMemory {
 public:
  /// states [tokens model_dim], f32. Refused: a model without cross-attention, numbers that are not finite.
  DecoderMemory(const Decoder& model, const InputView& states, Context& ctx);
  Index tokens() const { return tokens_; }
  /// Whether a model with these sizes can look at it.
  bool fits(const DecoderConfig& c) const {
    return std::ssize(layers_) == c.layers && heads_ == c.kv_heads && head_dim_ == c.head_dim;
  }
  /// [1 tokens kv_heads head_dim].
  ConstView k(Index layer) const { return part(layer, 0); }
  ConstView v(Index layer) const { return part(layer, 1); }
  /// No two of a process have one: keys of a text depend on what it looks at, so only texts with one memory
  /// share pages.
  std::int64_t number() const { return number_; }

 private:
  ConstView part(Index layer, Index which) const;
  Index tokens_, heads_, head_dim_;
  std::int64_t number_;
  std::vector<Tensor> layers_;  // [tokens 2 * heads * head_dim] each: keys, then values
};

}  // namespace headwise
#pragma GCC visibility pop
