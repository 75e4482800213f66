// Mixing forward over the pairs of a chunk, and what its rows need beside: lse, copies of coefficients.
#include "headwise/kernels/cuda/mixed_rows.cuh"

namespace headwise::cuda {
namespace {

constexpr int kRowWarps = 4;

/// A warp a row of a head: lse of its logits and the sink.
__global__ void __launch_bounds__(32 * kRowWarps) lse_rows(const __grid_constant__ MixRows p) {
  const RunInputs& f = p.in;
  const int lane = static_cast<int>(threadIdx.x) % 32,
            i = static_cast<int>(blockIdx.x * kRowWarps + threadIdx.x / 32);
  const Index h = blockIdx.y, slot = blockIdx.z;
  const ChunkJob job = p.group.jobs[slot];
  float lse = -INFINITY;
  if (i < job.rows) {
    const float* row = p.scores + plane_at(slot, p.score_planes, h, i, p.group.pitch);
    float top = -INFINITY, sum = 0.f;
    for (int j = lane; j < job.keys; j += 32) top = top != top || row[j] != row[j] ? NAN : fmaxf(top, row[j]);
    top = warp_most_of(top);
    const float sink = f.sinks.data ? number_of(f.sinks, static_cast<int>(h)) : -INFINITY;
    const float most = top != top ? top : fmaxf(top, sink);
    if (most != -INFINITY) {
      for (int j = lane; j < job.keys; j += 32) sum += exp2f((row[j] - most) * kChunkLog2e);
      sum = warp_sum_of(sum);
      if (sink != -INFINITY) sum += exp2f((sink - most) * kChunkLog2e);
      lse = most + logf(sum);
    }
    if (lane == 0 && f.lse) {
      const SequencePlace at = f.places[job.sequence];
      f.lse[at.tensor_batch * f.lse_step[0] + h * f.lse_step[1] + (at.q_row + job.row0 + i) * f.lse_step[2]] =
          lse;
    }
    if (top == -INFINITY) lse = -INFINITY;  // a row of a sink alone is 0 too
  }
  if (lane == 0) p.lse[(slot * p.heads + h) * kChunkRows + i] = lse;
}

__global__ void copy_numbers(const void* from, DType dtype, Index s0, Index s1, Index s2, Index s3, Index n1,
                             Index n2, Index n3, Index all, float* to, Index pitch) {
  for (Index n = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x; n < all;
       n += static_cast<Index>(gridDim.x) * blockDim.x) {
    const Index d = n % n3, c = n / n3 % n2, row = n / n3 / n2;
    const float x = load_float(from, dtype, row / n1 * s0 + row % n1 * s1 + c * s2 + d * s3);
    to[pitch ? (c * n3 + d) * pitch + row : n] = x;
  }
}
__global__ void write_numbers(const double* from, void* to, DType dtype, Index columns, Index s0, Index s1) {
  const Index n = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;
  store_float(to, dtype, n / columns * s0 + n % columns * s1, from[n]);
}

Status copy(const AnyView& v, float* to, Index pitch, cudaStream_t stream) {
  const Index all = v.count();
  if (all == 0) return {};
  const bool four = v.rank == 4;
  return launch({"cuda/copy_coefficients",
                 dim3(static_cast<unsigned>(min_of(ceil_div(all, 256), Index{1} << 16))), 256, 0, stream},
                copy_numbers, v.data, v.dtype, four ? v.step[0] : Index{0}, four ? v.step[1] : Index{0},
                v.step[four ? 2 : 0], v.step[four ? 3 : 1], four ? v.size[1] : Index{1}, v.size[four ? 2 : 0],
                v.size[four ? 3 : 1], all, to, pitch);
}

}  // namespace

Status mix_logits(const MixRows& p, cudaStream_t stream) {
  return start_pass<MixPass::logits>("cuda/mix_logits", p, stream);
}
Status mix_lse(const MixRows& p, cudaStream_t stream) {
  return launch(
      {"cuda/mix_lse",
       dim3(kChunkRows / kRowWarps, static_cast<unsigned>(p.heads), static_cast<unsigned>(p.group.count)),
       32 * kRowWarps, 0, stream},
      lse_rows, p);
}
Status mix_weights(const MixRows& p, cudaStream_t stream) {
  return start_pass<MixPass::weights>("cuda/mix_weights", p, stream);
}
Status copy_matrix(const AnyView& from, float* to, cudaStream_t stream) { return copy(from, to, 0, stream); }
Status copy_coefficients(const AnyView& from, float* to, cudaStream_t stream) {
  return copy(from, to, 0, stream);
}
Status turn_coefficients(const AnyView& from, float* to, Index pitch, cudaStream_t stream) {
  return copy(from, to, pitch, stream);
}
Status write_matrix(const double* from, const AnyView& to, cudaStream_t stream) {
  return launch({"cuda/write_matrix", dim3(static_cast<unsigned>(to.size[0])),
                 static_cast<unsigned>(to.size[1]), 0, stream},
                write_numbers, from, to.data, to.dtype, to.size[1], to.step[0], to.step[1]);
}

}  // namespace headwise::cuda
