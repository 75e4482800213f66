// Three products of a group: dq = ds k, dk = ds^T q, dv = w^T dout. Blocks of one head run side by side: the
// second reader of ds may find it in the cache.
#include "headwise/kernels/cuda/chunk/wgmma_products.h"

#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/device/tile.h"
#include "headwise/kernels/cuda/device/wgmma.inc"

namespace headwise::cuda::chunk {
namespace {

/// A block: 128 keys of dk or dv, or the 64 rows of two jobs of dq; a warpgroup has 64 of them. A stage holds
/// a panel of the plane for each, and 64 rows of the other factor for both.
constexpr int kThreads = 256, kDim = 64, kTileBytes = 64 * kPanelRowBytes, kStageBytes = 3 * kTileBytes;
/// Two blocks a processor: 8 stages in one block, or 3 in each of three, are slower.
constexpr int kStages = 4, kShared = kStages * kStageBytes + kTileAlign;

enum class Product { dq, dk, dv };

template <class T>
struct ProductBlock {
  const ChunkProducts& p;
  const Product kind;
  const int head, thread, group, warp, lane;
  const std::uint32_t stages, bars;
  std::uint32_t uses = 0;  // of all passes: a stage's turn and its barrier's parity

  /// 64 rows of a head, two pieces of 16 bytes a thread; rows past `there` are 0.
  __device__ __forceinline__ void copy_rows(std::uint32_t to, const HeadsView& x, Index batch, Index row,
                                            int there) const {
    const int r = thread / 8, c = thread % 8;
    const T* from = static_cast<const T*>(x.data) + batch * x.step[0] + row * x.step[1] + head * x.step[2];
    const bool column = c * 8 < static_cast<int>(x.layout.dim);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const bool in = column && r + 32 * n < there;
      ptx::copy_16(to + chunk_offset(64, r + 32 * n, c), in ? from + (r + 32 * n) * x.step[1] + c * 8 : from,
                   in ? 16 : 0);
    }
  }
  /// Runs `count` uses through the ring. issue(use, stage, bar) begins the copies of one; mine(use) says
  /// whether this warpgroup has a part in it; multiply(stage) starts its products.
  template <class Issue, class Mine, class Multiply>
  __device__ __forceinline__ void run(int count, Issue&& issue, Mine&& mine, Multiply&& multiply) {
    const auto begin = [&](int use) {
      if (use < count) {
        const std::uint32_t slot = (uses + static_cast<std::uint32_t>(use)) % kStages;
        issue(use, stages + slot * kStageBytes, bars + slot * 8);
      }
      ptx::commit_copies();
    };
    for (int use = 0; use < kStages - 1; ++use) begin(use);
#pragma unroll 1
    for (int use = 0; use < count; ++use) {
      const std::uint32_t turn = uses + static_cast<std::uint32_t>(use), slot = turn % kStages;
      ptx::wait_copies<kStages - 2>();
      ptx::mbarrier_wait(bars + slot * 8, turn / kStages & 1);
      ptx::fence_shared_for_async();
      __syncthreads();  // everyone's rows are there, and the use before this one is over
      begin(use + kStages - 1);
      if (mine(use)) multiply(stages + slot * kStageBytes);
    }
    uses += static_cast<std::uint32_t>(count);
    __syncthreads();
  }
  __device__ __forceinline__ void store(T* to, Index down, const float (&d)[kDim / 2], int rows,
                                        int columns) const {
    const int r0 = warp * 16 + lane / 4, c0 = 2 * (lane % 4);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      if (r0 + 8 * r < rows)
#pragma unroll
        for (int n = 0; n < kDim / 8; ++n)
          if (8 * n < columns)
            *reinterpret_cast<std::uint32_t*>(to + (r0 + 8 * r) * down + 8 * n + c0) =
                Number<T>::pack(d[4 * n + 2 * r], d[4 * n + 2 * r + 1]);
  }

