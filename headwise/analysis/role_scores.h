// RoleScores: does a head have a role? Its weight on the role's pairs, and what switching it off costs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <vector>

#include "headwise/analysis/head_figures.h"
#include "headwise/text/roles.h"

#pragma GCC visibility push(default)
namespace headwise {

inline constexpr Index kLeastPairs = 50;
inline constexpr double kLeastRatio = 2;

/// One head and one role. A picture alone is no proof: both halves are shown.
struct RoleScore {
  Index pairs = 0;
  double mass = 0, uniform = 0;  // weight on the pairs, and that of a head that looks everywhere alike
  Index sources = 0;             // rows that have a pair
  Index with = 0, without = 0;   // utterances with such a pair, and the others
  double hurt_with = 0, hurt_without = 0;  // mean rise of the loss when the head is switched off
  double certainty = 0;  // standard errors by which hurt_with lies above hurt_without, and above 0
  bool looks = false;    // the first half: enough pairs, and mass at least kLeastRatio times uniform
  bool claimed = false;  // both halves; a role of form has no other utterances and needs the first alone

  double ratio() const { return uniform > 0 ? mass / uniform : 0; }
  double share() const { return sources > 0 ? mass / static_cast<double>(sources) : 0; }
};

/// Pairs of every role in one utterance.
struct RolePairs {
  std::vector<std::vector<std::pair<Index, Index>>> of;  // by role: (query, key)
};
RolePairs pairs_of(const RoleBook& book, std::string_view text, std::span<const TextSpan> spans);

/// Adds the pairs of one utterance under the weights of one map of a tap; one score for each role.
void add_masses(const RolePairs& pairs, const Tap& tap, Index map, std::vector<RoleScore>& scores);

/// The second half and the verdict of one head. hurt: the rise of each utterance's loss, has: by role,
/// whether the utterance has a pair. tests: heads times roles of meaning looked at, so that 5 in 100 such
/// surveys of heads without any role would claim one.
void judge(const RoleBook& book, const HeadFigures& figures, std::span<const double> hurt,
           const std::vector<std::vector<bool>>& has, Index tests, std::vector<RoleScore>& scores);

/// Of the claimed roles the one with the highest ratio, those of meaning first; -1: none.
int chief_role(const RoleBook& book, std::span<const RoleScore> scores);

/// z with P(normal > z) = p, for 0 < p < 1.
double normal_quantile(double p);

}  // namespace headwise
#pragma GCC visibility pop
