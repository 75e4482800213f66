// Shards: which numbers each rank of a data team keeps and steps, and what travels (ZeRO, stage 1).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/base/param.h"
#include "headwise/distributed/communicator.h"

namespace headwise {

/// The numbers that learn lie behind each other, cut into blocks of 4,096 (ParamBlocks); a rank owns a run of
/// whole blocks, so sums over a block are one rank's work.
class Shards {
 public:
  /// The set keeps its parameters and their rates; the team outlives it.
  Shards(const ParamSet& params, const Communicator& team);
  const Communicator& team() const { return team_; }
  /// Blocks of this rank.
  Slice blocks() const { return blocks_; }
  /// This rank's numbers of the parameter of that number in the set; none of one that does not learn.
  Slice own_of(std::size_t param) const;

  /// This rank's gradients become the sum over the ranks, as a tree; the others are scratch afterwards.
  void sum_grads(ParamSet& params, Context& ctx);
  /// Of all gradients, in the bits of headwise::grad_norm: owners sum their blocks, all add these in order.
  double grad_norm(const ParamSet& params, Context& ctx) const;
  /// own[i]: where this rank's numbers of parameter i begin. whole[i]: all of them, from every owner.
  void gather(const std::vector<const std::byte*>& own, const std::vector<std::byte*>& whole,
              std::string_view what);
  /// Every rank gets every owner's values.
  void gather_values(ParamSet& params);

 private:
  struct Place {
    Index begin = 0, count = 0;  // among all numbers
  };
  const Communicator& team_;
  DType dtype_;
  Slice blocks_, numbers_;
  std::vector<Place> places_;             // parameter by parameter
  std::vector<Index> block_ends_, ends_;  // rank by rank; ends_ in numbers
  std::vector<std::byte> flat_;
};

}  // namespace headwise
