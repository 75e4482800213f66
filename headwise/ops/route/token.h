// Parts of head routing shared by its files: numbers of one token, softmax, top-k, checks.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/base/context.h"
#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/route/route_heads.h"

namespace headwise::routing {

/// Tokens one task takes.
inline constexpr Index kBlock = 64;

void check_options(std::string_view op, const RouteOptions& o);
/// An argument [batch tokens columns] of floats, or of i64.
struct TokenRows {
  const char* name;
  const AnyView& view;
  Index columns;
  const char* axes;
  bool integers = false;
};
/// It has the batch and tokens of `like`.
void check_rows(std::string_view op, const TokenRows& r, const AnyView& like, bool written);
/// Each entry names a routed head, ascending.
void check_chosen(std::string_view op, const RouteOptions& o, const AnyView& chosen);

inline double get(const AnyView& v, Index b, Index t, Index c) {
  return load_double(v.data, v.dtype, b * v.step[0] + t * v.step[1] + c * v.step[2]);
}
inline void put(const AnyView& v, Index b, Index t, Index c, double x) {
  store_double(v.data, v.dtype, b * v.step[0] + t * v.step[1] + c * v.step[2], x);
}
inline Index chosen_at(const AnyView& v, Index b, Index t, Index i) {
  return static_cast<const Index*>(v.data)[b * v.step[0] + t * v.step[1] + i * v.step[2]];
}

/// p = softmax(p), n numbers.
inline void softmax(double* p, Index n) {
  double top = -INFINITY, sum = 0;
  for (Index i = 0; i < n; ++i)
    if (!(p[i] <= top)) top = p[i];
  for (Index i = 0; i < n; ++i) sum += p[i] = std::exp(p[i] - top);
  for (Index i = 0; i < n; ++i) p[i] /= sum;
}
inline void load_softmax(const AnyView& logits, Index b, Index t, Index n, double* p) {
  for (Index i = 0; i < n; ++i) p[i] = get(logits, b, t, i);
  softmax(p, n);
}
/// dp becomes the gradient of the logits of p = softmax.
inline void softmax_backward(const double* p, double* dp, Index n) {
  double dot = 0;
  for (Index i = 0; i < n; ++i) dot += p[i] * dp[i];
  for (Index i = 0; i < n; ++i) dp[i] = p[i] * (dp[i] - dot);
}

/// Marks the k largest of n; ties go to the lowest.
inline void mark_largest(const double* x, Index n, Index k, double* mark) {
  for (Index i = 0; i < n; ++i) mark[i] = 0;
  for (; k > 0; --k) {
    Index best = -1;
    for (Index i = 0; i < n; ++i)
      if (mark[i] == 0 && (best < 0 || x[i] > x[best])) best = i;
    mark[best] = 1;
  }
}

/// Calls f(batch, token, scratch) for every token of v [batch tokens ..], scratch of `doubles` a worker.
template <class F>
void each_token(const AnyView& v, Index doubles, Context& ctx, F&& f) {
  const Index batch = v.size[0], tokens = v.size[1], blocks = (tokens + kBlock - 1) / kBlock;
  auto* memory = reinterpret_cast<double*>(
      ctx.workspace(static_cast<std::size_t>(doubles * ctx.threads()) * sizeof(double)).data());
  ctx.pool().parallel_for(batch * blocks, [&](Index task, int worker) {
    const Index first = task % blocks * kBlock, end = first + kBlock < tokens ? first + kBlock : tokens;
    for (Index t = first; t < end; ++t) f(task / blocks, t, memory + worker * doubles);
  });
}

}  // namespace headwise::routing
