#include "headwise/kernels/cuda/hopper/backward/rows.h"

#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/inputs/per_head.cuh"

namespace headwise::cuda::hopper::backward {
namespace {

constexpr int kBlockRows = 64, kPrepareThreads = 128, kGatherThreads = 128, kSinkThreads = 256;
constexpr float kLog2e = 1.44269504088896341f;

struct PrepareBlock {
  BackwardParams params;
  Prepare what;
  int blocks;  // of 64 rows of the longest sequence
  float *lse, *delta;
};

/// Rows of 64 columns as products read them: eight rows begin in different banks.
struct RowPairs {
  uint4 out[16][9], dout[16][9];
};
/// 16 rows of out and dout, of which `count` are there.
struct RowProducts {
  const std::uint16_t* out;
  Index out_step;
  const std::uint16_t* dout;
  Index dout_step;
  int count, columns;
};
/// out . dout of 16 rows, by the products that make dp = v dout^T and in their order. Where a row has one
/// key, out is its v, and dp - delta is 0 to the last bit. Of a warp's matrix the diagonal counts: rows g and
/// 8 + g in the lanes with lane % 4 == g / 2.
template <class T>
__device__ __forceinline__ void row_products(RowPairs& rows, const RowProducts& of, float (&sum)[2]) {
  const auto& [out, out_step, dout, dout_step, count, columns] = of;
  const int lane = static_cast<int>(threadIdx.x) % 32, g = lane / 4;
  float d[2][4] = {};
  for (int c = 0; c < columns; c += 64) {
    uint4 x[4], y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 8 + 4 * i, column = c + lane % 8 * 8;
      const bool there = row < count && column < columns;
      x[i] = there ? *reinterpret_cast<const uint4*>(out + row * out_step + column) : uint4{};
      y[i] = there ? *reinterpret_cast<const uint4*>(dout + row * dout_step + column) : uint4{};
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows.out[lane / 8 + 4 * i][lane % 8] = x[i], rows.dout[lane / 8 + 4 * i][lane % 8] = y[i];
    __syncwarp();
    const auto pair = [&](const uint4(&from)[16][9], int row, int column) {
      return reinterpret_cast<const std::uint32_t*>(from[row])[column / 2 + lane % 4];
    };
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
      const std::uint32_t a[4] = {pair(rows.out, g, k), pair(rows.out, g + 8, k), pair(rows.out, g, k + 8),
                                  pair(rows.out, g + 8, k + 8)};
#pragma unroll
      for (int r = 0; r < 2; ++r)
        Number<T>::multiply_add(d[r], a, pair(rows.dout, g + 8 * r, k), pair(rows.dout, g + 8 * r, k + 8));
    }
  }
  sum[0] = g % 2 ? d[0][1] : d[0][0], sum[1] = g % 2 ? d[1][3] : d[1][2];
}

/// 64 rows of a head, 16 a warp.
template <class T>
__global__ void __launch_bounds__(kPrepareThreads) prepare(const __grid_constant__ PrepareBlock p) {
  ptx::let_follower_start();
  const Prepare& w = p.what;
  const int at_block = static_cast<int>(blockIdx.x) % p.blocks,
            pair = static_cast<int>(blockIdx.x) / p.blocks;
  const int head = pair % w.heads, b = pair / w.heads, thread = static_cast<int>(threadIdx.x);
  const BackwardPlace at = p.params.place_of(b);
  const int row0 = at_block * kBlockRows;
  if (row0 >= padded_rows(at.q_tokens)) return;
  const int padded = head * p.params.q_padded + at.q_padded + row0;
  if (p.params.dq) {
    auto* sums = reinterpret_cast<float4*>(p.params.dq + static_cast<Index>(padded) * w.width);
    for (int i = thread; i < kBlockRows * w.width / 4; i += kPrepareThreads) sums[i] = float4{};
  }
  if (p.params.turns && thread == 0 && padded % w.turn_rows == 0) p.params.turns[padded / w.turn_rows] = 0;

  __shared__ RowPairs rows[kPrepareThreads / 32];
  const int lane = thread % 32, g = lane / 4, first = thread / 32 * 16;
  const auto from = [&](const RowsOf16& x) {
    return static_cast<const std::uint16_t*>(x.data) + at.batch * x.step[0] +
           (at.q_row + row0 + first) * x.step[1] + head * x.step[2];
  };
  float sum[2];
  row_products<T>(rows[thread / 32],
                  {.out = from(w.out),
                   .out_step = w.out.step[1],
                   .dout = from(w.dout),
                   .dout_step = w.dout.step[1],
                   .count = at.q_tokens - row0 - first,
                   .columns = w.value_dim},
                  sum);
  if (lane % 4 != g / 2) return;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int to = first + g + 8 * r, row = row0 + to;
    float lse = INFINITY;
    if (row < at.q_tokens) {
      lse = w.lse[at.batch * w.lse_step[0] + head * w.lse_step[1] + (at.q_row + row) * w.lse_step[2]];
      lse = lse == -INFINITY ? INFINITY : lse * kLog2e;  // a row without keys: weights of 0
    }
    p.delta[padded + to] = sum[r], p.lse[padded + to] = lse;
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
  const Index part = static_cast<Index>(w.heads) * padded * w.width / 4;
  const int parts = w.keys ? p.params.parts_at(at) : 1;
  const auto* from =
      reinterpret_cast<const float4*>(
          w.from +
          static_cast<Index>(head * padded + (w.keys ? at.kv_padded : at.q_padded) + row0) * w.width) +
      thread;
  auto* to = static_cast<std::uint16_t*>(w.to.data) + at.batch * w.to.step[0] + head * w.to.step[2];
  for (int j = 0; j < (w.dim + 31) / 32; ++j) {
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
      if (row < tokens && 32 * j + 8 * t < w.dim)
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

__global__ void __launch_bounds__(kSinkThreads)
    sinks_sum(const float* lse, const float* delta, Index rows, SinkSums w) {
  __shared__ double parts[kSinkThreads];
  const int head = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const float sink = kLog2e * number_of(w.sinks, head);
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
  if (thread == 0) store_float(w.to, w.dtype, head * w.step, -parts[0]);
}

/// A number of dbias a block of `Lanes` threads: each adds every Lanes-th pair, then they are added as a
/// tree.
template <class T, int Lanes>
__global__ void __launch_bounds__(256) bias_sums(const __grid_constant__ BiasSums w, Index all) {
  __shared__ float parts[256];
  const int lane = static_cast<int>(threadIdx.x) % Lanes;
  for (Index task = static_cast<Index>(blockIdx.x) * (256 / Lanes) + threadIdx.x / Lanes; task < all;
       task += static_cast<Index>(gridDim.x) * (256 / Lanes)) {
    Index rest = task, to = 0, place = 0, count[4], step[4] = {0, 0, w.row, 1};
    step[1] = w.size[2] * step[2], step[0] = w.size[1] * step[1];
    for (int axis = 3; axis >= 0; --axis) {
      const Index own = axis == 0 && w.to_size[0] > 1 ? w.size[0] : w.to_size[axis], i = rest % own;
      rest /= own;
      to += (i + (axis == 0 && w.to_size[0] > 1 ? w.sequence : 0)) * w.to_step[axis];
      count[axis] = w.to_size[axis] == 1 ? w.size[axis] : 1;
      place += i * step[axis];
    }
    const auto* from = static_cast<const std::uint16_t*>(w.from) + place;
    float sum = w.begins || lane > 0 ? 0.f : w.sums[task];
    const Index pairs = count[0] * count[1] * count[2] * count[3];
    for (Index i = lane; i < pairs; i += Lanes) {
      const Index j = i % count[3], q = i / count[3] % count[2], h = i / count[3] / count[2] % count[1],
                  b = i / count[3] / count[2] / count[1];
      sum += Number<T>::low(from[b * step[0] + h * step[1] + q * step[2] + j]);
    }
    if constexpr (Lanes > 1) {
      parts[threadIdx.x] = sum;
      for (int n = Lanes / 2; n > 0; n /= 2) {
        __syncthreads();
        if (lane < n) parts[threadIdx.x] += parts[threadIdx.x + n];
      }
      sum = parts[0];
      __syncthreads();
    }
    if (lane > 0) continue;
    if (w.ends)
      store_float(w.to, w.dtype, to, static_cast<double>(w.factor * sum));
    else
      w.sums[task] = sum;
  }
}

}  // namespace

template <class T>
Status sum_bias(const BiasSums& w, cudaStream_t stream) {
  const Index sequences = w.to_size[0] > 1 ? w.size[0] : 1,
              all = sequences * w.to_size[1] * w.to_size[2] * w.to_size[3];
  if (all == 0) return {};
  const bool rows = w.to_size[2] == 1 || w.to_size[3] == 1;  // many pairs a number
  const auto blocks = static_cast<unsigned>(min_of(rows ? all : ceil_div(all, 256), Index{1} << 16));
  const Launch how{"cuda/sum_bias", dim3(blocks), 256, 0, stream};
  return rows ? launch(how, bias_sums<T, 256>, w, all) : launch(how, bias_sums<T, 1>, w, all);
}
template Status sum_bias<bf16>(const BiasSums&, cudaStream_t);
template Status sum_bias<f16>(const BiasSums&, cudaStream_t);

template <class T>
Status prepare_rows(const BackwardParams& params, const Prepare& what, cudaStream_t stream) {
  const PrepareBlock p{params, what, padded_rows(params.place.q_tokens) / kBlockRows,
                       const_cast<float*>(params.lse), const_cast<float*>(params.delta)};
  return launch({"cuda/prepare_rows", dim3(static_cast<unsigned>(p.blocks * what.heads * params.batch)),
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

Status sum_sinks(const BackwardParams& params, const SinkSums& sums, cudaStream_t stream) {
  return launch({"cuda/sum_sinks", dim3(static_cast<unsigned>(sums.heads)), kSinkThreads, 0, stream},
                sinks_sum, params.lse, params.delta, Index{params.q_padded}, sums);
}

template Status prepare_rows<bf16>(const BackwardParams&, const Prepare&, cudaStream_t);
template Status prepare_rows<f16>(const BackwardParams&, const Prepare&, cudaStream_t);
template Status gather_rows<bf16>(const BackwardParams&, const Gather&, cudaStream_t);
template Status gather_rows<f16>(const BackwardParams&, const Gather&, cudaStream_t);

}  // namespace headwise::cuda::hopper::backward
