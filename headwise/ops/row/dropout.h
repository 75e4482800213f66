// dropout: zeroes elements by a counter-based draw and scales the rest, the same for any thread count.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/random.h"
#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// Element (row, column) is dropped when word column % 4 of the Philox block with key `seed` and counter
/// {column / 4, row's low word, row's high word, site} is below p * 2^32. The draw depends on nothing else.
struct DropoutOptions {
  double p = 0;
  std::uint64_t seed = 0;
  std::uint32_t site = 0;  // which dropout of a model this is
  Index first_row = 0;     // number of row 0
};

/// out = x / (1 - p) where kept, 0 where dropped, plus `residual` where given. x, residual, out [rows
/// columns]: one dtype, any steps; out is x or residual itself or apart from both. p = 1 drops all.
void dropout(const InputView& x, const InputView& residual, const DropoutOptions& options, const AnyView& out,
             Context& ctx);

/// dx = dout / (1 - p) where kept, 0 where dropped: the forward with the gradient in the place of x. The
/// residual's gradient is dout itself.
inline void dropout_backward(const InputView& dout, const DropoutOptions& options, const AnyView& dx,
                             Context& ctx) {
  dropout(dout, {}, options, dx, ctx);
}

}  // namespace headwise
#pragma GCC visibility pop
