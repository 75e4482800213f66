// StepArrays: the arrays behind the steps of a mask and their bytes, which travel with a launch.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/spec/problem.h"

namespace headwise::cuda {

/// The arrays of a mask step and their bytes.
struct StepArrays {
  const void* from[3];
  std::size_t bytes[3];
};
inline StepArrays arrays_of(const MaskStep& s, Index batch, Index heads) {
  const auto size = [](Index n) { return static_cast<std::size_t>(n) * sizeof(Index); };
  StepArrays a{{s.offsets, s.columns, s.bits}, {0, 0, 0}};
  a.bytes[0] = size(offset_count(s));
  if (s.op == MaskOp::blocks) a.bytes[1] = size(s.n ? s.offsets[s.n] : 0);
  if (s.op == MaskOp::dense) {
    const Index last[3] = {(s.size[0] == 1 ? 1 : batch) - 1, (s.size[1] == 1 ? 1 : heads) - 1, s.size[2] - 1};
    Index words = ceil_div(s.size[3], 64);
    for (int axis = 0; axis < 3; ++axis) words += last[axis] > 0 ? last[axis] * s.words[axis] : 0;
    a.bytes[2] = size(words);
  }
  return a;
}

inline std::size_t mask_bytes(const AttentionProblem& p, const MaskSet& mask) {
  std::size_t bytes = static_cast<std::size_t>(mask.count) * sizeof(MaskView);
  for (Index n = 0; n < mask.count; ++n)
    for (int i = 0; i < mask.views[n].count; ++i)
      for (std::size_t part : arrays_of(mask.views[n].steps[i], p.batch, p.heads.q.heads).bytes)
        bytes += part;
  return bytes;
}

}  // namespace headwise::cuda
