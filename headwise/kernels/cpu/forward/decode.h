// cpu/decode: few queries against a long KV: splits of keys side by side, folded in order; keys in
// pages; bits of cpu/online.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/candidate.h"

namespace headwise::cpu::forward {

extern const AttentionKernel kDecode;

/// Queries a sequence may bring, and keys from which on splitting them pays whatever the rows.
inline constexpr Index kMostDecodeQueries = 16, kFewestDecodeKeys = 512;

}  // namespace headwise::cpu::forward
