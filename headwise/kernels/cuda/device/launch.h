// launch: the only way a kernel is started; the stream cannot be forgotten, the name is in every error.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime.h>

#include "headwise/base/index.h"
#include "headwise/kernels/cuda/device/status.h"

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

/// A launch as the runtime wants it told.
struct LaunchConfig : cudaLaunchConfig_t {
  cudaLaunchAttribute attributes[2] = {};
  explicit LaunchConfig(const Launch& l) : cudaLaunchConfig_t{} {
    if (l.overlaps_forerunner) {
      cudaLaunchAttribute& overlap = attributes[numAttrs++];
      overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      overlap.val.programmaticStreamSerializationAllowed = 1;
    }
    if (l.cluster > 1) {
      cudaLaunchAttribute& cluster = attributes[numAttrs++];
      cluster.id = cudaLaunchAttributeClusterDimension;
      cluster.val.clusterDim.x = l.cluster, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    }
    gridDim = l.grid, blockDim = dim3(l.threads), dynamicSmemBytes = l.shared_bytes, stream = l.stream;
    attrs = attributes;
  }
  LaunchConfig(const LaunchConfig&) = delete;
  LaunchConfig& operator=(const LaunchConfig&) = delete;
};

template <class... Parameters, class... Arguments>
Status launch(const Launch& l, void (*kernel)(Parameters...), const Arguments&... arguments) {
  const LaunchConfig config(l);
  return status_of(l.name, cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

/// Clusters of such a launch that run at once on the current device.
template <class... Parameters>
Status clusters_at_once(const Launch& l, void (*kernel)(Parameters...), int& clusters) {
  const LaunchConfig config(l);
  return status_of(l.name, cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
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
