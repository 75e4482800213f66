#include "headwise/kernels/cpu/entmax/forward.h"

#include <algorithm>
#include <cmath>

#include "headwise/kernels/cpu/entmax/lists.h"
#include "headwise/kernels/cpu/isa/isa.h"

namespace headwise::cpu::entmax {

using forward::core_for;
using forward::OnlineRun;
using forward::Panel;
namespace {

/// A list is looked through again when it has twice as many keys as were left then, and these at least.
constexpr Index kFewKeys = 64;
/// What rounding of scores and thresholds may move a floor by, in parts of their size.
constexpr float kMargin = 1e-6f;

/// Keys below the threshold of those seen so far weigh nothing in the end: more keys only raise it.
void shorten(const OnlineRun& run, const EntmaxRule& rule, KeptRow& row, float top, float& floor,
             Index& limit) {
  const float tau = run.kernels.sparse->tau(rule, row.score, row.count, top, -1.0f);
  floor = std::max(floor, top + (tau - kMargin) * rule.power - kMargin * std::fabs(top));
  Index kept = 0;
  for (Index n = 0; n < row.count; ++n)
    if (!(row.score[n] <= floor)) row.score[kept] = row.score[n], row.key[kept++] = row.key[n];
  row.count = kept;
  limit = std::max(kFewKeys, 2 * kept);
}

/// Appends what panel i keeps of the tile in s.tile.s.
void keep_tile(const OnlineRun& run, const EntmaxRule& rule, ListScratch& s, Index i,
               const forward::TileKeys& t) {
  const Core& core = run.core;
  Panel& panel = s.tile.panels[i];
  float *top = panel.total_top, *floor = s.floor + i * core.panel;
  KeptRow* rows = s.rows + i * core.panel;
  core.passes.row_max(s.tile.s, t.from, t.to, top);
  for (int lane = 0; lane < panel.count; ++lane)  // -inf stays -inf
    floor[lane] =
        std::max(floor[lane], top[lane] - rule.power - kMargin * (std::fabs(top[lane]) + rule.power));
  run.kernels.sparse->keep({.s = s.tile.s,
                            .slopes = nullptr,
                            .from = t.from,
                            .to = t.to,
                            .panel = core.panel,
                            .lanes = panel.count,
                            .floor = floor,
                            .key0 = t.key0,
                            .rows = rows});
  for (int lane = 0; lane < panel.count; ++lane)
    if (Index& limit = s.limit[i * core.panel + lane]; rows[lane].count > limit && !rows[lane].is_nan)
      shorten(run, rule, rows[lane], top[lane], floor[lane], limit);
}

/// Weights of one row's list, their sum over values, and the row's place in out and lse.
void finish_row(const OnlineRun& run, const SequenceLocation& at, ListScratch& s, const ListedRow& listed,
                const PlainRowsView& values) {
  const EntmaxRule& rule = listed.rule;
  const Panel& panel = listed.panel;
  const int lane = listed.lane;
  KeptRow& row = listed.row;
  const AttentionProblem& p = run.problem;
  const HeadInputs& in = run.args.inputs;
  const SparseKernels& sparse = *run.kernels.sparse;
  const Index head = panel.head[lane], token = at.q_row + panel.token[lane], dim = p.heads.v.dim,
              wide = round_up(dim, 16);
  float top = panel.total_top[lane];
  const bool empty = row.count == 0 && !row.is_nan;
  if (p.heads.terms.sinks)
    if (const auto sink =
            static_cast<float>(load_double(in.sinks.data, in.sinks.dtype, head * in.sinks.step[0]));
        sink != -INFINITY) {
      row.score[row.count] = sink, row.key[row.count++] = -1;
      top = std::max(sink, top);
    }
  float tau = -INFINITY, factor = 1;
  std::fill_n(s.sum, wide, 0.0f);
  if (row.is_nan || top == INFINITY || std::isnan(top)) {
    tau = NAN;
    if (!empty) std::fill_n(s.sum, dim, NAN);
  } else if (row.count > 0) {
    tau = sparse.tau(rule, row.score, row.count, top, -1.0f);
    const double sum = sparse.weights(rule, row.score, row.count, top, tau, s.w);
    Index kept = 0;
    const Index id = forward::sequence_id(run.args, at.sequence);
    for (Index n = 0; n < row.count; ++n) {
      if (s.w[n] == 0 || row.key[n] < 0) continue;
      if (p.heads.terms.dropout && !run.dropout.keep(id, head, panel.position[lane], row.key[n])) continue;
      s.w[kept] = static_cast<float>(static_cast<double>(s.w[n]) / sum);  // a single key weighs exactly 1
      row.key[kept++] = row.key[n];
    }
    sparse.sum_rows(s.w, row.key, kept, values.data, values.step, wide, s.sum);
    factor = static_cast<float>(1 / (1 - in.dropout));
    tau = static_cast<float>(static_cast<double>(rule.less) * static_cast<double>(top) +
                             static_cast<double>(tau));
  }
  if (p.heads.terms.gate && !empty)
    factor *= static_cast<float>(
        load_double(in.gate.data, in.gate.dtype,
                    at.tensor_batch * in.gate.step[0] + token * in.gate.step[1] + head * in.gate.step[2]));
  for (Index c = 0; c < dim; ++c) s.sum[c] = s.sum[c] * factor + 0.0f;  // -0 becomes +0
  const AnyView &out = run.args.out, &lse = run.args.lse;
  run.kernels.store_row(
      s.sum, dim, forward::row_type(out.dtype),
      static_cast<std::byte*>(out.data) +
          (at.tensor_batch * out.step[0] + token * out.step[1] + head * out.step[2]) * size_of(out.dtype),
      out.step[3]);
  if (lse.given())
    static_cast<float*>(lse.data)[at.tensor_batch * lse.step[0] + head * lse.step[1] + token * lse.step[2]] =
        tau;
}

/// One block of query rows of one head.
void entmax_rows(const OnlineRun& run, ListScratch& s, Index sequence, Index head, Index block) {
  const AttentionProblem& p = run.problem;
  const Core& core = run.core;
  const SequenceLocation at = place_of(p, run.args, sequence);
  const Index rows = forward::rows_of_run(run, at, head);
  const Index row0 = block * run.task_rows, row1 = std::min(rows, row0 + run.task_rows);
  if (row0 >= row1) return;
  const EntmaxRule rule = rule_of(alpha_of(run.args, head));
  const Index panels = ceil_div(row1 - row0, core.panel);
  core.begin();
  for (Index i = 0; i < panels; ++i) {
    forward::fill_panel(run, at, {head, row0 + i * core.panel, row1}, s.tile, s.tile.panels[i]);
    clear_lists(run, s, i);
    std::fill_n(s.floor + i * core.panel, core.panel, -INFINITY);
    std::fill_n(s.limit + i * core.panel, core.panel, kFewKeys);
  }
  const Rows keys = forward::key_rows(run, at, head);
  for (Index key0 = 0; key0 < at.kv_tokens; key0 += core.granule) {
    const Index n = std::min<Index>(core.granule, at.kv_tokens - key0);
    s.tile.tile_keys = nullptr;
    for (Index i = 0; i < panels; ++i) {
      forward::TileKeys t{.key0 = key0, .from = 0, .to = n};
      if (logits_of(run, at, s, i, keys, t)) keep_tile(run, rule, s, i, t);
    }
  }
  core.end();
  const PlainRowsView values =
      plain_rows(run, forward::value_rows_of(run, at, head), 0, at.kv_tokens, p.heads.v.dim, s.values);
  for (Index i = 0; i < panels; ++i) {
    const Panel& panel = s.tile.panels[i];
    for (int lane = 0; lane < panel.count; ++lane)
      finish_row(run, at, s, {rule, panel, lane, s.rows[i * core.panel + lane]}, values);
  }
}

std::string refuse(const AttentionProblem& p) {
  if (p.heads.norm != Norm::entmax) return "weights are softmax";
  if (p.dtype == DType::f64) return "dtype is f64: this kernel computes in f32";
  if (p.keys == KeyForm::paged) return kKeysInPages;
  if (p.probe.any()) return "probes look at all weights, and entmax keeps few";
  if (p.kv_tokens >= Index{1} << 31) return "lists of keys end at 2^31";
  return {};
}

AttentionProblem as_softmax(AttentionProblem p) {
  p.heads.norm = Norm::softmax;
  return p;
}
std::size_t whole(const Arena& arena) {
  return static_cast<std::size_t>(round_up(static_cast<Index>(arena.used()), Index{Arena::kAlign}));
}
std::size_t worker_bytes(const AttentionProblem& p, const Core& core, int threads) {
  Arena count = Arena::measuring();
  book_lists(p, core, list_rows_for(p, core, threads), false, count);
  return whole(count);
}
std::size_t workspace_bytes(const AttentionProblem& p, int threads) {
  Arena count = Arena::measuring();
  count.take<ListScratch>("entmax.workers", threads);
  const Core& core = core_for(p, *chosen_isa().kernels());
  return std::max(whole(count) + static_cast<std::size_t>(threads) * worker_bytes(p, core, threads),
                  forward::kOnline.workspace_bytes(as_softmax(p), threads));
}

Status run_entmax(const AttentionProblem& p, const AttentionArgs& args, std::span<std::byte> workspace,
                  ThreadPool& pool) noexcept {
  // Where every head has an alpha of 1 this is softmax, in its kernel and with its bits.
  if (all_softmax(p, args)) return forward::kOnline.run(as_softmax(p), args, workspace, pool);
  const TileKernels& kernels = *chosen_isa().kernels();
  const Core& core = core_for(p, kernels);
  Arena arena(workspace);
  auto* scratch = arena.take<ListScratch>("entmax.workers", pool.threads());
  const std::size_t first = whole(arena), each = worker_bytes(p, core, pool.threads());
  const Index task_rows = list_rows_for(p, core, pool.threads());
  OnlineRun online = forward::run_of(p, args, kernels, core, task_rows);
  online.run_heads = 1;
  OnlineRun run = online;
  run.scaled_first = true;
  for (int worker = 0; worker < pool.threads(); ++worker) {
    Arena own(workspace.subspan(first + static_cast<std::size_t>(worker) * each, each));
    scratch[worker] = book_lists(p, core, task_rows, false, own);
  }
  const Index heads = p.heads.q.heads, blocks = ceil_div(p.q_tokens, task_rows), all = p.batch * heads;
  const auto body = [&](Index task, int worker) {
    const Index head = task % all % heads, sequence = task % all / heads, block = blocks - 1 - task / all;
    if (alpha_of(args, head) == 1)
      forward::attend_rows(online, scratch[worker].tile, sequence, head, block);
    else
      entmax_rows(run, scratch[worker], sequence, head, block);
  };
  pool.parallel_for(all * blocks, body);
  const auto rest = [&](Index task, int) { forward::write_unlisted(run, task / heads, task % heads); };
  if (p.heads.terms.rows) pool.parallel_for(all, rest);
  return Status::ok;
}

std::string numerics(const AttentionProblem& p) {
  const TileKernels& kernels = *chosen_isa().kernels();
  const Core& core = core_for(p, kernels);
  return text("cpu/entmax ", kernels.isa, ' ', core.name, " head_dim ", p.heads.q.dim, " value_dim ",
              p.heads.v.dim, " granule ", core.granule);
}

}  // namespace

const AttentionKernel kForward{"cpu/entmax", kWritten, refuse, workspace_bytes, run_entmax, numerics};

}  // namespace headwise::cpu::entmax
