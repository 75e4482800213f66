// quantize_kv: keys or values as int8 or e4m3 with one scale for each token and kv head.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// x [batch tokens kv_heads dim], any float type, -> out i8 or e4m3 of the same sizes and scale f32 [batch
/// tokens kv_heads]:
///   i8:   scale = max |x| / 127 as f32,   out = x / scale, rounded to the nearest integer (ties to even),
///   e4m3: scale = max |x| / 448 as f32,   out = x / scale as f32, rounded to the nearest e4m3 (ties to
///   even).
/// Attention computes with scale * out, rounded to f32. A row of zeros, or one so small that its scale is 0,
/// gives scale 0 and zeros. A row with NaN or Inf gives scale NaN and zeros: it stays NaN and touches no
/// other row.
void quantize_kv(const InputView& x, const AnyView& out, const AnyView& scale, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
