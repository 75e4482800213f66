// leaf_sums: y = x W^T whose summed axis is cut into leaves, added as a tree, in one pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>

#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// x [rows in] by weight [out in / repeats]: so many consecutive leaves of x meet the same columns.
struct LeafTermArgs {
  InputView x = {}, weight = {};
  Index repeats = 1;
};

/// out [rows columns] = node(0, leaves) + bias + residual, where leaf i is the sum of the terms' i-th parts,
/// one term after the other. Either is left out where it is not given.
struct LeafSumsArgs {
  std::span<const LeafTermArgs> terms;
  Index leaves = 1;
  InputView bias = {}, residual = {};
  AnyView out = {};
  bool parts = false;  // see GemmProblem
};

/// False: no kernel of the context's list adds them in one pass; nothing was written. The bits are those of a
/// projection for every part and sums of theirs.
bool leaf_sums(const LeafSumsArgs& args, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
