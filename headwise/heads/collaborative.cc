// Collaborative heads: queries mixed for every head, the keys' own bias, and back.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/heads/collaborative.h"

#include "headwise/base/context.h"

namespace headwise {
namespace {

/// move(padded, row) for every key of every sequence of a ragged batch; padding becomes 0.
template <class F>
void each_key(HeadCall& c, const AnyView& padded, const AnyView& rows, F&& move) {
  const Index heads = rows.size[2], longest = padded.size[3];
  for (Index b = 0; b < c.problem.batch; ++b) {
    const SequenceLocation s = place_of(c.problem, c.run.forward, b);
    for (Index h = 0; h < heads; ++h)
      for (Index j = 0; j < longest; ++j) {
        const Index at = (b * heads + h) * longest + j, row = (s.kv_row + j) * heads + h;
        double from = 0, x = load_double(padded.data, padded.dtype, at);
        const bool inside = j < s.kv_tokens;
        if (inside) from = load_double(rows.data, rows.dtype, row);
        move(x, from);
        store_double(padded.data, padded.dtype, at, x);
        if (inside) store_double(rows.data, rows.dtype, row, from);
      }
  }
}

}  // namespace

void Collaborative::prepare(HeadCall& c, Work& w, Context& ctx) const {
  visit_two(w.q.dtype, mixing_.value().dtype, [&]<class T, class M>(Type<T>, Type<M>) {
    const T* const from = static_cast<const T*>(c.q.data);
    const M* const m = static_cast<const M*>(mixing_.value().data);
    T* const to = static_cast<T*>(w.q.data);
    const Index heads = config_.heads, shared = config_.shared;
    each_token(c.outer() * c.q_tokens(), ctx, [&](Index t) {
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < shared; ++i)
          to[(t * heads + h) * shared + i] = static_cast<T>(static_cast<Computed<T>>(
              static_cast<Computed<T>>(from[t * shared + i]) * static_cast<Computed<M>>(m[h * shared + i])));
    });
  });
  c.run.forward.q = w.q;
  if (!config_.content) return;
  project(c.x_kv, content_, {}, Activation::none, w.content, ctx);
  scale(w.content, config_.scale, ctx);
  if (c.problem.ragged) each_key(c, w.bias, w.content, [](double& padded, double& row) { padded = row; });
  c.inputs().bias = w.bias;
}

void Collaborative::prepare_backward(HeadCall& c, Work& w, Context& ctx) const {
  const Index tokens = c.outer() * c.q_tokens(), heads = config_.heads, shared = config_.shared;
  double* const sums = static_cast<double*>(w.sums.data);
  visit_two(w.q.dtype, mixing_.value().dtype, [&]<class T, class M>(Type<T>, Type<M>) {
    const T *const q = static_cast<const T*>(c.q.data), *const dq = static_cast<const T*>(w.dq.data);
    const M* const m = static_cast<const M*>(mixing_.value().data);
    T* const to = static_cast<T*>(c.dq.data);
    const auto d_at = [&](Index t, Index h, Index i) {
      return static_cast<Computed<T>>(dq[(t * heads + h) * shared + i]);
    };
    each_token(tokens, ctx, [&](Index t) {
      for (Index i = 0; i < shared; ++i) {
        Computed<T> sum = 0;
        for (Index h = 0; h < heads; ++h)
          sum += static_cast<Computed<T>>(static_cast<Computed<M>>(m[h * shared + i])) * d_at(t, h, i);
        to[t * shared + i] = static_cast<T>(sum);
      }
    });
    ctx.pool().parallel_for(heads, [&](Index h, int) {
      double* const sum = sums + h * shared;
      for (Index i = 0; i < shared; ++i) sum[i] = 0;
      for (Index t = 0; t < tokens; ++t)
        for (Index i = 0; i < shared; ++i)
          sum[i] += static_cast<double>(static_cast<Computed<T>>(q[t * shared + i])) *
                    static_cast<double>(d_at(t, h, i));
    });
  });
  if (mixing_.grad().given()) add_to(mixing_.grad(), w.sums, ctx);
  if (!config_.content) return;
  if (c.problem.ragged) each_key(c, w.d_bias, w.d_content, [](double& padded, double& row) { row = padded; });
  scale(w.d_content, config_.scale, ctx);
  project_backward(w.d_content, c.x_kv, content_, {}, c.dx_kv, w.dx, ctx);
}

}  // namespace headwise
