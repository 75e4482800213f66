// Bits: compares tensors as integers, and says where and how they differ first.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <cstring>

#include "headwise/base/buffer.h"

namespace headwise::test {

/// Row-major tensors of equal dtype and sizes; NaN payloads and signs of zero count.
inline testing::AssertionResult same_bits(const InputView& a, const InputView& b) {
  if (a.dtype != b.dtype || a.count() != b.count())
    return testing::AssertionFailure() << "got " << a << " and " << b;
  const auto item = static_cast<std::size_t>(size_of(a.dtype));
  const auto* x = static_cast<const unsigned char*>(a.data);
  const auto* y = static_cast<const unsigned char*>(b.data);
  Index differ = 0, first = -1;
  for (Index n = 0; n < a.count(); ++n)
    if (std::memcmp(x + static_cast<std::size_t>(n) * item, y + static_cast<std::size_t>(n) * item, item) !=
        0) {
      if (differ++ == 0) first = n;
    }
  if (differ == 0) return testing::AssertionSuccess();
  const auto word = [&](const unsigned char* p) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, p + static_cast<std::size_t>(first) * item, item);
    return bits;
  };
  testing::AssertionResult result = testing::AssertionFailure();
  result << differ << " of " << a.count() << " differ, first at [";
  Index rest = first, index[kMaxRank] = {};
  for (int axis = a.rank - 1; axis >= 0; --axis) index[axis] = rest % a.size[axis], rest /= a.size[axis];
  for (int axis = 0; axis < a.rank; ++axis) result << (axis ? " " : "") << index[axis];
  return result << "]: " << load_double(a.data, a.dtype, first) << " (0x" << std::hex << word(x)
                << ") against " << load_double(b.data, b.dtype, first) << " (0x" << word(y) << std::dec
                << ")";
}
inline testing::AssertionResult same_bits(const Tensor& a, const Tensor& b) {
  return same_bits(a.view(), b.view());
}

/// Every byte of every element set to a quiet NaN of the dtype (integers: all ones).
inline void poison(const Tensor& t) {
  const InputView& v = t.view();
  if (is_float(v.dtype))
    for (Index n = 0; n < v.count(); ++n)
      store_double(v.data, v.dtype, n, std::numeric_limits<double>::quiet_NaN());
  else if (v.count() > 0)
    std::memset(v.data, 0xff, static_cast<std::size_t>(v.count() * size_of(v.dtype)));
}

}  // namespace headwise::test
