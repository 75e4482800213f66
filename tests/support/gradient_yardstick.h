// The plain backward in the tested dtype, and how large each gradient's parts are: what errors are judged by.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "tests/support/gradients.h"

namespace headwise::test {

/// Both in f64 and in the order of each_gradient(); empty where there is no gradient.
struct Yardstick {
  /// The formula as eager code runs it in `dtype`: scores, weights and their slopes rounded to it, sums in
  /// f32, each gradient of q, k, v rounded at the end.
  std::vector<std::vector<double>> plain;
  /// The sum of what is added up, each part taken positive, cancellation left out: errors are a small number
  /// of units of this.
  std::vector<std::vector<double>> size;
  /// Largest |logit| or |lse|, and largest sum of |q k| in one logit: what a relative error of a weight is
  /// made of.
  double most_logit = 0, most_product = 0;
};

/// `r` is a run in double whose numbers are exact in `dtype`.
Yardstick yardstick_of(const GradientRun& r, DType dtype);

/// The gradients of a run in double, from ref, with their yardstick. Only inputs and dout of `a` are read.
class GradientTruth {
 public:
  GradientTruth(const BackwardArgs& a, const HeadSpec& heads = {});
  /// Compares the gradients of `a`, in whatever dtype and steps they have, by an a-priori bound in which
  /// every gradient has the same factor: 3 units of the dtype (weights, their slopes and `out` may be rounded
  /// to it once each) + 4 units of f32 times what T3 counts, of the size of its parts, + 2 ulp. Empty, or the
  /// first element that is off.
  std::string fault(const BackwardArgs& a) const;
  const BackwardArgs& args() const { return run_.args; }
  const Yardstick& yardstick() const { return yard_; }

 private:
  DType dtype_;
  GradientRun run_;
  Yardstick yard_;
};

}  // namespace headwise::test
