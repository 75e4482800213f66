// View, AnyView and ConstView: pointer, sizes and steps. They never own, never allocate, and copy freely.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cassert>
#include <initializer_list>
#include <type_traits>

#include "headwise/base/device.h"
#include "headwise/base/dtype.h"

#pragma GCC visibility push(default)
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

/// What AnyView and ConstView say of their elements: kind, device, sizes, steps. Empty (rank 0) = not given.
struct ViewForm {
  DType dtype = DType::f32;
  std::int8_t device = -1;  // Device::byte(): -1 the CPU, else the number of a CUDA device
  int rank = 0;
  Index size[kMaxRank] = {};
  Index step[kMaxRank] = {};  // in elements, >= 0

  bool on_cpu() const { return device < 0; }
  Device where() const { return Device::of_byte(device); }
  /// Given at all: an empty tensor (a size 0) still counts as given.
  bool given() const { return rank > 0; }
  Index count() const {
    Index n = 1;
    for (int axis = 0; axis < rank; ++axis) n *= size[axis];
    return rank ? n : 0;
  }

 protected:
  ViewForm() = default;
  template <class T, int Rank>
  explicit ViewForm(const View<T, Rank>& v) : dtype(dtype_of<std::remove_const_t<T>>), rank(Rank) {
    static_assert(Rank <= kMaxRank);
    for (int axis = 0; axis < Rank; ++axis) size[axis] = v.size[axis], step[axis] = v.step[axis];
  }
  ViewForm(DType kind, std::initializer_list<Index> sizes)
      : dtype(kind), rank(static_cast<int>(sizes.size())) {
    int axis = 0;
    for (Index n : sizes) size[axis++] = n;
    Index next = 1;
    for (axis = rank - 1; axis >= 0; --axis) {
      step[axis] = next;
      next *= size[axis];
    }
  }
  /// Checks dtype and rank once.
  template <class T, int Rank>
  View<T, Rank> typed(T* data) const {
    require(dtype == dtype_of<std::remove_const_t<T>> && rank == Rank, ErrorKind::bad_dtype, "view", "holds ",
            dtype, " of rank ", rank, " but ", dtype_of<std::remove_const_t<T>>, " of rank ", Rank,
            " was asked");
    View<T, Rank> v;
    v.data = data;
    for (int axis = 0; axis < Rank; ++axis) v.size[axis] = size[axis], v.step[axis] = step[axis];
    return v;
  }
};

/// A view whose dtype and rank are values: what plans, the C ABI and Python hand around.
struct AnyView : ViewForm {
  void* data = nullptr;

  AnyView() = default;
  template <class T, int Rank>
  requires(!std::is_const_v<T>) AnyView(const View<T, Rank>& v)  // NOLINT: a typed view is an AnyView
      : ViewForm(v), data(v.data) {}
  static AnyView packed(void* data, DType dtype, std::initializer_list<Index> sizes) {
    AnyView v(dtype, sizes);
    v.data = data;
    return v;
  }
  AnyView on(Device there) const {
    AnyView v = *this;
    v.device = there.byte();
    return v;
  }
  /// Checks dtype and rank once; const T reads, plain T writes.
  template <class T, int Rank>
  View<T, Rank> as() const {
    return typed<T, Rank>(static_cast<T*>(data));
  }

 private:
  AnyView(DType kind, std::initializer_list<Index> sizes) : ViewForm(kind, sizes) {}
};

/// The same of memory that is only read: what a const Tensor gives. No way leads back to an AnyView.
struct ConstView : ViewForm {
  const void* data = nullptr;

  ConstView() = default;
  ConstView(const AnyView& v) : ViewForm(v), data(v.data) {}  // NOLINT: adding const is not a change
  template <class T, int Rank>
  ConstView(const View<T, Rank>& v) : ViewForm(v), data(v.data) {}  // NOLINT: a typed view is a ConstView
  static ConstView packed(const void* data, DType dtype, std::initializer_list<Index> sizes) {
    ConstView v(dtype, sizes);
    v.data = data;
    return v;
  }
  ConstView on(Device there) const {
    ConstView v = *this;
    v.device = there.byte();
    return v;
  }
  template <class T, int Rank>
  View<const T, Rank> as() const {
    return typed<const T, Rank>(static_cast<const T*>(data));
  }

 private:
  ConstView(DType kind, std::initializer_list<Index> sizes) : ViewForm(kind, sizes) {}
};

/// An input of an op: callers hand in a ConstView or an AnyView. Checks and kernels serve inputs and outputs
/// with the same functions, so they get it as an AnyView; they never write into it.
struct InputView : AnyView {
  InputView() = default;
  InputView(const AnyView& v) : AnyView(v) {}             // NOLINT: an input
  InputView(const ConstView& v) : AnyView(reading(v)) {}  // NOLINT: an input
  template <class T, int Rank>
  InputView(const View<T, Rank>& v) : InputView(ConstView(v)) {}  // NOLINT: an input

 private:
  static AnyView reading(const ConstView& v) {
    AnyView r;
    static_cast<ViewForm&>(r) = v;
    r.data = const_cast<void*>(v.data);  // the one place: see above
    return r;
  }
};

static_assert(sizeof(AnyView) == 16 + 2 * kMaxRank * sizeof(Index));  // the device stands in what was padding
static_assert(sizeof(InputView) == sizeof(AnyView) && sizeof(ConstView) == sizeof(AnyView));

/// "[2 8 64]"
std::ostream& write_sizes(std::ostream& out, const Index* sizes, int rank);
template <class T, int Rank>
std::ostream& operator<<(std::ostream& out, const View<T, Rank>& v) {
  return write_sizes(out, v.size, Rank);
}
std::ostream& operator<<(std::ostream& out, const ViewForm& v);

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
#pragma GCC visibility pop
