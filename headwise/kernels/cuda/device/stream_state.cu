#include "headwise/kernels/cuda/device/stream_state.h"

#include <cudaTypedefs.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace headwise::cuda {
namespace {

constexpr int kMostDevices = 64, kMostStreams = 256;

Status grow(const char* name, void** memory, std::size_t bytes, cudaStream_t stream) {
  if (*memory) {
    const Status freed = status_of(name, cudaFreeAsync(*memory, stream));
    if (!freed.ok()) return freed;
    *memory = nullptr;
  }
  return status_of(name, cudaMallocAsync(memory, bytes, stream));
}

Status may_grow(cudaStream_t stream) {
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  const Status status = status_of("cuda/workspace", cudaStreamIsCapturing(stream, &capture));
  if (!status.ok() || capture == cudaStreamCaptureStatusNone) return status;
  return {"cuda/workspace", 1,
          "memory must grow while a graph is captured; run this size once before the capture"};
}

struct Bytes {
  alignas(16) unsigned char data[kUploadBytes];  // launch arguments hold a little more
};
__global__ void write_bytes(const __grid_constant__ Bytes bytes, unsigned char* to, int count) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x))
    to[i] = bytes.data[i];
}

Status encode(const MapSpec& s, CUtensorMap& map) {
  static PFN_cuTensorMapEncodeTiled_v12000 function = nullptr;
  constexpr const char* kName = "cuda/tensor_map";
  if (!function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const Status status =
        status_of(kName, cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                          cudaEnableDefault, &result));
    if (!status.ok()) return status;
    if (result != cudaDriverEntryPointSuccess) return {kName, 1, "the driver has no cuTensorMapEncodeTiled"};
    function = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
  }
  // The step of an axis with one element is never walked, but must be a legal one.
  const auto bytes = [](Index step, Index size) {
    return static_cast<cuuint64_t>(size > 1 ? step * 2 : 128);
  };
  const bool panels = s.head_dim % 64 == 0;
  cuuint64_t size[5] = {static_cast<cuuint64_t>(panels ? 64 : s.head_dim), static_cast<cuuint64_t>(s.rows),
                        static_cast<cuuint64_t>(panels ? s.head_dim / 64 : 1),
                        static_cast<cuuint64_t>(s.heads), static_cast<cuuint64_t>(s.batch)};
  cuuint64_t step[4] = {bytes(s.step[1], s.rows), 128, bytes(s.step[2], s.heads), bytes(s.step[0], s.batch)};
  cuuint32_t box[5] = {64, static_cast<cuuint32_t>(s.box_rows),
                       static_cast<cuuint32_t>(panels ? s.box_panels : 1), 1, 1};
  if (s.whole_rows) std::swap(size[1], size[2]), std::swap(step[0], step[1]), std::swap(box[1], box[2]);
  const cuuint32_t stride[5] = {1, 1, 1, 1, 1};
  // 256 bytes to L2 cost decode 6 % on an H200.
  const CUresult code = function(&map, s.type, 5, const_cast<void*>(s.data), size, step, box, stride,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    return {kName, static_cast<int>(code), "the driver refused the sizes or steps of a tensor"};
  return {};
}

}  // namespace

DeviceFacts facts_of(int device) {
  static std::mutex mutex;
  static DeviceFacts known[kMostDevices];
  if (device < 0 || device >= kMostDevices) return {};
  const std::lock_guard lock(mutex);
  DeviceFacts& f = known[device];
  if (f.there) return f;
  DeviceFacts found;
  found.there =
      cudaDeviceGetAttribute(&found.major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&found.minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&found.processors, cudaDevAttrMultiProcessorCount, device) == cudaSuccess &&
      cudaDeviceGetAttribute(&found.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
          cudaSuccess;
  found.shared_bytes -= 1024;
  if (const char* most = std::getenv("HEADWISE_CUDA_PROCESSORS"); most && std::atoi(most) > 0)
    found.processors = std::min(found.processors, std::atoi(most));
  if (!found.there)
    cudaGetLastError();  // asking about a device that is not there is no error of the next call
  f = found;
  return f;
}

StreamState* state_of(int device, cudaStream_t stream) {
  static std::mutex mutex;
  static StreamState states[kMostStreams];
  const std::lock_guard lock(mutex);
  for (StreamState& s : states) {
    if (s.device == device && s.stream == stream) return &s;
    if (s.device >= 0) continue;
    s.device = device, s.stream = stream;
    return &s;
  }
  return nullptr;
}

Status StreamState::reserve(Index counters_needed, std::size_t scratch_needed) {
  if (counters_needed <= counter_count && scratch_needed <= scratch_bytes) return {};
  Status status = may_grow(stream);
  if (!status.ok()) return status;
  if (counters_needed > counter_count) {
    const Index count = counters_needed < 4096 ? 4096 : 2 * counters_needed;
    const auto bytes = static_cast<std::size_t>(count) * sizeof(int);
    counter_count = 0;
    status = grow("cuda/workspace", reinterpret_cast<void**>(&counters), bytes, stream);
    if (status.ok()) status = status_of("cuda/workspace", cudaMemsetAsync(counters, 0, bytes, stream));
    if (!status.ok()) return status;
    counter_count = count;
  }
  if (scratch_needed > scratch_bytes) {
    scratch_bytes = 0;
    status = grow("cuda/workspace", reinterpret_cast<void**>(&scratch), scratch_needed, stream);
    if (!status.ok()) return status;
    scratch_bytes = scratch_needed;
  }
  return {};
}

Status StreamState::hold(std::size_t needed) {
  if (needed <= held_bytes) return {};
  Status status = may_grow(stream);
  if (!status.ok()) return status;
  held_bytes = 0;
  status = grow("cuda/workspace", reinterpret_cast<void**>(&held), needed, stream);
  if (status.ok()) held_bytes = needed;
  return status;
}

Status StreamState::map_of(const MapSpec& spec, CUtensorMap& map) {
  const auto address = reinterpret_cast<std::uintptr_t>(spec.data);
  const std::size_t at =
      (address / 256 * 31 + static_cast<std::size_t>(spec.box_rows * 7 + spec.rows + spec.box_panels)) %
      kKept;
  if (!(specs_[at] == spec)) {
    specs_[at] = {};
    const Status status = encode(spec, maps_[at]);
    if (!status.ok()) return status;
    specs_[at] = spec;
  }
  map = maps_[at];
  return {};
}

Status upload(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  for (std::size_t done = 0; done < bytes; done += kUploadBytes) {
    const std::size_t count = bytes - done < kUploadBytes ? bytes - done : kUploadBytes;
    Bytes chunk;
    std::memcpy(chunk.data, static_cast<const unsigned char*>(from) + done, count);
    const Status status = launch({"cuda/upload", dim3(1), 256, 0, stream}, write_bytes, chunk,
                                 static_cast<unsigned char*>(to) + done, static_cast<int>(count));
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace headwise::cuda
