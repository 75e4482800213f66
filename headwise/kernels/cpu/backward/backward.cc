#include "headwise/kernels/cpu/backward/backward.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "headwise/base/caller_watch.h"
#include "headwise/kernels/cpu/backward/panel.h"
#include "headwise/kernels/cpu/isa/isa.h"

namespace headwise::cpu::backward {

using forward::rows_of;
using forward::rows_of_run;
using forward::scale_of;
namespace {

/// Keys whose dk and dv one task of the split form makes; fewer when that leaves threads without work.
constexpr Index kTaskKeys = 512;

/// Scales and writes what belongs to the rows of a panel.
void finish_rows(const BackwardRun& run, const SequenceLocation& at, BackwardScratch& s,
                 GradientPanel& panel) {
  const AttentionProblem& p = run.problem.forward;
  const GradientSpec& wants = run.problem.wants;
  const forward::Panel& lanes = panel.lanes;
  const Index dim = p.heads.q.dim, wide = run.core.gradients.columns(dim),
              widest = std::max(wide, run.core.gradients.columns(p.heads.v.dim));
  if (wants.scale) {
    run.core.gradients.unpanel(panel.dq, dim, s.ones, s.rows, wide);
    float* q = s.rows + run.core.panel * widest;
    for (int i = 0; i < lanes.count; ++i) {
      const Rows rows = rows_of(run.args.forward.q, p.heads.q, lanes.head[i], at.tensor_batch, at.q_row);
      run.forward.kernels.load_row(rows, lanes.token[i], dim, q);
      double sum = 0;
      for (Index c = 0; c < dim; ++c)  // a dq of 0 stands for closed pairs, too: q may be anything there
        if (const float x = s.rows[i * wide + c]; x != 0)
          sum += static_cast<double>(x) * static_cast<double>(q[c]);
      run.scale[run.row(at, lanes.head[i], lanes.token[i])] = sum;
    }
  }
  if (wants.q) {
    run.core.gradients.unpanel(panel.dq, dim, lanes.scale, s.rows, wide);
    for (int i = 0; i < lanes.count; ++i) {
      const float* from = s.rows + i * wide;
      if (run.q_shares) {
        std::copy_n(from, dim, run.q_shares + run.row(at, lanes.head[i], lanes.token[i]) * dim);
        continue;
      }
      const AnyView& to = run.args.dq;
      const Index row = at.q_row + lanes.token[i];
      const Index offset = at.tensor_batch * to.step[0] + row * to.step[1] + lanes.head[i] * to.step[2];
      run.forward.kernels.store_row(from, dim, forward::row_type(to.dtype),
                                    static_cast<std::byte*>(to.data) + offset * size_of(to.dtype),
                                    to.step[3]);
    }
  }
  for (int i = 0; i < lanes.count; ++i) {
    const Index row = run.row(at, lanes.head[i], lanes.token[i]);
    if (wants.slopes) run.slope[row] = static_cast<double>(panel.slope_sum[i]);
    if (!wants.gate) continue;
    const AnyView& to = run.args.dgate;
    store_double(
        to.data, to.dtype,
        at.tensor_batch * to.step[0] + (at.q_row + lanes.token[i]) * to.step[1] + lanes.head[i] * to.step[2],
        static_cast<double>(panel.gate_sum[i]));
  }
}

/// Scales and writes rows of dk or dv.
void finish_keys(const BackwardRun& run, const SequenceLocation& at, const Piece& piece, BackwardScratch& s,
                 const KeyGradient& g) {
  const HeadLayout& layout = g.layout;
  const AnyView& to = g.to;
  const Index wide = run.core.gradients.columns(layout.dim), unit = piece.head0 / run.forward.run_heads;
  const Index units = ceil_div(layout.heads, run.forward.run_heads);
  for (Index k = piece.key0; k < piece.key1; ++k) {
    const float* from = g.rows + (k - piece.key0) * wide;
    for (Index c = 0; c < layout.dim; ++c) s.rows[c] = from[c] * g.scale + 0.0f;  // -0 becomes +0
    const Index row = at.kv_row + k;
    if (g.shares) {
      std::copy_n(s.rows, layout.dim,
                  g.shares + ((at.tensor_batch * units + unit) * run.kv_rows() + row) * layout.dim);
      continue;
    }
    const Index offset =
        at.tensor_batch * to.step[0] + row * to.step[1] + layout.slot(piece.head0) * to.step[2];
    run.forward.kernels.store_row(s.rows, layout.dim, forward::row_type(to.dtype),
                                  static_cast<std::byte*>(to.data) + offset * size_of(to.dtype), to.step[3]);
  }
}

void work(const BackwardRun& run, BackwardScratch& s, const SequenceLocation& at, const Piece& piece) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.core;
  const GradientSpec& wants = run.problem.wants;
  const Index wide = run.core.gradients.columns(p.heads.q.dim),
              value_wide = run.core.gradients.columns(p.heads.v.dim);
  const forward::KvHeadRows rows{
      rows_of(run.args.forward.k, p.heads.k, piece.head0, at.tensor_batch, at.kv_row),
      rows_of(run.args.forward.v, p.heads.v, piece.head0, at.tensor_batch, at.kv_row)};
  float *dk = piece.key_side && wants.k ? s.dk : nullptr, *dv = piece.key_side && wants.v ? s.dv : nullptr;
  const Index acc = round_up(piece.key1 - piece.key0, run.step_keys) + 8;
  if (dk) std::fill_n(dk, acc * wide, 0.0f);
  if (dv) std::fill_n(dv, acc * value_wide, 0.0f);
  const bool keeps = ceil_div(piece.key1 - piece.key0, run.step_keys) <= s.slots;
  std::fill_n(s.packed, s.slots, std::uint8_t{0}), std::fill_n(s.finite, s.slots, std::uint8_t{1});
  core.begin();
  for (Index row0 = piece.row0; row0 < piece.row1 && still_wanted(); row0 += run.block_rows) {
    const Index row1 = std::min(piece.row1, row0 + run.block_rows),
                panels = ceil_div(row1 - row0, core.panel);
    for (Index i = 0; i < panels; ++i) {
      GradientPanel& panel = s.panels[i];
      fill_gradients(run, at, {piece.head0, row0 + i * core.panel, row1}, s, panel, piece.key_side);
      if (!piece.row_side) continue;
      if (run.needs_dq()) std::fill_n(panel.dq, wide * core.panel, 0.0f);
      for (float* sum : {panel.gate_sum, panel.slope_sum}) std::fill_n(sum, core.panel, 0.0f);
    }
    for (Index key0 = piece.key0; key0 < piece.key1 && still_wanted(); key0 += run.step_keys) {
      const Index slot = keeps ? (key0 - piece.key0) / run.step_keys : 0;
      enter_slot(run, s, slot);
      if (!keeps) s.packed[0] = 0, s.finite[0] = 1;
      const Index count = std::min(run.step_keys, piece.key1 - key0), own = key0 - piece.key0;
      for (Index i = 0; i < panels; i += run.group)
        gradient_step(run, at, piece, s,
                      {.panel0 = i,
                       .panels = std::min(run.group, panels - i),
                       .rows = rows,
                       .key0 = key0,
                       .count = count,
                       .packed = s.packed[slot],
                       .finite = s.finite[slot],
                       .dk = dk ? dk + own * wide : nullptr,
                       .dv = dv ? dv + own * value_wide : nullptr});
    }
    if (piece.row_side)
      for (Index i = 0; i < panels; ++i) finish_rows(run, at, s, s.panels[i]);
  }
  core.end();
  bool one_scale = true;  // else the rows of q brought their scales
  for (Index h = 1; h < run.forward.run_heads && piece.head0 + h < p.heads.q.heads; ++h)
    one_scale = one_scale && scale_of(run.forward, piece.head0 + h) == scale_of(run.forward, piece.head0);
  if (dk)
    finish_keys(
        run, at, piece, s,
        {p.heads.k, run.args.dk, dk, run.k_shares, one_scale ? scale_of(run.forward, piece.head0) : 1.0f});
  if (dv) finish_keys(run, at, piece, s, {p.heads.v, run.args.dv, dv, run.v_shares, 1.0f});
}

Index runs_of(const AttentionProblem& p) {
  return ceil_div(p.heads.q.heads, std::gcd(p.heads.k.group, p.heads.v.group));
}
/// Rows of a task of the split form's second half: whole blocks would leave threads without work.
Index split_rows(const BackwardProblem& p, const Core& core, Index block_rows, int threads) {
  const Index step_rows = round_up(core.gradients.step_rows, core.panel);
  const Index all =
      saturated(Checked(p.forward.batch) * Checked(p.forward.heads.q.heads) * Checked(p.forward.q_tokens));
  Index rows = block_rows;
  while (rows > step_rows && all / rows < 4 * threads) rows = round_up(rows / 2, step_rows);
  return rows;
}
Index split_keys(const BackwardProblem& p, const Core& core, int threads) {
  const Index all =
      saturated(Checked(p.forward.batch) * Checked(runs_of(p.forward)) * Checked(p.forward.kv_tokens));
  Index keys = kTaskKeys;
  while (keys > core.gradients.step_keys && all / keys < 4 * threads) keys /= 2;
  return keys;
}
Index acc_keys(Form form, const BackwardProblem& p, const Core& core, int threads) {
  const Index keys = form == Form::joined ? p.forward.kv_tokens : split_keys(p, core, threads);
  return round_up(keys, core.gradients.step_keys) + 8;
}

/// What all tasks share; the same call measures and hands out. Pieces that are not asked are null.
struct Shared {
  float *delta, *q_shares, *k_shares, *v_shares;
  double *scale, *slope;
  BackwardScratch* scratch;
};
Shared book_shared(const BackwardProblem& p, int threads, Arena& arena) {
  const AttentionProblem& f = p.forward;
  const Index batch = f.ragged ? 1 : f.batch, heads = f.heads.q.heads;
  const Checked rows = Checked(batch) * Checked(heads) * Checked(f.ragged ? f.q_total : f.q_tokens);
  const Checked units = Checked(batch) * Checked(runs_of(f)) * Checked(f.ragged ? f.kv_total : f.kv_tokens);
  const auto take = [&]<class T>(Type<T>, bool wanted, const char* name, Checked count) {
    T* piece = wanted ? arena.take<T>(name, saturated(count)) : nullptr;
    return piece;
  };
  Shared s{};
  s.delta = take(Type<float>{}, true, "backward.delta", rows);
  s.q_shares = take(Type<float>{}, p.wants.q && q_is_shared(p), "backward.dq", rows * Checked(f.heads.q.dim));
  s.k_shares =
      take(Type<float>{}, p.wants.k && k_is_shared(p), "backward.dk", units * Checked(f.heads.k.dim));
  s.v_shares =
      take(Type<float>{}, p.wants.v && v_is_shared(p), "backward.dv", units * Checked(f.heads.v.dim));
  s.scale = take(Type<double>{}, p.wants.scale, "backward.scale", rows);
  s.slope = take(Type<double>{}, p.wants.slopes, "backward.slopes", rows);
  s.scratch = take(Type<BackwardScratch>{}, true, "backward.workers", Checked(threads));
  return s;
}
std::size_t whole(const Arena& arena) {
  return static_cast<std::size_t>(round_up(static_cast<Index>(arena.used()), Index{Arena::kAlign}));
}
std::size_t worker_bytes(Form form, const BackwardProblem& p, const Core& core, int threads) {
  Arena count = Arena::measuring();
  book_backward(p, core, block_rows_for(p, core), acc_keys(form, p, core, threads), count);
  return whole(count);
}

void run_joined(const BackwardRun& run, BackwardScratch* scratch, ThreadPool& pool, int threads) noexcept {
  const AttentionProblem& p = run.problem.forward;
  const Index runs = runs_of(p);
  const auto body = [&](Index task, int worker) {
    const Index sequence = task / runs, head0 = task % runs * run.forward.run_heads;
    const SequenceLocation at = place_of(p, run.args.forward, sequence);
    work(run, scratch[worker], at,
         {.head0 = head0,
          .row0 = 0,
          .row1 = rows_of_run(run.forward, at, head0),
          .key0 = 0,
          .key1 = at.kv_tokens,
          .row_side = run.row_side(),
          .key_side = run.key_side()});
  };
  pool.parallel_for(p.batch * runs, body, threads);
}

void run_split(const BackwardRun& run, BackwardScratch* scratch, ThreadPool& pool, int threads) noexcept {
  const AttentionProblem& p = run.problem.forward;
  const Index runs = runs_of(p), groups = p.batch * runs;
  const Index keys = split_keys(run.problem, run.core, pool.threads()),
              key_blocks = ceil_div(p.kv_tokens, keys);
  const auto by_keys = [&](Index task,
                           int worker) {  // causal: the first keys have most to do, and start first
    const Index sequence = task % groups / runs, head0 = task % runs * run.forward.run_heads,
                key0 = task / groups * keys;
    const SequenceLocation at = place_of(p, run.args.forward, sequence);
    if (key0 < at.kv_tokens)
      work(run, scratch[worker], at,
           {.head0 = head0,
            .row0 = 0,
            .row1 = rows_of_run(run.forward, at, head0),
            .key0 = key0,
            .key1 = std::min(at.kv_tokens, key0 + keys),
            .row_side = false,
            .key_side = true});
  };
  if (run.key_side()) pool.parallel_for(groups * key_blocks, by_keys, threads);
  const Index rows = split_rows(run.problem, run.core, run.block_rows, pool.threads());
  const Index row_blocks = ceil_div(run.forward.run_heads * p.q_tokens, rows);
  const auto by_rows = [&](Index task, int worker) {
    const Index sequence = task % groups / runs, head0 = task % runs * run.forward.run_heads,
                row0 = (row_blocks - 1 - task / groups) * rows;
    const SequenceLocation at = place_of(p, run.args.forward, sequence);
    const Index all = rows_of_run(run.forward, at, head0);
    if (row0 < all)
      work(run, scratch[worker], at,
           {.head0 = head0,
            .row0 = row0,
            .row1 = std::min(all, row0 + rows),
            .key0 = 0,
            .key1 = at.kv_tokens,
            .row_side = true,
            .key_side = false});
  };
  if (run.row_side()) pool.parallel_for(groups * row_blocks, by_rows, threads);
}

std::string refuse(const BackwardProblem& p) {
  if (p.forward.dtype == DType::f64) return "dtype is f64: this kernel computes in f32";
  if (p.forward.heads.mixes()) return kHeadsAreMixed;
  if (p.forward.heads.norm == Norm::entmax) return "weights are entmax: their slopes are cpu/entmax's";
  if (!p.forward.lse) return "it starts from the log-sum-exp of the forward, and none is given";
  if (p.forward.heads.terms.rows && (p.wants.bias || p.wants.relative))
    return "heads list their rows: dbias and drelative are summed over all rows here";
  return {};
}

std::size_t workspace_bytes(const BackwardProblem& p, int threads) {
  return bytes_as(form_of(p, threads), p, threads);
}
Status run_chosen(const BackwardProblem& p, const BackwardArgs& args, std::span<std::byte> workspace,
                  ThreadPool& pool) noexcept {
  return run_as(form_of(p, pool.threads()), p, args, workspace, pool);
}
std::string numerics(const BackwardProblem& p) {
  const TileKernels& kernels = *chosen_isa().kernels();
  return text("cpu/backward ", kernels.isa, ' ', backward_core(p, kernels).name, " head_dim ",
              p.forward.heads.q.dim, " value_dim ", p.forward.heads.v.dim);
}

}  // namespace

