// Stack: blocks after each other, with weights shared by neighbours if asked, and a norm at the end.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/transformer/block.h"

#pragma GCC visibility push(default)
namespace headwise {

/// `heads` is one text for every layer, or one a layer with semicolons between: the text of `layer`, of
/// `layers`. Another number of texts is refused.
std::string heads_of_layer(std::string_view heads, Index layer, Index layers);

struct StackOptions {
  BlockOptions block = {};  // heads and cross_heads: see heads_of_layer
  Index depth = 6;
  Index share_layers = 1;  // so many consecutive blocks use one set of weights
  bool final_norm = true;
  /// DS-Init (Zhang et al. 2019): weights of block l, counted from 1, start in a range l^-ds_init as wide; 0
  /// is off, 0.5 the paper's formula.
  double ds_init = 0;
};

class Stack {
 public:
  /// Declares layers.0, layers.1, ... and norm under `name`; shared blocks are declared once.
  Stack(ParamSet& params, std::string_view name, const StackOptions& options);

  struct Saved {
    std::vector<Block::Saved> blocks;
    NormLayer::Saved norm;
  };
  /// Over a context team every rank gives all rows and gets all; between, each works on its own.
  AnyView forward(const InputView& x, Call& call, Saved* saved) const;
  AnyView backward(const InputView& dy, Call& call, Saved& saved) const;

  const StackOptions& options() const { return options_; }
  /// Heads of the layer that has most, as rows of head gates count them.
  Index most_heads() const;
  const Block& block(Index i) const { return blocks_[static_cast<std::size_t>(i / options_.share_layers)]; }

 private:
  AnyView forward_in_context(const InputView& x, Call& call, Saved* saved) const;
  AnyView held_rows(const InputView& x, Call& call) const;
  AnyView run_backward(const InputView& dy, Call& call, Saved& saved) const;
  AnyView run(const InputView& x, Call& call, Saved* saved) const;

  StackOptions options_;
  std::vector<Block> blocks_;
  std::optional<NormLayer> norm_;
};

}  // namespace headwise
#pragma GCC visibility pop
