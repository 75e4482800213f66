// merge_pairs: joins neighbouring symbols, the best pair first, the leftmost of equals: the heart of BPE.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

namespace headwise {

/// What a pair becomes; pairs of lower rank go first. id -1: they do not merge.
struct PairMerge {
  std::int64_t rank = 0;
  std::int32_t id = -1;
};

/// `find(left, right)` gives the PairMerge of two ids. A list of neighbours and a heap: n log n for any text.
/// Symbols that went into their left neighbour are taken out.
template <class Find>
void merge_pairs(std::vector<std::int32_t>& symbols, Find&& find) {
  const std::size_t n = symbols.size();
  std::vector<std::size_t> before(n), after(n);
  for (std::size_t i = 0; i < n; ++i) before[i] = i - 1, after[i] = i + 1;
  using Entry = std::tuple<std::int64_t, std::size_t, std::int32_t, std::int32_t, std::int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap;  // rank, place, made of left and right
  const auto offer = [&](std::size_t left) {
    if (left >= n || after[left] >= n) return;
    const PairMerge m = find(symbols[left], symbols[after[left]]);
    if (m.id >= 0) heap.emplace(m.rank, left, m.id, symbols[left], symbols[after[left]]);
  };
  for (std::size_t i = 0; i + 1 < n; ++i) offer(i);
  while (!heap.empty()) {
    const auto [rank, at, made, left, right] = heap.top();
    heap.pop();
    const std::size_t next = after[at];
    if (symbols[at] != left || next >= n || symbols[next] != right) continue;  // one of them is gone
    symbols[at] = made, symbols[next] = -1;
    after[at] = after[next];
    if (after[at] < n) before[after[at]] = at;
    offer(before[at]);
    offer(at);
  }
  std::erase(symbols, -1);
}

}  // namespace headwise
