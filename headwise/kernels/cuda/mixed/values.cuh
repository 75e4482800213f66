// Weights of mixed heads times v: what a block has in shared memory, and the steps of a warp over its keys.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/mixed/tiles.cuh"

namespace headwise::cuda::mixed::values {

/// A warp has one head: it multiplies its queries with the 32 keys of a step and its weights with their
/// values; between, it mixes two queries of all heads. Scores of the next step are computed before the
/// weights of this one are needed, so pairs lie in two planes and no warp waits for the slowest at once.
/// Tiles of a head are copied by its warp, the next as soon as it has read one. No warp waits for another
/// block, and L2 gives each tile to both blocks of a job. Multicast to both took 1.18 ms instead of 1.13.
inline constexpr int kRows = 32, kKeys = 32, kHeads = kTileHeads, kThreads = 32 * kHeads, kBlocks = 2;
/// Of a head's queries, two times 16 rows x four times 16 columns, so many stay in registers; the others lie
/// in shared memory as lanes take them.
inline constexpr int kFragments = 8, kHeld = 6, kKept = kFragments - kHeld, kLaneBytes = 32 * 16;
inline constexpr int kTileBytes = kKeys * kPanelRowBytes;
/// Scores, then weights of a head: blocks of 8 queries x 8 keys, those of 8 queries side by side. 16 bytes
/// more, so that eight heads of one query meet all banks.
inline constexpr int kHeadBytes = kRows * kKeys * 2 + 16, kPlaneBytes = kHeads * kHeadBytes;
/// Keys and values of a head have a place each.
inline constexpr int kPairs = 2 * kHeads * kTileBytes, kQueries = kPairs + 2 * kPlaneBytes,
                     kFacts = kQueries + kKept * kHeads * kLaneBytes;
/// Weights are 2^8 times as large while they are f16: those of many keys keep their bits.
inline constexpr float kRaise = 8.f;

enum Side { kOfKeys, kOfValues };

/// What all warps of a block know of its job.
struct alignas(16) Facts {
  std::uint64_t full[kHeads][2];      // barriers: a head's tiles of keys and of values are there
  std::uint64_t scored, weighed;      // barriers: scores of all heads, weights of all queries
  int first_key;                      // the first that a query of the job sees
  int plain_begin, plain_end;         // keys that all queries see; later steps, as plain_steps says
  int past;                           // whether scores of a head are divided by a power of 2
  float logit_unit, out_unit;         // what mixed logits and outputs are multiplied with
  alignas(16) int begin[kRows];       // keys each query may see;
  int end[kRows];                     // -1 where it sees none
  float powers[kHeads];               // of 2: scores of a head are multiplied with them
  int slots[2][kHeads];               // of a head's keys and values
  int kv_row, batch, q_row;           // the first rows of keys and queries
  alignas(16) uint4 mixes[2][32];     // before and after softmax, as lanes take them
  float from[kRows][kTileHeads * 2];  // where logits of each query begin
};
inline constexpr int kFrom = static_cast<int>(offsetof(Facts, from));
inline constexpr int kShared = kTileAlign + kFacts + static_cast<int>(sizeof(Facts));
static_assert(kShared <= 232448 && sizeof(Facts) % 128 == 0);

/// Facts read where they are needed: no register holds them from step to step.
struct FactLoader {
  std::uint32_t at;

