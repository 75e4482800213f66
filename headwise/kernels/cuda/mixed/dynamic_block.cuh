// A block of dynamic mixes: 16 own tokens and 32 others of all heads, how their pairs come, are mixed and go.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/mixed/dynamic.cuh"

namespace headwise::cuda::mixed::dynamic {

using chunk::kChunkLog2e;

inline constexpr int kOwn = 16, kOwnSideBytes = kTileHeads * kOwn * 128;
/// f32 pairs of a head; 4 more, so that a lane's heads and eight tokens meet all banks.
inline constexpr int kHeadWords = kOwn * kTileKeys + 4, kPlaneWords = kTileHeads * kHeadWords;
inline constexpr int kOthersBytes = kTileKeys * kRecord * static_cast<int>(sizeof(float));

constexpr bool is_backward(TilePass pass) { return pass == TilePass::delta || pass == TilePass::gradients; }
constexpr int shared_of(bool backward) {
  return (backward ? 2 : 1) * (kOwnSideBytes + kPlaneWords * 4) + kOwn * kRecord * 4 + 2 * kOthersBytes;
}

/// Eight other tokens of a row stand together; which eight depends on the row, so that rows meet all banks.
__device__ __forceinline__ int word_at(int row, int eight) {
  return row * kTileKeys + (eight ^ (row & 3)) * 8;
}

/// What a warp's own token has of each of a lane's heads, and its products of heads.
struct OwnSums {
  float after[2][4], before[2][4], sum[4], top[4];
};

/// 16 other tokens, two a lane: their records and mixes, words of a plane, whether the pair is open.
struct OtherTokens {
  const float *record[2], *after[2], *before[2];
  int word[2];
  bool open[2];
};

/// Where a thread stands. Own tokens: `there` from `own_row` on. Others: first .. last of `count` from
/// `other_row` on.
template <class T, TilePass Pass, bool OfKeys>
struct Block {
  static constexpr bool kBackward = is_backward(Pass), kGradients = Pass == TilePass::gradients,
                        kWhole = !OfKeys && (Pass == TilePass::weights || kGradients);
  static constexpr int kSides = kBackward ? 2 : 1;

  const DynamicTiles& p;
  int warp, lane, g, t, heads, part;
  Index slot;
  Index batch;
  int row0, there, count, first, last;
  Index own_row, other_row;
  const float* other_from;
  std::uint32_t side;
  float *scores, *dweights, *own_records, *others;
  bool own_there;
  const float* own;  // a lane's numbers of the warp's own record
  int stop, begin;   // keys that the own query sees
  const float* scales;

  static __device__ __forceinline__ void copy_records(float* to, const float* from, int tokens) {
    const std::uint32_t start = ptx::shared_address(to);
    for (int n = static_cast<int>(threadIdx.x); n < tokens * kRecord / 4; n += kTileThreads)
      ptx::copy_16(start + static_cast<std::uint32_t>(16 * n), from + 4 * n, 16);
  }
  __device__ __forceinline__ void copy_others(int token0) const {
    copy_records(others + (token0 / kTileKeys & 1) * (kOthersBytes / 4),
                 other_from + static_cast<Index>(token0) * kRecord, kTileKeys);
    ptx::commit_copies();
  }

  /// Key g, column 8 t of the warp's head of the other tokens.
  __device__ __forceinline__ const T* first_token(const HeadsView& x) const {
    return static_cast<const T*>(x.data) + batch * x.step[0] + (other_row + first + g) * x.step[1] +
           (warp < static_cast<int>(x.layout.heads) ? x.layout.slot(warp) * x.step[2] : 0) + 8 * t;
  }
  __device__ __forceinline__ void fetch(TileRight& to, const HeadsView& x, const T*& from, int token0) const {
    const bool in = warp < static_cast<int>(x.layout.heads);
    to.load(from, x.step[1], in ? count - token0 - g : 0, static_cast<int>(x.layout.dim) - 8 * t);
    from += kTileKeys * x.step[1];
  }
  __device__ __forceinline__ float scale_of(int h) const {
    const RunInputs& f = p.tiles.rows.in;
    return h < heads ? static_cast<float>(f.scales[f.scale_count == 1 ? 0 : h]) : 0.f;
  }
  __device__ __forceinline__ int head_of(int c) const { return 8 * (c >> 1) + 2 * t + (c & 1); }

