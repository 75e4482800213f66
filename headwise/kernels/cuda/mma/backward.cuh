// Gradients by mma.sync: a block owns 64 rows of dq, dk or dv and meets the other side tile by tile, in
// order.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/inputs/relative.cuh"
#include "headwise/kernels/cuda/mma/backward.h"
#include "headwise/kernels/cuda/mma/keys.cuh"

namespace headwise::cuda::mma {

/// What a launch makes. Rows of a block are queries for dq, keys for the other two; columns the other side.
enum class MmaGradient { dq, dk, dv };

/// What every query of the tile brings, whichever side it stands on.
struct QueryFacts {
  float lse[64], delta[64], gate[64];
  int begin[64], end[64];  // keys it may see, where masks open runs
  /// A row with one key has the weight 1: its scores have no gradient, whatever its delta was rounded to.
  __device__ __forceinline__ void set_keys(int i, const KeySpan& run, bool of_scores) {
    begin[i] = run.begin, end[i] = run.end;
    if (of_scores && run.end - run.begin == 1) gate[i] = delta[i] = 0.f;
  }
};

/// One pair's score from q.k: s = softcap(scale q.k) + bias - slope |q - k| + relative; slant: its slope.
template <class T>
struct PairScore {
  const RunInputs& f;
  float scale, slope;
  Index b, h, q_start;
  __device__ __forceinline__ PairScore(const RunInputs& in, Index batch, Index head, Index start)
      : f(in),
        scale(static_cast<float>(in.scales[in.scale_count == 1 ? 0 : head])),
        slope(in.slopes.data ? number_of(in.slopes, static_cast<int>(head)) : 0.f),
        b(batch),
        h(head),
        q_start(start) {}
  __device__ __forceinline__ float operator()(float dot, Index i, Index j, float& slant) const {
    float s = scale * dot;
    slant = scale;
    if (f.softcap != 0) {
      const auto cap = static_cast<float>(f.softcap);
      const float t = tanhf(s / cap);
      s = cap * t, slant *= 1.f - t * t;
    }
    if (f.bias)
      s += load_float(f.bias, f.bias_dtype,
                      b * f.bias_step[0] + h * f.bias_step[1] + i * f.bias_step[2] + j * f.bias_step[3]);
    const Index q = q_start + i;
    s -= slope * static_cast<float>(q < j ? j - q : q - j);
    if (f.relative) s += relative_number(f, h, q, j);
    return s;
  }
};

/// One head whose gradients a block adds: its mask, the keys that are there, its scores.
template <class T>
struct GradientHead {
  Index h;
  const MaskView* mask;
  int keys;
  PairScore<T> score;
  float kept;  // what dropout leaves of a weight is multiplied by
  Index id;    // of the sequence, to dropout
};

/// A tile of pairs: queries [q0, q1) by their positions, keys [k0, k1).
struct PairTile {
  Index q0, q1, k0, k1;
};

/// A block's 64 rows of dq, dk or dv, and how a tile of the other side meets them.
template <class T, int Width, MmaGradient What>
struct GradientBlock {
  using Tile = MmaTile<T>;
  static constexpr int kColumns = Tile::kKeys, kRows = 64;
  static constexpr bool kKeyRows = What != MmaGradient::dq;
  static constexpr float kLog2e = 1.44269504088896341f;
  const MmaBackwardParams& p;
  QueryFacts& facts;
  const RunInputs& f = p.in.in;
  int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const HeadLayout& layout = What == MmaGradient::dv ? f.v.layout : kKeyRows ? f.k.layout : f.q.layout;
  Index owners = kKeyRows ? layout.heads / layout.group : f.heads;
  Index row_tiles = ceil_div(kKeyRows ? p.kv_tokens : f.q_tokens, kRows);
  // The last rows first: under a causal mask dq's longest are there.
  Index block = static_cast<Index>(blockIdx.x);
  Index tile = row_tiles - 1 - block % row_tiles, owner = block / row_tiles % owners,
        b = block / row_tiles / owners;
  SequenceLocation at = f.places[b];
  Index row0 = tile * kRows, rows_end = kKeyRows ? at.kv_tokens : at.q_tokens;
  int rows = static_cast<int>(min_of(rows_end - row0, kRows));  // that are there; 0 or less: none
  Index first_head = kKeyRows ? owner * layout.group : owner, heads = kKeyRows ? layout.group : 1;
  int head_dim = static_cast<int>(f.q.layout.dim), value_dim = static_cast<int>(f.v.layout.dim);
  Index own_row = (kKeyRows ? at.kv_row : at.q_row) + row0;

