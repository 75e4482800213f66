#include "python/arrays/plans.h"

#include "headwise/spec/terms.h"

namespace headwise::python {
namespace {

std::size_t mix(std::size_t seed, Index value) {
  return (seed ^ static_cast<std::size_t>(value)) * std::size_t{0x9E3779B97F4A7C15u} + (seed >> 29);
}

}  // namespace

std::size_t hash_of(const AttentionProblem& p) {
  std::size_t h = static_cast<std::size_t>(p.dtype) + 1;
  for (Index n :
       {p.batch, p.q_tokens, p.kv_tokens, p.q_total, p.kv_total, p.pages, p.page_size, p.heads.q.heads,
        p.heads.q.dim, p.heads.k.group, p.heads.v.group, p.heads.v.dim, p.probe.top_k, p.probe.classes,
        p.probe.picked, Index{p.device.byte()}, Index{p.run.mask}, p.run.mask_bytes, p.run.padded_q})
    h = mix(h, n);
  return h;
}

std::size_t hash_of(const BackwardProblem& p) {
  std::size_t h = hash_of(p.forward);
  for (const Gradient& g : kGradients) h = mix(h, p.wants.*g.wanted);
  return h;
}

}  // namespace headwise::python
