#include "headwise/kernels/cpu/mixed_backward.h"

#include <algorithm>
#include <cmath>

#include "headwise/kernels/cpu/isa.h"
#include "headwise/kernels/cpu/mixed_gradients.h"

namespace headwise::cpu {
namespace {

/// Panels of queries of a task by rows: they pay for packing keys and values.
constexpr Index kTaskPanels = 2;

float dot_of(const AnyView& a, const AnyView& b, Index batch, Index row, Index head, float& largest) {
  double sum = 0;
  const Index at = batch * a.step[0] + row * a.step[1] + head * a.step[2],
              bt = batch * b.step[0] + row * b.step[1] + head * b.step[2];
  for (Index c = 0; c < a.size[3]; ++c)
    sum +=
        load_double(a.data, a.dtype, at + c * a.step[3]) * load_double(b.data, b.dtype, bt + c * b.step[3]);
  largest = std::max(largest, static_cast<float>(std::fabs(sum)));
  return static_cast<float>(sum);
}

/// The law of deltas over the rows of a panel.
double delta_error(const GradientRun& run, const RowTask& task, const GradientPanelView& panel) {
  const AnyView &out = run.args.forward.out, &dout = run.args.dout;
  const int n = run.mixed.core().panel;
  double worst = 0;
  for (int i = 0; i < panel.in.lanes.count; ++i) {
    float all = 0, largest = 1e-6f;
    for (Index h = 0; h < run.mixed.before.to; ++h) all += panel.delta[h * n + i];
    for (Index v = 0; v < run.mixed.after.to; ++v)
      all -= dot_of(dout, out, task.at.tensor_batch, task.at.q_row + panel.in.lanes.token[i], v, largest);
    worst = std::max(worst, static_cast<double>(std::fabs(all) / largest));
  }
  return worst;
}

template <class Body>
void each_block(const GradientRun& run, GradientScratch& s, const RowTask& task, GradientPanelView* panels,
                Index count, bool keys_as_values, Body&& body) {
  for (Index key0 = 0; key0 < task.at.kv_tokens; key0 += kMixKeys) {
    const Index keys = std::min(kMixKeys, task.at.kv_tokens - key0);
    bool packed = false;
    for (Index i = 0; i < count; ++i) {
      const Opening opening = open_block(run.mixed, task.at, task.sequence, s.in, panels[i].in, key0, keys);
      if (!opening.some) continue;
      if (!packed) pack_block(run, task.at, key0, keys, keys_as_values, s);
      packed = true;
      body(panels[i], i, opening, key0);
    }
  }
}

/// A block of queries of one sequence: deltas, then dq and what belongs to its rows.
void by_rows(const GradientRun& run, GradientScratch& s, Index sequence, Index block, double& worst) {
  const AttentionProblem& p = run.problem.forward;
  const GradientSpec& wants = run.problem.wants;
  const Core& core = run.mixed.core();
  const RowTask task{place_of(p, run.args.forward, sequence), sequence};
  const Index n = core.panel, all = ceil_div(task.at.q_tokens, n), first = block * kTaskPanels;
  if (first >= all) return;
  const Index count = std::min(kTaskPanels, all - first), step = run.mixed.tile_step();
  GradientPanelView panels[kTaskPanels];
  for (Index i = 0; i < count; ++i) {
    panels[i] = view_panel(run, task, first + i, s.lanes[i]);
    std::fill_n(panels[i].delta, run.mixed.before.to * n, 0.0f);
    clear_row_sums(run, s.sums[i]);
  }

  each_block(run, s, task, panels, count, false,
             [&](GradientPanelView& panel, Index, const Opening& opening, Index key0) {
               weights_of_block(run, s, panel, task, opening, key0);
               weight_slopes(run, s, panel, task, opening, key0, nullptr);
               for (Index h = 0; h < run.mixed.before.to; ++h)
                 core.add_dots(s.p + h * step, s.dp() + h * step, 0, opening.to, panel.delta + h * n);
             });
  if (run.checks)
    for (Index i = 0; i < count; ++i) worst = std::max(worst, delta_error(run, task, panels[i]));

  const bool rows = wants.q || wants.gate || wants.mix_before || wants.mix_after || wants.mix_q;
  if (rows)
    each_block(run, s, task, panels, count, wants.q,
               [&](GradientPanelView& panel, Index i, const Opening& opening, Index key0) {
                 RowSums& sums = s.sums[i];
                 weights_of_block(run, s, panel, task, opening, key0);
                 if (wants.gate) outputs_of_block(run, s, panel, task, opening, key0, false);
                 weight_slopes(run, s, panel, task, opening, key0, wants.gate ? sums.gate : nullptr);
                 mix_slopes(run, s, panel, 1, opening.to, sums.query[1], nullptr,
                            wants.mix_after ? panel.dmatrix[1] : nullptr);
                 logit_slopes(run, s, panel, opening.to);
                 mix_slopes(run, s, panel, 0, opening.to, sums.query[0], nullptr,
                            wants.mix_before ? panel.dmatrix[0] : nullptr);
                 if (!wants.q) return;
                 const float* ds = score_slopes(run, s, panel, opening);
                 for (Index m = 0; m < p.heads.q.heads; ++m) {
                   const Tile tile{
                       const_cast<float*>(ds) + m * step, nullptr, 0, opening.to, nullptr, nullptr, nullptr};
                   core.weigh_on(tile, s.key_values + p.heads.k.slot(m) * s.key_value_bytes, p.heads.q.dim,
                                 sums.dq + m * core.columns(p.heads.q.dim) * n);
                 }
               });
  for (Index i = 0; i < count; ++i) write_row_sums(run, s, task, panels[i], s.sums[i]);
}

/// A block of keys of one sequence against all its queries: dk, dv and what belongs to these keys.
void by_keys(const GradientRun& run, GradientScratch& s, Index sequence, Index key0) {
  const AttentionProblem& p = run.problem.forward;
  const GradientSpec& wants = run.problem.wants;
  const Core& core = run.mixed.core();
  const RowTask task{place_of(p, run.args.forward, sequence), sequence};
  const Index n = core.panel, step = run.mixed.tile_step(), wide = core.columns(p.heads.q.dim),
              value_wide = core.columns(p.heads.v.dim);
  if (key0 >= task.at.kv_tokens) return;
  const Index keys = std::min(kMixKeys, task.at.kv_tokens - key0);
  pack_block(run, task.at, key0, keys, false, s);
  clear_key_sums(run, s);
  for (Index q = 0; q < ceil_div(task.at.q_tokens, n); ++q) {
    GradientPanelView panel = view_panel(run, task, q, s.lanes[0]);
    const Opening opening = open_block(run.mixed, task.at, sequence, s.in, panel.in, key0, keys);
    if (!opening.some) continue;
    note_open_keys(run, s, panel, opening);
    weights_of_block(run, s, panel, task, opening, key0);
    if (wants.v) {
      outputs_of_block(run, s, panel, task, opening, key0, true);
      for (Index v = 0; v < p.heads.v.heads; ++v) {
        const RowPart part{s.u + v * step, panel.dout_rows + v * core.row_bytes(p.heads.v.dim),
                           panel.in.lanes.count};
        core.add_rows(&part, 1, 0, opening.to, p.heads.v.dim, s.dv + v * kMixKeys * value_wide);
      }
      if (!*panel.finite) add_unusual_douts(run, s, task, panel, opening);
    }
    if (!(wants.k || wants.mix_k)) continue;
    weight_slopes(run, s, panel, task, opening, key0, nullptr);
    mix_slopes(run, s, panel, 1, opening.to, nullptr, s.key_sums[1], nullptr);
    logit_slopes(run, s, panel, opening.to);
    mix_slopes(run, s, panel, 0, opening.to, nullptr, s.key_sums[0], nullptr);
    if (!wants.k) continue;
    float* ds = score_slopes(run, s, panel, opening);
    for (Index m = 0; m < p.heads.q.heads; ++m) {
      clear_rest(run, ds + m * step, opening.to);
      const RowPart part{ds + m * step, panel.q_rows + m * core.row_bytes(p.heads.q.dim),
                         panel.in.lanes.count};
      core.add_rows(&part, 1, 0, opening.to, p.heads.q.dim, s.dk + m * kMixKeys * wide);
    }
  }
  write_key_sums(run, s, task, key0, keys);
}

std::string refuse(const BackwardProblem& p) {
  const AttentionProblem& f = p.forward;
  if (!f.heads.mixes()) return "heads are not mixed: cpu/backward takes them one by one";
  if (f.dtype == DType::f64) return "dtype is f64: this kernel computes in f32";
  if (!f.lse) return "it starts from the log-sum-exp of the forward, and none is given";
  if (p.wants.bias || p.wants.slopes || p.wants.relative || p.wants.scale)
    return "gradients of a bias, of slopes, of a relative table or of a scale are asked with mixed heads";
  return {};
}

std::size_t workspace_bytes(const BackwardProblem& p, int threads) {
  const BackwardArgs none;
  const TileKernels& kernels = *chosen_isa().kernels();
  GradientRun run = gradient_run_of(p, none, kernels);
  Arena count = Arena::measuring();
  book_shared(run, count);
  count.take<GradientScratch>("mixed.workers", threads);
  return whole_pieces(count) + static_cast<std::size_t>(threads) * worker_bytes(run, kTaskPanels);
}

Status run_with(const BackwardProblem& p, const BackwardArgs& args, std::span<std::byte> workspace,
                ThreadPool& pool, double* worst) noexcept {
  const AttentionProblem& f = p.forward;
  GradientRun run = gradient_run_of(p, args, *chosen_isa().kernels());
  run.checks = worst != nullptr;
  Arena arena(workspace);
  book_shared(run, arena);
  auto* scratch = arena.take<GradientScratch>("mixed.workers", pool.threads());
  const std::size_t first = whole_pieces(arena), each = worker_bytes(run, kTaskPanels);
  for (int worker = 0; worker < pool.threads(); ++worker) {
    Arena own(workspace.subspan(first + static_cast<std::size_t>(worker) * each, each));
    scratch[worker] = book_gradients(run, kTaskPanels, own);
  }
  const Core& core = run.mixed.core();
  const Index panels = ceil_div(f.q_tokens, core.panel);
  pool.parallel_for(f.batch * panels, [&](Index task, int worker) {
    pack_panel(run, scratch[worker], task / panels, task % panels);
  });
  const Index blocks = ceil_div(panels, kTaskPanels);
  pool.parallel_for(f.batch * blocks, [&](Index task, int worker) {
    by_rows(run, scratch[worker], task % f.batch, blocks - 1 - task / f.batch, scratch[worker].worst);
  });
  if (p.wants.k || p.wants.v || p.wants.mix_k) {
    pool.parallel_for(f.batch * ceil_div(f.kv_tokens, kMixKeys), [&](Index task, int worker) {
      by_keys(run, scratch[worker], task % f.batch, task / f.batch * kMixKeys);
    });
  }
  fold_shared(run, pool);
  if (worst)
    for (int worker = 0; worker < pool.threads(); ++worker) *worst = std::max(*worst, scratch[worker].worst);
  return Status::ok;
}

Status run_plain(const BackwardProblem& p, const BackwardArgs& args, std::span<std::byte> workspace,
                 ThreadPool& pool) noexcept {
  return run_with(p, args, workspace, pool, nullptr);
}

std::string numerics(const BackwardProblem& p) {
  const TileKernels& kernels = *chosen_isa().kernels();
  return text("cpu/mixed_backward ", kernels.isa, ' ', kernels.gradients->name, " head_dim ",
              p.forward.heads.q.dim, " value_dim ", p.forward.heads.v.dim, " block ", kMixKeys);
}

}  // namespace

const BackwardKernel kMixedBackward{"cpu/mixed_backward", refuse, workspace_bytes, run_plain, numerics};

Status run_mixed_backward_checking(const BackwardProblem& p, const BackwardArgs& args,
                                   std::span<std::byte> workspace, ThreadPool& pool, double& worst) noexcept {
  worst = 0;
  return run_with(p, args, workspace, pool, &worst);
}

}  // namespace headwise::cpu
