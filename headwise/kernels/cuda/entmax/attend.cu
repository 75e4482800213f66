// cuda/entmax and cuda/entmax_backward: chunks of queries, their scores in memory, a threshold for each row.
#include <cstdio>

#include "headwise/kernels/cuda/chunk/run.h"
#include "headwise/kernels/cuda/entmax/pairs.h"
#include "headwise/kernels/cuda/table/kernels.h"

namespace headwise::cuda::entmax {
namespace {

void refuse(const AttentionProblem& p, char (&why)[kSentenceBytes]) {
  chunk::chunks_refused(p, why);
  if (why[0]) return;
  const auto say = [&](auto... parts) { std::snprintf(why, sizeof why, parts...); };
  if (p.heads.norm != Norm::entmax) return say("weights are softmax");
  if (p.heads.mixes()) return say("entmax of mixed heads");
}
void refuse_backward(const BackwardProblem& problem, char (&why)[kSentenceBytes]) {
  refuse(problem.forward, why);
  if (why[0]) return;
  GradientSpec rest = problem.wants;
  rest.q = rest.k = rest.v = rest.alpha = rest.gate = rest.sinks = false;
  chunk::chunk_gradients_refused(problem, rest, "dq, dk, dv, dalpha, dgate and dsinks", why);
}

EntmaxPairs rows_of(const AttentionProblem& p, const AttentionArgs& a) {
  EntmaxPairs f{};
  const AnyView& alpha = a.inputs.alpha;
  f.alpha = {alpha.data, alpha.dtype, alpha.step[0]}, f.dtype = p.dtype;
  return f;
}

Status run(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream) {
  if (p.batch == 0 || p.heads.q.heads == 0 || p.q_tokens == 0) return {};
  const Index heads = p.heads.q.heads, element = size_of(p.dtype);
  chunk::ChunkRun chunks(p, a, device, stream, heads * (4 + element));
  EntmaxPairs f = rows_of(p, a);
  const Status status = chunks.begin(f.in, [&](chunk::Bytes256& room) {
    const Index rows = chunks.rows();
    f.scores = room.take<float>(heads * rows * chunks.pitch());
    f.weights = room.take<std::byte>(element * heads * rows * chunks.pitch());
    f.lse = room.take<float>(heads * rows);
  });
  if (!status.ok()) return status;
  return chunks.each_group([&](const chunk::ChunkGroup& group, int keys, int, int) {
    f.group = group;
    Status done = chunks.scores(f.in.q, f.in.k, true, static_cast<int>(heads), f.scores, keys);
    if (done.ok()) done = forward_pairs(f, chunks.stream());
    chunk::ChunkValues v = chunks.values_of(f.weights, f.in.v, f.in.out, heads);
    v.lse = f.lse, v.lse_heads = static_cast<int>(heads);
    v.gate = f.in.gate, v.gate_dtype = f.in.gate_dtype;
    for (int axis = 0; axis < 3; ++axis) v.gate_step[axis] = f.in.gate_step[axis];
    return done.ok() ? chunks.values(v) : done;
  });
}

Status run_backward(const BackwardProblem& problem, const BackwardArgs& a, int device, void* stream) {
  const AttentionProblem& p = problem.forward;
  if (p.batch == 0 || p.heads.q.heads == 0) return {};
  const Index heads = p.heads.q.heads, element = size_of(p.dtype);
  chunk::ChunkRun chunks(p, a.forward, device, stream, heads * (8 + 2 * element));
  EntmaxPairs f = rows_of(p, a.forward);
  chunk::ChunkGradients g;
  double* sums = nullptr;
  Status status = chunks.begin(f.in, [&](chunk::Bytes256& room) {
    const Index rows = chunks.rows(), plane = heads * rows * chunks.pitch();
    f.scores = room.take<float>(plane), f.dp = room.take<float>(plane);
    f.weights = room.take<std::byte>(element * plane), f.ds = room.take<std::byte>(element * plane);
    if (a.dalpha.given()) f.dalpha_rows = room.take<float>(heads * rows);
    if (a.dsinks.given()) f.dsink_rows = room.take<float>(heads * rows);
    sums = room.take<double>(2 * heads);
    g = chunks.gradients_of(a, room);
  });
  if (!status.ok()) return status;
  f.dgate = a.dgate.data, f.dgate_dtype = a.dgate.dtype;
  for (int axis = 0; axis < 3; ++axis) f.dgate_step[axis] = a.dgate.step[axis];
  status = status_of(
      "cuda/clear",
      cudaMemsetAsync(sums, 0, static_cast<std::size_t>(2 * heads) * sizeof(double), chunks.stream()));
  if (!status.ok()) return status;
  status = chunks.each_group([&](const chunk::ChunkGroup& group, int keys, int first, int sequences) {
    f.group = group;
    const int all = static_cast<int>(heads);
    Status done = chunks.scores(f.in.q, f.in.k, true, all, f.scores, keys);
    if (done.ok()) done = chunks.scores(g.dout, f.in.v, false, all, f.dp, keys);
    if (done.ok()) done = backward_pairs(f, chunks.stream());
    if (done.ok() && f.dalpha_rows) done = add_rows(f.dalpha_rows, sums, all, group.count, chunks.stream());
    if (done.ok() && f.dsink_rows)
      done = add_rows(f.dsink_rows, sums + heads, all, group.count, chunks.stream());
    return done.ok() ? chunks.gradients(g, f.in,
                                        {.ds = f.ds,
                                         .ds_planes = heads,
                                         .w = f.weights,
                                         .w_planes = heads,
                                         .first = first,
                                         .sequences = sequences})
                     : done;
  });
  if (status.ok() && f.dalpha_rows)
    status = write_heads(sums, static_cast<int>(heads), a.dalpha, chunks.stream());
  if (status.ok() && f.dsink_rows)
    status = write_heads(sums + heads, static_cast<int>(heads), a.dsinks, chunks.stream());
  return status;
}

void numerics(const AttentionProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/entmax sm_80 %s r64", name_of(p.dtype).data());
}
void numerics_backward(const BackwardProblem& p, char (&words)[kSentenceBytes]) {
  std::snprintf(words, sizeof words, "cuda/entmax_backward sm_80 %s r64", name_of(p.forward.dtype).data());
}

}  // namespace

const Kernel kAttend = {"cuda/entmax", refuse, run, numerics};
const BackwardKernel kBackward = {"cuda/entmax_backward", refuse_backward, run_backward, numerics_backward};

}  // namespace headwise::cuda::entmax
