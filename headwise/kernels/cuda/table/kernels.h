// The attention kernels of the CUDA library, one row of the choice list each.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/table/backend.h"

namespace headwise::cuda {

extern const Kernel kDecode;  // few queries, many keys; Hopper
extern const Kernel kHopper;  // tiles by wgmma; Hopper
extern const Kernel kRagged;  // a ragged batch: each sequence by the one of the two it takes alone
extern const Kernel kPhase;   // cuda/hopper whatever the number of queries; by name alone
extern const Kernel kMma;     // tiles by mma.sync: every mask, term and layout, widths up to 512
extern const Kernel kPlain;   // a warp a row, every width, dtype and mask: the GPU's own reference
extern const Kernel kProbes;  // top keys and column sums: another kernel, then a second look at the scores
extern const Kernel kRows;    // heads that list their query rows
extern const Kernel kMixed;   // heads that are mixed, in chunks of 64 queries
extern const Kernel kEntmax;  // entmax, in chunks of 64 queries

extern const BackwardKernel kHopperBackward;     // tiles by wgmma, dq added in one order; Hopper
extern const BackwardKernel kUnorderedBackward;  // the same, dq added in any order; by name alone
extern const BackwardKernel kMmaBackward;  // tiles by mma.sync: every mask, term and layout, widths up to 256
extern const BackwardKernel kPlainBackward;  // a warp a row, every width, dtype and mask
extern const BackwardKernel kMixedBackward, kEntmaxBackward;

}  // namespace headwise::cuda