  __device__ __forceinline__ int word(std::size_t offset) const {
    return static_cast<int>(ptx::load_word(at + static_cast<std::uint32_t>(offset)));
  }
  __device__ __forceinline__ float number(std::size_t offset) const {
    return ptx::load_float(at + static_cast<std::uint32_t>(offset));
  }
  __device__ __forceinline__ int first_step() const { return word(offsetof(Facts, first_key)) / kKeys; }
  __device__ __forceinline__ int kv_row() const { return word(offsetof(Facts, kv_row)); }
  __device__ __forceinline__ int q_row() const { return word(offsetof(Facts, q_row)); }
  __device__ __forceinline__ int batch() const { return word(offsetof(Facts, batch)); }
  __device__ __forceinline__ int slot(Side side, int head) const {
    return word(offsetof(Facts, slots) + 4u * static_cast<unsigned>(side * kHeads + head));
  }
  __device__ __forceinline__ int begin(int row) const {
    return word(offsetof(Facts, begin) + 4u * static_cast<unsigned>(row));
  }
  __device__ __forceinline__ int end(int row) const {
    return word(offsetof(Facts, end) + 4u * static_cast<unsigned>(row));
  }
  __device__ __forceinline__ int past() const { return word(offsetof(Facts, past)); }
  __device__ __forceinline__ float power(int head) const {
    return number(offsetof(Facts, powers) + 4u * static_cast<unsigned>(head));
  }
  __device__ __forceinline__ float logit_unit() const { return number(offsetof(Facts, logit_unit)); }
  __device__ __forceinline__ float out_unit() const { return number(offsetof(Facts, out_unit)); }
  __device__ __forceinline__ int plain_begin() const { return word(offsetof(Facts, plain_begin)); }
  __device__ __forceinline__ int plain_end() const { return word(offsetof(Facts, plain_end)); }
};

/// load_tile by one lane of a warp: in one piece, since a branch around it would keep its address in a
/// register from step to step.
__device__ __forceinline__ void load_by_warp(std::uint32_t to, const CUtensorMap* map, std::uint32_t bar,
                                             int row, int head, int batch) {
  asm volatile(
      "{\n.reg .pred one;\nelect.sync _|one, 0xFFFFFFFF;\n"
      "@one cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3,%4,%3,%5,%6}], [%2], %7;\n}" ::"r"(to),
      "l"(map), "r"(bar), "r"(0), "r"(row), "r"(head), "r"(batch), "l"(ptx::kEvictLast)
      : "memory");
}

/// Where a thread stands: its block, its job, its head.
struct BlockPlace {
  const MixValues& p;
  std::uint32_t base;                        // of the block's shared memory
  int slot, rank, thread, warp, lane, g, t;  // g, t: row and pair of columns in a fragment
  int heads, ins, outs, row0, own;           // own: the first of the two queries that the warp mixes

  __device__ __forceinline__ std::uint32_t of_warp(int each) const {
    return base + static_cast<std::uint32_t>(warp * each);
  }
  __device__ __forceinline__ FactLoader facts() const { return {base + kFacts}; }
  __device__ __forceinline__ std::uint32_t full(Side side) const { return of_warp(16) + kFacts + 8u * side; }
  __device__ __forceinline__ std::uint32_t scored() const { return base + kFacts + offsetof(Facts, scored); }
  __device__ __forceinline__ std::uint32_t weighed() const {
    return base + kFacts + offsetof(Facts, weighed);
  }
  __device__ __forceinline__ std::uint32_t mixes() const {
    return base + kFacts + offsetof(Facts, mixes) + static_cast<std::uint32_t>(lane * 16);
  }
  __device__ __forceinline__ void copy(Side side, int step) const {
    const int row = facts().kv_row() + (facts().first_step() + step) * kKeys, batch = facts().batch(),
              head = facts().slot(side, warp);
    load_by_warp(of_warp(kTileBytes) + side * kHeads * kTileBytes, side ? &p.v : &p.k, full(side), row, head,
                 batch);
  }
  /// This warp has read its tile: another may be copied to its place.
  __device__ __forceinline__ void release(Side side) const {
    __syncwarp();
    if (ptx::elect_one()) ptx::mbarrier_expect(full(side), kTileBytes);
    __syncwarp();
  }
};

/// Fragment 2 i + r of queries has rows 16 r + g (+ 8), columns 16 i + 2 t, 2 t + 1 (+ 8).
using Queries = std::uint32_t[kHeld][4];
using Sums = float[2][8][4];

/// A warp's work in one step over 32 keys. Queries and sums stand outside: a struct with arrays is not taken
/// apart into registers before its loops are unrolled.
struct Sweep : BlockPlace {
  // What lanes add to addresses: 16 queries x 16 keys of this warp's head; 16 pairs of all heads; 16 bytes
  // each; rows of a tile, computed for each product again: pairs need the registers.
  std::uint32_t own_at =
                    static_cast<std::uint32_t>(((lane >> 3 & 1) * 4 + (lane >> 4)) * 128 + (lane & 7) * 16),
                mix_at = static_cast<std::uint32_t>(((lane & 7) + (lane >> 4 << 3)) * kHeadBytes +
                                                    (lane >> 3 & 1) * 128),
                lane_at = static_cast<std::uint32_t>(lane * 16);

  __device__ __forceinline__ explicit Sweep(const BlockPlace& at) : BlockPlace(at) {}

