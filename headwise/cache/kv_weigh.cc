// Heads whose policy weighs tokens: which pages got how much weight, and which of them go.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "headwise/cache/kv_cache.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "kv cache";
std::size_t at(Index i) { return static_cast<std::size_t>(i); }

}  // namespace

Index KvCache::most_rows(SequenceId id) const {
  Index most = std::numeric_limits<Index>::max();
  for (const auto& c : classes_) {
    if (!c->own_.weighs()) continue;
    const Sequence& s = c->find(id);
    most = std::min(most, page_tokens() - s.length % page_tokens());
    if (s.length < s.prompt) most = std::min(most, s.prompt - s.length);
  }
  return most;
}

void KvCache::set_prompt(SequenceId id, Index tokens) {
  require(length(id) == 0 && tokens >= 0, ErrorKind::bad_argument, kOp, "sequence ", id, " has ", length(id),
          " tokens; where its prompt ends is said before the first");
  for (const auto& c : classes_) c->find(id).prompt = tokens;
}

void KvCache::weigh(SequenceId id, Index layer, Index kv_head, const Weighed& w) {
  KvCache& held = *classes_[at(places_[at(layer * shape_.kv_heads + kv_head)].kind)];
  Sequence& s = held.find(id);
  const Index each = page_tokens();
  s.waiting.assign(at(w.rows), std::vector<double>(at(ceil_div(w.kv_tokens, each)), 0.0));
  for (Index row = 0; row < w.rows; ++row)
    for (Index q = 0; q < w.queries; ++q)
      for (Index k = 0; k < w.kv_tokens; ++k)
        s.waiting[at(row)][at(k / each)] +=
            static_cast<double>(w.weights[(row * w.queries + q) * w.kv_tokens + k]);
}

/// Row by row, so that sums do not depend on how many rows were computed at once.
void KvCache::count_weights(Sequence& s, Index rows) {
  require(static_cast<Index>(s.waiting.size()) >= rows, ErrorKind::bad_argument, kOp,
          "a head weighs its tokens and ", rows, " rows came without weights; let a Decoder write them");
  const Index before = s.length - rows;
  for (Index row = 0; row < rows; ++row) {
    const std::vector<double>& more = s.waiting[at(row)];
    s.sums.resize(std::max(s.sums.size(), more.size()), 0.0);
    // Snap counts what the last queries of the prompt see.
    if (own_.snap > 0 && (before + row < s.prompt - own_.look || before + row >= s.prompt)) continue;
    for (std::size_t page = 0; page < more.size(); ++page) s.sums[page] += more[page];
  }
  s.waiting.erase(s.waiting.begin(), s.waiting.begin() + rows);
  s.closed.resize(s.pages.size(), false);
  if (own_.snap > 0 ? s.length == s.prompt : s.length % page_tokens() == 0) choose_pages(s);
}

/// Of the open pages that are neither among the first nor the recent ones, those with the largest sums stay;
/// the earlier of equals.
void KvCache::choose_pages(Sequence& s) {
  const Index each = page_tokens(), recent = own_.heavy > 0 ? own_.recent : own_.look,
              kept = ceil_div(own_.heavy > 0 ? own_.heavy : own_.snap, each);
  std::vector<Index> choice;
  for (Index page = ceil_div(own_.first, each); (page + 1) * each <= s.length + 1 - recent; ++page)
    if (!s.closed[at(page)]) choice.push_back(page);
  std::stable_sort(choice.begin(), choice.end(),
                   [&](Index a, Index b) { return s.sums[at(a)] > s.sums[at(b)]; });
  for (Index i = kept; i < static_cast<Index>(choice.size()); ++i) {
    const Index page = choice[at(i)];
    s.closed[at(page)] = true;
    if (!options_.drop) continue;
    give_page(s.pages[at(page)]);
    s.pages[at(page)] = -1;
    s.dropped = std::max(s.dropped, (page + 1) * each);
  }
}

}  // namespace headwise
