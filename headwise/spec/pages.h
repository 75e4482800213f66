// PageTable: where the tokens of each sequence lie when k and v are pools of pages.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"

namespace headwise {

/// Tokens a page may hold.
inline constexpr Index kPageSizes[] = {8, 16, 32, 64, 128, 256};
constexpr bool is_page_size(Index n) {
  for (const Index size : kPageSizes)
    if (n == size) return true;
  return false;
}

/// k and v are [pages page_size kv_heads dim], scales of int8 without dim, any steps: pages with heads inside
/// tokens (NHD) and pages with tokens inside heads (HND) are two views of that form. Token t of sequence b is
/// token t % page_size of page table[b][t / page_size]; sequences may share pages.
struct PageTable {
  InputView table = {};    // [batch pages_each] i32, where k and v lie; entries past a sequence's last token
                           // are not read
  InputView lengths = {};  // [batch] i64 on the CPU: tokens of each sequence

  bool on_device() const { return !table.on_cpu(); }
  bool given() const { return table.given() || lengths.given(); }
  Index length(Index b) const { return static_cast<const Index*>(lengths.data)[b * lengths.step[0]]; }
  Index page(Index b, Index i) const {
    return static_cast<const std::int32_t*>(table.data)[b * table.step[0] + i * table.step[1]];
  }
};

}  // namespace headwise
