// cuda/mma: rows of the output that values of closed keys reached, made anew.
#include "headwise/kernels/cuda/inputs/mend.cuh"
#include "headwise/kernels/cuda/mma/forward.h"

namespace headwise::cuda::mma {
namespace {

constexpr float kLog2e = 1.44269504088896341f;
constexpr int kThreads = 256;

template <class T>
struct MaskedRow {
  const RunInputs& f;
  const SequenceLocation& at;
  Index b, h, i;
  int begin, end;
  float sink;

  __device__ bool open(int j) const {
    return f.mask_count == 0 ||
           f.masks[f.mask_count == 1 ? 0 : h].may_attend(at.q_start + i, j, MaskSubject{b, h, at.q_start});
  }
  __device__ float score(int j) const { return kLog2e * headwise::cuda::score<T, float>(f, at, b, h, i, j); }
  __device__ float kept(int j) const {
    if (f.dropout == 0) return 1.f;
    const Index id = f.sequence_ids ? f.sequence_ids[b] : b;
    return f.rule.keep(id, h, at.q_start + i, j) ? 1.f : 0.f;
  }
  __device__ float value(int j, int c) const { return kv_element<T, float>(f, f.v, at, b, j, h, c); }
  __device__ float factor() const {
    float x = f.dropout == 0 ? 1.f : static_cast<float>(1 / (1 - f.dropout));
    if (f.gate)
      x *=
          load_float(f.gate, f.gate_dtype,
                     at.tensor_batch * f.gate_step[0] + (at.q_row + i) * f.gate_step[1] + h * f.gate_step[2]);
    return x;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    mend_masked(const __grid_constant__ RunInputs f, const __grid_constant__ LostRows lost) {
  mend_rows(lost, f.batch * f.heads * f.q_tokens, [&](Index task) {
    const Index b = task / (f.heads * f.q_tokens), h = task / f.q_tokens % f.heads, i = task % f.q_tokens;
    const SequenceLocation at = f.places[b];
    if (i >= at.q_tokens) return;
    const float sink = f.sinks.data ? kLog2e * number_of(f.sinks, static_cast<int>(h)) : -INFINITY;
    T* out = static_cast<T*>(f.out.data) + at.tensor_batch * f.out.step[0] + (at.q_row + i) * f.out.step[1] +
             h * f.out.step[2];
    mend_row<8>(out, f.out.step[3], static_cast<int>(f.v.layout.dim),
                MaskedRow<T>{f, at, b, h, i, 0, static_cast<int>(at.kv_tokens), sink});
  });
}

}  // namespace

Status mend(const RunInputs& f, DType dtype, const LostRows& lost, int processors, cudaStream_t stream) {
  const Launch how{"cuda/mend_masked", dim3(static_cast<unsigned>(processors)), kThreads, 0, stream};
  switch (dtype) {
    case DType::f32: return launch(how, mend_masked<float>, f, lost);
    case DType::bf16: return launch(how, mend_masked<bf16>, f, lost);
    default: return launch(how, mend_masked<f16>, f, lost);
  }
}

}  // namespace headwise::cuda::mma
