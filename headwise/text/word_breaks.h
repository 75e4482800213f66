// word_breaks: where words begin in a text of any language, as people read them; Chinese by ICU's dictionary.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Bytes at which words, and what stands between them, begin: ascending, the first is 0; none of an empty
/// text. Bytes that are no UTF-8 are read as U+FFFD.
std::vector<Index> word_breaks(std::string_view text);

}  // namespace headwise
#pragma GCC visibility pop
