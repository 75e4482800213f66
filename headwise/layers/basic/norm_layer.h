// NormLayer: layer norm or RMS norm of every row, with its weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/basic/module.h"

#pragma GCC visibility push(default)
namespace headwise {

enum class NormKind : std::uint8_t { layer, rms };

struct NormOptions {
  NormKind kind = NormKind::layer;
  double eps = 1e-5;
  bool bias = true;  // layer norm only; RMS norm has none
};

class NormLayer {
 public:
  /// Declares weight [dim], ones, and bias [dim], zeros, under `name`.
  NormLayer(ParamSet& params, std::string_view name, Index dim, NormOptions options = {});

  struct Saved {
    AnyView x, moments;
  };
  AnyView forward(const InputView& x, Call& call, Saved* saved) const;
  /// dx = the gradient of x, plus `residual` where given.
  AnyView backward(const InputView& dy, Call& call, const Saved& saved, const InputView& residual = {}) const;

 private:
  void learn_from_team(const AnyView& dy, Call& call, const Saved& saved) const;
  Index dim_;
  NormOptions options_;
  Learned weight_, bias_;
};

}  // namespace headwise
#pragma GCC visibility pop
