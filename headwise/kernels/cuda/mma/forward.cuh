// Attention forward by mma.sync: up to 128 queries a block, keys left to right, every mask, term and layout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/mma/rows.cuh"

namespace headwise::cuda::mma {

/// How a block's scores become weights.
struct ScoreRule {
  float scale_log2, inverse_cap;
  bool terms;
  Index id = 0;  // of its sequence, to dropout
};

/// A block's rows of a head. Blocks of one head stand side by side and share its keys in L2; the longest come
/// first under a causal mask.
struct BlockRows {
  const MmaParams& p;
  const RunInputs& f = p.in;
  int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  int chunk = static_cast<int>(blockIdx.x) % p.chunks, tile = static_cast<int>(blockIdx.x) / p.chunks;
  int q_tile = p.q_tiles - 1 - tile % p.q_tiles, pair = tile / p.q_tiles;
  Index b = pair / f.heads, h = pair % f.heads;
  SequenceLocation at = f.places[b];
  int tile_rows = static_cast<int>(blockDim.x) / 2, row0 = q_tile * tile_rows;
  int rows = static_cast<int>(min_of(at.q_tokens - row0, tile_rows));  // that are there; 0 or less: none
};

/// And its columns of values, its mask, its keys.
template <class T, int Width, bool Full>
struct MmaBlock : BlockRows {
  using Tile = MmaTile<T>;
  using Rows = MmaRows<T, Width, Full>;
  static constexpr int kKeys = Tile::kKeys;
  int column = chunk * Width, columns = min(static_cast<int>(f.v.layout.dim) - column, Width);
  const MaskView* mask = f.mask_count ? f.masks + (f.mask_count == 1 ? 0 : h) : nullptr;
  int head_dim = static_cast<int>(f.q.layout.dim), k_bytes = Tile::bytes(kKeys, head_dim);
  int row = warp * 16 + lane / 4;  // the thread's first one; its other lies 8 below

