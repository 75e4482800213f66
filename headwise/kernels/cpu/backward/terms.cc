#include <algorithm>
#include <cmath>

#include "headwise/kernels/cpu/backward/bias_sums.h"
#include "headwise/kernels/cpu/backward/panel.h"

namespace headwise::cpu::backward {

using forward::TileKeys;
namespace {

/// Calls f(keys) for every block of keys that panel `first_row` of one head may see, its dS in
/// s.ds.
template <class F>
void each_tile(const BackwardRun& run, BackwardScratch& s, const SequenceLocation& at, Index head,
               Index first_row, F&& f) {
  const AttentionProblem& p = run.problem.forward;
  GradientPanel& panel = s.panels[0];
  fill_gradients(run, at, {head, first_row, at.q_tokens}, s, panel, false);
  std::fill_n(panel.gate_sum, run.core.panel, 0.0f);
  const Rows keys = forward::rows_of(run.args.forward.k, p.heads.k, head, at.tensor_batch, at.kv_row);
  const Rows values = forward::rows_of(run.args.forward.v, p.heads.v, head, at.tensor_batch, at.kv_row);
  enter_slot(run, s, 0);
  run.core.begin();
  for (Index key0 = 0; key0 < at.kv_tokens; key0 += run.step_keys) {
    const Index count = std::min(run.step_keys, at.kv_tokens - key0);
    if (forward::tile_kind(run.forward, at, panel.lanes, key0, count) == TileKind::empty) continue;
    run.core.products.pack_keys(keys, key0, count, p.heads.q.dim, s.keys);
    run.core.products.pack_keys(values, key0, count, p.heads.v.dim, s.values);
    TileKeys t{.key0 = key0, .from = 0, .to = count};
    if (gradient_tile(run, at, s, panel, 0, t)) f(t);
  }
  run.core.end();
}

}  // namespace

bool is_summed(const AnyView& bias, int axis) { return bias.size[axis] == 1 || bias.step[axis] == 0; }

void write_bias(const AttentionProblem& p, const AnyView& to, const float* sums, Index size, Index batch,
                Index head, Index first_row) {
  constexpr Index kKeys = 32;  // whose lines stay in L1
  const Index base = batch * to.step[0] + head * to.step[1];
  const bool one_query = is_summed(to, 2), one_key = is_summed(to, 3);
  const Index rows = one_query ? 1 : std::min(size, p.q_tokens - first_row);
  const Index keys = one_key ? 1 : p.kv_tokens;
  for (Index k0 = 0; k0 < keys; k0 += kKeys)
    for (Index row = 0; row < rows; ++row)
      for (Index k = k0; k < std::min(keys, k0 + kKeys); ++k) {
        const Index at = base + (one_query ? 0 : first_row + row) * to.step[2] + k * to.step[3];
        if (!one_query && !one_key && to.dtype == DType::f32) {
          static_cast<float*>(to.data)[at] = sums[k * size + row];
          continue;
        }
        double sum = 0;
        for (Index i = k; i < (one_key ? p.kv_tokens : k + 1); ++i)
          for (Index lane = row; lane < (one_query ? size : row + 1); ++lane)
            sum += static_cast<double>(sums[i * size + lane]);
        store_double(to.data, to.dtype, at, sum);
      }
}

void bias_gradient(const BackwardRun& run, BackwardScratch* scratch, ThreadPool& pool, int threads) noexcept {
  const AttentionProblem& p = run.problem.forward;
  const AnyView& to = run.args.dbias;
  const Index size = run.core.panel, heads = p.heads.q.heads;
  const bool one_batch = is_summed(to, 0), one_head = is_summed(to, 1), one_query = is_summed(to, 2);
  const Index panels = ceil_div(p.q_tokens, size), blocks = one_query ? 1 : panels;
  const Index own_heads = one_head ? 1 : heads, own_batch = one_batch ? 1 : p.batch;
  const auto body = [&](Index task, int worker) {  // a task owns its elements and sums in ascending order
    BackwardScratch& s = scratch[worker];
    const Index batch = task / blocks / own_heads, head = task / blocks % own_heads, block = task % blocks;
    std::fill_n(s.bias, round_up(p.kv_tokens, run.step_keys) * size, 0.0f);
    for (Index b = one_batch ? 0 : batch; b < (one_batch ? p.batch : batch + 1); ++b) {
      const SequenceLocation at = place_of(p, run.args.forward, b);
      for (Index h = one_head ? 0 : head; h < (one_head ? heads : head + 1); ++h)
        for (Index i = one_query ? 0 : block; i < (one_query ? panels : block + 1); ++i)
          if (i * size < at.q_tokens)
            each_tile(run, s, at, h, i * size, [&](const TileKeys& t) {
              run.core.passes.join(s.bias + (t.key0 + t.from) * size, s.ds + t.from * size, t.to - t.from,
                                   s.ones, s.ones);
            });
    }
    write_bias(p, to, s.bias, size, batch, head, block * size);
  };
  if (to.count() > 0) pool.parallel_for(own_batch * own_heads * blocks, body, threads);
}

void relative_gradient(const BackwardRun& run, BackwardScratch* scratch, ThreadPool& pool,
                       int threads) noexcept {
  const AttentionProblem& p = run.problem.forward;
  const RelativeBuckets& rule = run.args.forward.inputs.buckets;
  const AnyView& to = run.args.drelative;
  const Index size = run.core.panel, chunks = ceil_div(to.size[0], kBuckets);
  const auto body = [&](Index task, int worker) {
    BackwardScratch& s = scratch[worker];
    const Index head = task / chunks, first = task % chunks * kBuckets;
    const Index count = std::min(kBuckets, to.size[0] - first);
    std::fill_n(s.buckets, count, 0.0);
    for (Index b = 0; b < p.batch; ++b) {
      const SequenceLocation at = place_of(p, run.args.forward, b);
      for (Index row = 0; row < at.q_tokens; row += size)
        each_tile(run, s, at, head, row, [&](const TileKeys& t) {
          const forward::Panel& lanes = s.panels[0].lanes;
          // a bucket depends on q - k alone: sums along diagonals first
          std::fill_n(s.by_distance, size + run.step_keys, 0.0f);
          for (Index k = t.from; k < t.to; ++k) {
            float* diagonal = s.by_distance + run.step_keys - 1 - k;
            for (Index lane = 0; lane < lanes.count; ++lane) diagonal[lane] += s.ds[k * size + lane];
          }
          for (Index d = 0; d < lanes.count + run.step_keys - 1; ++d) {
            const Index distance = lanes.position[0] - t.key0 - (run.step_keys - 1) + d;
            if (s.by_distance[d] == 0) continue;
            const Index bucket = rule.bucket(distance, 0) - first;
            if (0 <= bucket && bucket < count) s.buckets[bucket] += static_cast<double>(s.by_distance[d]);
          }
        });
    }
    for (Index i = 0; i < count; ++i)
      store_double(to.data, to.dtype, (first + i) * to.step[0] + head * to.step[1], s.buckets[i]);
  };
  pool.parallel_for(p.heads.q.heads * chunks, body, threads);
}

}  // namespace headwise::cpu::backward
