// The product kernels of the CUDA library, one row of the choice list each.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/table/backend.h"
#include "headwise/spec/gemm.h"

namespace headwise::cuda {

namespace gemm {
extern const GemmEntries kHopper;  // 16-bit numbers: one of the next two by the sizes; Hopper
extern const GemmEntries kStream;  // by mma.sync behind tensor maps: few rows, small products; by name alone
extern const GemmEntries kWgmma;   // by wgmma; by name alone
extern const GemmEntries kMma;     // 16-bit numbers by mma.sync
extern const GemmEntries kCublasLt;  // the sum alone by cuBLASLt, found at run time; by name alone
extern const GemmEntries kParts;     // f32 as three parts of bf16, where the problem says parts
extern const GemmEntries kPlain;     // every float type and step, one fused multiply-add after the other
}  // namespace gemm

}  // namespace headwise::cuda
