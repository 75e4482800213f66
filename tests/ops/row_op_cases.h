// What the tests of row ops share: tensors in awkward layouts, error sentences, bit equality, distance in
// ulps.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "headwise/base/buffer.h"

namespace headwise::test {

template <class F>
std::string error_of(const F& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

template <class F>
void each_index(const InputView& v, const F& f) {
  for (Index n = 0; n < v.count(); ++n) {
    Index at[kMaxRank] = {}, rest = n;
    for (int axis = v.rank - 1; axis >= 0; --axis) at[axis] = rest % v.size[axis], rest /= v.size[axis];
    f(at);
  }
}
inline Index offset_of(const InputView& v, const Index* at) {
  Index offset = 0;
  for (int axis = 0; axis < v.rank; ++axis) offset += at[axis] * v.step[axis];
  return offset;
}

/// A view of v's sizes over memory of its own, axes stored in `order` (outermost first), `gap` unused places
/// after each element. Unused places hold a pattern that is a NaN in every float type.
struct Scattered {
  std::vector<std::byte> memory;
  AnyView view;

  Scattered(const InputView& v, const std::vector<int>& order, Index gap) : view(v) {
    Index step = 1 + gap;
    for (auto axis = order.rbegin(); axis != order.rend(); ++axis) {
      view.step[*axis] = step;
      step = step * v.size[*axis] + gap;
    }
    memory.assign(static_cast<std::size_t>(step * size_of(v.dtype)), std::byte{0xff});
    view.data = memory.data();
    each_index(v, [&](const Index* at) { copy_item(v, view, at); });
  }
  static void copy_item(const InputView& from, const InputView& to, const Index* at) {
    const Index item = size_of(from.dtype);
    std::memcpy(static_cast<std::byte*>(to.data) + offset_of(to, at) * item,
                static_cast<const std::byte*>(from.data) + offset_of(from, at) * item,
                static_cast<std::size_t>(item));
  }
  /// The values, row-major.
  Tensor packed() const {
    Tensor t = tensor_like(view);
    each_index(view, [&](const Index* at) { copy_item(view, t.view(), at); });
    return t;
  }
  /// Unused places are as they were.
  bool gaps_intact() const {
    std::vector<std::byte> left = memory;
    const Index item = size_of(view.dtype);
    each_index(view, [&](const Index* at) {
      std::memset(left.data() + offset_of(view, at) * item, 0xff, static_cast<std::size_t>(item));
    });
    for (std::byte b : left)
      if (b != std::byte{0xff}) return false;
    return true;
  }
  static Tensor tensor_like(const InputView& v) {
    switch (v.rank) {
      case 1: return Tensor(v.dtype, {v.size[0]});
      case 2: return Tensor(v.dtype, {v.size[0], v.size[1]});
      case 3: return Tensor(v.dtype, {v.size[0], v.size[1], v.size[2]});
      default: return Tensor(v.dtype, {v.size[0], v.size[1], v.size[2], v.size[3]});
    }
  }
};

inline Tensor tensor_like(const InputView& v) { return Scattered::tensor_like(v); }

/// Both row-major and of one dtype.
inline bool same_bits(const InputView& a, const InputView& b) {
  return a.dtype == b.dtype && a.count() == b.count() &&
         (a.count() == 0 ||
          std::memcmp(a.data, b.data, static_cast<std::size_t>(a.count() * size_of(a.dtype))) == 0);
}

/// v[from:to] along `axis`.
inline InputView slice(InputView v, int axis, Index from, Index to) {
  v.data = static_cast<std::byte*>(v.data) + from * v.step[axis] * size_of(v.dtype);
  v.size[axis] = to - from;
  return v;
}
/// The row v[at[0], ...] along the last axis.
inline AnyView row_of(const InputView& v, const Index* at) {
  AnyView r = v;
  r.data = static_cast<std::byte*>(v.data) +
           (offset_of(v, at) - at[v.rank - 1] * v.step[v.rank - 1]) * size_of(v.dtype);
  r.rank = 1;
  r.size[0] = v.size[v.rank - 1];
  r.step[0] = v.step[v.rank - 1];
  return r;
}

inline double value(const InputView& v, Index i) { return load_double(v.data, v.dtype, i); }

/// The distance between two neighbours of `t` around x (x within its normal range, or its smallest step
/// below).
inline double ulp(DType t, double x) {
  const int digits = t == DType::f64 ? 53 : t == DType::f32 ? 24 : t == DType::f16 ? 11 : 8;
  const int lowest = t == DType::f64 ? -1074 : t == DType::f32 ? -149 : t == DType::f16 ? -24 : -133;
  if (x == 0) return std::ldexp(1.0, lowest);
  return std::ldexp(1.0, std::max(std::ilogb(x) + 1 - digits, lowest));
}
/// Is `got` a nearest value of its type to `truth`, where truth itself is known to within `slack`?
inline bool rounded_once(DType t, double got, double truth, double slack) {
  return std::abs(got - truth) <= 0.5 * ulp(t, truth) + slack;
}

}  // namespace headwise::test
