// gradients_of: the gradients of q, k, v and a bias of one call, for torch's own gradient node.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "python/attention/call.h"

namespace headwise::python {

/// What the forward gave, and the gradient of its output.
struct BackwardTensors {
  nb::handle dout, out, lse;
};
/// (dq, dk, dv, dbias); None where it is not wanted.
nb::tuple gradients_of(const AttentionWords& words, const BackwardTensors& saved, const GradientSpec& wants);

}  // namespace headwise::python
