// Buffer: owning, move-only, aligned memory; Tensor: a Buffer with a dtype and sizes. Copying is the word
// clone().
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <initializer_list>
#include <span>

#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Buffer {
 public:
  Buffer() = default;
  /// Throws Error{out_of_memory} with the bytes asked. The memory is not cleared.
  explicit Buffer(std::size_t bytes);
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  std::byte* data() const noexcept { return data_; }
  std::size_t size() const noexcept { return size_; }
  std::span<std::byte> span() const noexcept { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

class Tensor {
 public:
  Tensor() = default;
  /// Zero-filled, row-major.
  Tensor(DType dtype, std::initializer_list<Index> sizes);
  Tensor clone() const;
  const AnyView& view() noexcept { return view_; }
  /// Of a const tensor: only read.
  ConstView view() const noexcept { return view_; }
  DType dtype() const noexcept { return view_.dtype; }
  template <class T>
  std::span<T> values() {
    check_dtype(dtype_of<std::remove_const_t<T>>);
    return {static_cast<T*>(view_.data), static_cast<std::size_t>(view_.count())};
  }
  template <class T>
  std::span<const T> values() const {
    check_dtype(dtype_of<std::remove_const_t<T>>);
    return {static_cast<const T*>(view_.data), static_cast<std::size_t>(view_.count())};
  }

 private:
  void check_dtype(DType asked) const {
    require(asked == view_.dtype, ErrorKind::bad_dtype, "tensor", "holds ", view_.dtype, " but ", asked,
            " was asked");
  }

  Buffer buffer_;
  AnyView view_;
};

/// Reproducible unit-normal values: the same on every machine for the same seed.
Tensor random_normal(std::initializer_list<Index> sizes, DType dtype, std::uint64_t seed);
/// Its element i, before it is rounded to a dtype.
double normal_at(std::uint64_t seed, Index i);

}  // namespace headwise
#pragma GCC visibility pop
