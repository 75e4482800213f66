// StreamState: counters, scratch memory and tensor maps of one stream or captured graph.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda.h>

#include <atomic>
#include <mutex>

#include "headwise/kernels/cuda/device/launch.h"

namespace headwise::cuda {

struct DeviceFacts {
  bool there = false;
  int major = 0, minor = 0;
  int processors = 0;    // grids are made for so many; HEADWISE_CUDA_PROCESSORS lowers it
  int shared_bytes = 0;  // dynamic shared memory a block may have, beside 1 KB of static
};
/// Asked of the driver once a device.
DeviceFacts facts_of(int device);

/// [batch rows heads head_dim] of 16-bit numbers as a bulk copy reads it: boxes of rows x panels of 64
/// columns. With `box_panels` 0, or where head_dim is no multiple of 64, there is one panel of all columns.
/// A box has 64 of them and starts at its column; what lies past the last one reads as 0 and is not written.
/// In shared memory panels follow one another, or, as whole rows, all panels of a row do before the next
/// row.
struct MapSpec {
  const void* data = nullptr;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  Index batch = 0, rows = 0, heads = 0, head_dim = 0;
  Index step[3] = {};  // batch, row, head; in elements
  int box_rows = 0, box_panels = 0;
  bool whole_rows = false;
  friend bool operator==(const MapSpec&, const MapSpec&) = default;
};

/// Used under its mutex: runs on one stream are issued one after another. A graph that is captured has a
/// state of its own, whichever stream warmed up: its memory stays where the graph's launches found it, and
/// graphs may be replayed beside each other.
struct StreamState {
  std::mutex mutex = {};
  int device = -1;
  cudaStream_t stream = nullptr;
  unsigned long long capture = 0;          // the capture's number; 0: runs of the stream itself
  std::atomic<bool> graph_gone = {false};  // no graph of the capture is left: another may have the memory
  int* counters = nullptr;                 // all zero between launches
  Index counter_count = 0;
  std::byte* scratch = nullptr;
  std::size_t scratch_bytes = 0;
  std::mutex outer = {};      // taken by a run that starts other runs, before their `mutex`
  std::byte* held = nullptr;  // what such a run keeps between them
  std::size_t held_bytes = 0;

  /// Grows from the device's pool, in the order of the stream; in a capture by plain memory, and what earlier
  /// launches of it were told of is kept.
  Status reserve(Index counters_needed, std::size_t scratch_needed);
  Status hold(std::size_t needed);
  /// A map for these sizes and this address, kept for the next call.
  Status map_of(const MapSpec& spec, CUtensorMap& map);

 private:
  static constexpr std::size_t kKept = 64;
  MapSpec specs_[kKept] = {};
  CUtensorMap maps_[kKept] = {};
};

/// The state of a stream, or of the graph it captures, made at its first use; null when there are too many.
StreamState* state_of(int device, cudaStream_t stream);
/// What a run answers then.
inline constexpr Status kNoState = {"cuda/streams", 1,
                                    "more than 256 streams and captured graphs were used in this process"};

/// What one launch of `upload` carries.
inline constexpr std::size_t kUploadBytes = 3840;
/// Copies host bytes to the device as launch arguments: the host memory is free at once, and a captured graph
/// carries the values.
Status upload(void* to, const void* from, std::size_t bytes, cudaStream_t stream);

/// Makes a device current for a scope and puts the caller's back.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    code_ = cudaGetDevice(&before_);
    if (code_ == cudaSuccess && before_ != device) code_ = cudaSetDevice(device), changed_ = true;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  Status status() const { return status_of("cuda/set_device", code_); }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t code_ = cudaSuccess;
};

}  // namespace headwise::cuda
