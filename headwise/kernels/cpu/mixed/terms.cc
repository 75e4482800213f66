#include <algorithm>

#include "headwise/kernels/cpu/backward/bias_sums.h"
#include "headwise/kernels/cpu/mixed/gradients.h"

// The gradients of a bias and of a relative table with mixed heads. Slopes of logits are computed again, all
// heads of a panel together, and summed in ascending order by the task that owns the sum.

namespace headwise::cpu::mixed {

using backward::is_summed;
namespace {

/// Calls body(opening, key0) for every block panel `q` of a sequence may see, slopes of its logits in s.dl.
template <class Body>
void each_slope(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location, Index q,
                Body&& body) {
  pack_panel(run, location, q, s);
  each_block(run, s, location, [&](const Opening& opening, Index key0) {
    weights_of_block(run, s, location, opening, key0);
    output_slopes(run, s, location, opening, key0, nullptr);
    weight_slopes(run, s, opening);
    logit_slopes(run, s, opening.to);
    body(opening, key0);
  });
}

SequenceLocation place_in(const MixedBackwardRun& run, Index sequence) {
  return place_of(run.problem.forward, run.args.forward, sequence);
}

/// Adds the slopes of a block to sums [heads][kMixedBuckets] of buckets first ...
void add_to_buckets(const MixedBackwardRun& run, GradientScratch& s, Index key0, Index to, Index first,
                    double* sums) {
  const RelativeBuckets& rule = run.args.forward.inputs.buckets;
  const forward::Panel& lanes = s.panel.in.lanes;
  const Index n = run.mixed.core().panel;
  float* along = s.in.terms.by_distance;  // a bucket depends on q - k alone
  for (Index h = 0; h < run.mixed.before.to; ++h) {
    std::fill_n(along, n + kMixKeys, 0.0f);
    for (Index k = 0; k < to; ++k)
      for (Index lane = 0; lane < lanes.count; ++lane)
        along[kMixKeys - 1 - k + lane] += s.dl[h * run.mixed.tile_step() + k * n + lane];
    for (Index d = 0; d < lanes.count + kMixKeys - 1; ++d) {
      if (along[d] == 0) continue;
      const Index bucket = rule.bucket(lanes.position[0] - key0 - (kMixKeys - 1) + d, 0) - first;
      if (0 <= bucket && bucket < kMixedBuckets)
        sums[h * kMixedBuckets + bucket] += static_cast<double>(along[d]);
    }
  }
}

}  // namespace

void bias_gradient(const MixedBackwardRun& run, GradientScratch* scratch, ThreadPool& pool) noexcept {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const AnyView& to = run.args.dbias;
  const Index n = core.panel, heads = run.mixed.before.to, panels = ceil_div(p.q_tokens, n);
  const bool one_batch = is_summed(to, 0), one_head = is_summed(to, 1), one_query = is_summed(to, 2);
  const Index batches = one_batch ? 1 : p.batch, blocks = one_query ? 1 : panels, own = one_head ? 1 : heads;
  const Index step = run.bias_keys() * n;  // from head to head
  if (to.count() == 0) return;
  pool.parallel_for(batches * blocks, [&](Index index, int worker) {
    GradientScratch& s = scratch[worker];
    const Index batch = index / blocks, block = index % blocks;
    std::fill_n(s.bias, own * step, 0.0f);
    for (Index b = batch; b < (one_batch ? p.batch : batch + 1); ++b)
      for (Index q = block; q < (one_query ? panels : block + 1); ++q) {
        const SequenceLocation location = place_in(run, b);
        if (q * n >= location.q_tokens) continue;
        each_slope(run, s, location, q, [&](const Opening& opening, Index key0) {
          for (Index h = 0; h < heads; ++h)
            core.passes.join(s.bias + (one_head ? 0 : h) * step + key0 * n, s.dl + h * run.mixed.tile_step(),
                             opening.to, s.in.ones, s.in.ones);
        });
      }
    for (Index h = 0; h < own; ++h) backward::write_bias(p, to, s.bias + h * step, n, batch, h, block * n);
  });
}

void relative_gradient(const MixedBackwardRun& run, GradientScratch* scratch, ThreadPool& pool) noexcept {
  const AttentionProblem& p = run.problem.forward;
  const AnyView& to = run.args.drelative;
  const Index n = run.mixed.core().panel, heads = run.mixed.before.to, each = heads * kMixedBuckets;
  for (Index first = 0; first < to.size[0]; first += kMixedBuckets) {
    pool.parallel_for(kRelativeTasks, [&](Index index, int worker) {
      double* sums = run.drelative + index * each;
      std::fill_n(sums, each, 0.0);
      Index at = 0;
      for (Index b = 0; b < p.batch; ++b) {
        const SequenceLocation location = place_in(run, b);
        for (Index q = 0; q < ceil_div(location.q_tokens, n); ++q, ++at) {
          if (at * kRelativeTasks / run.panel_count() != index) continue;
          each_slope(run, scratch[worker], location, q, [&](const Opening& opening, Index key0) {
            add_to_buckets(run, scratch[worker], key0, opening.to, first, sums);
          });
        }
      }
    });
    pool.parallel_for(1, [&](Index, int) {
      for (Index h = 0; h < heads; ++h)
        for (Index i = 0; i < min_of(kMixedBuckets, to.size[0] - first); ++i) {
          double sum = 0;
          for (Index t = 0; t < kRelativeTasks; ++t) sum += run.drelative[t * each + h * kMixedBuckets + i];
          store_double(to.data, to.dtype, (first + i) * to.step[0] + h * to.step[1], sum);
        }
    });
  }
}

}  // namespace headwise::cpu::mixed
