// Score rank: stable ranks and largest singular values of products such as q k^T, from rows or their grams.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/lab/matrix/small_matrix.h"

#pragma GCC visibility push(default)
namespace headwise {

/// |m|_F^2 / s_1^2 of a b^T from a^T a and b^T b: 1 for one direction, up to their size.
double stable_rank(const SmallMatrix& gram_a, const SmallMatrix& gram_b);
/// The largest singular value of a b^T from the same.
double largest_singular(const SmallMatrix& gram_a, const SmallMatrix& gram_b);

/// Rows [count dim] of one head inside wider ones.
struct ScoreRows {
  const float* first = nullptr;
  Index count = 0, step = 0, dim = 0;
};
/// The stable rank of q k^T.
double score_rank_of(const ScoreRows& q, const ScoreRows& k);

/// sqrt(v^T gram v) of rows, for a gram that is symmetric.
class RowNorms {
 public:
  explicit RowNorms(const SmallMatrix& gram);
  std::vector<double> of(const ScoreRows& v) const;

 private:
  Index dim_, wide_;         // of a row; of its floats, in whole vectors
  std::vector<float> form_;  // [dim wide]
};

}  // namespace headwise
#pragma GCC visibility pop
