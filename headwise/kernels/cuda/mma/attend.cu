// cuda/mma: when attention by mma.sync takes a problem, and its start. All that cuda/hopper does not take.
#include <cstdint>
#include <cstdio>

#include "headwise/kernels/cuda/mma/forward.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::mma {
namespace {

constexpr Index kWidestHead = 512;

int width_of(const AttentionProblem& p) {
  const auto dim = static_cast<int>(p.heads.v.dim);
  return p.dtype == DType::f32 ? mma_width<float>(dim) : mma_width<bf16>(dim);
}
int shared_of(const AttentionProblem& p, int rows, int stages) {
  const auto dim = static_cast<int>(p.heads.q.dim);
  return p.dtype == DType::f32 ? mma_shared<float>(dim, width_of(p), rows, stages)
                               : mma_shared<bf16>(dim, width_of(p), rows, stages);
}
/// The largest block that fits: two stages before many rows, since a copy takes longer than a product.
struct Shape {
  int rows = 0, stages = 0;
};
Shape shape_of(const AttentionProblem& p, int shared_bytes) {
  for (const Shape s : {Shape{128, 2}, {64, 2}, {64, 1}})
    if (shared_of(p, s.rows, s.stages) <= shared_bytes && (s.rows == 64 || p.q_tokens > 64)) return s;
  return {};
}

void refuse(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  inputs_refused(p, why);
  if (why[0]) return;
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  if (p.keys == KeyForm::paged) return say("keys lie in pages; cuda/decode and cuda/plain read them");
  if (const char* heads = special_heads(p)) return say("%s", heads);
  if (p.dtype == DType::f64) return say("dtype f64; it takes f32, bf16 and f16");
  if (p.heads.q.dim > kWidestHead || p.heads.v.dim > kWidestHead)
    return say("head_dim %lld and value_dim %lld; it takes up to %lld of both",
               static_cast<long long>(p.heads.q.dim), static_cast<long long>(p.heads.v.dim),
               static_cast<long long>(kWidestHead));
  if (const int bytes = shared_of(p, 64, 1), device = p.device.index, most = facts_of(device).shared_bytes;
      bytes > most)
    return say("head_dim %lld needs %d bytes of shared memory; device %d lends a block %d",
               static_cast<long long>(p.heads.q.dim), bytes, device, most);
  const Checked blocks = Checked(p.batch) * Checked(p.heads.q.heads) * Checked(ceil_div(p.q_tokens, 64)) *
                         Checked(ceil_div(p.heads.v.dim, width_of(p)));
  if (!blocks.ok || blocks.value >= Index{1} << 31) return say("its grid ends at 2^31 blocks of 64 queries");
  if (p.run.far) return say("positions past 2^29");
}

bool by_pairs(const AnyView& v, Index element) {
  if (v.step[3] != 1 ||
      reinterpret_cast<std::uintptr_t>(v.data) % static_cast<std::uintptr_t>(2 * element) != 0)
    return false;
  for (int axis = 0; axis < 3; ++axis)
    if (v.size[axis] > 1 && v.step[axis] % 2 != 0) return false;
  return true;
}

Status start(const MmaParams& f, DType dtype, int width, int device, cudaStream_t stream) {
  switch (dtype) {
    case DType::bf16: return mma_forward<bf16>(f, width, device, stream);
    case DType::f16: return mma_forward<f16>(f, width, device, stream);
    default: return mma_forward<float>(f, width, device, stream);
  }
}

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  if (p.batch == 0 || p.heads.q.heads == 0 || p.q_tokens == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  StreamState* state = state_of(device, static_cast<cudaStream_t>(stream));
  if (!state) return kNoState;
  const std::lock_guard lock(state->mutex);
  MmaParams f{};
  const Status status = gather_inputs(p, a, *state, kLostCounters, f.in);
  if (!status.ok()) return status;
  const int width = width_of(p);
  const Index element = p.dtype == DType::f32 ? 4 : 2;
  const Shape shape = shape_of(p, facts_of(device).shared_bytes);
  f.rows = shape.rows, f.stages = shape.stages;
  f.q_tiles = static_cast<int>(ceil_div(p.q_tokens, f.rows));
  f.chunks = static_cast<int>(ceil_div(p.heads.v.dim, width));
  f.terms = has_terms(p.heads.terms, a.inputs.scale);
  f.runs = opens_runs(a.mask);
  f.vector_q = by_chunks(a.q, p.heads.q, element), f.vector_k = by_chunks(a.k, p.heads.k, element);
  f.vector_v = by_chunks(a.v, p.heads.v, element), f.pairs_out = by_pairs(a.out, element);
  const LostRows lost = lost_rows(state->counters);
  if (f.in.mask_count) f.lost = lost;
  const Status ran = start(f, p.dtype, width, device, state->stream);
  if (!ran.ok() || !f.lost.found) return ran;
  return mend(f.in, p.dtype, lost, facts_of(device).processors, state->stream);
}

void numerics(const AttentionProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/mma sm_80 %s k%d", name_of(p.dtype).data(),
                p.dtype == DType::f32 ? 32 : 64);
}

}  // namespace

const Kernel kAttend = {"cuda/mma", refuse, run, numerics};

}  // namespace headwise::cuda::mma
