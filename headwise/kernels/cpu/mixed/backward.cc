#include "headwise/kernels/cpu/mixed/backward.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/cpu/mixed/gradients.h"

namespace headwise::cpu::mixed {
namespace {

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
double delta_error(const MixedBackwardRun& run, const SequenceLocation& location,
                   const MixedGradientPanel& panel) {
  const AnyView &out = run.args.forward.out, &dout = run.args.dout;
  const int n = run.mixed.core().panel;
  double worst = 0;
  for (int i = 0; i < panel.in.lanes.count; ++i) {
    float all = 0, largest = 1e-6f;
    for (Index h = 0; h < run.mixed.before.to; ++h) all += panel.delta[h * n + i];
    for (Index v = 0; v < run.mixed.after.to; ++v)
      all -= dot_of(dout, out, location.tensor_batch, location.q_row + panel.in.lanes.token[i], v, largest);
    worst = std::max(worst, static_cast<double>(std::fabs(all) / largest));
  }
  return worst;
}

/// Waits until the panel before has passed more than `block` blocks. Panels start in ascending order, so the
/// one waited for is at work or done.
void await_turn(const MixedBackwardRun& run, Index panel, Index block) {
  const std::atomic_ref<Index> before(run.passed[panel - 1]);
  for (int looks = 0; before.load(std::memory_order_acquire) <= block;)
    if (++looks > 1000) std::this_thread::yield();
}
void pass(const MixedBackwardRun& run, Index panel, Index blocks) {
  std::atomic_ref<Index>(run.passed[panel]).store(blocks, std::memory_order_release);
}

/// What the tile of a block adds to its panel.
void add_to_rows(const MixedBackwardRun& run, GradientScratch& s, const float* ds, Index to) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const Index n = core.panel;
  for (Index m = 0; run.gathers_dq() && m < p.heads.q.heads; ++m) {
    const Tile tile{const_cast<float*>(ds) + m * run.mixed.tile_step() - s.key0 * n,
                    nullptr,
                    s.key0,
                    s.key0 + to,
                    nullptr,
                    nullptr,
                    nullptr};
    core.gradients.weigh_on(tile, s.key_values + p.heads.k.slot(m) * run.key_value_bytes(), p.heads.q.dim,
                            s.panel.dq + m * core.gradients.columns(p.heads.q.dim) * n);
  }
}

/// What it adds to its keys.
void add_to_keys(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location, float* ds,
                 const Opening& opening) {
  const AttentionProblem& p = run.problem.forward;
  const GradientSpec& wants = run.problem.wants;
  const Core& core = run.mixed.core();
  const Index step = run.mixed.tile_step(), wide = core.gradients.columns(p.heads.q.dim),
              value_wide = core.gradients.columns(p.heads.v.dim), count = s.panel.in.lanes.count;
  note_open_keys(run, s, opening);
  for (Index v = 0; wants.v && v < p.heads.v.heads; ++v) {
    const PanelRows part{s.u + v * step, s.panel.dout_rows + v * core.gradients.row_bytes(p.heads.v.dim),
                         count};
    core.gradients.add_rows(&part, 1, 0, opening.to, p.heads.v.dim, s.dv + v * kMixKeys * value_wide);
  }
  if (wants.v && !s.panel.finite) add_unusual_douts(run, s, location, opening);
  for (const int which : {1, 0}) mix_slopes(run, s, which, opening.to, nullptr, s.key_sums[which], nullptr);
  for (Index m = 0; wants.k && m < p.heads.q.heads; ++m) {
    clear_rest(run, ds + m * step, opening.to);
    const PanelRows part{ds + m * step, s.panel.q_rows + m * core.gradients.row_bytes(p.heads.q.dim), count};
    core.gradients.add_rows(&part, 1, 0, opening.to, p.heads.q.dim, s.dk + m * kMixKeys * wide);
  }
}

/// A panel of queries of one sequence against all its keys: deltas, then every gradient.
void attend_panel(const MixedBackwardRun& run, GradientScratch& s, Index sequence, Index q) {
  const AttentionProblem& p = run.problem.forward;
  const GradientSpec& wants = run.problem.wants;
  const Core& core = run.mixed.core();
  const SequenceLocation location = place_of(p, run.args.forward, sequence);
  const Index n = core.panel, step = run.mixed.tile_step();
  if (q * n >= location.q_tokens) return;
  pack_panel(run, location, q, s);
  MixedGradientPanel& panel = s.panel;
  clear_sums(run, panel);
  each_block(run, s, location, [&](const Opening& opening, Index key0) {
    weights_of_block(run, s, location, opening, key0);
    if (wants.gate) outputs_of_block(run, s, location, opening, key0, false);
    output_slopes(run, s, location, opening, key0, wants.gate ? panel.dgate : nullptr);
    mix_slopes(run, s, 1, opening.to, panel.dquery[1], nullptr, panel.dmatrix[1]);
    weight_slopes(run, s, opening);
    for (Index h = 0; h < run.mixed.before.to; ++h)
      core.gradients.add_dots(s.p + h * step, s.dp + h * step, 0, opening.to, panel.delta + h * n);
  });
  if (run.checks) s.worst = std::max(s.worst, delta_error(run, location, panel));

  const Index at = run.first_panel(location) + q;
  const bool keys = wants.k || wants.v || wants.mix_k;
  if (keys || run.gathers_dq() || wants.slopes || wants.mix_before || panel.dquery[0])
    each_block(run, s, location, [&](const Opening& opening, Index key0) {
      if (run.form == Form::twice) {
        weights_of_block(run, s, location, opening, key0);
        output_slopes(run, s, location, opening, key0, nullptr);
      }
      if (wants.v) outputs_of_block(run, s, location, opening, key0, true);
      if (run.form == Form::twice || run.keeps_du()) weight_slopes(run, s, opening);
      logit_slopes(run, s, opening.to);
      mix_slopes(run, s, 0, opening.to, panel.dquery[0], nullptr, panel.dmatrix[0]);
      add_alibi_slopes(run, s, key0, opening.to);
      float* ds = score_slopes(run, s, opening);
      add_to_rows(run, s, ds, opening.to);
      if (!keys) return;
      if (q > 0) await_turn(run, at, key0 / kMixKeys);
      add_to_keys(run, s, location, ds, opening);
      pass(run, at, key0 / kMixKeys + 1);
    });
  const Index blocks = ceil_div(location.kv_tokens, kMixKeys);
  if (q > 0 && blocks > 0) await_turn(run, at, blocks - 1);
  pass(run, at, blocks);
  write_row_sums(run, s, location);
}

std::string refuse(const BackwardProblem& p) {
  const AttentionProblem& f = p.forward;
  if (!f.heads.mixes()) return "heads are not mixed: cpu/backward takes them one by one";
  if (f.dtype == DType::f64) return "dtype is f64: this kernel computes in f32";
  if (!f.lse) return "it starts from the log-sum-exp of the forward, and none is given";
  return {};
}

Form form_of(const BackwardProblem& p) {
  const Index bytes = kept_gradient_bytes(p, *chosen_isa().kernels()->gradients);
  return bytes <= kKeptBytes ? Form::kept : Form::twice;
}

std::size_t workspace_bytes(const BackwardProblem& p, int threads) {
  return backward_bytes_as(form_of(p), p, threads);
}
Status run_plain(const BackwardProblem& p, const BackwardArgs& args, std::span<std::byte> workspace,
                 ThreadPool& pool) noexcept {
  return run_backward_as(form_of(p), p, args, workspace, pool, nullptr);
}

std::string numerics(const BackwardProblem& p) {
  const TileKernels& kernels = *chosen_isa().kernels();
  return text("cpu/mixed_backward ", kernels.isa, ' ', kernels.gradients->name, " head_dim ",
              p.forward.heads.q.dim, " value_dim ", p.forward.heads.v.dim, " block ", kMixKeys);
}

}  // namespace

