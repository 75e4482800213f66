// cpu/entmax: sparse weights in one look at the scores: a row keeps the keys that may weigh something, finds
// its threshold among them, and sums their values alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::cpu::entmax {

extern const AttentionKernel kForward;
/// From the saved tau (lse): rows first (dq and the terms), then blocks of keys (dk and dv).
extern const BackwardKernel kBackward;

}  // namespace headwise::cpu::entmax
