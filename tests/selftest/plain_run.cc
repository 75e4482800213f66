// The yardstick of T1: attention written plainly, every step rounded to the inputs' dtype, sums in float.
#include <cmath>
#include <limits>
#include <vector>

#include "headwise/base/random.h"
#include "tests/selftest/check.h"

namespace headwise::selftest {
namespace {

float rounded(double x, DType t) {
  const auto f = static_cast<float>(x);
  return t == DType::bf16 ? static_cast<float>(bf16(f)) : t == DType::f16 ? static_cast<float>(f16(f)) : f;
}

struct PlainRow {
  const Inputs& in;
  const AttentionProblem& p;
  const AttentionArgs& a;

  float score(const SequenceLocation& at_row, Index b, Index h, Index i, Index k) const {
    const auto round = [&](float x) { return rounded(static_cast<double>(x), p.dtype); };
    const Index batch = p.ragged ? 0 : b, q = at_row.q_start + i;
    float s = 0;
    for (Index d = 0; d < p.heads.q.dim; ++d)
      s += static_cast<float>(element(a.q, p.heads.q, batch, at_row.q_row + i, h, d)) *
           static_cast<float>(element(a.k, p.heads.k, batch, at_row.kv_row + k, h, d));
    const HeadInputs& t = a.inputs;
    const double scale = t.scale.given() ? at(t.scale, t.scale.size[0] == 1 ? 0 : h)
                                         : 1 / std::sqrt(static_cast<double>(p.heads.q.dim));
    s = round(round(s) * static_cast<float>(scale));
    if (p.heads.terms.softcap)
      s = round(static_cast<float>(t.softcap) * std::tanh(s / static_cast<float>(t.softcap)));
    if (p.heads.terms.bias) s = round(s + static_cast<float>(at(t.bias, b, h, i, k)));
    if (p.heads.terms.alibi) s = round(s + alibi_term(static_cast<float>(at(t.slopes, h)), q, k));
    if (p.heads.terms.relative) s = round(s + static_cast<float>(at(t.relative, t.buckets.bucket(q, k), h)));
    return s;
  }

  void compute(const SequenceLocation& row, Index b, Index h, Index i, const Outputs& o) const {
    const auto round = [&](float x) { return rounded(static_cast<double>(x), p.dtype); };
    const float inf = std::numeric_limits<float>::infinity();
    const Index batch = p.ragged ? 0 : b, q = row.q_start + i;
    std::vector<float> s(static_cast<std::size_t>(row.kv_tokens), -inf);
    float top = -inf, sum = 0;
    for (Index k = 0; k < row.kv_tokens; ++k)
      if (in.mask.may_attend(q, k, {b, h, row.q_start}))
        s[static_cast<std::size_t>(k)] = score(row, b, h, i, k);
    for (const float x : s) top = std::fmax(top, x);
    const bool empty = top == -inf;
    if (p.heads.terms.sinks) top = std::fmax(top, static_cast<float>(at(a.inputs.sinks, h)));
    for (float& x : s) sum += x = x == -inf ? 0 : round(std::exp(x - top));
    if (p.heads.terms.sinks) sum += std::exp(static_cast<float>(at(a.inputs.sinks, h)) - top);
    if (in.setup.lse)
      put(o.lse.view(), sum > 0 ? static_cast<double>(top + std::log(sum)) : -static_cast<double>(inf), batch,
          h, row.q_row + i);
    const DropoutRule rule = DropoutRule::of(a.inputs.dropout, a.inputs.seed);
    for (Index k = 0; k < row.kv_tokens; ++k) {
      float& w = s[static_cast<std::size_t>(k)];
      w = empty ? 0 : round(w / sum);
      if (p.heads.terms.dropout)
        w = rule.keep(b, h, q, k) ? round(w / static_cast<float>(1 - a.inputs.dropout)) : 0;
    }
    for (Index d = 0; d < p.heads.v.dim; ++d) {
      float y = 0;
      for (Index k = 0; k < row.kv_tokens; ++k)
        if (s[static_cast<std::size_t>(k)] != 0)
          y += s[static_cast<std::size_t>(k)] *
               static_cast<float>(element(a.v, p.heads.v, batch, row.kv_row + k, h, d));
      y = round(y);
      if (p.heads.terms.gate) y = round(y * static_cast<float>(at(a.inputs.gate, batch, row.q_row + i, h)));
      put(o.out.view(), static_cast<double>(y), batch, row.q_row + i, h, d);
    }
  }
};

}  // namespace

Outputs plain_run(const Inputs& in) {
  const AttentionProblem p = in.problem();
  const AttentionArgs a = in.args();
  const Index batch = p.ragged ? 1 : p.batch, rows = p.ragged ? p.q_total : p.q_tokens;
  Outputs o;
  o.out = Tensor(p.dtype, {batch, rows, p.heads.q.heads, p.heads.v.dim});
  if (in.setup.lse) o.lse = Tensor(DType::f32, {batch, p.heads.q.heads, rows});
  for (Index b = 0; b < p.batch; ++b) {
    const SequenceLocation row = place_of(p, a, b);
    for (Index h = 0; h < p.heads.q.heads; ++h)
      for (Index i = 0; i < row.q_tokens; ++i) PlainRow{in, p, a}.compute(row, b, h, i, o);
  }
  return o;
}

}  // namespace headwise::selftest
