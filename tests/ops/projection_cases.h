// What the tests of projections share: random problems, the truth in double, a plain run in the same dtype.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

#include "headwise/base/context.h"
#include "headwise/kernels/ref/activation.h"
#include "headwise/ops/projection/projection.h"
#include "tests/ops/row_op_cases.h"
#include "tests/support/close.h"
#include "tests/support/levels.h"

namespace headwise::test {

constexpr Activation kActivations[] = {Activation::none,      Activation::relu, Activation::gelu,
                                       Activation::gelu_tanh, Activation::silu, Activation::sigmoid};

inline bool same_bits(const Tensor& a, const Tensor& b) { return same_bits(a.view(), b.view()); }

/// Runs `body` at every ISA level of this CPU.
inline void each_level(const std::function<void()>& body) {
  for (const cpu::IsaLevel& level : run_levels()) {
    SCOPED_TRACE(level.name);
    cpu::force_isa(&level);
    body();
  }
  cpu::force_isa(nullptr);
}

/// y = activation(x W^T + b) + residual with contiguous [rows in], [out in], [out] and [rows out].
struct Linear {
  Tensor x, weight, bias, residual;
  Activation activation = Activation::none;
  bool parts = false;

  Linear(Index rows, Index in, Index out, DType dtype, std::uint64_t seed, Activation act = Activation::none,
         bool adds = false)
      : x(random_normal({rows, in}, dtype, seed)),
        weight(random_normal({out, in}, dtype, seed + 1)),
        bias(adds ? random_normal({out}, DType::f32, seed + 2) : Tensor()),
        residual(adds ? random_normal({rows, out}, dtype, seed + 3) : Tensor()),
        activation(act) {}

  Index rows() const { return x.view().size[0]; }
  Index in() const { return x.view().size[1]; }
  Index out() const { return weight.view().size[0]; }
  ProjectionArgs args(Tensor& y) const {
    return {.x = x.view(),
            .weight = weight.view(),
            .bias = bias.view(),
            .residual = residual.view(),
            .out = y.view(),
            .parts = parts};
  }
  Tensor run(int threads = 2, const std::string& kernels = "") const {
    Context ctx({.threads = threads, .kernels = kernels});
    Tensor y(x.dtype(), {rows(), out()});
    projection(args(y), activation, ctx);
    return y;
  }
  /// In T: sums one after the other, every step of the formula rounded to T, then to the dtype of `y`.
  template <class T>
  void plain(const InputView& y) const {
    const auto at = [](const Tensor& t, Index i) {
      return static_cast<T>(load_double(t.view().data, t.dtype(), i));
    };
    for (Index i = 0; i < rows(); ++i)
      for (Index j = 0; j < out(); ++j) {
        T sum = 0;
        for (Index l = 0; l < in(); ++l) sum += at(x, i * in() + l) * at(weight, j * in() + l);
        if (bias.view().given()) sum += at(bias, j);
        sum = static_cast<T>(ref::activate(activation, static_cast<double>(sum)));
        if (residual.view().given()) sum += at(residual, i * out() + j);
        store_double(y.data, y.dtype, i * out() + j, static_cast<double>(sum));
      }
  }
  /// T1: `y` against the truth, measured by a plain run of its dtype.
  testing::AssertionResult judge(const Tensor& y) const {
    Tensor truth(DType::f64, {rows(), out()}), yard(y.dtype(), {rows(), out()});
    plain<double>(truth.view());
    plain<float>(yard.view());
    return close_to_truth(y.view(), truth.view(), yard.view());
  }
};

}  // namespace headwise::test
