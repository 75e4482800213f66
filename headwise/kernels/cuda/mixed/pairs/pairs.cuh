// One pass over the pairs of a chunk: a thread holds one key and a few queries of all heads and mixes them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/chunk/pairs.cuh"
#include "headwise/kernels/cuda/mixed/pairs/pairs.h"

namespace headwise::cuda::mixed {

using chunk::kChunkKeys;
using chunk::kChunkRows;

enum class MixPass { logits, weights, probabilities, weights_gradient, scores_gradient };

inline constexpr int kMixThreads = 128;
/// Queries of a thread: a coefficient that is read serves them all.
template <int Heads>
inline constexpr int kMixQueries = 64 / Heads;

/// One stage for a block's queries; matrices stand as [out in], so that a step reads four of them at once.
/// Loops over heads that come out and over ranks are not unrolled: each instance would take a minute to
/// compile.
template <int Heads, bool Turned>
struct BlockMix {
  static constexpr int Q = kMixQueries<Heads>;
  alignas(16) float given[Heads][Heads];
  float query[Q][2 * kMostMixRank + 1][Heads];
  float x[Heads][Q][kMixThreads];  // what goes in, each thread its own
  int begin[Q],
      end[Q];  // keys a query may see, where masks open runs for all heads alike

  __device__ __forceinline__ void load(const MixPairs& p, const MixStage& s, Index q_row, int queries) {
    for (int n = static_cast<int>(threadIdx.x); n < Heads * Heads; n += kMixThreads) {
      const int out = n / Heads, in = n % Heads, m = Turned ? out : in, h = Turned ? in : out;
      given[out][in] = s.given && m < s.from && h < s.to ? s.given[m * s.to + h] : 0.f;
    }
    if (s.kind != Mix::dynamic) return;
    for (int n = static_cast<int>(threadIdx.x); n < Q * (2 * p.rank + 1) * Heads; n += kMixThreads) {
      const int h = n % Heads, r = n / Heads % (2 * p.rank + 1), q = n / Heads / (2 * p.rank + 1);
      query[q][r][h] = p.of_queries && q < queries && h < p.heads
                           ? p.of_queries[((q_row + q) * p.mix_rows + s.row0 + r) * p.heads + h]
                           : 0.f;
    }
  }
  /// put(h, y[Q]) for each head that comes out; `key` is the key's place among the coefficients.
  template <class Put>
  __device__ __forceinline__ void apply(const MixPairs& p, const MixStage& s, Index key, Put&& put) const {
    const int outs = Turned ? s.from : s.to, thread = static_cast<int>(threadIdx.x);
    const bool dynamic = s.kind == Mix::dynamic;
    const int first = Turned ? p.rank : 0, second = Turned ? 0 : p.rank;
    const auto of_key = [&](int r, int h) {
      return p.of_keys ? p.of_keys[(static_cast<Index>(s.row0 + r) * p.heads + h) * p.key_pitch + key] : 0.f;
    };
    float own[Heads][Q], of_query[kMostMixRank][Q], of_rank[kMostMixRank][Q];
    if (s.kind != Mix::none) {
#pragma unroll
      for (int h = 0; h < Heads; ++h)
#pragma unroll
        for (int q = 0; q < Q; ++q) own[h][q] = x[h][q][thread];
    }
#pragma unroll 1
    for (int r = 0; dynamic && r < p.rank; ++r) {
      float a[Q], b[Q];
#pragma unroll
      for (int q = 0; q < Q; ++q) a[q] = b[q] = 0.f;
#pragma unroll
      for (int m = 0; m < Heads; ++m) {
        if (m >= p.heads) break;
        const float k = of_key(first + r, m);
#pragma unroll
        for (int q = 0; q < Q; ++q)
          a[q] = fmaf(query[q][first + r][m], own[m][q], a[q]), b[q] = fmaf(k, own[m][q], b[q]);
      }
#pragma unroll
      for (int n = 0; n < kMostMixRank; ++n)
#pragma unroll
        for (int q = 0; q < Q; ++q)
          if (n == r) of_query[n][q] = a[q], of_rank[n][q] = b[q];
    }
#pragma unroll 1
    for (int h = 0; h < outs; ++h) {
      float y[Q];
#pragma unroll
      for (int q = 0; q < Q; ++q) y[q] = s.kind == Mix::fixed ? 0.f : x[h][q][thread];
      if (s.given) {
#pragma unroll
        for (int m = 0; m < Heads; m += 4) {
          const float4 c = *reinterpret_cast<const float4*>(&given[h][m]);
#pragma unroll
          for (int q = 0; q < Q; ++q)
            y[q] = fmaf(c.w, own[m + 3][q],
                        fmaf(c.z, own[m + 2][q], fmaf(c.y, own[m + 1][q], fmaf(c.x, own[m][q], y[q]))));
        }
      }
      if (dynamic) {
        const float gate = of_key(2 * p.rank, h);
#pragma unroll
        for (int q = 0; q < Q; ++q) y[q] = fmaf(gate + query[q][2 * p.rank][h], x[h][q][thread], y[q]);
#pragma unroll
        for (int r = 0; r < kMostMixRank; ++r)
          if (r < p.rank) {
            const float k = of_key(second + r, h);
#pragma unroll
            for (int q = 0; q < Q; ++q)
              y[q] = fmaf(query[q][second + r][h], of_query[r][q], fmaf(k, of_rank[r][q], y[q]));
          }
      }
      put(h, y);
    }
  }
};

/// A thread's key of a chunk and its Q queries, of all heads.
template <int Heads, MixPass Pass>
struct PairThread {
  static constexpr int Q = kMixQueries<Heads>;
  static constexpr bool kTurned = Pass == MixPass::weights_gradient || Pass == MixPass::scores_gradient;
  static constexpr bool kAfter = Pass == MixPass::weights || Pass == MixPass::weights_gradient;
  const MixPairs& p;
  const RunInputs& f;
  BlockMix<Heads, kTurned>& mix;
  const chunk::ChunkJob& job;
  const SequenceLocation& at;
  Index slot;
  int row0, thread, j, pitch;
  Index b, i0;
  float *scores, *probabilities, *dprobabilities, *dweights;
  Index weights_at, dscores_at;
  bool capped_scores, terms, asks;