  /// Jobs `pair` and the next, together where they are of one sequence.
  __device__ __forceinline__ void queries(int pair) {
    const ChunkJob* jobs = p.group.jobs;
    const bool two = pair + 1 < p.group.count, both = two && jobs[pair].sequence == jobs[pair + 1].sequence;
    for (int pass = 0; pass < (two && !both ? 2 : 1); ++pass) {
      const int slot0 = pair + pass, slots = both ? 2 : 1;
      const ChunkJob first = jobs[slot0], second = jobs[both ? slot0 + 1 : slot0];
      const SequenceLocation at = p.group.places[first.sequence];
      const auto tiles = [](const ChunkJob& job) { return (job.keys + kChunkKeys - 1) / kChunkKeys; };
      const int tiles0 = tiles(first), tiles1 = both ? tiles(second) : 0, keys = max(first.keys, second.keys);
      const int own = group ? tiles1 : tiles0, row0 = group ? second.row0 : first.row0,
                rows = group ? second.rows : first.rows;
      float d[kDim / 2] = {};
      run(
          max(tiles0, tiles1),
          [&](int use, std::uint32_t stage, std::uint32_t bar) {
            if (thread == 0) {
              ptx::mbarrier_expect(
                  bar, static_cast<std::uint32_t>(((use < tiles0) + (use < tiles1)) * kTileBytes));
              for (int n = 0; n < slots; ++n)
                if (use < (n ? tiles1 : tiles0))
                  ptx::load_tile({.to = stage + static_cast<std::uint32_t>(n * kTileBytes),
                                  .map = &p.ds_map,
                                  .bar = bar,
                                  .row = 0,
                                  .panel = use,
                                  .head = head,
                                  .batch = slot0 + n,
                                  .keep = ptx::kEvictNormal});
            }
            copy_rows(stage + 2 * kTileBytes, p.k, at.tensor_batch, at.kv_row + use * kChunkKeys,
                      keys - use * kChunkKeys);
          },
          [&](int use) { return use < own; },
          [&](std::uint32_t stage) {
            const std::uint64_t left =
                                    rows_descriptor(stage + static_cast<std::uint32_t>(group * kTileBytes)),
                                right = columns_descriptor(stage + 2 * kTileBytes, 64);
            ptx::wgmma_fence();
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Wgmma<kDim, T>::template more_shared<1>(d, advanced(left, k_step(64, i)),
                                                      advanced(right, kRowStep * i));
            ptx::wgmma_commit();
            ptx::wgmma_wait<0>();
            ptx::pin(d);
          });
      if (group < slots)
        store(static_cast<T*>(p.dq.data) + at.tensor_batch * p.dq.step[0] + (at.q_row + row0) * p.dq.step[1] +
                  head * p.dq.step[2],
              p.dq.step[1], d, rows, static_cast<int>(p.dq.layout.dim));
    }
  }