  /// By value: one whose address a call takes keeps the whole struct in memory.
  __device__ __forceinline__ MaskSubject place() const { return {b, h, at.q_start}; }
  /// Keys that its mask leaves any row.
  __device__ __forceinline__ int keys() const {
    return mask && p.runs ? key_limit(*mask, static_cast<int>(at.kv_tokens), place())
                          : static_cast<int>(at.kv_tokens);
  }
  __device__ __forceinline__ void copy_queries(const Tile& to) const {
    copy_tile<T>(to, tile_rows,
                 {.x = f.q,
                  .vector = p.vector_q,
                  .batch = at.tensor_batch,
                  .row = at.q_row + row0,
                  .rows = rows,
                  .head = h,
                  .columns = head_dim,
                  .width = Tile::padded(head_dim)});
  }
  /// Tile n of keys and its values, into a stage.
  __device__ __forceinline__ void copy_keys(int n, int keys, std::uint32_t stage) const {
    copy_tile<T>(Tile(stage, kKeys, head_dim), kKeys,
                 {.x = f.k,
                  .vector = p.vector_k,
                  .batch = at.tensor_batch,
                  .row = at.kv_row + n * kKeys,
                  .rows = keys - n * kKeys,
                  .head = h,
                  .columns = head_dim,
                  .width = Tile::padded(head_dim)});
    copy_tile<T>(Tile(stage + k_bytes, kKeys, Width), kKeys,
                 {.x = f.v,
                  .vector = p.vector_v,
                  .batch = at.tensor_batch,
                  .row = at.kv_row + n * kKeys,
                  .rows = keys - n * kKeys,
                  .head = h,
                  .column = column,
                  .columns = columns,
                  .width = Width});
    ptx::commit_copies();
  }
  __device__ __forceinline__ void begin(Rows& own, int keys) const {
    own.position = static_cast<int>(at.q_start) + row0 + row;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      own.top[r] = -INFINITY, own.sum[r] = 0.f;
      own.run[r] = mask && p.runs ? key_span(*mask, own.position + 8 * r, keys, place()) : KeySpan{0, keys};
    }
#pragma unroll
    for (int i = 0; i < Width / 8; ++i) own.o[i][0] = own.o[i][1] = own.o[i][2] = own.o[i][3] = 0.f;
  }
  __device__ __forceinline__ ScoreRule rule() const {
    const double scale = f.scales[f.scale_count == 1 ? 0 : h];
    return {.scale_log2 = static_cast<float>(scale * 1.4426950408889634074),
            .inverse_cap = f.softcap != 0 ? static_cast<float>(scale / f.softcap) : 0.f,
            .terms = Full && p.terms};
  }
  /// Scores of keys [first, ..) become weights; full: the mask closes none.
  __device__ __forceinline__ void weigh(Rows& own, const ScoreRule& rule, int first, int keys,
                                        bool full) const {
    if constexpr (Full) {
      if (rule.terms)
        own.apply_terms(f, {.b = b,
                            .h = h,
                            .row = row0 + row,
                            .rows = row0 + rows,
                            .first = first,
                            .keys = keys,
                            .scale_log2 = rule.scale_log2,
                            .inverse_cap = rule.inverse_cap});
      if (!full) {
        if (p.runs)
          own.mask_runs(first);
        else
          own.mask_pairs(*mask, place(), first, keys);
      }
      if (f.probes.asked)
        own.template weigh<true>(first);
      else
        own.template weigh<false>(first);
      if (f.dropout != 0) own.drop(f.rule, rule.id, h, first);
    } else {
      if (!full) own.mask_runs(first);
      own.template weigh<false>(first);
    }
  }
  __device__ __forceinline__ void store(Rows& own) const {
    T* out = static_cast<T*>(f.out.data) + at.tensor_batch * f.out.step[0] + h * f.out.step[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool there = row + 8 * r < rows;
      const Index to = at.q_row + row0 + row + 8 * r;
      float factor = finish_row(
          f, own, {.r = r, .at = at, .h = h, .row = to, .writes = there && chunk == 0 && lane % 4 == 0});
      if (!there) continue;
      if (f.gate && factor != 0.f)
        factor *= load_float(f.gate, f.gate_dtype,
                             at.tensor_batch * f.gate_step[0] + to * f.gate_step[1] + h * f.gate_step[2]);
      if (f.dropout != 0) factor *= static_cast<float>(1 / (1 - f.dropout));
#pragma unroll
      for (int i = 0; i < Width / 8; ++i) {
        const int c = 8 * i + 2 * (lane % 4);
        // A row without weights is 0 whatever stands in its values.
        const float x = factor == 0.f ? 0.f : own.o[i][2 * r] * factor,
                    y = factor == 0.f ? 0.f : own.o[i][2 * r + 1] * factor;
        if (p.lost.found && (x != x || y != y)) *p.lost.found = 1;
        T* at_out = out + to * f.out.step[1] + (column + c) * f.out.step[3];
        if (p.pairs_out && c + 1 < columns) {
          Tile::store_pair(at_out, x, y);
        } else {
          if (c < columns) at_out[0] = static_cast<T>(x);
          if (c + 1 < columns) at_out[f.out.step[3]] = static_cast<T>(y);
        }
      }
    }
  }
};

