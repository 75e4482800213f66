// The attention kernels of the CUDA library, one row of the choice list each, by the room they stand in.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/table/backend.h"

namespace headwise::cuda {

namespace hopper {
extern const Kernel kRagged;  // a ragged batch: each sequence by the one of the next two it takes alone
extern const Kernel kPhase;   // forward::kAttend whatever the number of queries; by name alone
namespace decode {
extern const Kernel kAttend;  // few queries, many keys; Hopper
}  // namespace decode
namespace forward {
extern const Kernel kAttend;  // tiles by wgmma; Hopper
}  // namespace forward
namespace backward {
extern const BackwardKernel kBackward;   // tiles by wgmma, dq added in one order; Hopper
extern const BackwardKernel kUnordered;  // the same, dq added in any order; by name alone
}  // namespace backward
}  // namespace hopper

namespace mma {
extern const Kernel kAttend;            // tiles by mma.sync: every mask, term and layout, widths up to 512
extern const BackwardKernel kBackward;  // the same, widths up to 256
}  // namespace mma

namespace plain {
extern const Kernel kAttend;            // a warp a row, every width, dtype and mask: the GPU's own reference
extern const BackwardKernel kBackward;  // the same
}  // namespace plain

namespace probe {
extern const Kernel kAttend;  // top keys and column sums: another kernel, then a second look at the scores
}  // namespace probe

namespace row_lists {
extern const Kernel kAttend;  // heads that list their query rows
}  // namespace row_lists

namespace mixed {
extern const Kernel kAttend;  // heads that are mixed, in chunks of 64 queries
extern const BackwardKernel kBackward;
}  // namespace mixed

namespace entmax {
extern const Kernel kAttend;  // entmax, in chunks of 64 queries
extern const BackwardKernel kBackward;
}  // namespace entmax

}  // namespace headwise::cuda
