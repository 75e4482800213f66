#include "headwise/heads/cost.h"

#include "headwise/ops/explain/explain.h"

namespace headwise {
namespace {

double real(Index n) { return static_cast<double>(n); }
Index columns_of(const HeadLayout& l) { return l.row > 0 ? l.row : l.slots() * l.dim; }

/// Multiply-adds over heads for one pair of tokens.
double mixed_flops(const HeadSpec& s) {
  const double q = real(s.q.heads), n = real(s.normal_heads()), v = real(s.v.heads);
  // w1 and w2 of R ranks and a gate, of the query and of the key.
  const double dynamic = 2 * 2 * real(2 * s.mix_rank + 1) * n;
  const auto one = [&](Mix mix, double from, double to) {
    return mix == Mix::fixed ? 2 * from * to : mix == Mix::dynamic ? dynamic : 0;
  };
  return one(s.before, q, n) + one(s.after, n, v);
}

}  // namespace

HeadCost cost_of(const AnyHead& head, const ParamSet& own, const AttentionProblem& sizes,
                 const Place& place) {
  const Widths w = head.widths();
  AttentionProblem p = sizes;
  p.heads = head.spec();
  const double rows = real(p.ragged ? p.q_total : p.batch * p.q_tokens);
  HeadCost c;
  c.parameters = (w.q + w.k + w.v + w.out) * place.model_dim + own.count();
  c.attention_flops = cost_of(p).flops + rows * real(p.kv_tokens) * mixed_flops(p.heads);
  bool said = false;
  for (const AnyHead::Stage& s : head.stages())
    if (s.table->flops) said = true, c.own_flops += s.table->flops(s.head.get(), p);
  if (!said) c.own_flops = 2 * rows * real(own.count());
  c.cache_bytes =
      real(columns_of(p.heads.k) + columns_of(p.heads.v) + p.heads.mix_rows() * p.heads.normal_heads()) *
      real(size_of(p.dtype));
  return c;
}

}  // namespace headwise
