// Between the structs of the C interface and what the library takes: problems and views, both ways.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/c/guard.h"
#include "headwise/c/handles.h"

namespace headwise::c {

/// Layouts as given, all three or none; none: from heads, kv_heads, head_dim and value_dim.
HeadSpec heads_from(const hw_attention_problem& p, const char* entry);
/// The layouts of a problem that is to be filled: none where it has none.
HeadSpec heads_to_keep(hw_attention_problem& p, const char* entry);
ProbeSpec probe_from(const hw_attention_problem& p, const char* entry);
AttentionProblem problem_from(const hw_attention_problem& p, const char* entry);
void fill(hw_attention_problem& p, const AttentionProblem& r);
void fill(hw_attention_problem& p, const ProbeSpec& s);

/// The views of a run, wherever they lie; its mask stays owned by its handle.
AttentionArgs args_from(const hw_attention_args* given, const char* entry);

/// Writes `filled` over the caller's struct, as much of it as the caller has.
template <class T>
void write_back(T* given, T filled) {
  const std::uint32_t size = given->struct_size;
  filled.struct_size = size;
  std::memcpy(given, &filled, size < sizeof filled ? size : sizeof filled);
}

}  // namespace headwise::c
