// Stack: blocks after each other, with weights shared by neighbours if asked, and a norm at the end.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/transformer/block.h"

#pragma GCC visibility push(default)
namespace headwise {

struct StackOptions {
  BlockOptions block = {};
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
  AnyView forward(const AnyView& x, Call& call, Saved* saved) const;
  AnyView backward(const AnyView& dy, Call& call, Saved& saved) const;

  const StackOptions& options() const { return options_; }
  const Block& block(Index i) const { return blocks_[static_cast<std::size_t>(i / options_.share_layers)]; }

 private:
  StackOptions options_;
  std::vector<Block> blocks_;
  std::optional<NormLayer> norm_;
};

}  // namespace headwise
#pragma GCC visibility pop
