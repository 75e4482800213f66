// Chunks: 64 queries at a time with all their pairs in memory; jobs, groups of them, and the three products.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/kernels/cuda/inputs/run_inputs.h"

namespace headwise::cuda::chunk {

inline constexpr int kChunkRows = 64, kChunkKeys = 64;

/// Queries row0 .. row0 + rows of a sequence, and the keys some of them may see: 0 .. keys.
struct ChunkJob {
  int sequence, row0, rows, keys;
};

/// Jobs that are in memory together; slot n holds jobs[n]. A plane is [slot head 64 pitch].
struct ChunkGroup {
  const ChunkJob* jobs;  // on the device
  int count, pitch;      // pitch: keys of the longest sequence, a multiple of 64
  const SequenceLocation* places;
  bool runs;  // every mask is an `&` of terms that open one run of keys
};
HW_FN constexpr Index plane_at(Index slot, Index heads, Index head, Index row, Index pitch) {
  return ((slot * heads + head) * kChunkRows + row) * pitch;
}

/// Halves in blocks of 8 rows x 8 keys, 32 x 32 of these in one piece: what tiles of all heads write.
HW_FN constexpr Index blocked_at(Index slot, Index heads, Index head, Index row, Index key, Index pitch) {
  return (slot * heads + head) * kChunkRows * pitch + (key / 32 * 2 + row / 32) * 1024 +
         (row % 32 / 8 * 4 + key % 32 / 8) * 64 + row % 8 * 8 + key % 8;
}

/// to[slot h i j] = scale_h x_h[i] . y_h[j], f32.
struct ChunkScores {
  ChunkGroup group;
  HeadsView x, y;
  bool vector_x, vector_y;
  int heads, planes;     // heads that are computed; planes of `to`
  const double* scales;  // one or one a head; null: 1
  Index scale_count;
  float* to;
};
template <class T>
Status chunk_scores(const ChunkScores& p, int keys, int device, cudaStream_t stream);

/// to_h[i] = factor sum_j w[slot h i j] y_h[j]; rows of which every lse is -inf are 0.
struct ChunkValues {
  ChunkGroup group;
  const void* w;  // plane of the run's dtype
  bool blocked;   // as blocked_at says
  HeadsView y, to;
  bool vector_y;
  int heads, planes;
  const float* lse;  // [slot lse_heads 64], or null
  int lse_heads;
  bool all_heads;  // a row is empty when all heads' lse say so; else its own head's
  const void* gate;
  DType gate_dtype;
  Index gate_step[3];
  float factor;
};
template <class T>
Status chunk_values(const ChunkValues& p, int device, cudaStream_t stream);

/// to_slot[j] = sum over jobs, heads of the slot and rows of w[slot h i j] x_h[i]; `sums` carries it from
/// group to group.
struct ChunkKeys {
  ChunkGroup group;
  const void* w;
  bool blocked;
  HeadsView x, to;
  bool vector_x;
  int planes, first_sequence, kv_tokens;
  float* sums;  // [batch kv_tokens slots dim]
};
/// One or two of them in one launch: alone, a sequence of 2,048 keys fills half of the device.
struct ChunkKeysBoth {
  ChunkKeys of[2];
  int count;
};
template <class T>
Status chunk_keys(const ChunkKeysBoth& p, int sequences, int device, cudaStream_t stream);

/// How a run is cut: all jobs, and where each group ends.
struct ChunkPlan {
  std::vector<ChunkJob> jobs;
  std::vector<int> ends;
  int pitch = 0, most = 0;  // most: jobs of the largest group
};
/// Groups of at most `bytes` of planes at `plane_bytes` a pair; a sequence without queries has a job of no
/// rows.
ChunkPlan plan_chunks(const AttentionProblem& p, const AttentionArgs& a, Index plane_bytes, Index bytes);

/// Bytes one after another, each on 256: counts without a base.
class Bytes256 {
 public:
  explicit Bytes256(std::byte* base) : base_(base) {}
  template <class N>
  N* take(Index count) {
    auto* at = reinterpret_cast<N*>(base_ + used_);
    used_ += (static_cast<std::size_t>(count) * sizeof(N) + 255) / 256 * 256;
    return at;
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace headwise::cuda::chunk
