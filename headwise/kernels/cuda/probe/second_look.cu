// Top keys and column sums by mma.sync: weights are 2^(score - lse), so a row needs nothing of its neighbours
// and a column is summed by one block, in the order of the queries. Dropout and gate are no part of a weight.
#include "headwise/kernels/cuda/probe/second_look.h"

#include "headwise/kernels/cuda/mma/rows.cuh"

namespace headwise::cuda::probe {

using mma::MmaTile;
namespace {

constexpr int kRows = 64, kThreads = 2 * kRows;
constexpr float kLog2e = 1.44269504088896341f;

/// What both kernels do to one tile of 64 queries x keys of one head.
template <class T>
struct Look {
  using Tile = MmaTile<T>;
  static constexpr int kKeys = Tile::kKeys;
  const LookParams& p;
  const RunInputs& f;
  Index b, h;
  SequenceLocation at;
  const MaskView* mask;
  MaskSubject place;
  int head_dim, keys, warp, lane;
  float scale_log2, inverse_cap;
  mma::MmaRows<T, 64, true> own;

  __device__ __forceinline__ Look(const LookParams& params, Index batch, Index head)
      : p(params),
        f(params.in),
        b(batch),
        h(head),
        at(f.places[b]),
        mask(f.mask_count ? f.masks + (f.mask_count == 1 ? 0 : h) : nullptr),
        place{b, h, at.q_start},
        head_dim(static_cast<int>(f.q.layout.dim)),
        keys(mask && p.runs ? mma::key_limit(*mask, static_cast<int>(at.kv_tokens), place)
                            : static_cast<int>(at.kv_tokens)),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32) {
    const double scale = f.scales[f.scale_count == 1 ? 0 : h];
    scale_log2 = static_cast<float>(scale * 1.4426950408889634074);
    inverse_cap = f.softcap != 0 ? static_cast<float>(scale / f.softcap) : 0.f;
    own.unit = p.terms ? 1.f : scale_log2;
  }
  /// The thread's first row of a tile; its other one lies 8 below.
  __device__ __forceinline__ int row() const { return warp * 16 + lane / 4; }
  __device__ __forceinline__ int rows(int row0) const {
    return static_cast<int>(min_of(at.q_tokens - row0, kRows));
  }
  __device__ __forceinline__ void copy_queries(const Tile& to, int row0) const {
    mma::copy_tile<T>(to, kRows,
                      {.x = f.q,
                       .vector = p.vector_q,
                       .batch = at.tensor_batch,
                       .row = at.q_row + row0,
                       .rows = rows(row0),
                       .head = h,
                       .columns = head_dim,
                       .width = Tile::padded(head_dim)});
  }
  __device__ __forceinline__ void copy_keys(const Tile& to, int first) const {
    mma::copy_tile<T>(to, kKeys,
                      {.x = f.k,
                       .vector = p.vector_k,
                       .batch = at.tensor_batch,
                       .row = at.kv_row + first,
                       .rows = keys - first,
                       .head = h,
                       .columns = head_dim,
                       .width = Tile::padded(head_dim)});
  }
  /// Rows from row0 on: positions and the keys they may see.
  __device__ __forceinline__ void take_rows(int row0) {
    own.position = static_cast<int>(at.q_start) + row0 + row();
#pragma unroll
    for (int r = 0; r < 2; ++r)
      own.run[r] =
          mask && p.runs ? mma::key_span(*mask, own.position + 8 * r, keys, place) : mma::KeySpan{0, keys};
  }
  /// own.s: scores in units of own.unit, -inf where a pair is closed.
  __device__ __forceinline__ void scores(const Tile& q, const Tile& k, int row0, int first, bool full) {
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j) own.s[j][0] = own.s[j][1] = own.s[j][2] = own.s[j][3] = 0.f;
    Tile::scores(own.s, q, k, warp * 16, head_dim);
    if (p.terms)
      own.apply_terms(f, {.b = b,
                          .h = h,
                          .row = row0 + row(),
                          .rows = row0 + rows(row0),
                          .first = first,
                          .keys = keys,
                          .scale_log2 = scale_log2,
                          .inverse_cap = inverse_cap});
    if (full) return;
    if (p.runs)
      own.mask_runs(first);
    else
      own.mask_pairs(*mask, place, first, keys);
  }
  /// What is taken from a row's exponents of 2; +inf for rows that weigh nothing or are not there.
  __device__ __forceinline__ float reference(int i) const {
    if (i >= at.q_tokens) return INFINITY;
    const float lse =
        f.lse[at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] + (at.q_row + i) * f.lse_step[2]];
    return lse == -INFINITY ? INFINITY : lse * kLog2e;
  }
};

