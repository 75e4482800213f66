// GradTree: gradients of micro-batches added as a tree, over those of this rank, then over ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/base/param.h"
#include "headwise/distributed/communicator.h"

namespace headwise {

class Shards;

/// Micro-batch i of n is leaf i. A rank's own are one aligned subtree, so any number of ranks that divides n
/// gives the same bits, one rank included.
class GradTree {
 public:
  /// f32 or f64 gradients. team null: one rank.
  GradTree(ParamSet& params, const Communicator* team);
  /// The set's gradients are those of one micro-batch: the next leaf. They are zero afterwards, but for the
  /// last.
  void add_leaf(bool last, Context& ctx);
  /// The set's gradients become the sum over all ranks; with shards, those of this rank's blocks alone do.
  void finish(Context& ctx, Shards* shards = nullptr);

 private:
  struct Node {
    Index leaves = 0;
    std::vector<std::byte> bytes;
  };
  template <class F>
  void each_grad(F&& f) const;

  ParamSet& params_;
  const Communicator* team_;
  Index numbers_ = 0;
  std::vector<Node> open_;
  std::vector<std::vector<std::byte>> spare_;
};

}  // namespace headwise
