// Block: one layer of an encoder or decoder: self-attention, cross-attention, feed-forward, each with a norm
// and a residual.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/layers/basic/embed.h"
#include "headwise/layers/basic/feed_forward.h"
#include "headwise/layers/basic/norm_layer.h"
#include "headwise/layers/multi_head/merged.h"
#include "headwise/layers/multi_head/multi_head.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What a decoder adds to self-attention. merged: one sublayer in the place of both attentions (see
/// merged.h).
enum class Cross : std::uint8_t { none, attention, merged };

struct BlockOptions {
  std::string heads = "mha", cross_heads = {};  // cross_heads empty: as heads
  Cross cross = Cross::none;
  Index model_dim = 0, feed_dim = 0;
  FeedKind feed = FeedKind::relu;
  NormOptions norm = {};
  bool norm_first = true;  // x + f(norm(x)); else norm(x + f(x))
  bool bias = true;        // of every linear map
  double dropout = 0;      // behind every sublayer and inside the feed-forward
  double attention_dropout = 0;
  Positions positions = Positions::none;  // rope and alibi act in self-attention
  RopeOptions rope = {};
  double init_scale = 1;
  Index layer = 0, depth = 1;
  const Teams* teams = nullptr;  // heads and feed-forward are cut over it; outlives the block
};

class Block {
 public:
  Block(ParamSet& params, std::string_view name, const BlockOptions& options);

  struct Saved {
    NormLayer::Saved norms[3];
    MultiHead::Saved self, cross;
    MergedAttention::Saved merged;
    FeedForward::Saved feed;
  };
  /// x [tokens model_dim] in the call's sequences; cross-attention reads call.source.
  AnyView forward(const InputView& x, Call& call, Saved* saved) const;
  AnyView backward(const InputView& dy, Call& call, Saved& saved) const;

  const BlockOptions& options() const { return options_; }
  const MultiHead* self_attention() const { return self_ ? &*self_ : nullptr; }
  const MultiHead* cross_attention() const { return cross_ ? &*cross_ : nullptr; }

 private:
  template <class F>
  AnyView sublayer(int i, const AnyView& x, Call& call, Saved* saved, F&& f) const;
  template <class F>
  AnyView sublayer_backward(int i, const AnyView& dy, Call& call, Saved& saved, F&& f) const;

  BlockOptions options_;
  std::optional<MultiHead> self_, cross_;
  std::optional<MergedAttention> merged_;
  std::optional<FeedForward> feed_;
  std::vector<NormLayer> norms_;
};

}  // namespace headwise
#pragma GCC visibility pop
