// Place: where one sequence of a run lies in the tensors, as the tiled kernels read it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/band.h"

namespace headwise::cuda {

/// Rows and counts of a sequence; keys at kv_tokens and past it are closed to every query.
struct Place {
  int q_row, kv_row, q_tokens, kv_tokens, q_start;
};

/// Fits `place_of` and the band's last key into ints. False when a position is too far away.
inline bool place_for(const AttentionProblem& p, const AttentionArgs& a, Index b, const Band& band,
                      Place& out) {
  const SequencePlace s = place_of(p, a, b);
  if (s.q_start < -kFar || s.q_start > kFar || s.q_tokens > kFar || s.kv_tokens > kFar) return false;
  out = {static_cast<int>(s.q_row), static_cast<int>(s.kv_row), static_cast<int>(s.q_tokens),
         static_cast<int>(min_of(s.kv_tokens, band.keys)), static_cast<int>(s.q_start)};
  return true;
}

/// Every sequence lies alike: one place serves all and no table is needed.
inline bool alike(const AttentionProblem& p, const AttentionArgs& a, const Band& band) {
  return !p.ragged && !band.by_length && (!a.q_start.given() || a.q_start.size[0] == 1);
}

}  // namespace headwise::cuda
