// Case: one named size of attention with its tensors: what tests iterate over.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <ostream>
#include <string>
#include <vector>

#include "headwise/base/buffer.h"
#include "headwise/spec/problem.h"

namespace headwise::test {

struct Case {
  std::string name;
  Index batch = 1, q_tokens = 1, kv_tokens = 1, heads = 1, kv_heads = 1, head_dim = 8, value_dim = 8;
  DType dtype = DType::f32;
};
inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.name << " " << c.dtype << " batch " << c.batch << " q_tokens " << c.q_tokens
             << " kv_tokens " << c.kv_tokens << " heads " << c.heads << " kv_heads " << c.kv_heads
             << " head_dim " << c.head_dim << " value_dim " << c.value_dim;
}
inline Case with_dtype(Case c, DType dtype) {
  c.dtype = dtype;
  return c;
}

/// Sizes in which a swapped axis still fits: they find it by value alone.
inline std::vector<Case> square_cases() {
  return {
      {.name = "tokens_are_heads", .batch = 2, .q_tokens = 6, .kv_tokens = 6, .heads = 6, .kv_heads = 3},
      {.name = "heads_are_batch", .batch = 4, .q_tokens = 7, .kv_tokens = 9, .heads = 4, .kv_heads = 4},
      {.name = "tokens_are_dim",
       .batch = 1,
       .q_tokens = 16,
       .kv_tokens = 16,
       .heads = 2,
       .kv_heads = 1,
       .head_dim = 16,
       .value_dim = 16},
      {.name = "all_equal",
       .batch = 4,
       .q_tokens = 4,
       .kv_tokens = 4,
       .heads = 4,
       .kv_heads = 4,
       .head_dim = 4,
       .value_dim = 4},
  };
}
/// Widths and lengths around vector, panel and granule edges, each small enough for ref.
inline std::vector<Case> odd_cases() {
  return {
      {.name = "one", .head_dim = 1, .value_dim = 1},
      {.name = "one_key",
       .batch = 2,
       .q_tokens = 9,
       .heads = 3,
       .kv_heads = 1,
       .head_dim = 5,
       .value_dim = 3},
      {.name = "one_query",
       .batch = 3,
       .kv_tokens = 33,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 20,
       .value_dim = 7},
      {.name = "group_of_3",
       .batch = 1,
       .q_tokens = 17,
       .kv_tokens = 31,
       .heads = 6,
       .kv_heads = 2,
       .head_dim = 24,
       .value_dim = 40},
      {.name = "granule_edge",
       .batch = 1,
       .q_tokens = 5,
       .kv_tokens = 257,
       .heads = 2,
       .kv_heads = 2,
       .head_dim = 33,
       .value_dim = 65},
      {.name = "two_granules",
       .batch = 1,
       .q_tokens = 65,
       .kv_tokens = 513,
       .heads = 1,
       .kv_heads = 1,
       .head_dim = 64,
       .value_dim = 64},
  };
}
/// A size of 0 in each place that may have one.
inline std::vector<Case> empty_cases() {
  return {
      {.name = "no_batch", .batch = 0, .q_tokens = 3, .kv_tokens = 4, .heads = 2, .kv_heads = 2},
      {.name = "no_query", .batch = 2, .q_tokens = 0, .kv_tokens = 4, .heads = 2, .kv_heads = 1},
      {.name = "no_key", .batch = 2, .q_tokens = 3, .kv_tokens = 0, .heads = 2, .kv_heads = 1},
      {.name = "no_head", .batch = 2, .q_tokens = 3, .kv_tokens = 4, .heads = 0, .kv_heads = 0},
  };
}

/// Tensors of a case, unit normal, and arguments that point at them.
struct CaseRun {
  Tensor q, k, v, out, lse;
  AttentionArgs args;

  explicit CaseRun(const Case& c, std::uint64_t seed = 1)
      : q(random_normal({c.batch, c.q_tokens, c.heads, c.head_dim}, c.dtype, seed)),
        k(random_normal({c.batch, c.kv_tokens, c.kv_heads, c.head_dim}, c.dtype, seed + 1000)),
        v(random_normal({c.batch, c.kv_tokens, c.kv_heads, c.value_dim}, c.dtype, seed + 2000)),
        out(c.dtype, {c.batch, c.q_tokens, c.heads, c.value_dim}),
        lse(c.dtype == DType::f64 ? DType::f64 : DType::f32, {c.batch, c.heads, c.q_tokens}) {
    point();
  }
  void point() {
    args.q = q.view(), args.k = k.view(), args.v = v.view(), args.out = out.view(), args.lse = lse.view();
  }
};

/// The same numbers in another dtype, row-major.
inline Tensor converted(const InputView& x, DType dtype) {
  Tensor t;
  switch (x.rank) {
    case 1: t = Tensor(dtype, {x.size[0]}); break;
    case 2: t = Tensor(dtype, {x.size[0], x.size[1]}); break;
    case 3: t = Tensor(dtype, {x.size[0], x.size[1], x.size[2]}); break;
    default: t = Tensor(dtype, {x.size[0], x.size[1], x.size[2], x.size[3]}); break;
  }
  const InputView& y = t.view();
  for (Index n = 0; n < y.count(); ++n) {
    Index rest = n, from = 0;
    for (int axis = x.rank - 1; axis >= 0; --axis) {
      from += rest % x.size[axis] * x.step[axis];
      rest /= x.size[axis];
    }
    store_double(y.data, dtype, n, load_double(x.data, x.dtype, from));
  }
  return t;
}

}  // namespace headwise::test
