#include "headwise/kernels/cuda/device/stream_state.h"

#include <cudaTypedefs.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace headwise::cuda {
namespace {

constexpr int kMostDevices = 64, kMostStreams = 256;

constexpr const char* kWorkspace = "cuda/workspace";

/// Calls that a capture forbids by default, such as cudaMalloc, are allowed inside its scope.
class RelaxedCapture {
 public:
  RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

/// Zeroed memory beside a capture: nothing of it becomes part of the graph. What was there before stays,
/// since launches that are captured already read it; sizes double, so all that is kept is less than the last.
Status grow_captured(void** memory, std::size_t bytes) {
  const RelaxedCapture relaxed;
  cudaStream_t apart = nullptr;
  Status status = status_of(kWorkspace, cudaMalloc(memory, bytes));
  if (status.ok()) status = status_of(kWorkspace, cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking));
  if (status.ok()) status = status_of(kWorkspace, cudaMemsetAsync(*memory, 0, bytes, apart));
  if (status.ok()) status = status_of(kWorkspace, cudaStreamSynchronize(apart));
  if (apart) cudaStreamDestroy(apart);
  return status;
}

Status grow(void** memory, std::size_t bytes, const StreamState& state) {
  if (state.capture) return grow_captured(memory, bytes);
  if (*memory) {
    const Status freed = status_of(kWorkspace, cudaFreeAsync(*memory, state.stream));
    if (!freed.ok()) return freed;
    *memory = nullptr;
  }
  return status_of(kWorkspace, cudaMallocAsync(memory, bytes, state.stream));
}

/// Bytes to ask for where `needed` are more than there are.
std::size_t grown(std::size_t needed, std::size_t before, const StreamState& state) {
  return state.capture ? std::max(needed, 2 * before) : needed;
}

/// The capture a stream is in; number 0: none. The legacy default stream cannot be captured.
struct Capture {
  unsigned long long number = 0;
  cudaGraph_t graph = nullptr;
};
Capture capture_of(cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return {};
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Capture c;
  if (cudaStreamGetCaptureInfo(stream, &status, &c.number, &c.graph, nullptr, nullptr, nullptr) !=
          cudaSuccess ||
      status != cudaStreamCaptureStatusActive)
    return {};
  return c;
}

/// The graph, and what is instantiated from it, tells the state when nothing of them is left.
bool bind_to_graph(StreamState& state, cudaGraph_t graph) {
  cudaUserObject_t object = nullptr;
  const auto gone = [](void* s) { static_cast<StreamState*>(s)->graph_gone = true; };
  if (cudaUserObjectCreate(&object, &state, gone, 1, cudaUserObjectNoDestructorSync) != cudaSuccess)
    return false;
  return cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove) == cudaSuccess;
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
  const bool panels = s.box_panels > 0 && s.head_dim % 64 == 0;
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
  const Capture capture = capture_of(stream);
  StreamState* free = nullptr;
  for (StreamState& s : states) {
    if (s.device == device && s.stream == stream && s.capture == capture.number) return &s;
    const bool left = capture.number && s.device == device && s.capture && s.graph_gone;
    if (!free && (s.device < 0 || left)) free = &s;
    if (s.device < 0) break;
  }
  if (!free) return nullptr;
  free->graph_gone = false;
  if (capture.number && !bind_to_graph(*free, capture.graph)) return nullptr;
  free->device = device, free->stream = stream, free->capture = capture.number;
  return free;
}

Status StreamState::reserve(Index counters_needed, std::size_t scratch_needed) {
  Status status;
  if (counters_needed > counter_count) {
    const Index count = counters_needed < 4096 ? 4096 : 2 * counters_needed;
    const auto bytes = static_cast<std::size_t>(count) * sizeof(int);
    counter_count = 0;
    status = grow(reinterpret_cast<void**>(&counters), bytes, *this);
    if (status.ok() && !capture) status = status_of(kWorkspace, cudaMemsetAsync(counters, 0, bytes, stream));
    if (!status.ok()) return status;
    counter_count = count;
  }
  if (scratch_needed > scratch_bytes) {
    const std::size_t bytes = grown(scratch_needed, std::exchange(scratch_bytes, 0), *this);
    status = grow(reinterpret_cast<void**>(&scratch), bytes, *this);
    if (!status.ok()) return status;
    scratch_bytes = bytes;
  }
  return {};
}

Status StreamState::hold(std::size_t needed) {
  if (needed <= held_bytes) return {};
  const std::size_t bytes = grown(needed, std::exchange(held_bytes, 0), *this);
  const Status status = grow(reinterpret_cast<void**>(&held), bytes, *this);
  if (status.ok()) held_bytes = bytes;
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
