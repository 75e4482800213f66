// Gradients: a posed setting with dout and a place for every gradient, and central differences of its
// forward.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

#include "headwise/ops/attention/backward.h"
#include "tests/support/setting/setting_pose.h"

namespace headwise::test {

/// Every input whose gradient exists, with its gradient: `visit(name, input, gradient)`.
template <class Args, class F>
void each_gradient(Args& a, F&& visit) {
  auto& in = a.forward.inputs;
  visit("q", a.forward.q, a.dq), visit("k", a.forward.k, a.dk), visit("v", a.forward.v, a.dv);
  visit("bias", in.bias, a.dbias), visit("slopes", in.slopes, a.dslopes);
  visit("relative", in.relative, a.drelative), visit("sinks", in.sinks, a.dsinks);
  visit("scale", in.scale, a.dscale), visit("gate", in.gate, a.dgate);
  visit("mix_before", in.mix_before, a.dmix_before), visit("mix_after", in.mix_after, a.dmix_after);
  visit("mix_q", in.mix_q, a.dmix_q), visit("mix_k", in.mix_k, a.dmix_k);
  visit("alpha", in.alpha, a.dalpha);
}

/// A run and the memory of what it points at.
struct GradientRun {
  std::deque<Tensor> kept;  // addresses stay
  BackwardArgs args;
  HeadSpec heads;
  AnyView keep(Tensor t) {
    kept.push_back(std::move(t));
    return kept.back().view();
  }
};

/// The same numbers with every float tensor in f64, row-major, and a place for each gradient that has an
/// input: for differences and for truth.
GradientRun in_double(const BackwardArgs& a, const HeadSpec& heads);

/// A posed setting with dout, unit normal from `seed`; f64 and row-major as above. The mask stays in `p`.
GradientRun double_of(const Posed& p, std::uint64_t seed);

/// sum dout * out of the forward, on ref.
double loss_of(const GradientRun& r);

/// Compares every element of every gradient with five-point central differences of loss_of(), eps 1e-5: the
/// slope of a distance of 60 tokens bends too much for three points. Empty, or the first element that is off
/// by more than 1e-8 max(1, |g|).
std::string differs_from_differences(GradientRun& r);

}  // namespace headwise::test
