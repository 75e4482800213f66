// cuda/probes: top keys and column sums. Another kernel does attention and leaves its lse; a second look at
// the scores finds the weights.
#include <cstdio>

#include "headwise/kernels/cuda/probe/second_look.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::probe {
namespace {

AttentionProblem without_look(AttentionProblem p) {
  p.probe.top_k = 0, p.probe.columns = false, p.lse = true;
  return p;
}
AttentionArgs without_look(AttentionArgs a) {
  a.probe.top_keys = a.probe.top_weights = a.probe.column_sums = {};
  return a;
}
const Kernel* inner_of(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  for (const Kernel* k :
       {&hopper::kRagged, &hopper::decode::kAttend, &hopper::forward::kAttend, &mma::kAttend}) {
    k->refuse(without_look(p), why);
    if (!why[0]) return k;
  }
  return nullptr;
}

/// What both launches take at most.
int shared_of(const AttentionProblem& p, int stages) {
  const auto dim = static_cast<int>(p.heads.q.dim), top_k = static_cast<int>(p.probe.top_k);
  const int top = top_k ? look_shared(p.dtype, dim, top_k, stages) : 0;
  return max_of(top, p.probe.columns ? look_shared(p.dtype, dim, 0, stages) : 0);
}

void refuse(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  why[0] = '\0';
  const int device = p.device.index;
  const ProbeSpec& probe = p.probe;
  if (probe.classes || probe.picked || probe.scores != ScoreStage::none)
    return say("classes, picked rows or whole scores; it takes top keys, column sums and statistics of rows");
  if (probe.top_k == 0 && !probe.columns) return say("no top keys or column sums are asked for");
  if (probe.top_k > kMostTopKeys)
    return say("top_k %lld; it takes up to %lld", static_cast<long long>(probe.top_k),
               static_cast<long long>(kMostTopKeys));
  if (p.keys == KeyForm::paged) return say("keys lie in pages");
  inputs_refused(without_look(p), why);
  if (why[0] || !inner_of(p, why)) return;
  if (const int bytes = shared_of(p, 1), most = facts_of(device).shared_bytes; bytes > most)
    return say("head_dim %lld with top_k %lld needs %d bytes of shared memory; device %d lends a block %d",
               static_cast<long long>(p.heads.q.dim), static_cast<long long>(probe.top_k), bytes, device,
               most);
  const Checked blocks = Checked(p.batch) * Checked(p.heads.q.heads) *
                         Checked(ceil_div(max_of(p.q_tokens, p.kv_tokens), look_keys(p.dtype)));
  if (!blocks.ok || blocks.value >= Index{1} << 31) say("its grid ends at 2^31 blocks");
}

LookParams look_of(const AttentionProblem& p, const AttentionArgs& a, int device) {
  LookParams f{};
  f.q_tiles = static_cast<int>(ceil_div(p.q_tokens, 64));
  f.key_tiles = static_cast<int>(ceil_div(p.kv_tokens, look_keys(p.dtype)));
  f.stages = shared_of(p, 2) <= facts_of(device).shared_bytes ? 2 : 1;
  f.terms = mma::has_terms(p.heads.terms, a.inputs.scale), f.runs = mma::opens_runs(a.mask);
  const Index element = p.dtype == DType::f32 ? 4 : 2;
  f.vector_q = mma::by_chunks(a.q, p.heads.q, element), f.vector_k = mma::by_chunks(a.k, p.heads.k, element);
  const ProbeOut& to = a.probe;
  if (p.probe.top_k) {
    f.top_k = static_cast<int>(p.probe.top_k);
    f.top_keys = static_cast<Index*>(to.top_keys.data);
    f.top_weights = static_cast<float*>(to.top_weights.data);
    for (int axis = 0; axis < 4; ++axis)
      f.top_keys_step[axis] = to.top_keys.step[axis], f.top_weights_step[axis] = to.top_weights.step[axis];
  }
  if (p.probe.columns) {
    f.column_sums = static_cast<float*>(to.column_sums.data);
    for (int axis = 0; axis < 3; ++axis) f.column_step[axis] = to.column_sums.step[axis];
  }
  return f;
}

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  if (p.batch == 0 || p.heads.q.heads == 0) return {};
  const CurrentDevice current(device);
  if (!current.status().ok()) return current.status();
  StreamState* state = state_of(device, static_cast<cudaStream_t>(stream));
  if (!state) return kNoState;
  const std::lock_guard whole(state->outer);
  const AttentionProblem inner = without_look(p);
  AttentionArgs args = without_look(a);
  if (!p.lse) {
    const Index batch = p.ragged ? 1 : p.batch, rows = p.ragged ? p.q_total : p.q_tokens,
                heads = p.heads.q.heads;
    const Status status = state->hold(static_cast<std::size_t>(batch * heads * rows) * sizeof(float));
    if (!status.ok()) return status;
    args.lse = AnyView::packed(state->held, DType::f32, {batch, heads, rows});
  }
  char why[kSentenceBytes];
  Status status = inner_of(p, why)->run(inner, args, device, stream);
  if (!status.ok()) return status;
  const std::lock_guard lock(state->mutex);
  LookParams f = look_of(p, a, device);
  status = gather_inputs(inner, args, *state, 1, f.in);
  return status.ok() ? second_look(f, p.dtype, device, state->stream) : status;
}

void numerics(const AttentionProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/probes sm_80 %s k%d", name_of(p.dtype).data(), look_keys(p.dtype));
}

}  // namespace

const Kernel kAttend = {"cuda/probes", refuse, run, numerics};

}  // namespace headwise::cuda::probe
