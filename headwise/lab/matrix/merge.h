// Merging of key/value heads: which of them share one from now on, and the matrices that follow from it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>
#include <vector>

#include "headwise/base/buffer.h"
#include "headwise/lab/matrix/align.h"

#pragma GCC visibility push(default)
namespace headwise {

/// mean: of neighbours (Ainslie et al. 2023). first: of each group of neighbours. aligned: heads that are
/// alike stand together, turned and scaled onto each other before their mean is taken ("Align before
/// merging", 2024).
enum class MergeBy : std::uint8_t { mean, first, aligned };
inline constexpr std::string_view kMergeNames[] = {"mean", "first", "aligned"};

/// How far the shared heads of one layer are from those they stand for, on the calibration texts: the sum of
/// squared differences over that of squares, of keys and of values.
struct LayerMerge {
  double keys = 0, values = 0;
  std::vector<std::vector<Index>> groups = {};  // kv heads of the model that share one from now on
  double total() const { return (keys + values) / 2; }
};

/// `kv_heads` groups of neighbours, of so many units.
std::vector<std::vector<Index>> neighbours(Index units, Index kv_heads);

struct HeadMerge {
  std::vector<std::vector<Index>> groups = {};
  std::vector<Alignment> keys = {}, values = {};  // by group
  LayerMerge figures = {};
};
struct MergeRules {
  MergeBy by = MergeBy::aligned;
  TurnRule keys = {}, values = {};
};
/// The key/value heads of one layer, from their inner products, in so many groups.
HeadMerge merge_heads(const HeadGram& keys, const HeadGram& values, Index kv_heads, const MergeRules& rules);

/// Query heads of the model in their new order; `group` of them read one key/value head.
std::vector<Index> merged_order(const HeadMerge& merge, Index group);
/// W_Q or its bias, W_K or W_V or theirs, and W_O [model_dim heads*dim] behind the merge, f64.
Tensor merged_queries(const ConstView& q, const HeadMerge& merge, Index group);
Tensor merged_shared(const ConstView& kv, const HeadMerge& merge, bool keys);
Tensor merged_out(const ConstView& out, const HeadMerge& merge, Index group);

}  // namespace headwise
#pragma GCC visibility pop
