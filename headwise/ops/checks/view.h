// View checks: does a view stay inside 63 bits, repeat an element, share bytes with another.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/base/view.h"

namespace headwise {

/// Throws unless the view lies on the CPU: its numbers are read or written there.
inline void require_here(std::string_view op, std::string_view name, const AnyView& v) {
  require(v.on_cpu(), ErrorKind::bad_argument, op, name, " lies on ", v.where(),
          " but is used on the CPU; copy it there");
}

/// Elements from the first to one past the last; 0 for an empty view; ok is false when it leaves the range of
/// Index in bytes.
Checked reach_of(const AnyView& v);

/// True when each element has its own place: sorted by step, every axis jumps over all that the smaller ones
/// reach. Rare layouts that interleave without repeating are answered false.
bool each_element_once(const AnyView& v);

/// False only when it is proven that no byte belongs to both: separate ranges, or, inside one buffer,
/// separate columns of a common row (packed QKV and its like). Views that interleave in any other way are
/// answered true.
bool may_share_bytes(const AnyView& a, const AnyView& b);

/// Axes of size 1 get step 0 (1 for the last axis): their own step says nothing.
AnyView without_idle_steps(const AnyView& v);

}  // namespace headwise
