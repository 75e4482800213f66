// CopyNeed: what the bulk copies of Hopper's tiles ask of a view: 16-byte steps and addresses, columns side
// by side.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/band.h"

namespace headwise::cuda {

/// The first need a view does not meet.
enum class CopyNeed : std::uint8_t { none, last_step, steps, near_steps, sizes, address };

inline CopyNeed copy_need(const AnyView& v) {
  if (v.step[3] != 1) return CopyNeed::last_step;
  for (int axis = 0; axis < 3; ++axis) {
    if (v.size[axis] > 1 && v.step[axis] * size_of(v.dtype) % 16 != 0) return CopyNeed::steps;
    if (v.step[axis] >= Index{1} << 38) return CopyNeed::near_steps;
    if (v.size[axis] > kFar) return CopyNeed::sizes;
  }
  return reinterpret_cast<std::uintptr_t>(v.data) % 16 == 0 ? CopyNeed::none : CopyNeed::address;
}

constexpr const char* words_of(CopyNeed need, DType dtype) {
  switch (need) {
    case CopyNeed::none: return nullptr;
    case CopyNeed::last_step: return "a last step of 1";
    case CopyNeed::steps:
      return size_of(dtype) == 1 ? "steps that are multiples of 16 elements"
                                 : "steps that are multiples of 8 elements";
    case CopyNeed::near_steps: return "steps below 2^38 elements";
    case CopyNeed::sizes: return "sizes up to 2^29";
    case CopyNeed::address: return "an address that is a multiple of 16";
  }
  return nullptr;
}

/// What a view misses, or null.
inline const char* copy_refuses(const AnyView& v) { return words_of(copy_need(v), v.dtype); }

}  // namespace headwise::cuda
