// The CUDA library, found beside this one at the first question, or the sentence that says why there is none.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/kernels/cuda/table/backend.h"

namespace headwise {

struct CudaBackend {
  const cuda::Table* table = nullptr;  // null: `why`
  std::string why;                     // no library, another version of it, no device; empty when it can run
  int devices = 0;
  void* library = nullptr;  // as dlopen gave it; null where there is none
};
const CudaBackend& cuda_backend();

/// "NVIDIA H200, capability 9.0, ..." of one device; empty for a number that is none.
std::string cuda_device_words(int device);
/// One line for people: the devices, or why there is none.
std::string cuda_words();

}  // namespace headwise
