// MixCase: an attention with mixed heads, its tensors and gradients, every option chosen by name.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <string>

#include "headwise/masks/mask.h"
#include "headwise/ops/attention/backward.h"
#include "tests/support/case.h"

namespace headwise::test {

struct MixCase {
  std::string name;
  Mix before = Mix::fixed, after = Mix::fixed;
  Index q_heads = 3, heads = 3, v_heads = 3;
  Index kv_group = 1, v_group = 1, rank = 0;
  Index batch = 1, q_tokens = 5, kv_tokens = 6, dim = 3, value_dim = 2;
  bool given = false;             // a dynamic mix has a matrix besides
  bool query = true, key = true;  // which sides of a dynamic mix are given
  std::string mask = "";
  bool per_head = false;  // each normalized head has a narrower mask of its own
  bool ragged = false, sinks = false, bias = false, alibi = false, relative = false, softcap = false,
       gate = false, dropout = false, scale = false;
  DType dtype = DType::f64;
};

/// Memory stays where it is: addresses of `args` point into `kept`.
struct MixRun {
  std::deque<Tensor> kept;
  Mask mask;
  BackwardArgs args;
  HeadSpec heads;

  AnyView keep(Tensor t) {
    kept.push_back(std::move(t));
    return kept.back().view();
  }
  AnyView normal(std::initializer_list<Index> sizes, DType t, double by, std::uint64_t seed) {
    const AnyView v = keep(random_normal(sizes, t, seed));
    for (Index n = 0; n < v.count(); ++n) store_double(v.data, t, n, by * load_double(v.data, t, n));
    return v;
  }
  explicit MixRun(const MixCase& c, std::uint64_t seed = 1);
  MixRun(const MixRun&) = delete;
  AttentionProblem problem() const { return problem_of(args.forward, {}, heads); }
};

inline MixRun::MixRun(const MixCase& c, std::uint64_t seed) {
  AttentionArgs& a = args.forward;
  HeadInputs& in = a.inputs;
  const Index kv_heads = c.q_heads / c.kv_group, v_slots = c.v_heads / c.v_group;
  const Index batch = c.ragged ? 1 : c.batch;
  // ragged: sequence b is b tokens shorter than the longest, the second has no query
  Index q_rows = c.q_tokens, kv_rows = c.kv_tokens;
  if (c.ragged) {
    const AnyView q = keep(Tensor(DType::i64, {c.batch + 1})), k = keep(Tensor(DType::i64, {c.batch + 1}));
    auto *q_at = static_cast<Index*>(q.data), *k_at = static_cast<Index*>(k.data);
    q_at[0] = k_at[0] = 0;
    for (Index b = 0; b < c.batch; ++b) {
      q_at[b + 1] = q_at[b] + (b == 1 ? 0 : max_of(c.q_tokens - b, 0));
      k_at[b + 1] = k_at[b] + max_of(c.kv_tokens - b, 0);
    }
    q_rows = q_at[c.batch], kv_rows = k_at[c.batch];
    a.q_offsets = q, a.kv_offsets = k;
  }
  const double coefficient = 0.3;
  a.q = normal({batch, q_rows, c.q_heads, c.dim}, c.dtype, 1, seed);
  a.k = normal({batch, kv_rows, kv_heads, c.dim}, c.dtype, 1, seed + 1);
  a.v = normal({batch, kv_rows, v_slots, c.value_dim}, c.dtype, 1, seed + 2);
  args.dout = normal({batch, q_rows, c.v_heads, c.value_dim}, c.dtype, 1, seed + 3);
  a.out = keep(Tensor(c.dtype, {batch, q_rows, c.v_heads, c.value_dim}));
  heads.q = HeadLayout::split(c.q_heads, c.dim);
  heads.k = HeadLayout::grouped(c.q_heads, kv_heads, c.dim);
  heads.v = HeadLayout::grouped(c.v_heads, v_slots, c.value_dim);
  heads.before = c.before, heads.after = c.after, heads.heads = c.heads;
  const DType wide = c.dtype == DType::f64 ? DType::f64 : DType::f32;
  const auto matrix = [&](Mix kind, Index from, Index to, std::uint64_t s) {
    if (kind == Mix::none || (kind == Mix::dynamic && !c.given)) return AnyView();
    const AnyView m = normal({from, to}, wide, coefficient, s);
    for (Index h = 0; kind == Mix::fixed && h < min_of(from, to); ++h)
      store_double(m.data, wide, h * to + h, 1 + load_double(m.data, wide, h * to + h));
    return m;
  };
  in.mix_before = matrix(c.before, c.q_heads, c.heads, seed + 4);
  in.mix_after = matrix(c.after, c.heads, c.v_heads, seed + 5);
  if (heads.mix_stages() > 0) {
    heads.mix_rank = c.rank;
    if (c.query) in.mix_q = normal({batch, q_rows, heads.mix_rows(), c.heads}, wide, coefficient, seed + 6);
    if (c.key) in.mix_k = normal({batch, kv_rows, heads.mix_rows(), c.heads}, wide, coefficient, seed + 7);
  }
  if (c.sinks) in.sinks = normal({c.heads}, wide, 1, seed + 8);
  if (c.bias) in.bias = normal({1, c.heads, c.q_tokens, c.kv_tokens}, wide, 1, seed + 9);
  if (c.alibi) in.slopes = normal({c.heads}, wide, 0.2, seed + 10);
  if (c.relative) {
    in.buckets = {4, 5, false};
    in.relative = normal({4, c.heads}, wide, 1, seed + 11);
  }
  if (c.softcap) in.softcap = 1.5;
  if (c.gate) in.gate = normal({batch, q_rows, c.v_heads}, wide, 1, seed + 12);
  if (c.dropout) in.dropout = 0.25, in.seed = 7;
  if (c.scale) in.scale = normal({c.q_heads}, wide, 1, seed + 13);
  if (!c.mask.empty()) {
    mask = parse_mask(c.mask);
    if (c.per_head) {  // head h of the normalizer sees its own window
      std::vector<Mask> masks;
      for (Index h = 0; h < c.heads; ++h) masks.push_back(mask & Mask::window(2 * h + 1, h));
      mask = Mask::per_head(masks);
    }
    a.mask = mask.set();
  }
}

}  // namespace headwise::test
