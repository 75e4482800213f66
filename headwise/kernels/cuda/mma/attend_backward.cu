// cuda/mma_backward: when gradients by mma.sync take a problem, and their start. What Hopper's do not take.
#include <cstdio>

#include "headwise/kernels/cuda/mma/backward.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::mma {
namespace {

Index widest_of(DType t) {
  return t == DType::f32 ? mma_backward_widest<float>() : mma_backward_widest<bf16>();
}
int width_of(const AttentionProblem& p) { return max_of(p.heads.q.dim, p.heads.v.dim) <= 128 ? 128 : 256; }

void refuse(const BackwardProblem& problem, char (&why)[kSentenceBytes]) {
  const AttentionProblem& p = problem.forward;
  const int device = p.device.index;
  backward_refused(problem, {.q = true, .k = true, .v = true, .sinks = true, .gate = true},
                   "dq, dk, dv, dsinks and dgate", why);
  if (why[0]) return;
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  if (p.dtype == DType::f64) return say("dtype f64; it takes f32, bf16 and f16");
  if (const Index most = widest_of(p.dtype); max_of(p.heads.q.dim, p.heads.v.dim) > most)
    return say("head_dim %lld and value_dim %lld; it takes up to %lld of %s",
               static_cast<long long>(p.heads.q.dim), static_cast<long long>(p.heads.v.dim),
               static_cast<long long>(most), name_of(p.dtype).data());
  const int bytes = p.dtype == DType::f32 ? mma_backward_shared<float>(width_of(p))
                                          : mma_backward_shared<bf16>(width_of(p));
  if (const int most = facts_of(device).shared_bytes; bytes > most)
    return say("it needs %d bytes of shared memory; device %d lends a block %d", bytes, device, most);
  const Checked blocks =
      Checked(p.batch) * Checked(p.heads.q.heads) * Checked(ceil_div(max_of(p.q_tokens, p.kv_tokens), 64));
  if (!blocks.ok || blocks.value >= Index{1} << 31) return say("its grid ends at 2^31 blocks of 64 rows");
  if (p.run.far) return say("positions past 2^29");
}

Status run(const BackwardProblem& problem, const BackwardArgs& a, int device, void* stream) {
  const AttentionProblem& p = problem.forward;
  if (p.batch == 0 || p.heads.q.heads == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  StreamState* state = state_of(device, static_cast<cudaStream_t>(stream));
  if (!state) return kNoState;
  const std::lock_guard lock(state->mutex);
  MmaBackwardParams f;
  const Status status = gather_backward(p, a, *state, f.in);
  if (!status.ok()) return status;
  const Index element = p.dtype == DType::f32 ? 4 : 2;
  const Terms& terms = p.heads.terms;
  f.kv_tokens = p.kv_tokens, f.runs = opens_runs(a.forward.mask);
  f.simple = f.runs && !(terms.softcap || terms.bias || terms.alibi || terms.relative || terms.dropout);
  f.vector_q = by_chunks(a.forward.q, p.heads.q, element),
  f.vector_k = by_chunks(a.forward.k, p.heads.k, element);
  f.vector_v = by_chunks(a.forward.v, p.heads.v, element),
  f.vector_dout = by_chunks(a.dout, p.heads.q, element);
  switch (p.dtype) {
    case DType::bf16: return mma_backward<bf16>(f, width_of(p), device, state->stream);
    case DType::f16: return mma_backward<f16>(f, width_of(p), device, state->stream);
    default: return mma_backward<float>(f, width_of(p), device, state->stream);
  }
}

void numerics(const BackwardProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/mma_backward sm_80 %s r64 c%d", name_of(p.forward.dtype).data(),
                p.forward.dtype == DType::f32 ? 32 : 64);
}

}  // namespace

const BackwardKernel kBackward = {"cuda/mma_backward", refuse, run, numerics};

}  // namespace headwise::cuda::mma
