// DType: the number formats tensors hold, their names and sizes, and the one visit from a value to a type.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string_view>

#include "headwise/base/e4m3.h"
#include "headwise/base/error.h"
#include "headwise/base/half.h"

#pragma GCC visibility push(default)
namespace headwise {

enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64, u8, i8, e4m3 };

constexpr Index size_of(DType t) {
  switch (t) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::u8:
    case DType::i8:
    case DType::e4m3: return 1;
  }
  return 0;
}
constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::f64: return "f64";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::i8: return "i8";
    case DType::e4m3: return "e4m3";
  }
  return "?";
}
constexpr bool is_float(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16 || t == DType::f64;
}
std::ostream& operator<<(std::ostream& out, DType t);

/// A type as an argument: template lambdas take it without a spelled-out template list.
template <class T>
struct Type {
  using type = T;
};

template <class T>
constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "tensors hold float, bf16, f16, double, int32, int64, uint8, int8 or e4m3");
  return DType::u8;
}();
template <>
inline constexpr DType dtype_of<std::uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<std::int8_t> = DType::i8;
template <>
inline constexpr DType dtype_of<headwise::e4m3> = DType::e4m3;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<headwise::bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<headwise::f16> = DType::f16;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<std::int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<std::int64_t> = DType::i64;

/// Calls f(Type<T>{}) for the float type that `t` names; integers and e4m3, which is storage, are refused.
template <class F>
decltype(auto) visit_float(DType t, F&& f) {
  switch (t) {
    case DType::f32: return f(Type<float>{});
    case DType::bf16: return f(Type<bf16>{});
    case DType::f16: return f(Type<f16>{});
    case DType::f64: return f(Type<double>{});
    case DType::i32:
    case DType::i64:
    case DType::u8:
    case DType::i8:
    case DType::e4m3: break;
  }
  throw Error(ErrorKind::bad_dtype, text("dtype: ", t, " is not a float type; use f32, bf16, f16 or f64"));
}

}  // namespace headwise
#pragma GCC visibility pop
