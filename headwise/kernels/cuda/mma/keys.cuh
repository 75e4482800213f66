// Attention by mma.sync: which keys a block of queries sees, and how rows get into its tiles.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/mma/forward.h"
#include "headwise/kernels/cuda/mma/tile.cuh"

namespace headwise::cuda::mma {

/// The keys [begin, end) one query may see, for an `&` of terms that open one run of keys each.
struct KeySpan {
  int begin, end;
};
__device__ inline KeySpan key_span(const MaskView& mask, Index q, int keys, const MaskSubject& place) {
  constexpr Index kWide = Index{1} << 40;
  Index begin = 0, end = keys;
  for (int i = 0; i < mask.count; ++i) {
    const MaskStep& s = mask.steps[i];
    switch (s.op) {
      case MaskOp::causal: end = min_of(end, q + 1); break;
      case MaskOp::window:
        begin = max_of(begin, q - min_of(s.a, kWide)), end = min_of(end, q + min_of(s.b, kWide) + 1);
        break;
      case MaskOp::prefix: end = min_of(end, s.a); break;
      case MaskOp::lengths: end = min_of(end, mask_terms::length_of(s, place)); break;
      case MaskOp::documents: {
        const mask_terms::Span d = mask_terms::document_of(s, q);
        begin = max_of(begin, d.first), end = min_of(end, d.end);
        break;
      }
      case MaskOp::all:
      case MaskOp::blocks:
      case MaskOp::dense:
      case MaskOp::strided:
      case MaskOp::global:
      case MaskOp::both:
      case MaskOp::either: break;
    }
  }
  return {static_cast<int>(min_of(begin, keys)), static_cast<int>(max_of(end, 0))};
}

/// Keys that any query may see, for such masks: those behind are not there, whatever memory holds.
__device__ inline int key_limit(const MaskView& mask, int keys, const MaskSubject& place) {
  Index end = keys;
  for (int i = 0; i < mask.count; ++i) {
    const MaskStep& s = mask.steps[i];
    if (s.op == MaskOp::prefix) end = min_of(end, s.a);
    if (s.op == MaskOp::lengths) end = min_of(end, mask_terms::length_of(s, place));
  }
  return static_cast<int>(max_of(end, 0));
}

/// Columns of an accumulator, 8 a row of x, move `Step` rows up and the first ones to the end: long code
/// stands once, in a loop, for the columns in x[0] .. x[Step - 1].
template <int Step, int N>
__device__ __forceinline__ void turn(float (&x)[N][4]) {
#pragma unroll
  for (int e = 0; e < 4; ++e)
#pragma unroll
    for (int first = 0; first < Step; ++first) {
      const float gone = x[0][e];
#pragma unroll
      for (int j = 1; j < N; ++j) x[j - 1][e] = x[j][e];
      x[N - 1][e] = gone;
    }
}

/// Rows [row, row + rows) of a head, columns [column, column + columns): what a tile of `width` columns
/// takes.
struct TileRows {
  const HeadsView& x;
  bool vector;  // 16 bytes at a time
  Index batch, row;
  int rows;
  Index head;
  int column = 0;
  int columns, width;
};
/// Brings them into a tile of `tile_rows` rows; what is not there is 0. Row r goes to row place(r).
template <class T, class RowMap>
__device__ __forceinline__ void copy_tile(const MmaTile<T>& to, int tile_rows, const TileRows& from,
                                          RowMap&& place) {
  using Tile = MmaTile<T>;
  const HeadsView& x = from.x;
  const T* base = static_cast<const T*>(x.data) + from.batch * x.step[0] + from.row * x.step[1] +
                  (x.layout.row ? 0 : x.layout.slot(from.head) * x.step[2]);
  const int thread = static_cast<int>(threadIdx.x);
  for (int r = thread / 8; r < tile_rows; r += static_cast<int>(blockDim.x) / 8)
    for (int c = thread % 8; c < from.width / Tile::kChunk; c += 8) {
      const int there = r < from.rows ? min(max(from.columns - c * Tile::kChunk, 0), Tile::kChunk) : 0;
      const int first = from.column + c * Tile::kChunk;
      if (from.vector) {
        ptx::copy_16(to.at(place(r), c), there ? base + r * x.step[1] + first : base,
                     there * static_cast<int>(sizeof(T)));
        continue;
      }
#pragma unroll 1
      for (int e = 0; e < Tile::kChunk; ++e) {
        T number = static_cast<T>(0.f);
        if (const Index at = x.layout.row ? x.layout.column(from.head) + first + e : first + e;
            e < there && (x.layout.row == 0 || (at >= 0 && at < x.layout.row)))
          number = base[r * x.step[1] + at * (x.layout.row ? x.step[2] : x.step[3])];
        ptx::store_number(to.at(place(r), c) + static_cast<std::uint32_t>(e * sizeof(T)), number);
      }
    }
}

template <class T>
__device__ __forceinline__ void copy_tile(const MmaTile<T>& to, int tile_rows, const TileRows& from) {
  copy_tile<T>(to, tile_rows, from, [](int r) { return r; });
}

/// What a tile of pairs is to a mask. Called, not inlined: it runs once for 128 tiles of keys and was a third
/// of a kernel's code.
__device__ __noinline__ inline TileKind kind_of(const MaskView& mask, Index q0, Index q1, int k0, int k1,
                                                const MaskSubject& place) {
  return mask.tile(q0, q1, k0, k1, place);
}

/// Which tiles of keys have an open pair, and which no closed one: one a thread at a time.
template <int Keys>
struct OpenTiles {
  std::uint32_t (&open)[kMmaThreads / 32], (&full)[kMmaThreads / 32];
  const MaskView* mask;
  Index q0, q1;
  int keys, tiles;
  MaskSubject place;
  int base = 0;

  __device__ __forceinline__ void look(int first) {
    const int thread = static_cast<int>(threadIdx.x), n = first + thread;
    TileKind kind = TileKind::empty;
    if (n < tiles) {
      const int end = min((n + 1) * Keys, keys);
      kind = mask ? kind_of(*mask, q0, q1, n * Keys, end, place) : TileKind::full;
      if (kind == TileKind::full && end < (n + 1) * Keys) kind = TileKind::mixed;
    }
    __syncthreads();
    const std::uint32_t some = __ballot_sync(~0u, kind != TileKind::empty),
                        all = __ballot_sync(~0u, kind == TileKind::full);
    if (thread % 32 == 0) open[thread / 32] = some, full[thread / 32] = all;
    base = first;
    __syncthreads();
  }
  /// The first open tile from n on, or -1. Every thread asks alike.
  __device__ __forceinline__ int next(int n) {
    while (n < tiles) {
      if (n - base >= static_cast<int>(blockDim.x)) look(base + static_cast<int>(blockDim.x));
      const int at = n - base;
      const std::uint32_t rest = open[at / 32] >> (at % 32);
      if (rest) return n + __ffs(static_cast<int>(rest)) - 1;
      n = base + (at / 32 + 1) * 32;
    }
    return -1;
  }
  __device__ __forceinline__ bool is_full(int n) const {
    return full[(n - base) / 32] >> ((n - base) % 32) & 1;
  }
};

}  // namespace headwise::cuda::mma
