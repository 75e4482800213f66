// Linear: y = x W^T + b, with dropout and a residual behind it in the same pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/layers/basic/module.h"
#include "headwise/spec/gemm.h"

#pragma GCC visibility push(default)
namespace headwise {

struct LinearOptions {
  bool bias = true;
  double init_scale = 1;  // of the uniform range sqrt(6 / (in + out)) weights start in; biases start at 0
};

class Linear {
 public:
  /// Declares weight [out in] and bias [out] under `name`.
  Linear(ParamSet& params, std::string_view name, Index in, Index out, LinearOptions options = {});

  struct Saved {
    AnyView x;
    DropoutOptions dropout;
  };
  /// slope: written where given, the activation's derivative.
  AnyView forward(const AnyView& x, Call& call, Saved* saved, const Tail& tail = {},
                  Activation activation = Activation::none, const AnyView& slope = {}) const;
  /// dx = the gradient of x, times `factor` and plus `residual` where given. dy is the gradient before an
  /// activation.
  AnyView backward(const AnyView& dy, Call& call, const Saved& saved, const AnyView& residual = {},
                   const AnyView& factor = {}) const;

  Index in() const { return in_; }
  Index out() const { return out_; }
  const Learned& weight() const { return weight_; }
  const Learned& bias() const { return bias_; }

 private:
  Index in_, out_;
  Learned weight_, bias_;
};

/// y = activation(x W^T + b) + residual into memory of the call; and back, dx = dy W * factor + residual,
/// gradients added.
AnyView project_rows(const AnyView& x, const Learned& weight, const Learned& bias, Call& call,
                     const AnyView& residual = {}, Activation activation = Activation::none,
                     const AnyView& slope = {});
AnyView project_rows_backward(const AnyView& dy, const AnyView& x, const Learned& weight, const Learned& bias,
                              Call& call, const AnyView& residual = {}, const AnyView& factor = {});
/// The same with a part of a parameter, or several that lie side by side; dweight and dbias may be empty.
struct LinearViews {
  AnyView weight = {}, dweight = {}, dbias = {};
};
AnyView project_rows_backward(const AnyView& dy, const AnyView& x, const LinearViews& of, Call& call,
                              const AnyView& residual = {}, const AnyView& factor = {});

}  // namespace headwise
#pragma GCC visibility pop