const BackwardKernel kBackward{"cpu/mixed_backward", kWritten, refuse, workspace_bytes, run_plain, numerics};

std::size_t backward_bytes_as(Form form, const BackwardProblem& p, int threads) {
  const BackwardArgs none;
  MixedBackwardRun run = gradient_run_of(p, none, *chosen_isa().kernels(), form);
  Arena count = Arena::measuring();
  book_shared(run, count);
  count.take<GradientScratch>("mixed.workers", threads);
  return whole_pieces(count) + static_cast<std::size_t>(threads) * worker_bytes(run);
}

Status run_backward_as(Form form, const BackwardProblem& p, const BackwardArgs& args,
                       std::span<std::byte> workspace, ThreadPool& pool, double* worst) noexcept {
  const AttentionProblem& f = p.forward;
  MixedBackwardRun run = gradient_run_of(p, args, *chosen_isa().kernels(), form);
  run.checks = worst != nullptr;
  Arena arena(workspace);
  book_shared(run, arena);
  auto* scratch = arena.take<GradientScratch>("mixed.workers", pool.threads());
  const std::size_t first = whole_pieces(arena), each = worker_bytes(run);
  for (int worker = 0; worker < pool.threads(); ++worker) {
    Arena own(workspace.subspan(first + static_cast<std::size_t>(worker) * each, each));
    scratch[worker] = book_gradients(run, own);
  }
  std::fill_n(run.passed, run.panel_count(), Index{0});
  const Core& core = run.mixed.core();
  const auto place_in = [&](Index sequence) { return place_of(f, args.forward, sequence); };
  pool.parallel_for(f.batch * ceil_div(f.kv_tokens, core.granule), [&](Index task, int worker) {
    pack_granule(run, place_in(task % f.batch), task / f.batch, scratch[worker]);
  });
  pool.parallel_for(f.batch * ceil_div(f.q_tokens, core.panel), [&](Index task, int worker) {
    attend_panel(run, scratch[worker], task % f.batch, task / f.batch);
  });
  if (p.wants.k || p.wants.v || p.wants.mix_k)
    pool.parallel_for(f.batch * ceil_div(f.kv_tokens, kMixKeys), [&](Index index, int worker) {
      const SequenceLocation location = place_in(index % f.batch);
      const Index key0 = index / f.batch * kMixKeys, keys = std::min(kMixKeys, location.kv_tokens - key0);
      if (keys <= 0) return;
      look_at_block(run, location, key0 / kMixKeys, scratch[worker]);
      write_key_sums(run, scratch[worker], location, key0, keys);
    });
  fold_shared(run, pool);
  if (p.wants.bias) bias_gradient(run, scratch, pool);
  if (p.wants.relative) relative_gradient(run, scratch, pool);
  for (int worker = 0; worst && worker < pool.threads(); ++worker)
    *worst = std::max(*worst, scratch[worker].worst);
  return Status::ok;
}

}  // namespace headwise::cpu::mixed
