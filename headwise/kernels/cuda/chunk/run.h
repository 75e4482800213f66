// ChunkRun: one run in chunks: memory, groups in order, and the products with the run's own tensors.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <mutex>
#include <optional>

#include "headwise/kernels/cuda/chunk/chunks.h"
#include "headwise/spec/backward.h"

namespace headwise::cuda::chunk {

/// Writes what no kernel of chunks takes.
void chunks_refused(const AttentionProblem& p, char (&why)[kSentenceBytes]);
/// `rest`: gradients asked beside those a kernel takes.
void chunk_gradients_refused(const BackwardProblem& p, const GradientSpec& rest, const char* takes_words,
                             char (&why)[kSentenceBytes]);

/// Where dq, dk and dv go, and the sums of the last two on their way.
struct ChunkGradients {
  HeadsView dout = {}, dq = {}, dk = {}, dv = {};
  bool vector_dout = false;
  float *dk_sums = nullptr, *dv_sums = nullptr;
};

/// Planes of a group: gradients of scores, and weights, which sequences they belong to; blocked: keys of a
/// plane stand in blocks.
struct GradientPlanes {
  const void* ds;
  Index ds_planes;
  const void* w;
  Index w_planes;
  int first, sequences;
  bool blocked = false;
};

class ChunkRun {
 public:
  /// `pair_bytes`: bytes of all planes for one pair.
  ChunkRun(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream, Index pair_bytes);

  /// Counts what `take` takes, reserves it and lets it take again; then fills `in` and sends the jobs.
  template <class Take>
  Status begin(RunInputs& in, Take&& take) {
    Bytes256 count(nullptr);
    lay_out(count);
    take(count);
    const Status status = reserve(in, count.used());
    if (!status.ok()) return status;
    Bytes256 room(state_->scratch);
    lay_out(room);
    take(room);
    return send_jobs();
  }
  /// body(group, keys, first sequence, sequences) in order; keys: the most of its jobs.
  template <class Body>
  Status each_group(Body&& body) {
    int begin = 0;
    for (const int end : plan_.ends) {
      int keys = 0;
      for (int n = begin; n < end; ++n) keys = plan_.jobs[n].keys > keys ? plan_.jobs[n].keys : keys;
      const int first = plan_.jobs[begin].sequence, sequences = plan_.jobs[end - 1].sequence - first + 1;
      group_ = {jobs_ + begin, end - begin, plan_.pitch, places_, runs_};
      const Status status = body(group_, keys, first, sequences);
      if (!status.ok()) return status;
      begin = end;
    }
    return {};
  }

  Index rows() const { return Index{plan_.most} * kChunkRows; }
  Index pitch() const { return plan_.pitch; }
  cudaStream_t stream() const { return state_->stream; }

  /// A plane [slot heads 64 pitch] of 16-bit numbers, in boxes of a row, 16 heads and some panels of 64 keys.
  Status plane_map(const void* plane, Index heads, int box_panels, CUtensorMap& map) {
    const Index pitch = plan_.pitch;
    const MapSpec spec{plane,
                       CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                       plan_.most,
                       heads,
                       kChunkRows,
                       pitch,
                       {heads * kChunkRows * pitch, kChunkRows * pitch, pitch},
                       16,
                       box_panels};
    return state_->map_of(spec, map);
  }

  /// The same plane in boxes of a job's rows of a head and a panel.
  Status product_map(const void* plane, Index heads, int box_rows, CUtensorMap& map) {
    const Index pitch = plan_.pitch;
    const MapSpec spec{plane,
                       CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                       plan_.most,
                       kChunkRows,
                       heads,
                       pitch,
                       {heads * kChunkRows * pitch, pitch, kChunkRows * pitch},
                       box_rows,
                       1};
    return state_->map_of(spec, map);
  }

  /// A tensor of the run in boxes of some rows of a head, up to 64 columns.
  Status box_map(const AnyView& v, int box_rows, CUtensorMap& map);

  /// Products of the group at hand. x is q (by_scale) or dout, y is k or v.
  Status scores(const HeadsView& x, const HeadsView& y, bool by_scale, int planes, float* to, int keys);
  ChunkValues values_of(const void* w, const HeadsView& y, const HeadsView& to, Index planes) const;
  Status values(const ChunkValues& p);
  ChunkGradients gradients_of(const BackwardArgs& a, Bytes256& room) const;
  /// dq of ds, then what the group adds to dk (of ds) and dv (of w).
  Status gradients(const ChunkGradients& g, const RunInputs& in, const GradientPlanes& of);

 private:
  void lay_out(Bytes256& room) { jobs_ = room.take<ChunkJob>(static_cast<Index>(plan_.jobs.size())); }
  Status reserve(RunInputs& in, std::size_t bytes);
  Status send_jobs();
  bool by_chunks_of(const HeadsView& v) const;
  /// hopper_products takes these: each head its own slot of at most 64 columns.
  bool products_fit(const ChunkGradients& g, const RunInputs& in) const;

  const AttentionProblem& p_;
  const AttentionArgs& a_;
  int device_;
  ChunkPlan plan_;
  std::optional<CurrentDevice> current_;
  StreamState* state_ = nullptr;
  std::unique_lock<std::mutex> lock_;
  ChunkJob* jobs_ = nullptr;
  const SequenceLocation* places_ = nullptr;
  const double* scales_ = nullptr;
  Index scale_count_ = 1;
  ChunkGroup group_ = {};
  bool runs_ = false;
};

}  // namespace headwise::cuda::chunk
