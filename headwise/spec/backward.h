// BackwardProblem: which gradients of one attention are asked, and BackwardArgs: the addresses of one run.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/spec/problem.h"

namespace headwise {

/// The gradients a run writes; the rest is not computed.
struct GradientSpec {
  bool q = false, k = false, v = false;
  bool bias = false, slopes = false, relative = false, sinks = false, scale = false, gate = false,
       alpha = false;
  bool mix_before = false, mix_after = false, mix_q = false, mix_k = false;
  friend constexpr bool operator==(const GradientSpec&, const GradientSpec&) = default;
};

/// Sizes, kinds and dtypes: no address, comparable, the whole key of a plan. `forward` is the problem whose
/// gradient this is, without probes.
struct BackwardProblem {
  AttentionProblem forward = {};
  GradientSpec wants = {};
  friend constexpr bool operator==(const BackwardProblem&, const BackwardProblem&) = default;
};

/// One run. forward.out and forward.lse are what the forward wrote and are only read. A gradient has the
/// shape of its input and is overwritten, never added to. Where several heads read the same element (groups,
/// overlapping rows, a bias axis of size 1) it is their sum, in ascending order of heads.
struct BackwardArgs {
  AttentionArgs forward = {};
  InputView dout = {};                                // like forward.out, same dtype
  AnyView dq = {}, dk = {}, dv = {};                  // like q, k, v, same dtype
  AnyView dbias = {};                                 // [batch heads q kv], sizes as the bias; any float
  AnyView dslopes = {}, drelative = {}, dsinks = {};  // like inputs.slopes, .relative, .sinks; any float
  AnyView dscale = {};                                // [1] or [heads], as inputs.scale; f32 or f64
  AnyView dgate = {};                                 // like inputs.gate; any float
  AnyView dmix_before = {}, dmix_after = {}, dmix_q = {}, dmix_k = {};  // like inputs.mix_*; any float
  AnyView dalpha = {};                                                  // like inputs.alpha; any float
};

}  // namespace headwise
