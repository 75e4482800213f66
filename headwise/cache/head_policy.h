// HeadPolicy: which tokens a kv head keeps, and in which dtype; written as text in plans.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "headwise/base/dtype.h"
#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// "full", or "window:256,first:16": the last 256 tokens, the own one counted, and the first 16.
/// "heavy:128,recent:64,first:16": the last 64, the first 16, and the pages of 128 more that got the most
/// weight so far; decided whenever a page is full. "snap:128,look:32": of a prompt, its last 32 tokens and
/// the pages of 128 more that these looked at most; decided once, at its end. ",dtype:i8" behind it: keys and
/// values of this head are i8 (f32, bf16, f16, e4m3), whatever the cache's own dtype is.
struct HeadPolicy {
  Index window = 0, first = 0;  // window 0: all tokens
  Index heavy = 0, recent = 0, snap = 0, look = 0;
  /// Which tokens stay follows from the weights they got.
  bool weighs() const { return heavy > 0 || snap > 0; }
  std::optional<DType> dtype = {};
  friend bool operator==(const HeadPolicy&, const HeadPolicy&) = default;
};
/// Throws with the text and what is known.
HeadPolicy parse_head_policy(std::string_view text);
std::string to_text(const HeadPolicy& policy);

}  // namespace headwise
#pragma GCC visibility pop
