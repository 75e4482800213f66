// Attention forward by mma.sync: up to 128 queries a block, keys left to right, every mask, term and layout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/relative.cuh"
#include "headwise/kernels/cuda/mma/forward.h"
#include "headwise/kernels/cuda/mma/keys.cuh"

namespace headwise::cuda::mma {

/// Sums over a row's weights that only probes ask for, each relative to the row's reference.
struct RowProbe {
  float exponents = 0, squares = 0, distances = 0, best = -INFINITY;
  int best_key = -1;
};

template <class T, int Width, bool Full>
struct MmaRows {
  using Tile = MmaTile<T>;
  static constexpr bool kFull = Full;
  static constexpr int kKeys = Tile::kKeys;
  static constexpr float kLog2e = 1.44269504088896341f;
  float o[Width / 8][4], s[kKeys / 8][4], top[2], sum[2];
  RowProbe probe[Full ? 2 : 1];
  KeySpan run[2];
  int position;  // of row 0; row 1 lies 8 below
  float unit;    // scores times unit are exponents of 2

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  /// s = softcap(scale q.k) + bias - slope |q - k| + relative, in exponents of 2
  __device__ __forceinline__ void apply_terms(const RunInputs& f, Index b, Index h, int row, int rows,
                                              int first, int keys, float scale_log2, float inverse_cap) {
    const float cap = static_cast<float>(f.softcap) * kLog2e;
    const float slope = f.slopes.data ? kLog2e * number_of(f.slopes, static_cast<int>(h)) : 0.f;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        float& x = s[j][e];
        if (cap == 0.f)
          x *= scale_log2;
        else if constexpr (sizeof(T) == 4)
          x = cap * tanhf(x * inverse_cap);
        else
          x = cap * fmaf(-2.f, ptx::reciprocal(1.f + ptx::exp2(x * inverse_cap * (2.f * kLog2e))), 1.f);
        const int key = first + 8 * j + 2 * (lane() % 4) + (e & 1);
        if (f.slopes.data) x = fmaf(-slope, static_cast<float>(abs(position + 8 * (e >> 1) - key)), x);
      }
    if (f.bias) {
      const Index base = b * f.bias_step[0] + h * f.bias_step[1] + first * f.bias_step[3];
      add_loaded(
          [&](int i, int key) {
            return load_float(f.bias, f.bias_dtype, base + (row + i) * f.bias_step[2] + key * f.bias_step[3]);
          },
          rows - row, keys - first);
    }
    if (f.relative)
      add_loaded([&](int i, int key) { return relative_number(f, h, position + i, first + key); }, rows - row,
                 keys - first);
  }
  /// s += log2(e) number(row, key): 16 keys at a time, or 32 addresses would fill the registers.
  template <class Number>
  __device__ __forceinline__ void add_loaded(const Number& number, int rows, int keys) {
#pragma unroll 1
    for (int j = 0; j < kKeys / 8; j += 2) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const int e = n & 3, key = 8 * (j + n / 4) + 2 * (lane() % 4) + (e & 1), i = 8 * (e >> 1);
        if (i < rows && key < keys) s[n / 4][e] = fmaf(kLog2e, number(i, key), s[n / 4][e]);
      }
      turn<2>(s);
    }
  }
  __device__ __forceinline__ void mask_runs(int first) {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int key = first + 8 * j + 2 * (lane() % 4) + (e & 1);
        if (key < run[e >> 1].begin || key >= run[e >> 1].end) s[j][e] = -INFINITY;
      }
  }
  /// Any mask: two lanes ask about one row, each about half of the keys.
  __device__ __forceinline__ void mask_pairs(const MaskView& mask, const MaskSubject& place, int first,
                                             int keys) {
    const Index q = position - lane() / 4 + lane() / 2;
    const int from = first + lane() % 2 * (kKeys / 2);
    std::uint32_t word = 0;
#pragma unroll 1
    for (int i = 0; i < kKeys / 2; ++i)
      if (from + i < keys && mask.may_attend(q, from + i, place)) word |= 1u << i;
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t open = __shfl_sync(~0u, word, 2 * (lane() / 4 + 8 * r) + half);
#pragma unroll
        for (int j = 0; j < kKeys / 16; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            if (!(open >> (8 * j + 2 * (lane() % 4) + e) & 1))
              s[half * (kKeys / 16) + j][2 * r + e] = -INFINITY;
      }
  }
  /// s becomes weights relative to 2^(top * unit); the reference stays until a row's maximum grows by more
  /// than 8 exponents, each row by its own choice.
  template <bool Probe>
  __device__ __forceinline__ void weigh(int first) {
    float factor[2];
    bool rescale = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = fmaxf(s[0][2 * r], s[0][2 * r + 1]);
#pragma unroll
      for (int j = 1; j < kKeys / 8; ++j) most = fmaxf(most, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float old = top[r];
      const bool grown = old == -INFINITY ? most > old : (most - old) * unit > 8.f;
      top[r] = grown ? most : old;
      factor[r] = grown ? ptx::exp2((old - most) * unit) : 1.f;
      rescale |= grown;
      const float reference = top[r] == -INFINITY ? 0.f : top[r] * unit;
      if constexpr (Probe) {
        RowProbe& p = probe[r];
        // Empty so far: all sums are 0, and 0 * inf must stay 0.
        if (grown && old != -INFINITY)
          p.exponents = factor[r] * fmaf(old * unit - reference, sum[r], p.exponents);
        p.squares *= factor[r] * factor[r], p.distances *= factor[r];
      }
      float even = 0.f, odd = 0.f;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[j][2 * r + e];
          const float exponent = fmaf(x, unit, -reference), w = ptx::exp2(exponent);
          if constexpr (Probe) {
            RowProbe& p = probe[r];
            const int key = first + 8 * j + 2 * (lane() % 4) + e;
            if (x > p.best) p.best = x, p.best_key = key;
            if (w > 0.f) p.exponents = fmaf(w, exponent, p.exponents);
            p.squares = fmaf(w, w, p.squares);
            p.distances = fmaf(w, static_cast<float>(abs(position + 8 * r - key)), p.distances);
          }
          (e ? odd : even) += w;
          x = w;
        }
      sum[r] = fmaf(sum[r], factor[r], even + odd);
    }
    if (__any_sync(~0u, rescale)) {
#pragma unroll
      for (int n = 0; n < Width / 8; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[n][e] *= factor[e >> 1];
    }
  }
  /// Four keys share a block of random words: of two lanes that hold them, one draws for row 0, one for
  /// row 1.
  __device__ __forceinline__ void drop(const DropoutRule& rule, Index id, Index h, int first) {
    const bool odd = lane() % 2 != 0;
#pragma unroll 1
    for (int j = 0; j < kKeys / 8; j += 2) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int key = first + 8 * (j + n) + 2 * (lane() % 4);
        const Philox::Block x =
            Philox::block(rule.seed, DropoutRule::counter(id, h, position + (odd ? 8 : 0), key));
        const std::uint32_t other0 = __shfl_xor_sync(~0u, odd ? x[0] : x[2], 1),
                            other1 = __shfl_xor_sync(~0u, odd ? x[1] : x[3], 1);
        const std::uint32_t words[4] = {odd ? other0 : x[0], odd ? other1 : x[1], odd ? x[2] : other0,
                                        odd ? x[3] : other1};
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (words[e] < rule.threshold) s[n][e] = 0.f;
      }
      turn<2>(s);
    }
  }
};

