#include "headwise/ops/checks/view.h"

#include <cstdint>

namespace headwise {
namespace {

bool is_empty(const AnyView& v) {
  for (int axis = 0; axis < v.rank; ++axis)
    if (v.size[axis] == 0) return true;
  return v.rank == 0;
}

/// Bytes a view covers inside one row of `row` bytes: from begin (0 <= begin < row) on; length 0 when it has
/// no such form.
struct Columns {
  Index begin = 0, length = 0;
};
Columns columns_of(const AnyView& v, Index row) {
  const Index item = size_of(v.dtype);
  Index length = item;
  for (int axis = 0; axis < v.rank; ++axis)
    if (v.size[axis] > 1 && v.step[axis] * item % row != 0)
      length += (v.size[axis] - 1) * v.step[axis] * item;
  if (length > row) return {};
  return {static_cast<Index>(reinterpret_cast<std::uintptr_t>(v.data) % static_cast<std::uintptr_t>(row)),
          length};
}
/// Columns on a ring of `row` bytes: a row's end is the next row's begin.
bool apart(const Columns& a, const Columns& b, Index row) {
  const Index b_after_a = (b.begin - a.begin + row) % row, a_after_b = (a.begin - b.begin + row) % row;
  return a.length > 0 && b.length > 0 && a.length <= b_after_a && b.length <= a_after_b;
}

bool proven_apart(const AnyView& a, const AnyView& b) {
  for (const AnyView* v : {&a, &b})
    for (int axis = 0; axis < v->rank; ++axis) {
      const Index row = v->step[axis] * size_of(v->dtype);
      if (v->size[axis] > 1 && row > 0 && apart(columns_of(a, row), columns_of(b, row), row)) return true;
    }
  return false;
}

}  // namespace

Checked reach_of(const AnyView& v) {
  if (is_empty(v)) return 0;
  Checked last(0);
  for (int axis = 0; axis < v.rank; ++axis)
    if (v.size[axis] > 1) last = last + Checked(v.size[axis] - 1) * Checked(v.step[axis]);
  Checked reach = last + Checked(1);
  reach.ok = (reach * Checked(size_of(v.dtype))).ok;
  return reach;
}

bool each_element_once(const AnyView& v) {
  if (is_empty(v)) return true;
  int order[kMaxRank], axes = 0;
  for (int axis = 0; axis < v.rank; ++axis)
    if (v.size[axis] > 1) {
      int at = axes++;
      for (; at > 0 && v.step[order[at - 1]] > v.step[axis]; --at) order[at] = order[at - 1];
      order[at] = axis;
    }
  Index reach = 1;
  for (int n = 0; n < axes; ++n) {
    if (v.step[order[n]] < reach) return false;
    reach += (v.size[order[n]] - 1) * v.step[order[n]];
  }
  return true;
}

bool may_share_bytes(const AnyView& a, const AnyView& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const auto a0 = reinterpret_cast<std::uintptr_t>(a.data), b0 = reinterpret_cast<std::uintptr_t>(b.data);
  const auto a1 = a0 + static_cast<std::uintptr_t>(reach_of(a).value * size_of(a.dtype));
  const auto b1 = b0 + static_cast<std::uintptr_t>(reach_of(b).value * size_of(b.dtype));
  if (a1 <= b0 || b1 <= a0) return false;
  return !proven_apart(a, b);
}

AnyView without_idle_steps(const AnyView& v) {
  AnyView r = v;
  for (int axis = 0; axis < r.rank; ++axis)
    if (r.size[axis] == 1) r.step[axis] = axis == r.rank - 1 ? 1 : 0;
  return r;
}

}  // namespace headwise
