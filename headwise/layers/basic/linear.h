// Linear: y = x W^T + b, with dropout and a residual behind it in the same pass.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <span>
#include <string>

#include "headwise/distributed/communicator.h"
#include "headwise/layers/basic/module.h"
#include "headwise/spec/gemm.h"

#pragma GCC visibility push(default)
namespace headwise {

struct ProjectionArgs;

/// How a map is cut over a tensor team. out: this rank makes its columns of y, nothing is gathered. in: x
/// comes cut, y is whole on every rank.
enum class Cut : std::uint8_t { none, out, in };

struct LinearOptions {
  bool bias = true;
  double init_scale = 1;  // of the uniform range sqrt(6 / (in + out)) weights start in; biases start at 0
  Cut cut = Cut::none;
  const Teams* teams = nullptr;  // outlives the layer
  Index leaves = 1;              // of the summed axis, all ranks together: see Order::tree
};

class Linear {
 public:
  /// Declares weight [out in] and bias [out] under `name`; a cut map declares this rank's slices of them.
  Linear(ParamSet& params, std::string_view name, Index in, Index out, LinearOptions options = {});

  struct Saved {
    AnyView x;
    DropoutOptions dropout;
  };
  /// slope: written where given, the activation's derivative.
  AnyView forward(const InputView& x, Call& call, Saved* saved, const Tail& tail = {},
                  Activation activation = Activation::none, const AnyView& slope = {}) const;
  /// dx = the gradient of x, times `factor` and plus `residual` where given. dy is the gradient before an
  /// activation.
  AnyView backward(const InputView& dy, Call& call, const Saved& saved, const InputView& residual = {},
                   const InputView& factor = {}) const;

  /// The same of maps that read one x and are cut by `out`, in order tree or engine: one sum for all of them.
  static AnyView backward_together(std::span<const Linear* const> maps, std::span<const AnyView> dy,
                                   const AnyView& x, Call& call, const AnyView& residual);

  bool sums_backward() const { return sums(Cut::out); }
  const std::string& name() const { return weight_.name(); }
  Index in() const { return in_; }
  Index out() const { return out_; }
  const Learned& weight() const { return weight_; }
  const Learned& bias() const { return bias_; }

 private:
  /// The map is a sum over leaves: `cut` of it in order tree or engine.
  bool sums(Cut cut) const { return options_.cut == cut && options_.teams->order != Order::one_rank; }
  bool gathers() const {
    return options_.cut == Cut::in && !sums(Cut::in) && options_.teams->tensor_ranks() > 1;
  }
  Index own_leaves() const;

  Index in_, out_, all_out_;  // of this rank's weight; columns of y on every rank
  LinearOptions options_;
  Learned weight_, bias_;
};

/// `args` reads `weight`: packed where the call keeps packed weights, and as it lies where it learns.
void read_weight(const AnyView& weight, Call& call, ProjectionArgs& args);
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
