// LabelScores: logits from evidence: one linear map of all of it, or for each label its own vector.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "headwise/layers/basic/linear.h"

#pragma GCC visibility push(default)
namespace headwise {

/// shared: y = W p + b over everything pooled. own: y_l = w_l . p_l + b_l, where p_l is label l's evidence.
enum class Evidence : std::uint8_t { shared, own };

class LabelScores {
 public:
  /// Declares weight and bias under `name`: [labels vectors * dim], or [labels dim] with vectors = labels.
  LabelScores(ParamSet& params, std::string_view name, Evidence evidence, Index labels, Index vectors,
              Index dim);

  struct Saved {
    AnyView p;
  };
  /// p [texts vectors * dim] to [texts labels].
  AnyView forward(const AnyView& p, Call& call, Saved* saved) const;
  AnyView backward(const AnyView& dy, Call& call, const Saved& saved) const;

 private:
  Evidence evidence_;
  Index labels_, dim_;
  Learned weight_, bias_;
};

}  // namespace headwise
#pragma GCC visibility pop
