// ref: attention in double, a loop per line of the formula: the truth every other kernel is held to.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::ref {

/// Takes every problem and every float dtype; the only kernel that may allocate.
extern const AttentionKernel kRef;

}  // namespace headwise::ref
