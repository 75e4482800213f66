// ref: a product of matrices in double, a loop per line of the formula, rounded once.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/gemm_candidate.h"

namespace headwise::ref {

/// Takes every problem and every float dtype; one thread.
extern const GemmKernel kRefGemm;

}  // namespace headwise::ref
