// Memory of devices for what lies above the library: allocations, copies, clearing, waiting.
#include "headwise/kernels/cuda/device/stream_state.h"
#include "headwise/kernels/cuda/table/memory.h"

namespace headwise::cuda::memory {
namespace {

/// Makes the device current, calls, and forgets the error of a failed call: it is no error of the next one.
template <class Call>
Status on_device(const char* name, int device, Call&& call) {
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  const Status status = status_of(name, call());
  if (!status.ok()) cudaGetLastError();
  return status;
}

}  // namespace

Status allocate(std::size_t bytes, int device, void** memory) {
  return on_device("cuda/allocate", device, [&] { return cudaMalloc(memory, bytes); });
}
Status release(void* memory, int device) {
  return on_device("cuda/release", device, [&] { return cudaFree(memory); });
}
Status copy(const void* from, void* to, std::size_t bytes, int device, void* stream) {
  return on_device("cuda/copy", device, [&] {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
  });
}
Status clear(void* memory, std::size_t bytes, int device, void* stream) {
  return on_device("cuda/clear", device,
                   [&] { return cudaMemsetAsync(memory, 0, bytes, static_cast<cudaStream_t>(stream)); });
}
Status wait(int device, void* stream) {
  return on_device("cuda/wait", device,
                   [&] { return cudaStreamSynchronize(static_cast<cudaStream_t>(stream)); });
}
Status pin(std::size_t bytes, int device, void** memory) {
  return on_device("cuda/pin", device,
                   [&] { return cudaHostAlloc(memory, bytes, cudaHostAllocPortable); });
}
Status unpin(void* memory, int device) {
  return on_device("cuda/unpin", device, [&] { return cudaFreeHost(memory); });
}
Status mark(int device, void* stream, void** mark) {
  return on_device("cuda/mark", device, [&] {
    auto event = static_cast<cudaEvent_t>(*mark);
    if (event == nullptr) {
      const cudaError_t made = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
      if (made != cudaSuccess) return made;
      *mark = event;
    }
    return cudaEventRecord(event, static_cast<cudaStream_t>(stream));
  });
}
Status reached(int device, void* mark) {
  return on_device("cuda/reached", device,
                   [&] { return cudaEventSynchronize(static_cast<cudaEvent_t>(mark)); });
}
Status unmark(int device, void* mark) {
  return on_device("cuda/unmark", device, [&] { return cudaEventDestroy(static_cast<cudaEvent_t>(mark)); });
}
Status room(int device, std::size_t* left, std::size_t* all) {
  return on_device("cuda/room", device, [&] { return cudaMemGetInfo(left, all); });
}

}  // namespace headwise::cuda::memory