/// What one row leaves behind its values: sink, logarithm, statistics. Returns the factor of its values.
template <class Rows>
__device__ __forceinline__ float finish_row(const RunInputs& f, Rows& rows, int r, const SequenceLocation& at,
                                            Index h, Index row, bool writes) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLn2 = 0.693147180559945309f;
  float &sum = rows.sum[r], sink_part = 0.f;
  const float top = rows.top[r];
  RowProbe& probe = rows.probe[Rows::kFull ? r : 0];
#pragma unroll
  for (int x = 1; x <= 2; x *= 2) sum += __shfl_xor_sync(~0u, sum, x);
  if (Rows::kFull && f.probes.asked) {
#pragma unroll
    for (int x = 1; x <= 2; x *= 2) {
      probe.exponents += __shfl_xor_sync(~0u, probe.exponents, x);
      probe.squares += __shfl_xor_sync(~0u, probe.squares, x);
      probe.distances += __shfl_xor_sync(~0u, probe.distances, x);
      const float best = __shfl_xor_sync(~0u, probe.best, x);
      const int key = __shfl_xor_sync(~0u, probe.best_key, x);
      if (best > probe.best || (best == probe.best && key >= 0 && key < probe.best_key))
        probe.best = best, probe.best_key = key;
    }
  }
  float reference = top == -INFINITY ? 0.f : top * rows.unit, weight = 1.f;
  if (f.sinks.data) {
    const float sink = kLog2e * number_of(f.sinks, static_cast<int>(h));
    const float higher = top == -INFINITY ? sink : fmaxf(reference, sink);
    if (higher > -INFINITY) {
      weight = ptx::exp2(reference - higher), sink_part = ptx::exp2(sink - higher);
      if (sum > 0.f) probe.exponents = weight * fmaf(reference - higher, sum, probe.exponents);
      if (sink_part > 0.f) probe.exponents = fmaf(sink_part, sink - higher, probe.exponents);
      sum = (sum > 0.f ? sum * weight : sum) + sink_part;
      reference = higher;
    }
  }
  // A row without keys keeps 0 and has -inf; one whose scores hold a NaN passes it on.
  const bool empty = sum == 0.f || (top == -INFINITY && sum == sum);
  const float inverse = 1.f / sum;
  if (writes && f.lse)
    f.lse[at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] + row * f.lse_step[2]] =
        natural_lse(reference, sum);
  if (Rows::kFull && writes && f.probes.asked) {
    const auto put = [&](const RowsView& to, float x) {
      if (to.data) static_cast<float*>(to.data)[to.at(at.tensor_batch, h, row)] = x;
    };
    const float scaled = weight * inverse;
    put(f.probes.entropy, sum == 0.f ? 0.f : kLn2 * (log2f(sum) - probe.exponents * inverse));
    put(f.probes.top_weight, empty ? 0.f : ptx::exp2(fmaf(probe.best, rows.unit, -reference)) * inverse);
    put(f.probes.second_moment, empty ? 0.f : probe.squares * scaled * scaled);
    put(f.probes.mean_distance, empty ? 0.f : probe.distances * scaled);
    put(f.probes.sink_mass, sum == 0.f ? 0.f : sink_part * inverse);
    if (const RowsView& to = f.probes.top_position; to.data)
      static_cast<Index*>(to.data)[to.at(at.tensor_batch, h, row)] = probe.best_key;
  }
  return empty ? 0.f : weight * inverse;
}

