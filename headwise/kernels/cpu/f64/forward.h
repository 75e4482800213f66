// cpu/f64 and cpu/f64_backward: attention and its gradients in double, with the bits of ref.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::cpu {

extern const AttentionKernel kF64;
extern const BackwardKernel kF64Backward;

}  // namespace headwise::cpu
