// Depth figures: what a model is like behind each of its layers: where tokens come from, how alike rows are.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "headwise/lab/depth/rollout.h"
#include "headwise/lab/figures/figures.h"

#pragma GCC visibility push(default)
namespace headwise {

struct DepthName {
  std::string_view name, sentence;
};
/// Every figure of a layer, a mean over texts.
inline constexpr DepthName kDepthFigures[] = {
    {"rollout_own", "share of a token's own input in its row, by rollout"},
    {"rollout_first", "share of the first token in the rows of others, by rollout"},
    {"rollout_broad", "entropy of where a row comes from, as a share of the largest there could be"},
    {"flow_own", "share of the own input in the largest flow from the middle token"},
    {"flow_first", "share of the first token in the largest flow from the middle token"},
    {"spread_whole", "what of the rows is not their mean, as a share"},
    {"spread_no_residual", "the same without the residual path"},
    {"spread_no_feed", "the same without the feed-forward"},
    {"spread_no_norms", "the same without norms"},
    {"spread_attention", "the same of attention alone"},
};
inline constexpr std::size_t kDepthFigureCount = std::size(kDepthFigures);
constexpr std::size_t depth_figure_at(std::string_view name) {
  for (std::size_t i = 0; i < kDepthFigureCount; ++i)
    if (kDepthFigures[i].name == name) return i;
  return kDepthFigureCount;
}

/// Sums over texts, [figures][layers].
struct DepthSums {
  std::vector<std::vector<Mean>> figures;

  explicit DepthSums(Index layers = 0)
      : figures(kDepthFigureCount, std::vector<Mean>(static_cast<std::size_t>(layers))) {}
};

/// Flow costs tokens^4: longer texts are passed over.
inline constexpr Index kMostFlowTokens = 32;

/// One text on its way through the layers: maps go in layer by layer, figures come out.
class TextPath {
 public:
  TextPath(Index tokens, bool causal, bool flow) : tokens_(tokens), causal_(causal), flow_(flow) {}
  void add(const LayerMaps& maps);
  /// The figures of the layer that went in last.
  void give(DepthSums& to) const;
  /// As rollout.h takes them, kept where flow was asked for.
  const std::vector<SmallMatrix>& layers() const { return layers_; }
  const SmallMatrix& rolled() const { return rolled_; }

 private:
  Index tokens_, seen_ = 0;
  bool causal_, flow_;
  std::vector<std::pair<std::string_view, double>> last_;
  std::vector<SmallMatrix> layers_;
  SmallMatrix rolled_;
};

/// One text as an example: where the row of one token comes from behind the last layer.
struct ShownPath {
  Index token = 0;
  std::vector<std::string> pieces = {};
  std::vector<double> rollout = {}, flow = {};  // [tokens]
};
/// The first token of a text, or the last where queries see the past alone.
ShownPath shown_path(const TextPath& path, const SurveyTokens& tokens, std::string_view words, bool causal);

}  // namespace headwise
#pragma GCC visibility pop
