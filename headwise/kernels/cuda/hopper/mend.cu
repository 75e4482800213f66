// cuda/decode: rows of the output that values of closed keys reached, made anew.
#include "headwise/kernels/cuda/hopper/mend.h"

#include "headwise/kernels/cuda/device/ptx.cuh"
#include "headwise/kernels/cuda/hopper/mend.cuh"

namespace headwise::cuda::hopper {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads, 1) mend_band(const __grid_constant__ MendParams m) {
  ptx::wait_for_forerunner();
  const ForwardParams& p = m.p;
  const Index tokens = p.place.q_tokens;  // of the longest sequence
  mend_rows(m.lost, tokens * p.batch * p.heads, [&](Index task) {
    const int pair = static_cast<int>(task / tokens), row = static_cast<int>(task % tokens);
    const int b = pair / p.heads, head = pair % p.heads;
    const Place place = p.places ? p.places[p.by_head ? pair : b] : p.place;
    if (row >= place.q_tokens) return;
    mend_query<8, true, T>(p, place, b, head, row);
  });
}

}  // namespace

HopperTensors tensors_of(const AttentionProblem& p, const AttentionArgs& a) {
  return {a.q.data,
          a.k.data,
          a.v.data,
          {a.q.step[0], a.q.step[1], a.q.step[2]},
          {a.k.step[0], a.k.step[1], a.k.step[2]},
          {a.v.step[0], a.v.step[1], a.v.step[2]},
          a.k.size[0],
          static_cast<int>(p.page_size),
          static_cast<int>(p.heads.q.dim),
          static_cast<int>(p.heads.v.dim)};
}

Status mend(const MendParams& m, DType dtype, int processors, cudaStream_t stream) {
  const Launch how{"cuda/mend_band", dim3(static_cast<unsigned>(processors)), kThreads, 0, stream, true};
  return dtype == DType::bf16 ? launch(how, mend_band<bf16>, m) : launch(how, mend_band<f16>, m);
}

}  // namespace headwise::cuda::hopper
