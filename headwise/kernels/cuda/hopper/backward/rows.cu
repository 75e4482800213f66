#include "headwise/kernels/cuda/hopper/backward/rows.h"

#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/inputs/per_head.cuh"

namespace headwise::cuda {
namespace {

constexpr int kBlockRows = 64, kPrepareThreads = 256, kGatherThreads = 128, kSinkThreads = 256;
constexpr float kLog2e = 1.44269504088896341f;

struct Prepare {
  BackwardParams params;
  int heads, dim, turn_rows, blocks;  // blocks of 64 rows of the longest sequence
  RowsOf16 out, dout;
  const float* lse_from;
  Index lse_step[3];
  float *lse, *delta;
};

/// 64 rows of a head; lanes of 8 columns share a row, a power of two of them.
template <class T>
__global__ void __launch_bounds__(kPrepareThreads) prepare(const __grid_constant__ Prepare p) {
  ptx::let_follower_start();
  const int at_block = static_cast<int>(blockIdx.x) % p.blocks,
            pair = static_cast<int>(blockIdx.x) / p.blocks;
  const int head = pair % p.heads, b = pair / p.heads, thread = static_cast<int>(threadIdx.x);
  const BackwardPlace at = p.params.place_of(b);
  const int row0 = at_block * kBlockRows;
  if (row0 >= padded_rows(at.q_tokens)) return;
  const int padded = head * p.params.q_padded + at.q_padded + row0;
  if (p.params.dq) {
    auto* sums = reinterpret_cast<float4*>(p.params.dq + static_cast<Index>(padded) * p.dim);
    for (int i = thread; i < kBlockRows * p.dim / 4; i += kPrepareThreads) sums[i] = float4{};
  }
  if (p.params.turns && thread == 0 && padded % p.turn_rows == 0) p.params.turns[padded / p.turn_rows] = 0;

  const int lanes = p.dim <= 64 ? 8 : p.dim <= 128 ? 16 : 32, column = thread % lanes * 8;
  for (int r = thread / lanes; r < kBlockRows; r += kPrepareThreads / lanes) {
    const int row = row0 + r;
    float sum = 0.f, lse = INFINITY;
    if (row < at.q_tokens && column < p.dim) {
      const auto load = [&](const RowsOf16& x) {
        return *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(x.data) +
                                               at.batch * x.step[0] + (at.q_row + row) * x.step[1] +
                                               head * x.step[2] + column);
      };
      const uint4 x = load(p.out), y = load(p.dout);
      const std::uint32_t xs[4] = {x.x, x.y, x.z, x.w}, ys[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum = fmaf(Number<T>::low(xs[i]), Number<T>::low(ys[i]), sum);
        sum = fmaf(Number<T>::high(xs[i]), Number<T>::high(ys[i]), sum);
      }
      lse = p.lse_from[at.batch * p.lse_step[0] + head * p.lse_step[1] + (at.q_row + row) * p.lse_step[2]];
      lse = lse == -INFINITY ? INFINITY : lse * kLog2e;  // a row without keys: weights of 0
    }
    for (int x = 1; x < lanes; x *= 2) sum += __shfl_xor_sync(~0u, sum, x);
    if (column == 0) p.delta[padded + r] = sum, p.lse[padded + r] = lse;
  }
}

struct GatherBlock {
  BackwardParams params;
  Gather what;
  int blocks;
};
/// 64 rows of a head. A fragment holds two columns of two rows; four lanes trade theirs, so that each stores
/// eight columns of a row.
template <class T>
__global__ void __launch_bounds__(kGatherThreads) gather(const __grid_constant__ GatherBlock p) {
  ptx::wait_for_forerunner();
  const Gather& w = p.what;
  const int at_block = static_cast<int>(blockIdx.x) % p.blocks,
            pair = static_cast<int>(blockIdx.x) / p.blocks;
  const int head = pair % w.heads, b = pair / w.heads, thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32, lane = thread % 32, t = lane % 4;
  const BackwardPlace at = p.params.place_of(b);
  const int row0 = at_block * kBlockRows, tokens = w.keys ? at.kv_tokens : at.q_tokens;
  if (row0 >= tokens) return;
  const int padded = w.keys ? p.params.kv_padded : p.params.q_padded;
  const Index part = static_cast<Index>(w.heads) * padded * w.dim / 4;
  const int parts = w.keys ? p.params.parts_at(at) : 1;
  const auto* from =
      reinterpret_cast<const float4*>(
          w.from + static_cast<Index>(head * padded + (w.keys ? at.kv_padded : at.q_padded) + row0) * w.dim) +
      thread;
  auto* to = static_cast<std::uint16_t*>(w.to.data) + at.batch * w.to.step[0] + head * w.to.step[2];
  for (int j = 0; j < w.dim / 32; ++j) {
    std::uint32_t pairs[2][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      float4 sum = from[(4 * j + k) * 128];
      for (int n = 1; n < parts; ++n) {
        const float4 more = from[n * part + (4 * j + k) * 128];
        sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
      }
      pairs[0][k] = Number<T>::pack(w.factor * sum.x, w.factor * sum.y);
      pairs[1][k] = Number<T>::pack(w.factor * sum.z, w.factor * sum.w);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      std::uint32_t row_of_8[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int k = t ^ x;
        const std::uint32_t mine = k == 0   ? pairs[r][0]
                                   : k == 1 ? pairs[r][1]
                                   : k == 2 ? pairs[r][2]
                                            : pairs[r][3];
        const std::uint32_t got = __shfl_xor_sync(~0u, mine, x);
#pragma unroll
        for (int y = 0; y < 4; ++y)
          if (y == k) row_of_8[y] = got;
      }
      const int row = row0 + 16 * warp + lane / 4 + 8 * r;
      if (row < tokens)
        *reinterpret_cast<uint4*>(to + ((w.keys ? at.kv_row : at.q_row) + row) * w.to.step[1] + 32 * j +
                                  8 * t) = uint4{row_of_8[0], row_of_8[1], row_of_8[2], row_of_8[3]};
    }
  }
}

__global__ void clear(RowsOf16 to, Index rows, Index heads, int dim, Index all) {
  const int chunks = dim / 8;
  for (Index i = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; i < all;
       i += static_cast<Index>(gridDim.x) * blockDim.x) {
    const Index row = i / chunks, h = row % heads, s = row / heads % rows, b = row / heads / rows;
    *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(to.data) + b * to.step[0] + s * to.step[1] +
                              h * to.step[2] + i % chunks * 8) = uint4{};
  }
}

