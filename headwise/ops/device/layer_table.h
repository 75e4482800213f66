// The second table of the CUDA library, products and row operations, or why there is none.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/base/device.h"
#include "headwise/kernels/cuda/table/layers.h"

namespace headwise {

struct CudaLayers {
  const cuda::LayerTable* table = nullptr;  // null: `why`
  std::string why;                          // empty when it can run
};
const CudaLayers& cuda_layers();

}  // namespace headwise
