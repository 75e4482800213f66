// ParamBlocks: all numbers of a ParamSet in blocks of 4,096, in order: the tasks of whatever walks over them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <vector>

#include "headwise/base/param.h"

namespace headwise {

struct ParamBlock {
  const Param* of;
  Index param;        // its number in the set
  Index begin, size;  // of its elements
};

/// Blocks do not follow the thread count, so sums over them have one order.
class ParamBlocks {
 public:
  static constexpr Index kBlock = 4096;
  explicit ParamBlocks(const ParamSet& set) {
    for (const Param& p : set.all()) {
      params_.push_back(&p);
      first_.push_back(count_);
      count_ += ceil_div(p.value.count(), kBlock);
    }
  }
  Index count() const { return count_; }
  ParamBlock at(Index task) const {
    const auto param = std::upper_bound(first_.begin(), first_.end(), task) - first_.begin() - 1;
    const auto i = static_cast<std::size_t>(param);
    const Index begin = (task - first_[i]) * kBlock;
    return {params_[i], param, begin, min_of(kBlock, params_[i]->value.count() - begin)};
  }

 private:
  std::vector<const Param*> params_;
  std::vector<Index> first_;
  Index count_ = 0;
};

}  // namespace headwise
