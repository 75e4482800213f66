// LeafHeads: heads that share parameters or mix, over a tensor team: every leaf is a layer of its own.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "headwise/distributed/communicator.h"
#include "headwise/layers/multi_head/multi_head.h"

namespace headwise {

/// By heads, a leaf is what a rank would hold if there were as many ranks as leaves: its gradients and its
/// part of dx are sums of its own, added as a tree. By sequences, a leaf has all heads and some of the
/// sequences. A leaf's values are those of the layer around it, in the same memory.
class LeafHeads {
 public:
  /// The layer's parameters stand in `params` under its full `name`; they outlive it, and so do the options'
  /// teams.
  LeafHeads(ParamSet& params, std::string_view name, std::string_view head, const MultiHeadOptions& options,
            const HeadCut& cut);

  /// By heads, `out` is the layer's W_O; by sequences leaves have their own.
  AnyView forward(const MultiHeadArgs& args, Call& call, MultiHead::Saved* saved, const Linear* out) const;
  MultiHeadGrads backward(const AnyView& dy, Call& call, MultiHead::Saved& saved, const AnyView& residual,
                          const Linear* out) const;

 private:
  /// One parameter of a leaf: where it lies in the layer's, and how many leaves share it.
  struct Place {
    Param* of = nullptr;
    Index begin = 0;   // numbers
    Index shared = 1;  // leaves of all ranks
  };
  struct Leaf {
    ParamSet params;
    std::optional<MultiHead> layer = {};
    std::vector<Place> places = {};  // of params, in their order
  };
  /// Rows [begin, end) of a leaf's sequences, or of a rank's.
  struct Rows {
    Index begin = 0, end = 0, first = 0, count = 0;  // the last two of sequences
  };

  bool by_heads() const { return cut_.by == CutBy::leaf_heads; }
  const Communicator& team() const { return options_.teams->tensor ? *options_.teams->tensor : alone_; }
  Index own_leaves() const { return static_cast<Index>(leaves_.size()); }
  void check(const MultiHeadArgs& args, const Call& call) const;
  Rows rows_of_leaf(const Sequences& s, Index leaf) const;
  Sequences part_of(const Sequences& s, const Rows& rows, Call& call) const;
  MultiHeadArgs part_of(const MultiHeadArgs& args, Index leaf, Call& call) const;
  AnyView all_rows(const AnyView& own, const Sequences& s, Call& call) const;
  AnyView forward_by_heads(const MultiHeadArgs& args, Call& call, MultiHead::Saved* saved,
                           const Linear& out) const;
  AnyView forward_by_sequences(const MultiHeadArgs& args, Call& call, MultiHead::Saved* saved) const;
  MultiHeadGrads backward_by_heads(const AnyView& dy, Call& call, MultiHead::Saved& saved,
                                   const AnyView& residual, const Linear& out) const;
  MultiHeadGrads backward_by_sequences(const AnyView& dy, Call& call, MultiHead::Saved& saved,
                                       const AnyView& residual) const;
  AnyView sum_of_leaves(const std::vector<AnyView>& parts, Call& call) const;
  void start_grads() const;
  void add_grads(Context& ctx) const;

  MultiHeadOptions options_;
  HeadCut cut_;
  Communicator alone_;  // of one rank, where the order of sums is given and no team
  Index all_leaves_ = 1;
  mutable std::deque<Leaf> leaves_;  // their gradients are memory of a backward
};

}  // namespace headwise
