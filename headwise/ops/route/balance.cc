#include <algorithm>
#include <vector>

#include "headwise/ops/route/token.h"

namespace headwise {
namespace {

using namespace routing;

/// P and f of every routed head, summed over tokens in ascending order, and the factor of the scale.
struct Balance {
  std::vector<double> score, count;
  double tokens, factor;

  Balance(std::string_view op, const RouteOptions& o, BalanceScale scale, const AnyView& routed,
          const AnyView& chosen)
      : score(static_cast<std::size_t>(o.routed())), count(score.size()) {
    check_options(op, o);
    check_rows(op, {"routed", routed, o.routed(), "[batch tokens routed]"}, chosen, false);
    check_rows(op, {"chosen", chosen, o.chosen, "[batch tokens chosen]", true}, routed, false);
    check_chosen(op, o, chosen);
    std::vector<double> p(score.size());
    for (Index b = 0; b < routed.size[0]; ++b)
      for (Index t = 0; t < routed.size[1]; ++t) {
        load_softmax(routed, b, t, o.routed(), p.data());
        for (std::size_t h = 0; h < p.size(); ++h) score[h] += p[h];
        for (Index i = 0; i < o.chosen; ++i)
          ++count[static_cast<std::size_t>(chosen_at(chosen, b, t, i) - o.shared)];
      }
    tokens = static_cast<double>(std::max<Index>(1, routed.size[0] * routed.size[1]));
    factor = scale == BalanceScale::code ? static_cast<double>(o.routed()) : 1.0;
  }
};

}  // namespace

double balance_loss(const RouteOptions& o, BalanceScale scale, const InputView& routed,
                    const InputView& chosen, Context&) {
  const Balance all("balance_loss", o, scale, routed, chosen);
  double loss = 0;
  for (std::size_t h = 0; h < all.score.size(); ++h)
    loss += all.score[h] / all.tokens * (all.count[h] / all.tokens);
  return all.factor * loss;
}

void balance_loss_backward(const RouteOptions& o, BalanceScale scale, double dloss, const InputView& routed,
                           const InputView& chosen, const AnyView& drouted, Context& ctx) {
  constexpr std::string_view kOp = "balance_loss_backward";
  const Balance all(kOp, o, scale, routed, chosen);
  check_rows(kOp, {"drouted", drouted, o.routed(), "[batch tokens routed]"}, routed, true);
  // L = factor sum_h P_h f_h, P_h = mean_t r_th: dr_th = factor f_h / tokens
  each_token(drouted, 2 * o.routed() + 1, ctx, [&](Index b, Index t, double* p) {
    double* d = p + o.routed();
    load_softmax(routed, b, t, o.routed(), p);
    for (Index h = 0; h < o.routed(); ++h)
      d[h] = dloss * all.factor * all.count[static_cast<std::size_t>(h)] / all.tokens / all.tokens;
    softmax_backward(p, d, o.routed());
    for (Index h = 0; h < o.routed(); ++h) put(drouted, b, t, h, get(drouted, b, t, h) + d[h]);
  });
}

}  // namespace headwise
