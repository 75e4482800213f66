// View and AnyView: pointer, sizes and steps. They never own, never allocate, and copy freely.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cassert>
#include <initializer_list>
#include <ostream>
#include <type_traits>

#include "headwise/base/device.h"
#include "headwise/base/dtype.h"

namespace headwise {

template <class T, int Rank>
struct View {
  T* data = nullptr;
  Index size[Rank] = {};
  Index step[Rank] = {};  // in elements; 0 repeats a value, a small step overlaps rows

  View() = default;
  template <class U>
  // NOLINTNEXTLINE(google-explicit-constructor): adding const is not a change
  requires(std::is_same_v<const U, T> && !std::is_const_v<U>) HW_FN View(const View<U, Rank>& v)
      : data(v.data) {
    for (int axis = 0; axis < Rank; ++axis) size[axis] = v.size[axis], step[axis] = v.step[axis];
  }
  HW_FN static View packed(T* data, const Index (&size)[Rank]) {
    View v;
    v.data = data;
    Index step = 1;
    for (int axis = Rank - 1; axis >= 0; --axis) {
      v.size[axis] = size[axis];
      v.step[axis] = step;
      step *= size[axis];
    }
    return v;
  }
  template <class... At>
  HW_FN T& operator()(At... at) const {
    static_assert(sizeof...(At) == Rank);
    const Index index[] = {static_cast<Index>(at)...};
    Index offset = 0;
    for (int axis = 0; axis < Rank; ++axis) {
      assert(0 <= index[axis] && index[axis] < size[axis]);
      offset += index[axis] * step[axis];
    }
    return data[offset];
  }
};

inline constexpr int kMaxRank = 4;

/// A view whose dtype and rank are values: what plans, the C ABI and Python hand around. Empty (data null,
/// rank 0) = not given.
struct AnyView {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int8_t device = -1;  // Device::byte(): -1 the CPU, else the number of a CUDA device
  int rank = 0;
  Index size[kMaxRank] = {};
  Index step[kMaxRank] = {};  // in elements, >= 0