  /// By value: one whose address a call takes keeps the whole struct in memory.
  __device__ __forceinline__ MaskSubject place(Index h) const { return {b, h, at.q_start}; }
  __device__ __forceinline__ void copy_own(const Tile& own, const Tile& own_value) const {
    copy_tile<T>(own, kRows,
                 {.x = kKeyRows ? f.k : f.q,
                  .vector = kKeyRows ? p.vector_k : p.vector_q,
                  .batch = at.tensor_batch,
                  .row = own_row,
                  .rows = rows,
                  .head = first_head,
                  .columns = head_dim,
                  .width = Width});
    if constexpr (What != MmaGradient::dv)
      copy_tile<T>(own_value, kRows,
                   {.x = kKeyRows ? f.v : p.in.dout,
                    .vector = kKeyRows ? p.vector_v : p.vector_dout,
                    .batch = at.tensor_batch,
                    .row = own_row,
                    .rows = rows,
                    .head = first_head,
                    .columns = value_dim,
                    .width = Width});
  }
  __device__ __forceinline__ void copy_other(const Tile& other, const Tile& other_value, Index h,
                                             Index column0, int columns) const {
    const Index other_row = (kKeyRows ? at.q_row : at.kv_row) + column0;
    copy_tile<T>(other, kColumns,
                 {.x = kKeyRows ? f.q : f.k,
                  .vector = kKeyRows ? p.vector_q : p.vector_k,
                  .batch = at.tensor_batch,
                  .row = other_row,
                  .rows = columns,
                  .head = h,
                  .columns = head_dim,
                  .width = Width});
    copy_tile<T>(other_value, kColumns,
                 {.x = kKeyRows ? p.in.dout : f.v,
                  .vector = kKeyRows ? p.vector_dout : p.vector_v,
                  .batch = at.tensor_batch,
                  .row = other_row,
                  .rows = columns,
                  .head = h,
                  .columns = value_dim,
                  .width = Width});
    ptx::commit_copies();
  }
  __device__ __forceinline__ GradientHead<T> head(Index h, float kept, Index id) const {
    const MaskView* mask = f.mask_count ? f.masks + (f.mask_count == 1 ? 0 : h) : nullptr;
    const int keys = mask && p.runs ? key_limit(*mask, static_cast<int>(at.kv_tokens), place(h))
                                    : static_cast<int>(at.kv_tokens);
    return {h, mask, keys, PairScore<T>(f, b, h, at.q_start), kept, id};
  }
  __device__ __forceinline__ void read_queries(const GradientHead<T>& x, Index first, int count) const {
    for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
      const Index q = first + i, row = at.q_row + q;
      const bool there = q < at.q_tokens;
      facts.lse[i] = there
                         ? f.lse[at.tensor_batch * f.lse_step[0] + x.h * f.lse_step[1] + row * f.lse_step[2]]
                         : -INFINITY;
      facts.delta[i] = there ? static_cast<float>(p.in.delta[(b * f.heads + x.h) * f.q_tokens + q]) : 0.f;
      facts.gate[i] =
          f.gate && there
              ? load_float(f.gate, f.gate_dtype,
                           at.tensor_batch * f.gate_step[0] + row * f.gate_step[1] + x.h * f.gate_step[2])
              : 1.f;
      const KeySpan run =
          x.mask && p.runs ? key_span(*x.mask, at.q_start + q, x.keys, place(x.h)) : KeySpan{0, x.keys};
      facts.set_keys(i, run, What != MmaGradient::dv && p.runs && !f.sinks.data);
    }
  }
  __device__ __forceinline__ PairTile pairs(Index column0, Index column1, int keys) const {
    const Index row1 = row0 + rows;
    return {at.q_start + (kKeyRows ? column0 : row0), at.q_start + (kKeyRows ? column1 : row1),
            kKeyRows ? row0 : column0, min_of(kKeyRows ? row1 : column1, keys)};
  }
  /// Products q.k in `s` and dout.v in `dp` become gradients of scores in `s`, or weights; `value` takes the
  /// rows' sums of weight times dout.v.
  __device__ __forceinline__ void weigh(float (&s)[kColumns / 8][4], float (&dp)[kColumns / 8][4],
                                        float (&value)[2], const GradientHead<T>& x, Index column0) const {
    // The gradient of a score, or a weight; `open` pairs only.
    const auto finish = [&](int e, int query, float weight, float keep, float slant, float d) {
      if constexpr (What == MmaGradient::dv) return weight * keep * facts.gate[query];
      value[e >> 1] = fmaf(weight * keep, d, value[e >> 1]);
      return weight * (keep * facts.gate[query] * d - facts.delta[query]) * slant;
    };
    const int first_key = static_cast<int>(kKeyRows ? row0 : column0);
    const auto each = [&](int j, int e, auto&& pair) {
      const int row = warp * 16 + lane / 4 + 8 * (e >> 1), column = 8 * j + 2 * (lane % 4) + (e & 1);
      const int query = kKeyRows ? column : row, k = first_key + (kKeyRows ? row : column);
      // A query that is not there has lse = -inf.
      bool open = k < x.keys && facts.lse[query] > -INFINITY;
      if (p.runs) open = open && facts.begin[query] <= k && k < facts.end[query];
      return pair(open, query, k);
    };
    if (p.simple) {
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[j][e] = each(j, e, [&](bool open, int query, int) {
            const float weight = ptx::exp2(fmaf(s[j][e], x.score.scale, -facts.lse[query]) * kLog2e);
            return open ? finish(e, query, weight, 1.f, x.score.scale, dp[j][e]) : 0.f;
          });
    } else {
      // Masks and terms are much code: it stands here once for 8 columns, and those turn round under it.
#pragma unroll 1
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          s[0][e] = each(j, e, [&](bool open, int query, int k) {
            const Index i = (kKeyRows ? column0 : row0) + query;
            if (!open || (!p.runs && x.mask && !x.mask->may_attend(at.q_start + i, k, place(x.h))))
              return 0.f;
            float slant;
            const float score = x.score(s[0][e], i, k, slant);
            const bool drops = f.dropout != 0 && !f.rule.keep(x.id, x.h, at.q_start + i, k);
            return finish(e, query, ptx::exp2((score - facts.lse[query]) * kLog2e), drops ? 0.f : x.kept,
                          slant, dp[0][e]);
          });
        turn<1>(s), turn<1>(dp);
      }
    }
  }
  __device__ __forceinline__ void store(const float (&sum)[Width / 8][4], float (&value)[2]) const {
    const HeadsView& to = What == MmaGradient::dq ? p.in.dq : What == MmaGradient::dk ? p.in.dk : p.in.dv;
    const int dim = static_cast<int>(layout.dim);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + lane / 4 + 8 * r;
      if constexpr (What == MmaGradient::dq) {
        value[r] += __shfl_xor_sync(~0u, value[r], 1);
        value[r] += __shfl_xor_sync(~0u, value[r], 2);
        if (p.in.dgate && lane % 4 == 0 && row < rows)
          store_float(p.in.dgate, p.in.dgate_dtype,
                      at.tensor_batch * p.in.dgate_step[0] + (own_row + row) * p.in.dgate_step[1] +
                          owner * p.in.dgate_step[2],
                      static_cast<double>(value[r]));
      }
      if (!to.data || row >= rows) continue;
      T* out = static_cast<T*>(to.data) + at.tensor_batch * to.step[0] + (own_row + row) * to.step[1] +
               owner * to.step[2];
#pragma unroll
      for (int n = 0; n < Width / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (const int c = 8 * n + 2 * (lane % 4) + e; c < dim)
            out[c * to.step[3]] = static_cast<T>(sum[n][2 * r + e]);
    }
  }
};