/// Full: score terms, masks of any shape, dropout, statistics. Without them a row's registers and the code
/// between its products are a third.
template <class T, int Width, bool Full>
__global__ void __launch_bounds__(kMmaThreads, 1) attend_mma(const __grid_constant__ MmaParams p) {
  using Tile = MmaTile<T>;
  constexpr int kKeys = Tile::kKeys;
  extern __shared__ __align__(128) std::uint8_t raw[];
  __shared__ std::uint32_t open_words[kMmaThreads / 32], full_words[kMmaThreads / 32];
  const RunInputs& f = p.in;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  // Blocks of one head stand side by side and share its keys in L2; the longest come first under a causal
  // mask.
  const int chunk = static_cast<int>(blockIdx.x) % p.chunks, tile = static_cast<int>(blockIdx.x) / p.chunks;
  const int q_tile = p.q_tiles - 1 - tile % p.q_tiles, pair = tile / p.q_tiles;
  const Index b = pair / f.heads, h = pair % f.heads;
  const SequenceLocation at = f.places[b];
  const int tile_rows = static_cast<int>(blockDim.x) / 2, row0 = q_tile * tile_rows;
  const int rows = static_cast<int>(min_of(at.q_tokens - row0, tile_rows));
  if (rows <= 0) return;
  const int column = chunk * Width, columns = min(static_cast<int>(f.v.layout.dim) - column, Width);
  const MaskView* mask = f.mask_count ? f.masks + (f.mask_count == 1 ? 0 : h) : nullptr;
  const MaskSubject place{b, h, at.q_start};
  const int head_dim = static_cast<int>(f.q.layout.dim);
  const int keys = mask && p.runs ? key_limit(*mask, static_cast<int>(at.kv_tokens), place)
                                  : static_cast<int>(at.kv_tokens);

  // q, then one or two stages of k and v.
  const std::uint32_t start = ptx::shared_address(raw);
  const int k_bytes = Tile::bytes(kKeys, head_dim);
  const std::uint32_t stage0 = start + Tile::bytes(tile_rows, head_dim);
  const std::uint32_t other = p.stages == 2 ? stage0 + k_bytes + Tile::bytes(kKeys, Width) : stage0;
  const Tile q(start, tile_rows, head_dim);
  const auto copy_keys = [&](int n, std::uint32_t stage) {
    copy_tile<T>(Tile(stage, kKeys, head_dim), kKeys, f.k, p.vector_k, at.tensor_batch, at.kv_row + n * kKeys,
                 keys - n * kKeys, h, 0, head_dim, Tile::padded(head_dim));
    copy_tile<T>(Tile(stage + k_bytes, kKeys, Width), kKeys, f.v, p.vector_v, at.tensor_batch,
                 at.kv_row + n * kKeys, keys - n * kKeys, h, column, columns, Width);
    ptx::commit_copies();
  };
  copy_tile<T>(q, tile_rows, f.q, p.vector_q, at.tensor_batch, at.q_row + row0, rows, h, 0, head_dim,
               Tile::padded(head_dim));
  OpenTiles<kKeys> tiles{open_words,
                         full_words,
                         mask,
                         at.q_start + row0,
                         at.q_start + row0 + rows,
                         keys,
                         (keys + kKeys - 1) / kKeys,
                         place};
  tiles.look(0);
  int n = tiles.next(0);
  if (n >= 0) copy_keys(n, stage0);

  MmaRows<T, Width, Full> own;
  const int row = warp * 16 + lane / 4;
  own.position = static_cast<int>(at.q_start) + row0 + row;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    own.top[r] = -INFINITY, own.sum[r] = 0.f;
    own.run[r] = mask && p.runs ? key_span(*mask, own.position + 8 * r, keys, place) : KeySpan{0, keys};
  }
