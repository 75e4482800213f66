// links: word alignments as pairs of places, merged from two directions, read, written and judged.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Source word and target word, both from 0.
struct Link {
  Index source = 0, target = 0;
  bool operator==(const Link&) const = default;
  bool operator<(const Link& b) const { return source != b.source ? source < b.source : target < b.target; }
};
using WordLinks = std::vector<Link>;  // ascending, each once

/// How links of the two directions become one. argmax: each target word's best source word alone. grow_diag
/// begins with the intersection. It takes links of the union beside a link, aslant too, if their source or
/// target word has none. final then takes links of either direction whose source or target word has none,
/// final_and those where both have none (Koehn, Och and Marcu 2003).
enum class Merge : std::uint8_t {
  argmax,
  intersection,
  join,
  grow_diag,
  grow_diag_final,
  grow_diag_final_and
};
inline constexpr std::string_view kLinkMergeNames[] = {"argmax",    "intersection",    "union",
                                                       "grow-diag", "grow-diag-final", "grow-diag-final-and"};
Merge parse_merge(std::string_view name);

/// `forward`: a source word for each target word; `backward`: a target word for each source word.
WordLinks merge_links(const WordLinks& forward, const WordLinks& backward, Merge merge);

/// Weights [target words, source words], row-major: the largest of each row, and of each column; the first of
/// equals, none where all are 0.
WordLinks best_of_rows(std::span<const float> weights, Index targets, Index sources);
WordLinks best_of_columns(std::span<const float> weights, Index targets, Index sources);

/// Each weight over the sum of its column, then over that of its row: a source word that every target word
/// looks at wins no row by that alone.
std::vector<float> shares_of(std::span<const float> weights, Index targets, Index sources);

/// "0-0 1-2".
std::string pharaoh(const WordLinks& links);

/// WordLinks that a person drew: sure ones, and possible ones, among which the sure ones are.
struct GoldPair {
  Index line = 0;  // of the pairs, from 1
  WordLinks sure, possible;
};
/// Lines such as "12: 0-0 1?2": line 12, sure link 0-0, possible link 1-2. '#' begins a comment.
std::vector<GoldPair> parse_gold(std::string_view text, std::string_view where);

/// Counts over pairs. precision |A and P| / |A|, recall |A and S| / |S|, error rate
/// 1 - (|A and S| + |A and P|) / (|A| + |S|) (Och and Ney 2003).
struct LinkScore {
  Index links = 0, sure = 0, in_sure = 0, in_possible = 0;
  void add(const WordLinks& found, const GoldPair& gold);
  double precision() const;
  double recall() const;
  double error_rate() const;
};

}  // namespace headwise
#pragma GCC visibility pop