template <class T, int Width, MmaGradient What>
__global__ void __launch_bounds__(128) mma_gradient(const __grid_constant__ MmaBackwardParams p) {
  using Tile = MmaTile<T>;
  using Block = GradientBlock<T, Width, What>;
  constexpr int kColumns = Tile::kKeys, kRows = 64;
  constexpr bool kKeyRows = Block::kKeyRows;
  extern __shared__ __align__(128) std::uint8_t raw[];
  __shared__ QueryFacts facts;
  const Block block{p, facts};
  if (block.row0 >= block.rows_end) return;

  const std::uint32_t start = ptx::shared_address(raw);
  const int own_bytes = Tile::bytes(kRows, Width), other_bytes = Tile::bytes(kColumns, Width);
  const Tile own(start, kRows, Width), own_value(start + own_bytes, kRows, Width),
      other(start + 2 * own_bytes, kColumns, Width),
      other_value(start + 2 * own_bytes + other_bytes, kColumns, Width);
  block.copy_own(own, own_value);

  float sum[Width / 8][4], value[2] = {0.f, 0.f};
#pragma unroll
  for (int n = 0; n < Width / 8; ++n) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.f;
  const RunInputs& f = p.in.in;
  const float kept = f.dropout != 0 ? static_cast<float>(1 / (1 - f.dropout)) : 1.f;
  const Index id = f.sequence_ids ? f.sequence_ids[block.b] : block.b;

  for (Index h = block.first_head; h < block.first_head + block.heads; ++h) {
    const GradientHead<T> head = block.head(h, kept, id);
    if constexpr (!kKeyRows) block.read_queries(head, block.row0, kRows);
    const Index columns_end = kKeyRows ? block.at.q_tokens : head.keys;
    for (Index column0 = 0; column0 < columns_end; column0 += kColumns) {
      const Index column1 = min_of(column0 + kColumns, columns_end);
      const PairTile t = block.pairs(column0, column1, head.keys);
      if (t.k0 >= t.k1 ||
          (head.mask && head.mask->tile(t.q0, t.q1, t.k0, t.k1, block.place(h)) == TileKind::empty))
        continue;
      __syncthreads();  // everyone is done with the tile before
      block.copy_other(other, other_value, h, column0, static_cast<int>(column1 - column0));
      if constexpr (kKeyRows) block.read_queries(head, column0, kColumns);
      ptx::wait_copies<0>();
      __syncthreads();

      float s[kColumns / 8][4], dp[kColumns / 8][4];
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) s[j][e] = dp[j][e] = 0.f;
      Tile::scores(s, own, other, block.warp * 16, block.head_dim);
      if constexpr (What != MmaGradient::dv)
        Tile::scores(dp, own_value, other_value, block.warp * 16, block.value_dim);
      block.weigh(s, dp, value, head, column0);
      Tile::template values<Width>(sum, s, What == MmaGradient::dv ? other_value : other);
    }
  }
  block.store(sum, value);
}