  /// 128 keys of a sequence; `range`: its jobs that reach them, and whether its first and last are here.
  __device__ __forceinline__ void keys(int sequence, int key0, int (&range)[4]) {
    const ChunkJob* jobs = p.group.jobs;
    const SequenceLocation at = p.group.places[sequence];
    const bool values = kind == Product::dv;
    const HeadsView &x = values ? p.dout : p.q, &to = values ? p.dv : p.dk;
    const int own = key0 + 64 * group;
    if (thread == 0) range[0] = p.group.count, range[1] = 0, range[2] = range[3] = 0;
    __syncthreads();
    for (int n = thread; n < p.group.count; n += kThreads)
      if (const ChunkJob job = jobs[n]; job.sequence == sequence) {
        if (job.keys > key0) atomicMin(&range[0], n), atomicMax(&range[1], n + 1);
        if (job.row0 == 0) range[2] = 1;
        if (job.row0 + job.rows >= at.q_tokens) range[3] = 1;
      }
    __syncthreads();
    const int begin = range[0], count = max(range[1] - begin, 0);
    const int dim = static_cast<int>(to.layout.dim), heads = values ? p.v_heads : p.q_heads,
              there = static_cast<int>(min(at.kv_tokens - own, Index{64})), r0 = warp * 16 + lane / 4,
              c0 = 2 * (lane % 4);
    float* sums = (values ? p.dv_sums : p.dk_sums) +
                  ((static_cast<Index>(sequence) * p.kv_tokens + own) * heads + head) * dim;
    const Index down = static_cast<Index>(heads) * dim;
    float d[kDim / 2] = {};
    const auto each = [&](auto&& body) {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (r0 + 8 * r < there)
#pragma unroll
          for (int n = 0; n < kDim / 8; ++n)
            if (8 * n < dim)
              body(*reinterpret_cast<float2*>(sums + (r0 + 8 * r) * down + 8 * n + c0), d[4 * n + 2 * r],
                   d[4 * n + 2 * r + 1]);
    };
    if (!range[2]) each([](float2& sum, float& a, float& b) { a = sum.x, b = sum.y; });
    const auto end_of = [&](int n) { return (jobs[n].keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys; };
    run(
        count,
        [&](int use, std::uint32_t stage, std::uint32_t bar) {
          const ChunkJob job = jobs[begin + use];
          if (thread == 0) {
            const int end = end_of(begin + use);
            ptx::mbarrier_expect(bar,
                                 static_cast<std::uint32_t>(((end > key0) + (end > key0 + 64)) * kTileBytes));
            for (int n = 0; n < 2; ++n)
              if (end > key0 + 64 * n)
                ptx::load_tile({.to = stage + static_cast<std::uint32_t>(n * kTileBytes),
                                .map = values ? &p.w_map : &p.ds_map,
                                .bar = bar,
                                .row = 0,
                                .panel = key0 / 64 + n,
                                .head = head,
                                .batch = begin + use,
                                .keep = values ? ptx::kEvictFirst : ptx::kEvictNormal});
          }
          copy_rows(stage + 2 * kTileBytes, x, at.tensor_batch, at.q_row + job.row0, job.rows);
        },
        [&](int use) { return end_of(begin + use) > own; },
        [&](std::uint32_t stage) {
          const std::uint64_t left = columns_descriptor(
                                  stage + static_cast<std::uint32_t>(group * kTileBytes), 64),
                              right = columns_descriptor(stage + 2 * kTileBytes, 64);
          ptx::wgmma_fence();
#pragma unroll
          for (int i = 0; i < 4; ++i)
            Wgmma<kDim, T>::both_turned(d, advanced(left, kRowStep * i), advanced(right, kRowStep * i));
          ptx::wgmma_commit();
          ptx::wgmma_wait<0>();
          ptx::pin(d);
        });
    if (!range[3]) return each([](float2& sum, float& a, float& b) { sum = make_float2(a, b); });
    store(static_cast<T*>(to.data) + at.tensor_batch * to.step[0] + (at.kv_row + own) * to.step[1] +
              head * to.step[2],
          to.step[1], d, there, dim);
  }
};

/// Blocks of a head along x: pairs of jobs, then keys of each sequence for dk, then for dv.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    products_of_group(const __grid_constant__ ChunkProducts p, int pairs, int tiles, int sequences) {
  extern __shared__ __align__(1024) std::uint8_t raw[];
  __shared__ __align__(8) std::uint64_t arrived[kStages];
  __shared__ int range[4];
  const int head = static_cast<int>(blockIdx.y), x = static_cast<int>(blockIdx.x) - pairs,
            each = tiles * sequences, thread = static_cast<int>(threadIdx.x);
  const bool second = p.dk.data && x >= each;
  const Product kind = x < 0 ? Product::dq : p.dk.data && !second ? Product::dk : Product::dv;
  if (head >= (kind == Product::dv ? p.v_heads : p.q_heads)) return;
  const std::uint32_t start = (ptx::shared_address(raw) + kTileAlign - 1) &
                              ~static_cast<std::uint32_t>(kTileAlign - 1),
                      bars = ptx::shared_address(arrived);
  if (thread == 0) {
    for (int n = 0; n < kStages; ++n) ptx::mbarrier_init(bars + static_cast<std::uint32_t>(8 * n), 1);
    ptx::mbarrier_init_fence();
  }
  __syncthreads();
  ProductBlock<T> block{p, kind, head, thread, thread / 128, thread % 128 / 32, thread % 32, start, bars};
  if (kind == Product::dq) return block.queries(2 * static_cast<int>(blockIdx.x));
  const int n = second ? x - each : x, sequence = p.first_sequence + n / tiles, key0 = n % tiles * 128;
  if (key0 < p.group.places[sequence].kv_tokens) block.keys(sequence, key0, range);
}

}  // namespace

template <class T>
Status chunk_products(const ChunkProducts& p, int sequences, int device, cudaStream_t stream) {
  static bool allowed[64] = {};
  constexpr const char* kName = "cuda/chunk_products";
  const Status status = allow_shared(kName, products_of_group<T>, kShared, allowed, device);
  const int pairs = p.dq.data ? static_cast<int>(ceil_div(p.group.count, 2)) : 0,
            tiles = static_cast<int>(ceil_div(p.kv_tokens, 128)),
            blocks = pairs + tiles * sequences * ((p.dk.data != nullptr) + (p.dv.data != nullptr));
  if (!status.ok() || blocks == 0) return status;
  return launch(
      {kName, dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(max_of(p.q_heads, p.v_heads))),
       kThreads, kShared, stream},
      products_of_group<T>, p, pairs, tiles, sequences);
}
template Status chunk_products<bf16>(const ChunkProducts&, int, int, cudaStream_t);
template Status chunk_products<f16>(const ChunkProducts&, int, int, cudaStream_t);

}  // namespace headwise::cuda::chunk
