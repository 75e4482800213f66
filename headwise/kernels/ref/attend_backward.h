// ref: the gradients of attention in double, each line beside the forward line it differentiates.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::ref {

/// Takes every problem and every float dtype. Computes the forward anew from q, k, v: reads neither out nor
/// lse, so that nothing rounded stands between its inputs and its gradients.
extern const BackwardKernel kRefBackward;

}  // namespace headwise::ref
