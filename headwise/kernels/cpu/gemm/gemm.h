// cpu/packed: products of matrices in packed tiles, one fixed chain over k for every element.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/gemm_candidate.h"

namespace headwise::cpu::gemm {

/// f32, bf16 and f16 in any mixture; two bf16 operands take the matrix core where the level has one. The bits
/// of an element depend on its row of a, its column of b and the level alone.
extern const GemmKernel kPacked;

}  // namespace headwise::cpu::gemm
