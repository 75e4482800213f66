// here: where an op runs, by its tensors, and how tensors of a device are checked and read as rows.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <initializer_list>
#include <string_view>

#include "headwise/kernels/cuda/table/rows.h"

namespace headwise {

struct GivenTensor {
  const char* name;
  const AnyView& view;
};

/// The device on which all given tensors lie; throws, naming two of them, where they do not lie together.
Device device_of(std::string_view op, std::initializer_list<GivenTensor> tensors);

/// v as a tensor of the CPU, so that checks of sizes and steps take it; never for reading its numbers.
inline AnyView as_checked(const AnyView& v) { return v.on(Device::cpu()); }

/// A tensor of any rank as rows of its last axis, which lies side by side, one step from row to row.
__attribute__((visibility("default"))) cuda::Rows rows_on_device(std::string_view op, const char* name,
                                                                 const AnyView& v);
/// A vector that lies side by side; empty: not given.
cuda::Numbers numbers_on_device(std::string_view op, const char* name, const AnyView& v);
/// The same of f32 that is added to; null: not given.
float* sums_on_device(std::string_view op, const char* name, const AnyView& v);

/// Rows of v once its last axis is a row.
inline Index row_count(const AnyView& v) {
  Index rows = 1;
  for (int axis = 0; axis + 1 < v.rank; ++axis) rows *= v.size[axis];
  return rows;
}
inline Index column_count(const AnyView& v) { return v.rank ? v.size[v.rank - 1] : 0; }

}  // namespace headwise
