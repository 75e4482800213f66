// Mixing forward over the pairs of a chunk, and what its rows need beside: lse, copies of coefficients.
#include "headwise/kernels/cuda/mixed/pairs/pairs.cuh"

namespace headwise::cuda::mixed {
namespace {

constexpr int kRowWarps = 4, kMatrixThreads = 256;

/// A warp a row of a head: lse of its logits and the sink.
__global__ void __launch_bounds__(32 * kRowWarps) lse_rows(const __grid_constant__ MixPairs p) {
  const RunInputs& f = p.in;
  const int lane = static_cast<int>(threadIdx.x) % 32,
            i = static_cast<int>(blockIdx.x * kRowWarps + threadIdx.x / 32);
  const Index h = blockIdx.y, slot = blockIdx.z;
  const chunk::ChunkJob job = p.group.jobs[slot];
  float lse = -INFINITY;
  if (i < job.rows) {
    const float* row = p.scores + chunk::plane_at(slot, p.score_planes, h, i, p.group.pitch);
    float top = -INFINITY, sum = 0.f;
    for (int j = lane; j < job.keys; j += 32) top = top != top || row[j] != row[j] ? NAN : fmaxf(top, row[j]);
    top = chunk::warp_most_of(top);
    const float sink = f.sinks.data ? number_of(f.sinks, static_cast<int>(h)) : -INFINITY;
    const float most = top != top ? top : fmaxf(top, sink);
    if (most != -INFINITY) {
      for (int j = lane; j < job.keys; j += 32) sum += exp2f((row[j] - most) * chunk::kChunkLog2e);
      sum = chunk::warp_sum_of(sum);
      if (sink != -INFINITY) sum += exp2f((sink - most) * chunk::kChunkLog2e);
      lse = most + logf(sum);
    }
    if (lane == 0 && f.lse) {
      const SequenceLocation at = f.places[job.sequence];
      f.lse[at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] + (at.q_row + job.row0 + i) * f.lse_step[2]] =
          lse;
    }
    if (top == -INFINITY) lse = -INFINITY;  // a row of a sink alone is 0 too
  }
  if (lane == 0) p.lse[(slot * p.heads + h) * chunk::kChunkRows + i] = lse;
}

/// [sequences tokens rows heads] in any steps to numbers in a row, or tokens `pitch` apart.
struct NumbersCopy {
  const void* from;
  DType dtype;
  Index step[4], tokens, rows, heads, all;
  float* to;
  Index pitch;
};
__global__ void copy_numbers(const __grid_constant__ NumbersCopy p) {
  for (Index n = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; n < p.all;
       n += static_cast<Index>(gridDim.x) * blockDim.x) {
    const Index d = n % p.heads, c = n / p.heads % p.rows, row = n / p.heads / p.rows;
    const float x =
        load_float(p.from, p.dtype,
                   row / p.tokens * p.step[0] + row % p.tokens * p.step[1] + c * p.step[2] + d * p.step[3]);
    p.to[p.pitch ? (c * p.heads + d) * p.pitch + row : n] = x;
  }
}
/// A matrix of a caller, and the kernel's own copy.
struct Matrix {
  void* data;
  DType dtype;
  int rows, columns;
  Index down, right;
  __device__ Index at(int n) const { return n / columns * down + n % columns * right; }
};
Matrix matrix_of(const AnyView& v) {
  return {v.data,
          v.dtype,
          v.given() ? static_cast<int>(v.size[0]) : 0,
          v.given() ? static_cast<int>(v.size[1]) : 0,
          v.step[0],
          v.step[1]};
}
struct MatrixPair {
  Matrix of[2];
};
/// Both matrices of fixed mixes, and sums that begin at 0.
__global__ void begin_matrices(const __grid_constant__ MatrixPair m, float* before, float* after,
                               double* sums, int count) {
  for (int k = 0; k < 2; ++k)
    for (int n = static_cast<int>(threadIdx.x); n < m.of[k].rows * m.of[k].columns; n += kMatrixThreads)
      (k ? after : before)[n] = load_float(m.of[k].data, m.of[k].dtype, m.of[k].at(n));
  for (int n = static_cast<int>(threadIdx.x); n < count; n += kMatrixThreads) sums[n] = 0;
}
__global__ void write_numbers(const __grid_constant__ MatrixPair m, const double* before,
                              const double* after) {
  for (int k = 0; k < 2; ++k)
    for (int n = static_cast<int>(threadIdx.x); n < m.of[k].rows * m.of[k].columns; n += kMatrixThreads)
      store_float(m.of[k].data, m.of[k].dtype, m.of[k].at(n), (k ? after : before)[n]);
}

Status copy(const AnyView& v, float* to, Index pitch, cudaStream_t stream) {
  const Index all = v.count();
  if (all == 0) return {};
  const bool four = v.rank == 4;
  return launch({"cuda/copy_coefficients",
                 dim3(static_cast<unsigned>(min_of(ceil_div(all, 256), Index{1} << 16))), 256, 0, stream},
                copy_numbers,
                NumbersCopy{.from = v.data,
                            .dtype = v.dtype,
                            .step = {four ? v.step[0] : Index{0}, four ? v.step[1] : Index{0},
                                     v.step[four ? 2 : 0], v.step[four ? 3 : 1]},
                            .tokens = four ? v.size[1] : Index{1},
                            .rows = v.size[four ? 2 : 0],
                            .heads = v.size[four ? 3 : 1],
                            .all = all,
                            .to = to,
                            .pitch = pitch});
}

}  // namespace

Status mix_logits(const MixPairs& p, cudaStream_t stream) {
  return start_pass<MixPass::logits>("cuda/mix_logits", p, stream);
}
Status mix_lse(const MixPairs& p, cudaStream_t stream) {
  return launch({"cuda/mix_lse",
                 dim3(chunk::kChunkRows / kRowWarps, static_cast<unsigned>(p.heads),
                      static_cast<unsigned>(p.group.count)),
                 32 * kRowWarps, 0, stream},
                lse_rows, p);
}
Status mix_weights(const MixPairs& p, cudaStream_t stream) {
  return start_pass<MixPass::weights>("cuda/mix_weights", p, stream);
}
Status begin_matrices(const AnyView& before, float* to_before, const AnyView& after, float* to_after,
                      double* sums, Index count, cudaStream_t stream) {
  return launch({"cuda/begin_matrices", dim3(1), kMatrixThreads, 0, stream}, begin_matrices,
                MatrixPair{{matrix_of(before), matrix_of(after)}}, to_before, to_after, sums,
                static_cast<int>(count));
}
Status copy_coefficients(const AnyView& from, float* to, cudaStream_t stream) {
  return copy(from, to, 0, stream);
}
Status turn_coefficients(const AnyView& from, float* to, Index pitch, cudaStream_t stream) {
  return copy(from, to, pitch, stream);
}
Status write_matrices(const double* before, const AnyView& to_before, const double* after,
                      const AnyView& to_after, cudaStream_t stream) {
  return launch({"cuda/write_matrices", dim3(1), kMatrixThreads, 0, stream}, write_numbers,
                MatrixPair{{matrix_of(to_before), matrix_of(to_after)}}, before, after);
}

}  // namespace headwise::cuda::mixed
