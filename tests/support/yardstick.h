// Yardstick: the plain formula in the tested dtype: scores, weights, output rounded to it, sums in f32.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>
#include <limits>
#include <vector>

#include "headwise/spec/problem.h"

namespace headwise::test {

inline float rounded(float x, DType t) {
  switch (t) {
    case DType::bf16: return static_cast<float>(bf16(x));
    case DType::f16: return static_cast<float>(f16(x));
    default: return x;
  }
}

/// Fills `out` (the problem's dtype, [batch q heads value_dim]) for padded batches with plain head layouts.
/// Knows scale, softcap, bias, ALiBi, sinks and masks: what error tests vary.
inline void plain_run(const AttentionProblem& p, const AttentionArgs& a, const InputView& out) {
  const auto load = [](const InputView& x, Index i, Index j, Index k, Index l) {
    const auto step = [&](int axis) { return x.size[axis] == 1 ? 0 : x.step[axis]; };
    return static_cast<float>(
        load_double(x.data, x.dtype, i * step(0) + j * step(1) + k * step(2) + l * step(3)));
  };
  const HeadInputs& in = a.inputs;
  const Terms& terms = p.heads.terms;
  const DType t = p.dtype;
  std::vector<float> s(static_cast<std::size_t>(p.kv_tokens));
  constexpr float kClosed = -std::numeric_limits<float>::infinity();
  for (Index b = 0; b < p.batch; ++b)
    for (Index h = 0; h < p.heads.q.heads; ++h)
      for (Index i = 0; i < p.q_tokens; ++i) {
        const SequenceLocation place = place_of(p, a, b);
        const Index q = place.q_start + i;
        const float scale = in.scale.given() ? load(in.scale, h, 0, 0, 0)
                                             : 1.0f / std::sqrt(static_cast<float>(p.heads.q.dim));
        const float sink = terms.sinks ? load(in.sinks, h, 0, 0, 0) : kClosed;
        float top = sink;
        for (Index j = 0; j < p.kv_tokens; ++j) {
          float& x = s[static_cast<std::size_t>(j)] = kClosed;
          if (a.mask.given() && !a.mask.of(h).may_attend(q, j, {b, h, place.q_start})) continue;
          float dot = 0;
          for (Index c = 0; c < p.heads.q.dim; ++c)
            dot += load(a.q, b, i, p.heads.q.slot(h), c) * load(a.k, b, j, p.heads.k.slot(h), c);
          x = rounded(dot * scale, t);
          if (terms.softcap)
            x = rounded(static_cast<float>(in.softcap) * std::tanh(x / static_cast<float>(in.softcap)), t);
          if (terms.bias) x = rounded(x + load(in.bias, b, h, i, j), t);
          if (terms.alibi) x = rounded(x + alibi_term(load(in.slopes, h, 0, 0, 0), q, j), t);
          top = std::max(top, x);
        }
        float sum = terms.sinks ? std::exp(sink - top) : 0;
        for (float& x : s) sum += x = x == kClosed ? 0 : std::exp(x - top);
        for (Index c = 0; c < p.heads.v.dim; ++c) {
          float o = 0;
          for (Index j = 0; j < p.kv_tokens; ++j)
            if (s[static_cast<std::size_t>(j)] != 0)
              o += rounded(s[static_cast<std::size_t>(j)] / sum, t) * load(a.v, b, j, p.heads.v.slot(h), c);
          const Index at = b * out.step[0] + i * out.step[1] + h * out.step[2] + c * out.step[3];
          store_double(out.data, out.dtype, at, static_cast<double>(o));
        }
      }
}

}  // namespace headwise::test
