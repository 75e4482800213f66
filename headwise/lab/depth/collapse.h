// Rank collapse: how fast the rows of a text become one row over depth, with and without parts of the blocks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/lab/depth/depth_figures.h"
#include "headwise/layers/basic/block_parts.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One way through the layers, and the depth figure that it fills.
struct CollapseWay {
  std::string_view figure, words;
  BlockParts parts;
};
inline constexpr CollapseWay kCollapseWays[] = {
    {"spread_whole", "the model as it is", {}},
    {"spread_no_residual", "without residual", {.residual = false}},
    {"spread_no_feed", "without feed-forward", {.feed = false}},
    {"spread_no_norms", "without norms", {.norms = false}},
    {"spread_attention", "attention alone", {.residual = false, .feed = false, .norms = false}},
};

/// |X - 1 m^T| / |X| of rows X [tokens model_dim] with their mean m (Dong et al. 2021): 0 where all rows are
/// one. |X| is the root of the largest column sum times the largest row sum of absolute values. Not finite
/// where a row is not, or all are 0.
double spread_of(const AnyView& rows);

/// One text through all ways; where rows are no numbers any more, nothing is added.
void add_collapse(SurveySubject& model, const SurveyTokens& text, DepthSums& to);

}  // namespace headwise
#pragma GCC visibility pop
