// The mixed heads that cpu/mixed and cpu/mixed_backward are held to.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "tests/support/mix_case.h"

namespace headwise::test {

/// Mixes that are the same for every pair.
inline std::vector<MixCase> fixed_mix_cases() {
  constexpr Mix kNone = Mix::none;
  return {
      {.name = "talking",
       .q_heads = 5,
       .heads = 5,
       .v_heads = 5,
       .q_tokens = 70,
       .kv_tokens = 70,
       .dim = 20,
       .value_dim = 24,
       .mask = "causal",
       .sinks = true,
       .alibi = true},
      {.name = "three_counts",
       .q_heads = 4,
       .heads = 9,
       .v_heads = 6,
       .kv_group = 2,
       .v_group = 3,
       .batch = 2,
       .q_tokens = 33,
       .kv_tokens = 64,
       .dim = 16,
       .value_dim = 16,
       .sinks = true,
       .bias = true,
       .gate = true,
       .dropout = true},
      {.name = "only_before",
       .after = kNone,
       .q_heads = 2,
       .heads = 3,
       .v_heads = 3,
       .q_tokens = 130,
       .kv_tokens = 40,
       .mask = "window(5, 3)",
       .per_head = true,
       .gate = true,
       .dropout = true},
      {.name = "only_after",
       .before = kNone,
       .v_heads = 2,
       .q_tokens = 17,
       .kv_tokens = 165,  // more keys than a granule holds
       .mask = "causal",
       .per_head = true,
       .alibi = true,
       .softcap = true,
       .dropout = true},
      {.name = "ragged",
       .batch = 3,
       .q_tokens = 40,
       .kv_tokens = 40,
       .mask = "causal",
       .ragged = true,
       .sinks = true,
       .relative = true,
       .softcap = true,
       .gate = true,
       .scale = true},
  };
}

/// Mixes that some query or key brings, and problems without either.
inline std::vector<MixCase> dynamic_mix_cases() {
  constexpr Mix kNone = Mix::none, kFixed = Mix::fixed, kDynamic = Mix::dynamic;
  return {
      {.name = "dcmha",
       .before = kDynamic,
       .after = kDynamic,
       .q_heads = 18,
       .heads = 18,
       .v_heads = 18,
       .rank = 2,
       .q_tokens = 75,
       .kv_tokens = 75,
       .dim = 8,
       .value_dim = 8,
       .mask = "causal",
       .alibi = true,
       .scale = true},
      {.name = "dcmha_given",
       .before = kDynamic,
       .after = kDynamic,
       .q_heads = 4,
       .heads = 4,
       .v_heads = 4,
       .kv_group = 4,
       .v_group = 2,
       .rank = 3,
       .batch = 2,
       .q_tokens = 9,
       .kv_tokens = 37,
       .given = true,
       .mask = "window(9, 1)",
       .bias = true,
       .dropout = true},
      {.name = "gates_alone", .before = kDynamic, .after = kNone, .rank = 0, .q_tokens = 3, .kv_tokens = 5},
      {.name = "query_side",
       .before = kNone,
       .after = kDynamic,
       .rank = 1,
       .q_tokens = 20,
       .kv_tokens = 35,
       .key = false,
       .mask = "causal & window(40, 0)"},
      {.name = "empty_rows",
       .before = kDynamic,
       .after = kFixed,
       .v_heads = 2,
       .rank = 1,
       .q_tokens = 20,
       .kv_tokens = 4,
       .query = false,
       .mask = "window(1, 0)"},
      {.name = "no_key", .q_tokens = 3, .kv_tokens = 0},
      {.name = "no_query", .q_tokens = 0, .kv_tokens = 3},
  };
}

inline std::vector<MixCase> mix_cases() {
  std::vector<MixCase> all = fixed_mix_cases();
  for (const MixCase& c : dynamic_mix_cases()) all.push_back(c);
  return all;
}

}  // namespace headwise::test