  __device__ __forceinline__ bool there(int q) const { return row0 + q < job.rows && j < job.keys; }
  /// A plane's numbers of this thread; inside a job 32 bits are enough.
  __device__ __forceinline__ int off(int h, int q) const { return (h * kChunkRows + q) * pitch; }
  __device__ __forceinline__ float row_number(const float* of, int h, int q) const {
    return of[slot * p.heads * kChunkRows + h * kChunkRows + row0 + q];
  }
  __device__ __forceinline__ bool pair_open(int h, int q) const {
    return j >= mix.begin[q] && j < mix.end[q] && (!asks || chunk::mask_opens(f, at, b, h, i0 + q, j));
  }

  /// What the mix reads of head h. Every number of a plane may be read, whatever it holds: a branch around
  /// each would have them wait for one another. `open`: some head sees the pair.
  __device__ __forceinline__ void take(int h, const bool (&open)[Q]) const {
    float x[Q], other[Q];
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      if constexpr (Pass == MixPass::logits || Pass == MixPass::probabilities) {
        x[q] = scores[off(h, q)];
      } else if constexpr (Pass == MixPass::weights) {
        x[q] = p.probabilities_given ? probabilities[off(h, q)] : scores[off(h, q)];
        other[q] = row_number(p.lse, h, q);
      } else if constexpr (Pass == MixPass::weights_gradient) {
        x[q] = dweights[off(h, q)];
      } else {
        x[q] = probabilities[off(h, q)], other[q] = dprobabilities[off(h, q)];
      }
    }
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      if constexpr (Pass == MixPass::logits || Pass == MixPass::probabilities) {
        if (capped_scores) x[q] = chunk::capped(f, x[q]);
      } else if constexpr (Pass == MixPass::weights) {
        if (!p.probabilities_given)
          x[q] = x[q] == -INFINITY ? 0.f : exp2f((x[q] - other[q]) * chunk::kChunkLog2e);
      } else if constexpr (Pass == MixPass::weights_gradient) {
        x[q] = open[q] ? x[q] * chunk::gate_of(f, at, h, i0 + q) * chunk::pair_kept(f, at, b, h, i0 + q, j)
                       : 0.f;
        if (there(q)) dweights[off(h, q)] = x[q];
      } else {
        x[q] = x[q] == 0.f ? 0.f : x[q] * (other[q] - row_number(p.delta, h, q));
        if (there(q)) dprobabilities[off(h, q)] = x[q];
      }
      mix.x[h][q][thread] = there(q) ? x[q] : 0.f;
    }
  }
  /// What the mix has made for head h.
  __device__ __forceinline__ void put(int h, const float (&y)[Q]) const {
#pragma unroll
    for (int q = 0; q < Q; ++q) {
      const Index i = i0 + q;
      if constexpr (Pass == MixPass::logits) {
        if (there(q))
          scores[off(h, q)] =
              pair_open(h, q) ? y[q] + (terms ? chunk::added_terms(f, at, b, h, i, j) : 0.f) : -INFINITY;
      } else if constexpr (Pass == MixPass::probabilities) {
        const float lse = row_number(p.lse, h, q);
        float w = 0.f;
        if (there(q) && lse != -INFINITY && pair_open(h, q)) {
          const float s = y[q] + (terms ? chunk::added_terms(f, at, b, h, i, j) : 0.f);
          if (s != -INFINITY) w = exp2f((s - lse) * chunk::kChunkLog2e);
        }
        probabilities[off(h, q)] = w;
      } else if constexpr (Pass == MixPass::weights) {
        float w = 0.f;
        if (there(q)) {
          w = y[q] * chunk::pair_kept(f, at, b, h, i, j);
          if (p.gated) w *= chunk::gate_of(f, at, h, i);
        }
        chunk::store_weight(p.weights, p.dtype, weights_at + off(h, q), w);
      } else if constexpr (Pass == MixPass::weights_gradient) {
        dprobabilities[off(h, q)] = there(q) ? y[q] : 0.f;
      } else {
        float ds = 0.f;
        if (there(q)) {
          float slant = 1.f;
          if (capped_scores) chunk::capped(f, scores[off(h, q)], &slant);
          ds = y[q] * slant * static_cast<float>(f.scales[f.scale_count == 1 ? 0 : h]);
        }
        chunk::store_weight(p.dscores, p.dtype, dscores_at + off(h, q), ds);
      }
    }
  }
};

