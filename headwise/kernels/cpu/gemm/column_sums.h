// Sums of columns on the CPU: one chain over the rows in ascending order, whatever the threads.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/threads.h"
#include "headwise/spec/gemm.h"

namespace headwise::cpu::gemm {

/// out[j] += x[0][j] + x[1][j] + ...: the chain starts at out[j], in f32, or in f64 where x is f64. out [n],
/// any float dtype.
void add_column_sums(const MatrixView& x, const AnyView& out, ThreadPool& pool) noexcept;

}  // namespace headwise::cpu::gemm