/// The heaviest keys of a warp's 16 rows, best first, ties by the lower key: a list a row in shared memory,
/// into which all lanes put one key at a time.
struct BestKeys {
  float* scores;
  int* keys;
  int count;
  float limit[2] = {-INFINITY, -INFINITY};  // the last of the lists of this thread's two rows

  __device__ __forceinline__ BestKeys(std::uint8_t* memory, int top_k, int warp, int lane)
      : scores(reinterpret_cast<float*>(memory) + warp * 16 * top_k),
        keys(reinterpret_cast<int*>(memory) + (kRows + warp * 16) * top_k),
        count(top_k) {
    for (int i = lane; i < 16 * count; i += 32) scores[i] = -INFINITY, keys[i] = -1;
    __syncwarp();
  }
  /// `x` of `key` into list `row` of the warp; every lane calls.
  __device__ __forceinline__ void insert(int row, float x, int key, int lane) {
    float* s = scores + row * count;
    int* k = keys + row * count;
    float own[2];
    int own_key[2], place = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = 32 * half + lane;
      own[half] = i < count ? s[i] : -INFINITY, own_key[half] = i < count ? k[i] : -1;
      const bool before = own[half] > x || (own[half] == x && own_key[half] < key);
      place += __popc(__ballot_sync(~0u, i < count && before));
    }
    if (place == count) return;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (const int i = 32 * half + lane; i >= place && i + 1 < count)
        s[i + 1] = own[half], k[i + 1] = own_key[half];
    if (lane == 0) s[place] = x, k[place] = key;
    __syncwarp();
  }
  /// Scores of one tile, whose first key of this lane is key0. A key of an earlier tile is lower: an equal
  /// score only matters where the last of a list came with this tile.
  template <int N>
  __device__ __forceinline__ void take(float (&s)[N][4], int key0, int lane) {
    const float floor[2] = {limit[0], limit[1]};
    bool some = false;
#pragma unroll
    for (int j = 0; j < N; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) some |= s[j][e] > limit[e >> 1];
    if (!__any_sync(~0u, some)) return;
#pragma unroll 1
    for (int j = 0; j < N; ++j) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = e >> 1;
        unsigned rest = __ballot_sync(~0u, s[0][e] > floor[r] && s[0][e] >= limit[r]);
        for (; rest; rest &= rest - 1) {
          const int from = __ffs(static_cast<int>(rest)) - 1, row = from / 4 + 8 * r;
          insert(row, __shfl_sync(~0u, s[0][e], from), __shfl_sync(~0u, key0 + 8 * j + (e & 1), from), lane);
          if (lane / 4 == from / 4) limit[r] = scores[row * count + count - 1];
        }
      }
      mma::turn<1>(s);
    }
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads, 4) find_top_keys(const __grid_constant__ LookParams p) {
  using Tile = MmaTile<T>;
  constexpr int kKeys = Tile::kKeys;
  extern __shared__ __align__(128) std::uint8_t raw[];
  __shared__ std::uint32_t open_words[mma::kMmaThreads / 32], full_words[mma::kMmaThreads / 32];
  const int block = static_cast<int>(blockIdx.x), pair = block / p.q_tiles;
  const int row0 = (p.q_tiles - 1 - block % p.q_tiles) * kRows;  // the longest first under a causal mask
  Look<T> look(p, pair / p.in.heads, pair % p.in.heads);
  const int rows = look.rows(row0);
  if (rows <= 0) return;
  const std::uint32_t start = ptx::shared_address(raw);
  const int q_bytes = Tile::bytes(kRows, look.head_dim), k_bytes = Tile::bytes(kKeys, look.head_dim);
  const std::uint32_t stage0 = start + q_bytes, other = p.stages == 2 ? stage0 + k_bytes : stage0;
  const Tile q(start, kRows, look.head_dim);
  look.copy_queries(q, row0);
  BestKeys best(raw + q_bytes + p.stages * k_bytes, p.top_k, look.warp, look.lane);
  mma::OpenTiles<kKeys> tiles{open_words,
                              full_words,
                              look.mask,
                              look.at.q_start + row0,
                              look.at.q_start + row0 + rows,
                              look.keys,
                              (look.keys + kKeys - 1) / kKeys,
                              look.place};
  tiles.look(0);
  const auto copy = [&](int n, std::uint32_t stage) {
    look.copy_keys(Tile(stage, kKeys, look.head_dim), n * kKeys);
    ptx::commit_copies();
  };
  int n = tiles.next(0);
  if (n >= 0) copy(n, stage0);
  look.take_rows(row0);

  std::uint32_t stage = stage0;
  while (n >= 0) {
    const int first = n * kKeys;
    const bool full = tiles.is_full(n);
    n = tiles.next(n + 1);
    ptx::wait_copies<0>();
    __syncthreads();  // this stage is there, and everyone is done with the other
    if (n >= 0 && p.stages == 2) copy(n, stage ^ stage0 ^ other);
    look.scores(q, Tile(stage, kKeys, look.head_dim), row0, first, full);
    best.take(look.own.s, first + 2 * (look.lane % 4), look.lane);
    stage ^= stage0 ^ other;
    if (n >= 0 && p.stages == 1) {
      __syncthreads();
      copy(n, stage);
    }
  }
  ptx::wait_copies<0>();

  for (int row = look.warp * 16; row < min(look.warp * 16 + 16, rows); ++row) {
    const Index to = look.at.q_row + row0 + row;
    const float reference = look.reference(row0 + row);
    for (int i = look.lane; i < p.top_k; i += 32) {
      const int at = (row - look.warp * 16) * p.top_k + i, key = best.keys[at];
      p.top_keys[look.at.tensor_batch * p.top_keys_step[0] + look.h * p.top_keys_step[1] +
                 to * p.top_keys_step[2] + i * p.top_keys_step[3]] = key;
      p.top_weights[look.at.tensor_batch * p.top_weights_step[0] + look.h * p.top_weights_step[1] +
                    to * p.top_weights_step[2] + i * p.top_weights_step[3]] =
          key < 0 ? 0.f : ptx::exp2(fmaf(best.scores[at], look.own.unit, -reference));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads, 4) sum_columns(const __grid_constant__ LookParams p) {
  using Tile = MmaTile<T>;
  constexpr int kKeys = Tile::kKeys;
  extern __shared__ __align__(128) std::uint8_t raw[];
  __shared__ TileKind kinds[kThreads];
  const int block = static_cast<int>(blockIdx.x), pair = block / p.key_tiles;
  const int first = block % p.key_tiles * kKeys;
  const int thread = static_cast<int>(threadIdx.x);
  Look<T> look(p, pair / p.in.heads, pair % p.in.heads);
  if (first >= look.at.kv_tokens) return;
  const std::uint32_t start = ptx::shared_address(raw);
  const int q_bytes = Tile::bytes(kRows, look.head_dim), k_bytes = Tile::bytes(kKeys, look.head_dim);
  const std::uint32_t stage0 = start + k_bytes, other = p.stages == 2 ? stage0 + q_bytes : stage0;
  const Tile k(start, kKeys, look.head_dim);
  look.copy_keys(k, first);
  const int end = min(first + kKeys, look.keys), q_tokens = static_cast<int>(look.at.q_tokens),
            q_tiles = (q_tokens + kRows - 1) / kRows;
  const auto copy = [&](int n, std::uint32_t stage) {
    look.copy_queries(Tile(stage, kRows, look.head_dim), n * kRows);
    ptx::commit_copies();
  };
  float sum[kKeys / 8][2];
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j) sum[j][0] = sum[j][1] = 0.f;

  for (int chunk = 0; chunk < q_tiles && first < end; chunk += kThreads) {
    __syncthreads();  // everyone is done with the kinds and the stages before
    if (const int n = chunk + thread; n < q_tiles) {
      const Index q0 = look.at.q_start + n * kRows, q1 = look.at.q_start + min((n + 1) * kRows, q_tokens);
      kinds[thread] = look.mask ? mma::kind_of(*look.mask, q0, q1, first, end, look.place) : TileKind::full;
    }
    __syncthreads();
    const int last = min(chunk + kThreads, q_tiles);
    const auto next = [&](int n) {
      while (n < last && kinds[n - chunk] == TileKind::empty) ++n;
      return n;
    };
    int n = next(chunk);
    std::uint32_t stage = stage0;
    if (n < last) copy(n, stage0);
    while (n < last) {
      const int row0 = n * kRows;
      const bool full = kinds[n - chunk] == TileKind::full && end == first + kKeys;
      n = next(n + 1);
      const float reference[2] = {look.reference(row0 + look.row()), look.reference(row0 + look.row() + 8)};
      ptx::wait_copies<0>();
      __syncthreads();  // this stage is there, and everyone is done with the other
      if (n < last && p.stages == 2) copy(n, stage ^ stage0 ^ other);
      if (!full || p.terms) look.take_rows(row0);
      look.scores(Tile(stage, kRows, look.head_dim), k, row0, first, full);
      const float(&s)[kKeys / 8][4] = look.own.s;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          sum[j][e] += ptx::exp2(fmaf(s[j][e], look.own.unit, -reference[0])) +
                       ptx::exp2(fmaf(s[j][2 + e], look.own.unit, -reference[1]));
      stage ^= stage0 ^ other;
      if (n < last && p.stages == 1) {
        __syncthreads();
        copy(n, stage);
      }
    }
  }
  ptx::wait_copies<0>();
  __syncthreads();

  auto* parts = reinterpret_cast<float(*)[kKeys]>(raw);  // a row a warp
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
#pragma unroll
      for (int x = 4; x <= 16; x *= 2) sum[j][e] += __shfl_xor_sync(~0u, sum[j][e], x);
      if (look.lane < 4) parts[look.warp][8 * j + 2 * look.lane + e] = sum[j][e];
    }
  __syncthreads();
  if (thread < kKeys && first + thread < look.at.kv_tokens) {
    float all = 0.f;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) all += parts[w][thread];
    p.column_sums[look.at.tensor_batch * p.column_step[0] + look.h * p.column_step[1] +
                  (look.at.kv_row + first + thread) * p.column_step[2]] = all;
  }
}

