// ParamBlocks: the numbers of a ParamSet that learn, in blocks of 4,096, in order: tasks of a walk over them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <utility>
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
    Index number = 0;
    for (const Param& p : set.all()) {
      if (p.rate > 0) {
        params_.push_back({&p, number});
        first_.push_back(count_);
        count_ += ceil_div(p.value.count(), kBlock);
      }
      ++number;
    }
  }
  Index count() const { return count_; }
  ParamBlock at(Index task) const {
    const auto i =
        static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), task) - first_.begin() - 1);
    const Index begin = (task - first_[i]) * kBlock;
    const auto [of, number] = params_[i];
    return {of, number, begin, min_of(kBlock, of->value.count() - begin)};
  }

 private:
  std::vector<std::pair<const Param*, Index>> params_;
  std::vector<Index> first_;
  Index count_ = 0;
};

/// Of `count` numbers that lie side by side: the sum of one block.
double sum_of_squares(DType dtype, const void* numbers, Index count);

}  // namespace headwise
