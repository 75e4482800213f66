// Sums of a bias's gradient on their way to the caller: an axis of size 1, or of step 0, is summed over.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::cpu::backward {

/// An axis of dbias along which all elements are one.
bool is_summed(const AnyView& bias, int axis);
/// Writes sums [kv_tokens][size] of rows first_row.. of one (batch, head) of dbias.
void write_bias(const AttentionProblem& p, const AnyView& to, const float* sums, Index size, Index batch,
                Index head, Index first_row);

}  // namespace headwise::cpu::backward