template <int Heads, MixPass Pass>
__global__ void __launch_bounds__(kMixThreads) mix_pairs(const __grid_constant__ MixPairs p) {
  using Thread = PairThread<Heads, Pass>;
  constexpr int Q = Thread::Q;
  constexpr bool kTurned = Thread::kTurned;
  __shared__ BlockMix<Heads, kTurned> mix;
  const RunInputs& f = p.in;
  const Index slot = blockIdx.z;
  const chunk::ChunkJob job = p.group.jobs[slot];
  const int row0 = static_cast<int>(blockIdx.y) * Q, thread = static_cast<int>(threadIdx.x),
            j = static_cast<int>(blockIdx.x) * kMixThreads + thread;
  const int end = (job.keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys, pitch = p.group.pitch;
  if (static_cast<int>(blockIdx.x) * kMixThreads >= end) return;
  const SequenceLocation at = f.places[job.sequence];
  const MixStage& stage = Thread::kAfter ? p.after : p.before;
  mix.load(p, stage, at.tensor_batch * p.q_rows + at.q_row + job.row0 + row0, job.rows - row0);
  if (thread < Q) {
    const chunk::RowOpen row(f, p.group.runs && f.mask_count == 1, at, job.sequence, 0,
                             job.row0 + row0 + thread, job.keys);
    mix.begin[thread] = row.begin, mix.end[thread] = row.end;
  }
  __syncthreads();
  if (j >= end) return;
  const Index b = job.sequence, i0 = job.row0 + row0;
  const auto plane = [&](int heads) { return chunk::plane_at(slot, heads, 0, row0, pitch) + j; };
  const int v_heads = p.after.to, ins = kTurned ? stage.to : stage.from;
  const Index key = at.tensor_batch * p.k_rows + at.kv_row + (j < job.keys ? j : 0);

  float* const scores = p.scores + plane(p.score_planes);
  float *const probabilities = p.probabilities ? p.probabilities + plane(p.heads) : nullptr,
               *const dprobabilities = p.dprobabilities ? p.dprobabilities + plane(p.heads) : nullptr,
               *const dweights = p.dweights ? p.dweights + plane(v_heads) : nullptr;
  const Index weights_at = plane(v_heads), dscores_at = plane(p.before.from);
  const bool capped_scores = f.softcap != 0, terms = f.bias || f.slopes.data || f.relative,
             asks = f.mask_count != 0 && !(p.group.runs && f.mask_count == 1);
  const Thread own{p,
                   f,
                   mix,
                   job,
                   at,
                   slot,
                   row0,
                   thread,
                   j,
                   pitch,
                   b,
                   i0,
                   scores,
                   probabilities,
                   dprobabilities,
                   dweights,
                   weights_at,
                   dscores_at,
                   capped_scores,
                   terms,
                   asks};

  bool open[Q] = {};  // some head sees the pair; asked where values may hold anything
  if constexpr (Pass == MixPass::weights_gradient) {
#pragma unroll 4
    for (int h = 0; h < p.heads; ++h)
#pragma unroll
      for (int q = 0; q < Q; ++q) open[q] = open[q] || (own.there(q) && probabilities[own.off(h, q)] != 0.f);
  }
#pragma unroll 4
  for (int h = 0; h < Heads; ++h) {
    if (h >= ins) {
#pragma unroll
      for (int q = 0; q < Q; ++q) mix.x[h][q][thread] = 0.f;
      continue;
    }
    own.take(h, open);
  }
  mix.apply(p, stage, key, [&](int h, const float(&y)[Q]) { own.put(h, y); });
}

template <MixPass Pass>
Status start_pass(const char* name, const MixPairs& p, cudaStream_t stream) {
  const auto start = [&]<int Heads>() {
    return launch(
        {name,
         dim3(static_cast<unsigned>(ceil_div(p.group.pitch, kMixThreads)),
              static_cast<unsigned>(kChunkRows / kMixQueries<Heads>), static_cast<unsigned>(p.group.count)),
         kMixThreads, 0, stream},
        mix_pairs<Heads, Pass>, p);
  };
  const int most = max(max(p.before.from, p.before.to), p.after.to);
  return most <= 8    ? start.template operator()<8>()
         : most <= 16 ? start.template operator()<16>()
                      : start.template operator()<32>();
}

}  // namespace headwise::cuda::mixed
