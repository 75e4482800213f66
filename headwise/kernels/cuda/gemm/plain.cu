#include <cstdio>

#include "headwise/kernels/cuda/gemm/finish.cuh"
#include "headwise/kernels/cuda/gemm/kernels.h"
#include "headwise/kernels/cuda/table/gemm.h"

namespace headwise::cuda::gemm {
namespace {

constexpr int kSide = 64, kDeep = 16, kThreads = 256;

/// 64 x 64 of out; a thread has 4 x 4. k ascends, one fused multiply-add a step, whatever the layout.
__global__ void __launch_bounds__(kThreads) plain_product(const __grid_constant__ Product p) {
  __shared__ float a[kDeep][kSide + 1], b[kDeep][kSide + 1];
  const int thread = static_cast<int>(threadIdx.x), tx = thread % 16, ty = thread / 16;
  const Index m0 = static_cast<Index>(blockIdx.x) * kSide, n0 = static_cast<Index>(blockIdx.y) * kSide;
  float sum[4][4];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      const Index row = m0 + ty + 16 * i, column = n0 + tx + 16 * j;
      sum[i][j] = row < p.m && column < p.n ? start_of(p, row, column) : 0.0f;
    }
  const bool a_by_k = p.a.columns.step == 1, b_by_k = p.b.rows.step == 1;
  for (Index k0 = 0; k0 < p.k; k0 += kDeep) {
    for (int i = thread; i < kSide * kDeep; i += kThreads) {
      const int ak = a_by_k ? i % kDeep : i / kSide, am = a_by_k ? i / kDeep : i % kSide;
      const int bk = b_by_k ? i % kDeep : i / kSide, bn = b_by_k ? i / kDeep : i % kSide;
      a[ak][am] =
          m0 + am < p.m && k0 + ak < p.k ? number_at(p.a.data, p.a.dtype, p.a.at(m0 + am, k0 + ak)) : 0.0f;
      b[bk][bn] =
          n0 + bn < p.n && k0 + bk < p.k ? number_at(p.b.data, p.b.dtype, p.b.at(k0 + bk, n0 + bn)) : 0.0f;
    }
    __syncthreads();
    const int deep = static_cast<int>(min(p.k - k0, Index{kDeep}));  // a 0 beyond would turn -0 into 0
    for (int l = 0; l < deep; ++l)
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[i][j] = fmaf(a[l][ty + 16 * i], b[l][tx + 16 * j], sum[i][j]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (const Index row = m0 + ty + 16 * i, column = n0 + tx + 16 * j; row < p.m && column < p.n)
        finish_to(p, row, column, sum[i][j]);
}

void refuse(const GemmProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "%s", never(p));
}
Status run(const GemmProblem& problem, const GemmArgs& args, int device, void* stream) {
  if (problem.m == 0 || problem.n == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  const dim3 grid(static_cast<unsigned>(ceil_div(problem.m, kSide)),
                  static_cast<unsigned>(ceil_div(problem.n, kSide)));
  return launch({"cuda/gemm_plain", grid, kThreads, 0, static_cast<cudaStream_t>(stream)}, plain_product,
                product_of(problem, args));
}
void numerics(const GemmProblem&, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/gemm_plain f32 k1");
}

}  // namespace

const GemmEntries kPlain = {"cuda/gemm_plain", refuse, run, numerics};

}  // namespace headwise::cuda::gemm