template <class T>
Status start(const LookParams& p, DType dtype, int device, cudaStream_t stream) {
  static bool top_allowed[64] = {}, sum_allowed[64] = {};
  const auto most = static_cast<std::size_t>(facts_of(device).shared_bytes);
  const int head_dim = static_cast<int>(p.in.q.layout.dim);
  const Index pairs = p.in.batch * p.in.heads;
  if (p.top_k && p.q_tiles) {
    constexpr const char* kName = "cuda/find_top_keys";
    Status status = allow_shared(kName, find_top_keys<T>, most, top_allowed, device);
    const auto bytes = static_cast<std::size_t>(look_shared(dtype, head_dim, p.top_k, p.stages));
    if (status.ok())
      status = launch({kName, dim3(static_cast<unsigned>(pairs * p.q_tiles)), kThreads, bytes, stream},
                      find_top_keys<T>, p);
    if (!status.ok()) return status;
  }
  if (!p.column_sums || p.key_tiles == 0) return {};
  constexpr const char* kName = "cuda/sum_columns";
  const Status status = allow_shared(kName, sum_columns<T>, most, sum_allowed, device);
  const auto bytes = static_cast<std::size_t>(look_shared(dtype, head_dim, 0, p.stages));
  return status.ok()
             ? launch({kName, dim3(static_cast<unsigned>(pairs * p.key_tiles)), kThreads, bytes, stream},
                      sum_columns<T>, p)
             : status;
}

template <class T>
int shared_of(int head_dim, int top_k, int stages) {
  const int q = MmaTile<T>::bytes(kRows, head_dim), k = MmaTile<T>::bytes(MmaTile<T>::kKeys, head_dim);
  const int lists = kRows * top_k * static_cast<int>(sizeof(float) + sizeof(int));
  return top_k ? q + stages * k + lists : k + stages * q;
}

}  // namespace

int look_keys(DType dtype) { return dtype == DType::f32 ? MmaTile<float>::kKeys : MmaTile<bf16>::kKeys; }

int look_shared(DType dtype, int head_dim, int top_k, int stages) {
  return dtype == DType::f32 ? shared_of<float>(head_dim, top_k, stages)
                             : shared_of<bf16>(head_dim, top_k, stages);
}

Status second_look(const LookParams& params, DType dtype, int device, cudaStream_t stream) {
  switch (dtype) {
    case DType::bf16: return start<bf16>(params, dtype, device, stream);
    case DType::f16: return start<f16>(params, dtype, device, stream);
    default: return start<float>(params, dtype, device, stream);
  }
}

}  // namespace headwise::cuda::probe