#pragma unroll
  for (int i = 0; i < Width / 8; ++i) own.o[i][0] = own.o[i][1] = own.o[i][2] = own.o[i][3] = 0.f;
  const double scale = f.scales[f.scale_count == 1 ? 0 : h];
  const float scale_log2 = static_cast<float>(scale * 1.4426950408889634074),
              inverse_cap = f.softcap != 0 ? static_cast<float>(scale / f.softcap) : 0.f;
  const bool terms = Full && p.terms;
  own.unit = terms ? 1.f : scale_log2;
  const Index id = f.sequence_ids ? f.sequence_ids[b] : b;

  std::uint32_t stage = stage0;
  while (n >= 0) {
    const int now = n;
    const bool full = tiles.is_full(n);
    n = tiles.next(n + 1);
    ptx::wait_copies<0>();
    __syncthreads();  // this stage is there, and everyone is done with the other
    if (n >= 0 && p.stages == 2) copy_keys(n, stage ^ stage0 ^ other);
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) own.s[j][0] = own.s[j][1] = own.s[j][2] = own.s[j][3] = 0.f;
    Tile::scores(own.s, q, Tile(stage, kKeys, head_dim), warp * 16, head_dim);
    const int first = now * kKeys;
    if constexpr (Full) {
      if (terms) own.apply_terms(f, b, h, row0 + row, row0 + rows, first, keys, scale_log2, inverse_cap);
      if (!full) {
        if (p.runs)
          own.mask_runs(first);
        else
          own.mask_pairs(*mask, place, first, keys);
      }
      if (f.probes.asked)
        own.template weigh<true>(first);
      else
        own.template weigh<false>(first);
      if (f.dropout != 0) own.drop(f.rule, id, h, first);
    } else {
      if (!full) own.mask_runs(first);
      own.template weigh<false>(first);
    }
    Tile::template values<Width>(own.o, own.s, Tile(stage + k_bytes, kKeys, Width));
    stage ^= stage0 ^ other;
    if (n >= 0 && p.stages == 1) {
      __syncthreads();
      copy_keys(n, stage);
    }
  }
  ptx::wait_copies<0>();

  T* out = static_cast<T*>(f.out.data) + at.tensor_batch * f.out.step[0] + h * f.out.step[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool there = row + 8 * r < rows;
    const Index to = at.q_row + row0 + row + 8 * r;
    float factor = finish_row(f, own, r, at, h, to, there && chunk == 0 && lane % 4 == 0);
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
