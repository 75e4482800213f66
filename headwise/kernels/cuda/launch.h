// launch: the only way a kernel is started; the stream cannot be forgotten, the name is in every error.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime.h>

#include "headwise/kernels/cuda/backend.h"

namespace headwise::cuda {

inline Status status_of(const char* launch, cudaError_t code) {
  return code == cudaSuccess ? Status{} : Status{launch, static_cast<int>(code), cudaGetErrorString(code)};
}

struct Launch {
  const char* name;
  dim3 grid;
  unsigned threads;
  std::size_t shared_bytes;
  cudaStream_t stream;
  /// The kernel waits for its forerunner itself (griddepcontrol.wait), so it may be set up beside it.
  bool overlaps_forerunner = false;
  unsigned cluster = 1;  // blocks along x that see each other's shared memory
};

template <class... Parameters, class... Arguments>
Status launch(const Launch& l, void (*kernel)(Parameters...), const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (l.overlaps_forerunner) {
    cudaLaunchAttribute& overlap = attributes[count++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
  if (l.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[count++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = l.cluster, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = l.grid;
  config.blockDim = dim3(l.threads);
  config.dynamicSmemBytes = l.shared_bytes;
  config.stream = l.stream;
  config.attrs = attributes;
  config.numAttrs = count;
  return status_of(l.name, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

/// Opts a kernel in to more shared memory than 48 KB; once per device, since the attribute is kept there.
template <class... Parameters>
Status allow_shared(const char* name, void (*kernel)(Parameters...), std::size_t bytes, bool (&done)[64],
                    int device) {
  const auto slot = static_cast<std::size_t>(device) % 64;
  if (done[slot]) return {};
  const Status status = status_of(
      name,
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  done[slot] = status.ok();
  return status;
}

}  // namespace headwise::cuda
