// cpu/f64 and cpu/f64_backward: attention and its gradients in double, with the bits of ref.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::cpu::f64 {

extern const AttentionKernel kForward;
extern const BackwardKernel kBackward;

}  // namespace headwise::cpu::f64