__global__ void __launch_bounds__(kSinkThreads) sinks_sum(const float* lse, const float* delta, Index rows,
                                                          PerHead sinks, void* to, DType dtype, Index step) {
  __shared__ double parts[kSinkThreads];
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const float sink = kLog2e * number_of(sinks, head);
  double sum = 0;
  for (Index i = thread; i < rows; i += kSinkThreads) {
    const Index at = head * rows + i;
    if (lse[at] < INFINITY)
      sum += static_cast<double>(ptx::exp2(sink - lse[at])) * static_cast<double>(delta[at]);
  }
  parts[thread] = sum;
  __syncthreads();
  for (int n = kSinkThreads / 2; n > 0; n /= 2) {
    if (thread < n) parts[thread] += parts[thread + n];
    __syncthreads();
  }
  if (thread == 0) store_float(to, dtype, head * step, -parts[0]);
}

}  // namespace

template <class T>
Status prepare_rows(const BackwardParams& params, int heads, int dim, int turn_rows, const RowsOf16& out,
                    const RowsOf16& dout, const float* lse, const Index (&lse_step)[3], cudaStream_t stream) {
  Prepare p{params, heads, dim, turn_rows, padded_rows(params.place.q_tokens) / kBlockRows, out, dout,
            lse,    {},    {},  {}};
  for (int i = 0; i < 3; ++i) p.lse_step[i] = lse_step[i];
  p.lse = const_cast<float*>(params.lse), p.delta = const_cast<float*>(params.delta);
  return launch({"cuda/prepare_rows", dim3(static_cast<unsigned>(p.blocks * heads * params.batch)),
                 kPrepareThreads, 0, stream},
                prepare<T>, p);
}

template <class T>
Status gather_rows(const BackwardParams& params, const Gather& what, cudaStream_t stream) {
  const int tokens = what.keys ? params.unit_tiles * kBackwardKeys : params.place.q_tokens;
  const GatherBlock p{params, what, static_cast<int>(ceil_div(tokens, kBlockRows))};
  return launch({"cuda/gather_rows", dim3(static_cast<unsigned>(p.blocks * what.heads * params.batch)),
                 kGatherThreads, 0, stream, true},
                gather<T>, p);
}

Status clear_rows(const RowsOf16& to, Index batch, Index rows, Index heads, int dim, cudaStream_t stream) {
  const Index all = batch * rows * heads * (dim / 8);
  return launch({"cuda/clear_rows", dim3(static_cast<unsigned>(min_of(ceil_div(all, 256), Index{4096}))), 256,
                 0, stream},
                clear, to, rows, heads, dim, all);
}

Status sum_sinks(const BackwardParams& params, int heads, const PerHead& sinks, void* dsinks, DType dtype,
                 Index step, cudaStream_t stream) {
  return launch({"cuda/sum_sinks", dim3(static_cast<unsigned>(heads)), kSinkThreads, 0, stream}, sinks_sum,
                params.lse, params.delta, Index{params.q_padded}, sinks, dsinks, dtype, step);
}

template Status prepare_rows<bf16>(const BackwardParams&, int, int, int, const RowsOf16&, const RowsOf16&,
                                   const float*, const Index (&)[3], cudaStream_t);
template Status prepare_rows<f16>(const BackwardParams&, int, int, int, const RowsOf16&, const RowsOf16&,
                                  const float*, const Index (&)[3], cudaStream_t);
template Status gather_rows<bf16>(const BackwardParams&, const Gather&, cudaStream_t);
template Status gather_rows<f16>(const BackwardParams&, const Gather&, cudaStream_t);

}  // namespace headwise::cuda