  __device__ __forceinline__ std::uint32_t tile_at(Side side) const {
    int x = lane;
    asm volatile("" : "+r"(x));
    return side ? chunk_offset(kKeys, x & 15, x >> 4)
                : chunk_offset(kKeys, (x >> 4) * 8 + (x & 7), x >> 3 & 1);
  }
  __device__ __forceinline__ std::uint32_t columns(Side side, std::uint32_t at, int i, int sixteen) const {
    return ((at + static_cast<std::uint32_t>(sixteen) * kRowStep) ^ static_cast<std::uint32_t>(i << 5)) +
           of_warp(kTileBytes) + static_cast<std::uint32_t>(side * kHeads * kTileBytes);
  }
  __device__ __forceinline__ std::uint32_t pairs_at(std::uint32_t plane, int block, int sixteen) const {
    return own_at + of_warp(kHeadBytes) + plane +
           static_cast<std::uint32_t>(kPairs + block * 1024 + sixteen * 256);
  }
  __device__ __forceinline__ std::uint32_t kept_at(int n) const {
    return lane_at + of_warp(kKept * kLaneBytes) +
           static_cast<std::uint32_t>(kQueries + (n - kHeld) * kLaneBytes);
  }

  /// Queries have come to the place of values.
  __device__ __forceinline__ void take_queries(Queries& q) const {
    ptx::mbarrier_wait(full(kOfValues), 0);
    const std::uint32_t query_at = tile_at(kOfValues);
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      if (n < kHeld) {
        ptx::load_matrices(columns(kOfValues, query_at, n / 2, n % 2), q[n]);
      } else {
        std::uint32_t x[4];
        ptx::load_matrices(columns(kOfValues, query_at, n / 2, n % 2), x);
        ptx::store_shared(kept_at(n), x[0], x[1], x[2], x[3]);
      }
    }
    release(kOfValues);
  }
  /// Scores of the warp's head with 16 keys.
  __device__ __forceinline__ void multiply_half(float (&s)[2][2][4], Queries& q, std::uint32_t rows_at,
                                                int half) const {
    std::uint32_t b[4];
#pragma unroll
    for (int i = 0; i < 16; ++i) s[i / 8][i / 4 % 2][i % 4] = 0.f;
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      const int i = n / 2;
      if (n % 2 == 0) ptx::load_matrices(columns(kOfKeys, rows_at, i, half), b);
      std::uint32_t a[4];
      if (n >= kHeld) {
        const int4 x = ptx::load_shared(kept_at(n));
        a[0] = static_cast<std::uint32_t>(x.x), a[1] = static_cast<std::uint32_t>(x.y);
        a[2] = static_cast<std::uint32_t>(x.z), a[3] = static_cast<std::uint32_t>(x.w);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
        Number<bf16>::multiply_add(s[n % 2][j], n < kHeld ? q[n] : a, b[2 * j], b[2 * j + 1]);
    }
  }
  __device__ __forceinline__ void multiply_keys(Queries& q, std::uint32_t plane, int step) const {
    using Half = Number<f16>;
    ptx::mbarrier_wait(full(kOfKeys), static_cast<std::uint32_t>(step & 1));
    const std::uint32_t rows_at = tile_at(kOfKeys);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float s[2][2][4];
      multiply_half(s, q, rows_at, half);
      if (half == 1) release(kOfKeys);
      if (facts().past()) {
        const float power = facts().power(min(warp, ins - 1));
#pragma unroll
        for (int i = 0; i < 16; ++i) s[i / 8][i / 4 % 2][i % 4] *= power;
      }
#pragma unroll
      for (int r = 0; r < 2; ++r)
        ptx::store_matrices(pairs_at(plane, r, half), Half::pack(s[r][0][0], s[r][0][1]),
                            Half::pack(s[r][0][2], s[r][0][3]), Half::pack(s[r][1][0], s[r][1][1]),
                            Half::pack(s[r][1][2], s[r][1][3]));
    }
  }

  /// Values of no key of this job: whatever is there does not count.
  __device__ __forceinline__ void clear_values(int step) const {
    const int there = p.rows.group.jobs[slot].keys - (facts().first_step() + step) * kKeys;
#pragma unroll 1
    for (int row = lane / 8; row < kKeys; row += 4)
      if (row >= there)
        ptx::clear_shared(base + static_cast<std::uint32_t>((kHeads + thread / 32) * kTileBytes +
                                                            row * kPanelRowBytes + lane % 8 * 16));
    __syncwarp();
  }
  __device__ __forceinline__ void multiply_values(Sums& o, std::uint32_t plane, int step, bool last) const {
    ptx::mbarrier_wait(full(kOfValues), static_cast<std::uint32_t>((step + 1) & 1));
    if (last) clear_values(step);
    const std::uint32_t rows_at = tile_at(kOfValues);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      std::uint32_t a[2][4], b[2][4];
      ptx::load_matrices(pairs_at(plane, 0, half), a[0]);
      ptx::load_matrices_turned(columns(kOfValues, rows_at, 0, half), b[0]);
      ptx::load_matrices(pairs_at(plane, 1, half), a[1]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < 3) ptx::load_matrices_turned(columns(kOfValues, rows_at, i + 1, half), b[(i + 1) % 2]);
#pragma unroll
        for (int e = 0; e < 4; ++e)
          Number<bf16>::multiply_add(o[e / 2][2 * i + e % 2], a[e / 2], b[i % 2][e % 2 * 2],
                                     b[i % 2][e % 2 * 2 + 1]);
      }
    }
    release(kOfValues);
  }

  static __device__ __forceinline__ TileMix<f16, false> mix_of(std::uint32_t from) {
    const int4 x = ptx::load_shared(from);
    TileMix<f16, false> of;
    of.high[0][0] = static_cast<std::uint32_t>(x.x), of.high[0][1] = static_cast<std::uint32_t>(x.y);
    of.high[1][0] = static_cast<std::uint32_t>(x.z), of.high[1][1] = static_cast<std::uint32_t>(x.w);
    return of;
  }
  /// Closes pairs of the warp's query r with 16 keys of a step; logits in units of 1.
  __device__ __forceinline__ void close(float (&y)[2][4], int r, int step, int sixteen) const {
    const int begin = facts().begin(own + r), end = facts().end(own + r);
    const float back = facts().logit_unit();
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int key = (facts().first_step() + step) * kKeys + sixteen * 16 + g + e / 2 * 8;
      const bool closed = key < begin || key >= end;
#pragma unroll
      for (int j = 0; j < 2; ++j) y[j][e] = closed ? -INFINITY : y[j][e] * back;
    }
  }
  /// Mixes one of the warp's two queries. Special: some pairs are closed, or logits are not in units of 1.
  template <bool Special>
  __device__ __forceinline__ void mix(std::uint32_t plane, int step, int r) const {
    const TileMix<f16, false> before = mix_of(mixes());
    constexpr int kSide = Special ? 1 : 2;  // 32 pairs at a time: neither half waits for the other
    float start[2][4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float4 x = ptx::load_floats(of_warp(256) + (lane_at & 48u) +
                                        static_cast<std::uint32_t>(kFacts + kFrom + r * 128 + j * 64));
      start[j][0] = x.x, start[j][1] = x.y, start[j][2] = x.z, start[j][3] = x.w;
    }
#pragma unroll
    for (int n = 0; n < 2; n += kSide) {
      const std::uint32_t here = base + static_cast<std::uint32_t>(warp / 4 * 512 + warp % 4 * 32) + plane +
                                 mix_at + static_cast<std::uint32_t>(kPairs + r * 16 + n * 256);
      std::uint32_t a[kSide][4];
      float y[kSide][2][4];
#pragma unroll
      for (int k = 0; k < kSide; ++k) ptx::load_matrices_turned(here + 256u * k, a[k]);
#pragma unroll
      for (int k = 0; k < kSide; ++k)
#pragma unroll
        for (int j = 0; j < 2; ++j)
          Number<f16>::multiply_from(y[k][j], start[j], a[k], before.high[j][0], before.high[j][1]);
      if constexpr (Special) close(y[0], r, step, n);
#pragma unroll
      for (int k = 0; k < kSide; ++k) {
#pragma unroll
        for (int e = 0; e < 8; ++e) y[k][e / 4][e % 4] = ptx::exp2(y[k][e / 4][e % 4]);
        pack_left<f16>(a[k], y[k]);
      }
      const TileMix<f16, false> after = mix_of(mixes() + kLaneBytes);
#pragma unroll
      for (int k = 0; k < kSide; ++k) after.begin(y[k], {0.f, 0.f, 0.f, 0.f}, a[k]);
      __syncwarp();
#pragma unroll
      for (int k = 0; k < kSide; ++k) {
        pack_left<bf16>(a[k], y[k]);
        ptx::store_matrices_turned(here + 256u * k, a[k][0], a[k][1], a[k][2], a[k][3]);
      }
    }
  }
};

}  // namespace headwise::cuda::mixed::values