template <class T>
int mma_backward_shared(int width) {
  return 2 * MmaTile<T>::bytes(64, width) + 2 * MmaTile<T>::bytes(MmaTile<T>::kKeys, width);
}

template <class T>
Status mma_backward(const MmaBackwardParams& params, int width, int device, cudaStream_t stream) {
  constexpr const char* kName = "cuda/mma_backward";
  const RunInputs& f = params.in.in;
  const auto start = [&]<int Width, MmaGradient What>() -> Status {
    static bool allowed[64] = {};
    const auto bytes = static_cast<std::size_t>(mma_backward_shared<T>(Width));
    const Status status = allow_shared(kName, mma_gradient<T, Width, What>, bytes, allowed, device);
    if (!status.ok()) return status;
    const HeadLayout& layout = What == MmaGradient::dv ? f.v.layout : f.k.layout;
    const Index blocks = What == MmaGradient::dq
                             ? f.batch * f.heads * ceil_div(f.q_tokens, 64)
                             : f.batch * (layout.heads / layout.group) * ceil_div(params.kv_tokens, 64);
    if (blocks == 0) return {};
    return launch({kName, dim3(static_cast<unsigned>(blocks)), 128, bytes, stream},
                  mma_gradient<T, Width, What>, params);
  };
  const auto of_width = [&]<int Width>() -> Status {
    Status status;
    if (params.in.dq.data || params.in.dgate) status = start.template operator()<Width, MmaGradient::dq>();
    if (status.ok() && params.in.dk.data) status = start.template operator()<Width, MmaGradient::dk>();
    if (status.ok() && params.in.dv.data) status = start.template operator()<Width, MmaGradient::dv>();
    return status;
  };
  if constexpr (mma_backward_widest<T>() == 256)
    if (width == 256) return of_width.template operator()<256>();
  return of_width.template operator()<128>();
}

}  // namespace headwise::cuda::mma
