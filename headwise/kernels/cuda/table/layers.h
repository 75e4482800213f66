// What layers need of the CUDA library: products and row operations, one versioned table beside attention's.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/table/gemm.h"
#include "headwise/kernels/cuda/table/memory.h"
#include "headwise/kernels/cuda/table/rows.h"

namespace headwise::cuda {

inline constexpr std::uint32_t kLayerTableVersion = 4;
inline constexpr const char* kLayerTableName = "headwise_cuda_layers";

struct LayerTable {
  // Two builds must mean the same structs.
  std::uint32_t version, gemm_problem_bytes, gemm_args_bytes, row_bytes;
  int gemm_count;
  const GemmEntries* gemm;  // in the order of cuda_gemm_kernels()
  RowTable rows;
  MemoryTable memory;
};
using LayerTableFunction = const LayerTable* (*)();

/// Changes with any of the tasks.
inline constexpr std::uint32_t kRowBytes =
    sizeof(NormTask) + sizeof(NormGradTask) + sizeof(ActivationTask) + sizeof(DropoutTask) +
    sizeof(RopeTask) + sizeof(EmbeddingTask) + sizeof(LossTask) + sizeof(AdamWTask) + sizeof(NormOfTask) +
    sizeof(BinaryLossTask) + sizeof(ColumnSumTask) + sizeof(SgdTask) + sizeof(SgdWords) +
    sizeof(AdamWParameter) + sizeof(AdamWWords) + sizeof(BagTask) + sizeof(PoolTask);

}  // namespace headwise::cuda
