#include "headwise/lab/depth/depth_figures.h"

#include <cmath>

namespace headwise {

void TextPath::add(const LayerMaps& maps) {
  SmallMatrix own = with_residual(maps.weights, maps.heads, maps.tokens);
  rolled_ = seen_++ == 0 ? own : product(own, rolled_);
  last_.clear();
  const auto put = [&](std::string_view name, double x) { last_.emplace_back(name, x); };
  double self = 0, first = 0, broad = 0;
  const Index rows = tokens_ - 1;  // the first one comes from itself alone in causal models
  for (Index i = 1; i < tokens_; ++i) {
    const Index end = causal_ ? i + 1 : tokens_;
    double entropy = 0;
    for (Index j = 0; j < end; ++j)
      if (const double w = rolled_.at(i, j); w > 0) entropy -= w * std::log(w);
    self += rolled_.at(i, i), first += rolled_.at(i, 0);
    broad += entropy / std::log(static_cast<double>(end));
  }
  if (rows > 0) {
    const double count = static_cast<double>(rows);
    put("rollout_own", self / count), put("rollout_first", first / count);
    put("rollout_broad", broad / count);
  }
  if (!flow_ || tokens_ < 3 || tokens_ > kMostFlowTokens) return;
  layers_.push_back(std::move(own));
  const Index middle = tokens_ / 2;
  const std::vector<double> flow = flow_from(layers_, middle);
  put("flow_own", flow[static_cast<std::size_t>(middle)]), put("flow_first", flow[0]);
}

void TextPath::give(DepthSums& to) const {
  for (const auto& [name, x] : last_)
    to.figures[depth_figure_at(name)][static_cast<std::size_t>(seen_ - 1)].add(x);
}

ShownPath shown_path(const TextPath& path, const SurveyTokens& tokens, std::string_view words, bool causal) {
  ShownPath shown{.token = causal ? static_cast<Index>(tokens.size()) - 1 : 0};
  for (const SurveyToken& t : tokens) {
    const auto begin = static_cast<std::size_t>(t.begin), size = static_cast<std::size_t>(t.end - t.begin);
    shown.pieces.emplace_back(t.cls                               ? "[CLS]"
                              : t.sep                             ? "[SEP]"
                              : size == 0 || begin > words.size() ? "[begin]"
                                                                  : words.substr(begin, size));
    shown.rollout.push_back(path.rolled().at(shown.token, static_cast<Index>(shown.rollout.size())));
  }
  shown.flow = flow_from(path.layers(), shown.token);
  return shown;
}

}  // namespace headwise
