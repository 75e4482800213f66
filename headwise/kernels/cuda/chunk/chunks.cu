#include "headwise/kernels/cuda/chunk/chunks.h"

#include "headwise/kernels/cuda/mma/forward.h"

namespace headwise::cuda::chunk {
namespace {

/// One past the last key that queries up to position `last` may see.
Index keys_until(const MaskSet& mask, Index last, Index keys, const MaskSubject& place) {
  constexpr Index kWide = Index{1} << 40;
  if (!mask.given() || !mma::opens_runs(mask)) return keys;
  Index most = 0;
  for (Index n = 0; n < mask.count; ++n) {
    Index end = keys;
    for (int i = 0; i < mask.views[n].count; ++i) {
      const MaskStep& s = mask.views[n].steps[i];
      if (s.op == MaskOp::causal) end = min_of(end, last + 1);
      if (s.op == MaskOp::window) end = min_of(end, last + min_of(s.b, kWide) + 1);
      if (s.op == MaskOp::prefix) end = min_of(end, s.a);
      if (s.op == MaskOp::lengths) end = min_of(end, mask_terms::length_of(s, place));
    }
    most = max_of(most, max_of(end, 0));
  }
  return most;
}

}  // namespace

ChunkPlan plan_chunks(const AttentionProblem& p, const AttentionArgs& a, Index plane_bytes, Index bytes) {
  ChunkPlan plan;
  plan.pitch = static_cast<int>(round_up(max_of(p.kv_tokens, 1), kChunkKeys));
  const Index job_bytes = plane_bytes * kChunkRows * plan.pitch;
  const auto fitting = static_cast<int>(min_of(max_of(bytes / job_bytes, 1), 32768));
  for (Index b = 0; b < p.batch; ++b) {
    const SequenceLocation at = place_of(p, a, b);
    Index row = 0;
    do {
      const Index rows = min_of(at.q_tokens - row, kChunkRows);
      const Index keys = keys_until(a.mask, at.q_start + row + rows - 1, at.kv_tokens, {b, 0, at.q_start});
      plan.jobs.push_back({static_cast<int>(b), static_cast<int>(row), static_cast<int>(rows),
                           static_cast<int>(rows > 0 ? keys : 0)});
      row += kChunkRows;
    } while (row < at.q_tokens);
  }
  const auto all = static_cast<int>(plan.jobs.size());
  // Groups of one size: a last one of a few jobs would leave most of the device idle.
  const auto groups = static_cast<int>(ceil_div(all, fitting));
  plan.most = groups > 0 ? static_cast<int>(ceil_div(all, groups)) : 0;
  for (int first = 0; first < all; first += plan.most)
    plan.ends.push_back(first + plan.most < all ? first + plan.most : all);
  return plan;
}

}  // namespace headwise::cuda::chunk