  AnyView() = default;
  template <class T, int Rank>
  AnyView(const View<T, Rank>& v)  // NOLINT: a typed view is an AnyView
      : data(const_cast<std::remove_const_t<T>*>(v.data)),
        dtype(dtype_of<std::remove_const_t<T>>),
        rank(Rank) {
    static_assert(Rank <= kMaxRank);
    for (int axis = 0; axis < Rank; ++axis) size[axis] = v.size[axis], step[axis] = v.step[axis];
  }
  static AnyView packed(void* data, DType dtype, std::initializer_list<Index> sizes) {
    AnyView v;
    v.data = data;
    v.dtype = dtype;
    v.rank = static_cast<int>(sizes.size());
    int axis = 0;
    for (Index n : sizes) v.size[axis++] = n;
    Index step = 1;
    for (axis = v.rank - 1; axis >= 0; --axis) {
      v.step[axis] = step;
      step *= v.size[axis];
    }
    return v;
  }
  bool on_cpu() const { return device < 0; }
  Device where() const { return Device::of_byte(device); }
  AnyView on(Device there) const {
    AnyView v = *this;
    v.device = there.byte();
    return v;
  }
  /// Given at all: an empty tensor (a size 0) still counts as given.
  bool given() const { return rank > 0; }
  Index count() const {
    Index n = 1;
    for (int axis = 0; axis < rank; ++axis) n *= size[axis];
    return rank ? n : 0;
  }
  /// Checks dtype and rank once; const T reads, plain T writes.
  template <class T, int Rank>
  View<T, Rank> as() const {
    require(dtype == dtype_of<std::remove_const_t<T>> && rank == Rank, ErrorKind::bad_dtype, "view", "holds ",
            dtype, " of rank ", rank, " but ", dtype_of<std::remove_const_t<T>>, " of rank ", Rank,
            " was asked");
    View<T, Rank> v;
    v.data = static_cast<T*>(data);
    for (int axis = 0; axis < Rank; ++axis) v.size[axis] = size[axis], v.step[axis] = step[axis];
    return v;
  }
};

static_assert(sizeof(AnyView) == 16 + 2 * kMaxRank * sizeof(Index));  // the device stands in what was padding

template <class T, int Rank>
std::ostream& operator<<(std::ostream& out, const View<T, Rank>& v) {
  out << '[';
  for (int axis = 0; axis < Rank; ++axis) out << (axis ? " " : "") << v.size[axis];
  return out << ']';
}
inline std::ostream& operator<<(std::ostream& out, const AnyView& v) {
  out << v.dtype << " [";
  for (int axis = 0; axis < v.rank; ++axis) out << (axis ? " " : "") << v.size[axis];
  return out << ']';
}

/// The merged form [batch*heads ...] seen as [batch heads ...]: for masks, bias and weights; nothing is
/// copied.
inline AnyView unmerge_heads(const AnyView& merged, Index heads) {
  require(merged.rank >= 1 && merged.rank < kMaxRank && heads >= 1 && merged.size[0] % heads == 0,
          ErrorKind::bad_shape, "unmerge_heads", "got ", merged, " for ", heads,
          " heads; the first of at most ", kMaxRank - 1, " sizes must be batch*heads");
  AnyView v = merged;
  v.rank = merged.rank + 1;
  for (int axis = v.rank - 1; axis > 1; --axis)
    v.size[axis] = merged.size[axis - 1], v.step[axis] = merged.step[axis - 1];
  v.size[0] = merged.size[0] / heads, v.step[0] = merged.step[0] * heads;
  v.size[1] = heads, v.step[1] = merged.step[0];
  return v;
}

/// Element `offset` of any float tensor, as double: for reference loops and small inputs, not for hot code.
inline double load_double(const void* data, DType t, Index offset) {
  switch (t) {
    case DType::f32: return static_cast<double>(static_cast<const float*>(data)[offset]);
    case DType::bf16: return static_cast<double>(static_cast<float>(static_cast<const bf16*>(data)[offset]));
    case DType::f16: return static_cast<double>(static_cast<float>(static_cast<const f16*>(data)[offset]));
    case DType::f64: return static_cast<const double*>(data)[offset];
    case DType::i32: return static_cast<double>(static_cast<const std::int32_t*>(data)[offset]);
    case DType::i64: return static_cast<double>(static_cast<const std::int64_t*>(data)[offset]);
    case DType::u8: return static_cast<double>(static_cast<const std::uint8_t*>(data)[offset]);
    case DType::i8: return static_cast<double>(static_cast<const std::int8_t*>(data)[offset]);
    case DType::e4m3: return static_cast<double>(static_cast<float>(static_cast<const e4m3*>(data)[offset]));
  }
  return 0;
}
inline void store_double(void* data, DType t, Index offset, double x) {
  switch (t) {
    case DType::f32: static_cast<float*>(data)[offset] = static_cast<float>(x); return;
    case DType::bf16: static_cast<bf16*>(data)[offset] = bf16(static_cast<float>(x)); return;
    case DType::f16: static_cast<f16*>(data)[offset] = f16(static_cast<float>(x)); return;
    case DType::f64: static_cast<double*>(data)[offset] = x; return;
    case DType::i32: static_cast<std::int32_t*>(data)[offset] = static_cast<std::int32_t>(x); return;
    case DType::i64: static_cast<std::int64_t*>(data)[offset] = static_cast<std::int64_t>(x); return;
    case DType::u8: static_cast<std::uint8_t*>(data)[offset] = static_cast<std::uint8_t>(x); return;
    case DType::i8: static_cast<std::int8_t*>(data)[offset] = static_cast<std::int8_t>(x); return;
    case DType::e4m3: static_cast<e4m3*>(data)[offset] = e4m3(static_cast<float>(x)); return;
  }
}

}  // namespace headwise