/// Full: score terms, masks of any shape, dropout, statistics. Without them a row's registers and the code
/// between its products are a third.
template <class T, int Width, bool Full>
__global__ void __launch_bounds__(kMmaThreads, 1) attend_mma(const __grid_constant__ MmaParams p) {
  using Tile = MmaTile<T>;
  constexpr int kKeys = Tile::kKeys;
  extern __shared__ __align__(128) std::uint8_t raw[];
  __shared__ std::uint32_t open_words[kMmaThreads / 32], full_words[kMmaThreads / 32];
  const BlockRows rows{p};
  if (rows.rows <= 0) return;
  const MmaBlock<T, Width, Full> block{rows};
  const int keys = block.keys(), head_dim = block.head_dim;
  const Index first_query = block.at.q_start + block.row0;

  // q, then one or two stages of k and v.
  const std::uint32_t start = ptx::shared_address(raw);
  const std::uint32_t stage0 = start + Tile::bytes(block.tile_rows, head_dim);
  const std::uint32_t other = p.stages == 2 ? stage0 + block.k_bytes + Tile::bytes(kKeys, Width) : stage0;
  const Tile q(start, block.tile_rows, head_dim);
  block.copy_queries(q);
  OpenTiles<kKeys> tiles{open_words,
                         full_words,
                         block.mask,
                         first_query,
                         first_query + block.rows,
                         keys,
                         (keys + kKeys - 1) / kKeys,
                         block.place()};
  tiles.look(0);
  int n = tiles.next(0);
  if (n >= 0) block.copy_keys(n, keys, stage0);

  MmaRows<T, Width, Full> own;
  block.begin(own, keys);
  ScoreRule rule = block.rule();
  own.unit = rule.terms ? 1.f : rule.scale_log2;
  rule.id = p.in.sequence_ids ? p.in.sequence_ids[block.b] : block.b;

  std::uint32_t stage = stage0;
  while (n >= 0) {
    const int now = n;
    const bool full = tiles.is_full(n);
    n = tiles.next(n + 1);
    ptx::wait_copies<0>();
    __syncthreads();  // this stage is there, and everyone is done with the other
    if (n >= 0 && p.stages == 2) block.copy_keys(n, keys, stage ^ stage0 ^ other);
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) own.s[j][0] = own.s[j][1] = own.s[j][2] = own.s[j][3] = 0.f;
    Tile::scores(own.s, q, Tile(stage, kKeys, head_dim), block.warp * 16, head_dim);
    block.weigh(own, rule, now * kKeys, keys, full);
    Tile::template values<Width>(own.o, own.s, Tile(stage + block.k_bytes, kKeys, Width));
    stage ^= stage0 ^ other;
    if (n >= 0 && p.stages == 1) {
      __syncthreads();
      block.copy_keys(n, keys, stage);
    }
  }
  ptx::wait_copies<0>();
  block.store(own);
}

template <class T>
int mma_width(int value_dim) {
  return value_dim <= 64 ? 64 : value_dim <= 128 || MmaTile<T>::kWidest == 128 ? 128 : 256;
}
template <class T>
int mma_shared(int head_dim, int width, int rows, int stages) {
  using Tile = MmaTile<T>;
  return Tile::bytes(rows, head_dim) +
         stages * (Tile::bytes(Tile::kKeys, head_dim) + Tile::bytes(Tile::kKeys, width));
}

template <class T>
Status mma_forward(const MmaParams& params, int width, int device, cudaStream_t stream) {
  constexpr const char* kName = "cuda/attend_mma";
  const auto start = [&]<int Width, bool Full>() -> Status {
    // Shared memory is asked for once, as much as the device lends: it varies with head_dim.
    static bool allowed[64] = {};
    const auto most = static_cast<std::size_t>(facts_of(device).shared_bytes);
    const Status status = allow_shared(kName, attend_mma<T, Width, Full>, most, allowed, device);
    if (!status.ok()) return status;
    const Index blocks = params.in.batch * params.in.heads * params.q_tiles * params.chunks;
    const int bytes =
        mma_shared<T>(static_cast<int>(params.in.q.layout.dim), Width, params.rows, params.stages);
    return launch({kName, dim3(static_cast<unsigned>(blocks)), static_cast<unsigned>(2 * params.rows),
                   static_cast<std::size_t>(bytes), stream},
                  attend_mma<T, Width, Full>, params);
  };
  const bool full =
      sizeof(T) == 4 || params.terms || !params.runs || params.in.probes.asked || params.in.dropout != 0;
  const auto of_width = [&]<int Width>() -> Status {
    if constexpr (sizeof(T) == 2)
      if (!full) return start.template operator()<Width, false>();
    return start.template operator()<Width, true>();
  };
  if (width == 64) return of_width.template operator()<64>();
  if (width == 128) return of_width.template operator()<128>();
  if constexpr (MmaTile<T>::kWidest == 256)
    if (width == 256) return of_width.template operator()<256>();
  return {kName, 1, "no instance of this width"};
}

}  // namespace headwise::cuda::mma
