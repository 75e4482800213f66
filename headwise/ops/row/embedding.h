// embedding: rows of a table by number, times a scale, and the gradient that adds rows back into the table.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// out[t] = table[ids[t]] * scale. table [rows dim], out [tokens dim]: one float dtype, any steps. ids
/// [tokens], i64 or i32; a number outside 0..rows-1 is refused with its place; on a CUDA device, where no
/// kernel can refuse, its row becomes NaN, and a gradient skips it.
void embedding(const InputView& table, const InputView& ids, double scale, const AnyView& out, Context& ctx);

/// dtable[ids[t]] += dout[t] * scale, tokens in ascending order whatever the threads: f32 sums of a batch cut
/// in two equal those of the whole, bit for bit.
void embedding_backward(const InputView& dout, const InputView& ids, double scale, const AnyView& dtable,
                        Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