Form form_of(const BackwardProblem& p, int threads) {
  const GradientSpec& w = p.wants;
  const bool both = (w.q || w.scale || w.slopes || w.gate) && (w.k || w.v);
  if (!both) return Form::split;
  // Five products on as many threads as there are tasks, or seven on all.
  const Index tasks = saturated(Checked(p.forward.batch) * Checked(runs_of(p.forward)));
  const Index rounds = ceil_div(tasks, threads);
  return 5.0 * static_cast<double>(rounds) * threads <= 7.0 * static_cast<double>(tasks) ? Form::joined
                                                                                         : Form::split;
}

std::size_t bytes_as(Form form, const BackwardProblem& p, int threads) {
  Arena count = Arena::measuring();
  book_shared(p, threads, count);
  const std::size_t each = worker_bytes(form, p, backward_core(p, *chosen_isa().kernels()), threads);
  const Checked all =
      Checked(static_cast<Index>(whole(count))) + Checked(threads) * Checked(static_cast<Index>(each));
  require(all.ok, ErrorKind::out_of_memory, "attention_backward", "the workspace of ", threads,
          " threads is larger than any address space; use smaller sizes or fewer threads");
  return static_cast<std::size_t>(all.value);
}

Status run_as(Form form, const BackwardProblem& p, const BackwardArgs& args, std::span<std::byte> workspace,
              ThreadPool& pool) noexcept {
  const TileKernels& kernels = *chosen_isa().kernels();
  const Core& core = backward_core(p, kernels);
  const AttentionProblem& f = p.forward;
  Arena arena(workspace);
  const Shared shared = book_shared(p, pool.threads(), arena);
  const forward::OnlineRun forward = forward::run_of(f, args.forward, kernels, core, core.panel);
  const BackwardRun run{p,
                        args,
                        forward,
                        core,
                        block_rows_for(p, core),
                        core.gradients.step_keys,
                        ceil_div(core.gradients.step_rows, core.panel),
                        shared.delta,
                        shared.scale,
                        shared.slope,
                        shared.q_shares,
                        shared.k_shares,
                        shared.v_shares};
  const double flop = 4.0 * static_cast<double>(f.heads.q.dim + f.heads.v.dim) *
                      static_cast<double>(f.heads.q.heads) * static_cast<double>(f.batch) *
                      static_cast<double>(f.q_tokens) * static_cast<double>(f.kv_tokens);
  const int threads = static_cast<int>(std::clamp(flop / 1e6, 1.0, static_cast<double>(pool.threads())));
  const std::size_t first = whole(arena), each = worker_bytes(form, p, core, pool.threads());
  for (int worker = 0; worker < threads; ++worker) {
    Arena own(workspace.subspan(first + static_cast<std::size_t>(worker) * each, each));
    shared.scratch[worker] =
        book_backward(p, core, run.block_rows, acc_keys(form, p, core, pool.threads()), own);
  }
  row_deltas(run, shared.scratch, pool, threads);
  if (f.heads.terms.rows) clear_unlisted(run, pool, threads);
  if (form == Form::joined)
    run_joined(run, shared.scratch, pool, threads);
  else
    run_split(run, shared.scratch, pool, threads);
  if (p.wants.bias) bias_gradient(run, shared.scratch, pool, threads);
  if (p.wants.relative) relative_gradient(run, shared.scratch, pool, threads);
  fold_terms(run, pool, threads);
  fold_tensors(run, shared.scratch, pool, threads);
  return Status::ok;
}

const BackwardKernel kBackward{"cpu/backward", kWritten, refuse, workspace_bytes, run_chosen, numerics};

}  // namespace headwise::cpu::backward
