// BlockParts: which parts of every block act in a forward, and a look at the rows between blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/base/callable.h"
#include "headwise/base/view.h"

namespace headwise {

/// The attentions of a model. own: self-attention of the stack over the ids; source: that of the encoder
/// before it.
enum class AttentionPart : std::uint8_t { own, cross, source };
inline constexpr std::string_view kPartNames[] = {"own", "cross", "source"};

/// Parts that are left out of all blocks, to see what each of them does. A norm that is left out passes its
/// rows on; a residual that is left out adds nothing.
struct BlockParts {
  bool residual = true, feed = true, norms = true;
  bool whole() const { return residual && feed && norms; }
};

/// Called with rows [tokens model_dim]: those that enter the first block with 0, those behind block l with
/// l + 1.
using RowLook = Callable<void(Index behind, const AnyView& rows)>;

}  // namespace headwise
