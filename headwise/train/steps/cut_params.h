// CutParams: slices of parameters that learn on a tensor team, beside the whole ones that are kept.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/distributed/slices.h"
#include "headwise/train/steps/optimizer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Both sets have the same names in the same order; every rank has the whole one.
class CutParams {
 public:
  /// `mine` gets this rank's slices of `whole`. Both sets and the team outlive it.
  CutParams(ParamSet& whole, ParamSet& mine, const Communicator& team);
  const Communicator& team() const { return team_; }
  const ParamSet& whole() const { return whole_; }
  /// The whole values become those of all ranks' slices, on every rank.
  void join() const;

  /// An optimizer of the whole set in the state of `mine`, an optimizer of the slices: what a checkpoint
  /// keeps, whatever the ranks.
  Optimizer joined(const Optimizer& mine) const;
  /// One of the same settings to read a checkpoint into; and the slices of what was read.
  Optimizer blank(const Optimizer& mine) const { return mine.like(whole_); }
  void take(const Optimizer& whole, Optimizer& mine) const;

  /// sqrt of the sum of squares of all gradients, in double. A parameter is summed cell by cell, 8 leaves or
  /// fewer along each axis, a cell in blocks of 4,096: any number of ranks holds whole cells and adds in one
  /// order. What several ranks hold counts once.
  double grad_norm(Context& ctx) const;

 private:
  struct Grid;
  std::vector<double> block_sums(const AnyView& grad, const Grid& grid, Context& ctx) const;

  ParamSet& whole_;
  ParamSet& mine_;
  const Communicator& team_;
};

}  // namespace headwise
#pragma GCC visibility pop