  __device__ __forceinline__ Pairs read(const OtherTokens& other, const float* plane) const {
    Pairs x;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float y = plane[other.word[n] + (8 * (c >> 1) + (c & 1)) * kHeadWords];
        x.x[4 * n + c] = other.open[n] ? y : 0.f;  // closed pairs may hold anything
      }
    return x;
  }
  __device__ __forceinline__ void write(const OtherTokens& other, float* plane, const Pairs& x) const {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        plane[other.word[n] + (8 * (c >> 1) + (c & 1)) * kHeadWords] =
            __uint_as_float(Number<T>::pack(other.open[n] ? x.x[4 * n + c] : 0.f, 0.f));
  }
  __device__ __forceinline__ void take_others(OtherTokens& other, const float* records, int token0, int unit,
                                              bool all_open) const {
    other.record[0] = records + (16 * unit + g) * kRecord + 4 * t;
    other.record[1] = records + (16 * unit + 8 + g) * kRecord + 4 * t;
    other.after[0] = other.record[0] + kRecordMix, other.after[1] = other.record[1] + kRecordMix;
    other.before[0] = other.record[0], other.before[1] = other.record[1];
    other.open[0] = other.open[1] = true;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      other.word[n] = 2 * t * kHeadWords + word_at(warp, 2 * unit + n) + g;
      if (all_open) continue;
      const int token = token0 + 16 * unit + 8 * n + g;
      if constexpr (OfKeys) {
        const int2 run = *reinterpret_cast<const int2*>(other.record[n] - 4 * t + kRecordOpen);
        other.open[n] = own_there && token < count && row0 + warp >= run.x && row0 + warp < run.y;
      } else {
        other.open[n] = token >= begin && token < stop;
      }
    }
  }
  /// Logits y of 16 others into the maximum and sum of the own token.
  __device__ __forceinline__ void add_logits(OwnSums& own_sums, const OtherTokens& other,
                                             const Pairs& y) const {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      // The reference stays until the maximum grows by more than 8 exponents; no branch around it.
      const float a = other.open[0] ? y.x[c] * kChunkLog2e : -INFINITY,
                  b = other.open[1] ? y.x[4 + c] * kChunkLog2e : -INFINITY, most = fmaxf(a, b),
                  old = own_sums.top[c];
      own_sums.top[c] = most > old + 8.f ? most : old;
      const float reference = own_sums.top[c] == -INFINITY ? 0.f : own_sums.top[c];
      own_sums.sum[c] = fmaf(own_sums.sum[c], ptx::exp2(old - reference),
                             ptx::exp2(a - reference) + ptx::exp2(b - reference));
    }
  }
  /// Weights of logits y.
  __device__ __forceinline__ void weigh(Pairs& y, const OtherTokens& other) const {
    float lse[2][4];
    if constexpr (OfKeys) {
      take4(lse[0], other.record[0] + kRecordLse), take4(lse[1], other.record[1] + kRecordLse);
    } else {
      take4(lse[0], own + kRecordLse);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const float w = ptx::exp2(fmaf(y.x[4 * n + c], kChunkLog2e, -lse[OfKeys ? n : 0][c]));
        y.x[4 * n + c] = other.open[n] ? w : 0.f;
      }
  }
  /// Gradients of 16 pairs with weights y; dw: what mixed weights are worth, d: what weights are.
  __device__ __forceinline__ void put_gradients(OwnSums& own_sums, const OtherTokens& other, const Pairs& y,
                                                const Pairs& dw, Pairs& d) const {
    float delta[2][4];
    if constexpr (OfKeys) {
      take4(delta[0], other.record[0] + kRecordDelta), take4(delta[1], other.record[1] + kRecordDelta);
    } else {
      take4(delta[0], own + kRecordDelta);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c)
        d.x[4 * n + c] = other.open[n] ? y.x[4 * n + c] * (d.x[4 * n + c] - delta[OfKeys ? n : 0][c]) : 0.f;
    add_products<T>(own_sums.after, y, dw);
    // A word of `dweights` now takes the weight, one of `scores` its own gradient: what has been used
    // is read again rather than kept in registers.
    if constexpr (kWhole) {
      const Pairs w = mixed<false>(y, own + kRecordMix, other.after);
      write(other, dweights, w);
      forget();
    }
    Pairs s = read(other, scores);
    if constexpr (std::is_same_v<T, f16>)
#pragma unroll
      for (int n = 0; n < 8; ++n) s.x[n] = fminf(fmaxf(s.x[n], -65504.f), 65504.f);
    add_products<T>(own_sums.before, s, d);
    if constexpr (kWhole) {
      forget();
      Pairs ds = mixed<true>(d, own, other.before);
#pragma unroll
      for (int n = 0; n < 8; ++n) ds.x[n] *= scales[head_of(n % 4)];
      write(other, scores, ds);
    }
  }
  /// 16 others of the own row.
  __device__ __forceinline__ void mix_others(OwnSums& own_sums, const OtherTokens& other) const {
    Pairs y = mixed<false>(read(other, scores), own, other.before);
    if constexpr (Pass == TilePass::lse) {
      add_logits(own_sums, other, y);
    } else {
      weigh(y, other);
      if constexpr (Pass == TilePass::weights) {
        write(other, scores, mixed<false>(y, own + kRecordMix, other.after));
      } else {
        forget();
        const Pairs dw = read(other, dweights);
        Pairs d = mixed<true>(dw, own + kRecordMix, other.after);
        if constexpr (Pass == TilePass::delta) {
#pragma unroll
          for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c)
              own_sums.sum[c] = fmaf(y.x[4 * n + c], other.open[n] ? d.x[4 * n + c] : 0.f, own_sums.sum[c]);
        } else {
          put_gradients(own_sums, other, y, dw, d);
        }
      }
    }
  }
  /// Own row `warp` with 32 other tokens from `token0` on.
  __device__ __forceinline__ void mix(OwnSums& own_sums, int token0) const {
    const float* records = others + (token0 / kTileKeys & 1) * (kOthersBytes / 4);
    bool all_open = token0 >= begin && token0 + kTileKeys <= stop;
    if constexpr (OfKeys) {
      const int2 run = *reinterpret_cast<const int2*>(records + lane * kRecord + kRecordOpen);
      const bool open = own_there && token0 + lane < count && row0 + warp >= run.x && row0 + warp < run.y;
      if (!__any_sync(~0u, open)) return;
      all_open = __all_sync(~0u, open);
    }
#pragma unroll(kGradients ? 1 : 2)
    for (int unit = 0; unit < 2; ++unit) {
      OtherTokens other;
      take_others(other, records, token0, unit, all_open);
      mix_others(own_sums, other);
    }
  }

  /// This warp's head of a plane, all in one piece.
  __device__ __forceinline__ void write_plane(const float* plane, void* to, int key0) const {
    if (warp >= heads) return;
    auto* at_head =
        static_cast<T*>(to) + chunk::blocked_at(slot, heads, warp, row0, key0, p.tiles.rows.group.pitch);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int piece = 32 * n + lane, row = piece / 32 * 8 + piece % 8, eight = piece / 8 % 4;
      const auto* from = reinterpret_cast<const uint4*>(plane + warp * kHeadWords + word_at(row, eight));
      const uint4 a = from[0], b = from[1];
      reinterpret_cast<uint4*>(at_head)[piece] =
          uint4{__byte_perm(a.x, a.y, 0x5410), __byte_perm(a.z, a.w, 0x5410), __byte_perm(b.x, b.y, 0x5410),
                __byte_perm(b.z, b.w, 0x5410)};
    }
  }
  __device__ __forceinline__ void write_planes(int key0) const {
    const MixPairs& m = p.tiles.rows;
    write_plane(kGradients ? dweights : scores, m.weights, key0);
    if constexpr (kGradients) write_plane(scores, m.dscores, key0);
    __syncwarp();
  }
  __device__ __forceinline__ void put(float* plane, const float (&s)[1][4][4], float factor) const {
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        *reinterpret_cast<float2*>(plane + warp * kHeadWords + word_at(g + 8 * r, n) + 2 * t) =
            make_float2(s[0][n][2 * r] * factor, s[0][n][2 * r + 1] * factor);
  }
};

}  // namespace headwise::cuda::mixed::dynamic
