#include <algorithm>
#include <cmath>
#include <numeric>

#include "headwise/base/caller_watch.h"
#include "headwise/kernels/cpu/backward/panel.h"
#include "headwise/kernels/cpu/entmax/lists.h"
#include "headwise/kernels/cpu/isa/isa.h"

namespace headwise::cpu::entmax {

using forward::OnlineRun;
using forward::Panel;
namespace {

/// Keys whose dk and dv one task makes: a multiple of every granule.
constexpr Index kTaskKeys = 512;
/// What rounding of scores and of the saved tau may move a threshold by, in parts of its size.
constexpr float kMargin = 1e-6f;

/// What the first half finds of every row, [tensor batch][heads][rows], for the second.
struct RowState {
  float *top, *tau, *inverse, *delta;    // w = max(0, less (s - top) - tau)^power * inverse
  double *scale, *slope, *sink, *alpha;  // a row's share of dscale, dslopes, dsinks, dalpha; null: not asked
};

struct Gradients {
  backward::BackwardRun fold;  // what folding the shares of rows and heads needs
  OnlineRun run;               // of one head at a time, logits scaled
  RowState rows;
  bool needs_dq() const { return fold.needs_dq(); }
};

/// One row of q or of dout as f32, padded to a multiple of 16 columns.
void load_line(const OnlineRun& run, const SequenceLocation& at, const AnyView& tensor,
               const HeadLayout& layout, Index head, Index token, float* line) {
  run.kernels.load_row(forward::rows_of(tensor, layout, head, at.tensor_batch, at.q_row), token,
                       round_up(layout.dim, 16), line);
}
HeadLayout out_layout(const AttentionProblem& p) { return HeadLayout::split(p.heads.v.heads, p.heads.v.dim); }

/// What dropout and the gate make of a row's pairs.
struct PairFactors {
  const OnlineRun& run;
  Index id, head, position;
  double gate = 1, kept = 1;
  PairFactors(const OnlineRun& r, const SequenceLocation& at, const Panel& panel, int lane)
      : run(r),
        id(forward::sequence_id(r.args, at.sequence)),
        head(panel.head[lane]),
        position(panel.position[lane]) {
    const HeadInputs& in = r.args.inputs;
    if (r.problem.heads.terms.gate)
      gate = load_double(in.gate.data, in.gate.dtype,
                         at.tensor_batch * in.gate.step[0] +
                             (at.q_row + panel.token[lane]) * in.gate.step[1] + head * in.gate.step[2]);
    kept = 1 / (1 - in.dropout);
  }
  double keep(Index key) const {
    return !run.problem.heads.terms.dropout || run.dropout.keep(id, head, position, key) ? kept : 0;
  }
};

/// Weights of a list by the row's state, keys without weight left out; w sums to 1 over the whole row.
void weigh_list(const OnlineRun& run, const EntmaxRule& rule, ListScratch& s, KeptRow& row, float top,
                float tau, float inverse) {
  run.kernels.sparse->weights(rule, row.score, row.count, top, tau, s.w);
  Index kept = 0;
  for (Index n = 0; n < row.count; ++n) {
    if (s.w[n] == 0) continue;
    s.w[kept] = s.w[n] * inverse;
    row.key[kept] = row.key[n], row.score[kept] = row.score[n];
    if (row.slope) row.slope[kept] = row.slope[n];
    ++kept;
  }
  row.count = kept;
  std::fill_n(s.w + kept, kListPad, 0.0f);
}

/// Everything that belongs to one row of queries.
void row_gradient(const Gradients& b, const SequenceLocation& at, ListScratch& s, const ListedRow& listed,
                  const PlainRowsView& keys, const PlainRowsView& values) {
  const EntmaxRule& rule = listed.rule;
  const Panel& panel = listed.panel;
  const int lane = listed.lane;
  KeptRow& row = listed.row;
  const OnlineRun& run = b.run;
  const AttentionProblem& p = run.problem;
  const GradientSpec& wants = b.fold.problem.wants;
  const HeadInputs& in = run.args.inputs;
  const SparseKernels& sparse = *run.kernels.sparse;
  const Index head = panel.head[lane], token = panel.token[lane], place = b.fold.row(at, head, token);
  const Index dim = p.heads.q.dim, wide = round_up(dim, 16), value_wide = round_up(p.heads.v.dim, 16);
  double sink = -INFINITY;
  if (p.heads.terms.sinks) sink = load_double(in.sinks.data, in.sinks.dtype, head * in.sinks.step[0]);
  float top = static_cast<float>(sink);
  for (Index n = 0; n < row.count; ++n) top = std::max(top, row.score[n]);
  const bool broken = row.is_nan || top == INFINITY || std::isnan(top);
  double dgate = 0, delta = 0, slope = 0, dsink = 0, dalpha = 0;
  std::fill_n(s.sum, wide, 0.0f);
  b.rows.top[place] = b.rows.tau[place] = b.rows.inverse[place] = broken ? NAN : 0.0f;
  if (broken) {
    dgate = delta = slope = dsink = dalpha = NAN;
    std::fill_n(s.sum, dim, NAN);
  } else if (row.count > 0) {
    Index all = row.count;
    if (sink != -INFINITY) row.score[all++] = static_cast<float>(sink);
    const float tau = sparse.tau(rule, row.score, all, top, -1.0f);
    const double sum = sparse.weights(rule, row.score, all, top, tau, s.w);
    const auto inverse = static_cast<float>(1 / sum);
    const double sink_weight = all > row.count ? static_cast<double>(s.w[row.count]) / sum : 0;
    b.rows.top[place] = top, b.rows.tau[place] = tau, b.rows.inverse[place] = inverse;
    weigh_list(run, rule, s, row, top, tau, inverse);
    sparse.slopes(rule, s.w, row.count, s.u);
    load_line(run, at, b.fold.args.dout, out_layout(p), head, token, s.dout);
    sparse.dot_rows(s.dout, row.key, row.count, values.data, values.step, value_wide, s.dp);
    // o = gate sum_j w_j keep_j v_j, w = entmax(s):
    //   dw = gate keep dp, ds = u (dw - delta), delta = sum u dw / sum u, u = w^(2 - alpha)
    //   dalpha = (sum w dw - delta) / (alpha - 1)^2 - (sum w ln w dw - delta sum w ln w) / (alpha - 1)
    const PairFactors factor(run, at, panel, lane);
    const double alpha = alpha_of(run.args, head), less = alpha - 1;
    double weight_dot = 0, slopes = sink_weight > 0 ? std::pow(sink_weight, 2 - alpha) : 0;
    const double sink_slope = slopes;
    for (Index n = 0; n < row.count; ++n) {
      const double keep = factor.keep(row.key[n]), dp = keep == 0 ? 0 : keep * static_cast<double>(s.dp[n]);
      const double dw = factor.gate * dp;
      dgate += static_cast<double>(s.w[n]) * dp;
      weight_dot += static_cast<double>(s.w[n]) * dw;
      delta += static_cast<double>(s.u[n]) * dw, slopes += static_cast<double>(s.u[n]);
      s.dp[n] = static_cast<float>(dw);
    }
    delta /= slopes;
    dsink = -sink_slope * delta;
    if (wants.alpha) {
      double entropy = sink_weight > 0 ? sink_weight * std::log(sink_weight) : 0, entropy_dot = 0;
      for (Index n = 0; n < row.count; ++n) {
        const auto w = static_cast<double>(s.w[n]);
        entropy += w * std::log(w), entropy_dot += w * std::log(w) * static_cast<double>(s.dp[n]);
      }
      dalpha = (weight_dot - delta) / (less * less) - (entropy_dot - delta * entropy) / less;
    }
    const auto by = static_cast<float>(delta);
    for (Index n = 0; n < row.count; ++n) {
      float ds = s.u[n] * (s.dp[n] - by);
      if (wants.slopes)
        slope -= static_cast<double>(ds) * std::fabs(static_cast<double>(factor.position - row.key[n]));
      if (row.slope && ds != 0) ds *= row.slope[n];
      s.dp[n] = ds;
    }
    if (b.needs_dq()) sparse.sum_rows(s.dp, row.key, row.count, keys.data, keys.step, wide, s.sum);
  }
  b.rows.delta[place] = static_cast<float>(delta);
  if (wants.scale) {
    double sum = 0;
    load_line(run, at, run.args.q, p.heads.q, head, token, s.q);
    for (Index c = 0; c < dim; ++c)
      if (s.sum[c] != 0) sum += static_cast<double>(s.sum[c]) * static_cast<double>(s.q[c]);
    b.rows.scale[place] = sum;
  }
  if (wants.slopes) b.rows.slope[place] = slope;
  if (b.rows.sink) b.rows.sink[place] = dsink;
  if (wants.alpha) b.rows.alpha[place] = dalpha;
  if (wants.gate) {
    const AnyView& to = b.fold.args.dgate;
    store_double(to.data, to.dtype,
                 at.tensor_batch * to.step[0] + (at.q_row + token) * to.step[1] + head * to.step[2], dgate);
  }
  if (!wants.q) return;
  for (Index c = 0; c < dim; ++c) s.sum[c] = s.sum[c] * panel.scale[lane] + 0.0f;
  if (b.fold.q_shares) {
    std::copy_n(s.sum, dim, b.fold.q_shares + place * dim);
    return;
  }
  const AnyView& to = b.fold.args.dq;
  const Index offset = at.tensor_batch * to.step[0] + (at.q_row + token) * to.step[1] + head * to.step[2];
  run.kernels.store_row(s.sum, dim, forward::row_type(to.dtype),
                        static_cast<std::byte*>(to.data) + offset * size_of(to.dtype), to.step[3]);
}

/// Panels of rows of one head, and their floors by `of(lane, place)`.
template <class F>
Index fill_rows(const Gradients& b, const SequenceLocation& at, ListScratch& s, const forward::RowBlock& rows,
                F&& of) {
  const Index size = b.run.core.panel, panels = ceil_div(rows.end - rows.first, size), head = rows.head0;
  for (Index i = 0; i < panels; ++i) {
    Panel& panel = s.tile.panels[i];
    forward::fill_panel(b.run, at, {head, rows.first + i * size, rows.end}, s.tile, panel);
    clear_lists(b.run, s, i);
    for (int lane = 0; lane < panel.count; ++lane) s.floor[i * size + lane] = of(head, panel.token[lane]);
  }
  return panels;
}
/// Scores of the panels against keys key0 .. key1 go into their lists.
void keep_keys(const Gradients& b, const SequenceLocation& at, ListScratch& s, Index panels, Index head,
               Index key0, Index key1) {
  const Core& core = b.run.core;
  const Rows rows = forward::key_rows(b.run, at, head);
  core.begin();
  for (Index key = key0; key < key1; key += core.granule) {
    const Index n = std::min<Index>(core.granule, key1 - key);
    s.tile.tile_keys = nullptr;
    for (Index i = 0; i < panels; ++i) {
      forward::TileKeys t{.key0 = key, .from = 0, .to = n};
      if (!logits_of(b.run, at, s, i, rows, t)) continue;
      b.run.kernels.sparse->keep({.s = s.tile.s,
                                  .slopes = s.tile.cap_slope,
                                  .from = t.from,
                                  .to = t.to,
                                  .panel = core.panel,
                                  .lanes = s.tile.panels[i].count,
                                  .floor = s.floor + i * core.panel,
                                  .key0 = key,
                                  .rows = s.rows + i * core.panel});
    }
  }
  core.end();
}

void by_rows(const Gradients& b, ListScratch& s, Index sequence, Index head, Index block) {
  const OnlineRun& run = b.run;
  const AttentionProblem& p = run.problem;
  const SequenceLocation at = place_of(p, run.args, sequence);
  const Index row0 = block * run.task_rows,
              row1 = std::min(forward::rows_of_run(run, at, head), row0 + run.task_rows);
  if (row0 >= row1) return;
  const EntmaxRule rule = rule_of(alpha_of(run.args, head));
  const AnyView& lse = run.args.lse;
  const Index panels = fill_rows(b, at, s, {head, row0, row1}, [&](Index h, Index token) {
    const float tau = static_cast<const float*>(
        lse.data)[at.tensor_batch * lse.step[0] + h * lse.step[1] + (at.q_row + token) * lse.step[2]];
    if (tau == -INFINITY) return INFINITY;  // an empty row
    if (rule.kind == EntmaxRule::Kind::softmax || std::isnan(tau)) return -INFINITY;
    return (tau - kMargin * (1 + std::fabs(tau))) * rule.power;
  });
  keep_keys(b, at, s, panels, head, 0, at.kv_tokens);
  const PlainRowsView values =
      plain_rows(run, forward::value_rows_of(run, at, head), 0, at.kv_tokens, p.heads.v.dim, s.values);
  const PlainRowsView keys =
      b.needs_dq() ? plain_rows(run, forward::key_rows(run, at, head), 0, at.kv_tokens, p.heads.k.dim, s.keys)
                   : PlainRowsView{nullptr, 0};
  for (Index i = 0; i < panels; ++i)
    for (int lane = 0; lane < s.tile.panels[i].count; ++lane)
      row_gradient(b, at, s, {rule, s.tile.panels[i], lane, s.rows[i * run.core.panel + lane]}, keys, values);
}

/// What one row gives to keys key0 ..: rows of s.dk and s.dv, null: not asked.
void add_row(const Gradients& b, const SequenceLocation& at, ListScratch& s, const ListedRow& listed,
             const PlainRowsView& values, Index key0) {
  const EntmaxRule& rule = listed.rule;
  const Panel& panel = listed.panel;
  const int lane = listed.lane;
  KeptRow& row = listed.row;
  float *dk = s.dk, *dv = s.dv;
  const OnlineRun& run = b.run;
  const AttentionProblem& p = run.problem;
  const SparseKernels& sparse = *run.kernels.sparse;
  const Index head = panel.head[lane], token = panel.token[lane], place = b.fold.row(at, head, token);
  const Index wide = round_up(p.heads.q.dim, 16), value_wide = round_up(p.heads.v.dim, 16);
  const bool broken = std::isnan(b.rows.inverse[place]);
  if (row.count == 0) return;
  if (broken)
    std::fill_n(s.w, row.count, NAN);
  else
    weigh_list(run, rule, s, row, b.rows.top[place], b.rows.tau[place], b.rows.inverse[place]);
  if (row.count == 0) return;
  const PairFactors factor(run, at, panel, lane);
  load_line(run, at, b.fold.args.dout, out_layout(p), head, token, s.dout);
  for (Index n = 0; n < row.count; ++n) row.key[n] -= static_cast<std::int32_t>(key0);
  if (dk) {
    sparse.slopes(rule, s.w, row.count, s.u);
    sparse.dot_rows(s.dout, row.key, row.count, values.data, values.step, value_wide, s.dp);
    const float by = b.rows.delta[place];
    for (Index n = 0; n < row.count; ++n) {
      const double keep = factor.keep(key0 + row.key[n]);
      const auto dw = static_cast<float>(keep == 0 ? 0 : factor.gate * (keep * static_cast<double>(s.dp[n])));
      float ds = s.u[n] * (dw - by);
      if (row.slope && ds != 0) ds *= row.slope[n];
      s.dp[n] = broken ? NAN : ds * panel.scale[lane];
    }
    load_line(run, at, run.args.q, p.heads.q, head, token, s.q);
    sparse.add_rows(s.dp, row.key, row.count, s.q, wide, dk, wide);
  }
  if (!dv) return;
  Index kept = 0;
  for (Index n = 0; n < row.count; ++n) {
    const double keep = factor.keep(key0 + row.key[n]);
    if (keep == 0) continue;
    s.w[kept] = static_cast<float>(factor.gate * keep * static_cast<double>(s.w[n]));
    row.key[kept++] = row.key[n];
  }
  sparse.add_rows(s.w, row.key, kept, s.dout, value_wide, dv, value_wide);
}

/// Writes rows of dk or dv, or a run's part of them.
void write_keys(const Gradients& b, const SequenceLocation& at, ListScratch& s,
                const backward::KeyGradient& g, const backward::Piece& piece) {
  const HeadLayout& layout = g.layout;
  const AnyView& to = g.to;
  const Index head0 = piece.head0, key0 = piece.key0, key1 = piece.key1;
  const Index wide = round_up(layout.dim, 16), run_heads = b.fold.forward.run_heads,
              units = ceil_div(layout.heads, run_heads);
  for (Index k = key0; k < key1; ++k) {
    const Index row = at.kv_row + k;
    for (Index c = 0; c < layout.dim; ++c) s.sum[c] = g.rows[(k - key0) * wide + c] + 0.0f;
    if (g.shares) {
      std::copy_n(
          s.sum, layout.dim,
          g.shares + ((at.tensor_batch * units + head0 / run_heads) * b.fold.kv_rows() + row) * layout.dim);
      continue;
    }
    const Index offset = at.tensor_batch * to.step[0] + row * to.step[1] + layout.slot(head0) * to.step[2];
    b.run.kernels.store_row(s.sum, layout.dim, forward::row_type(to.dtype),
                            static_cast<std::byte*>(to.data) + offset * size_of(to.dtype), to.step[3]);
  }
}

void by_keys(const Gradients& b, ListScratch& s, Index sequence, Index head0, Index key0) {
  const OnlineRun& run = b.run;
  const AttentionProblem& p = run.problem;
  const SequenceLocation at = place_of(p, run.args, sequence);
  const Index key1 = std::min(at.kv_tokens, key0 + kTaskKeys), size = run.core.panel;
  if (key0 >= key1) return;
  float *dk = s.dk, *dv = s.dv;
  const Index wide = round_up(p.heads.k.dim, 16), value_wide = round_up(p.heads.v.dim, 16);
  if (dk) std::fill_n(dk, (key1 - key0) * wide, 0.0f);
  if (dv) std::fill_n(dv, (key1 - key0) * value_wide, 0.0f);
  const PlainRowsView values =
      plain_rows(run, forward::value_rows_of(run, at, head0), key0, key1 - key0, p.heads.v.dim, s.values);
  const Index end = std::min(p.heads.q.heads, head0 + b.fold.forward.run_heads);
  for (Index head = head0; head < end; ++head) {
    const EntmaxRule rule = rule_of(alpha_of(run.args, head));
    const Index rows = forward::rows_of_run(run, at, head);
    for (Index row0 = 0; row0 < rows && still_wanted(); row0 += run.task_rows) {
      const Index panels =
          fill_rows(b, at, s, {head, row0, std::min(rows, row0 + run.task_rows)}, [&](Index h, Index token) {
            const Index n = b.fold.row(at, h, token);
            const float top = b.rows.top[n], tau = b.rows.tau[n];
            if (b.rows.inverse[n] == 0) return INFINITY;  // nothing was kept
            if (rule.kind == EntmaxRule::Kind::softmax || std::isnan(top)) return -INFINITY;
            return top + (tau - kMargin) * rule.power - kMargin * std::fabs(top);
          });
      keep_keys(b, at, s, panels, head, key0, key1);
      for (Index i = 0; i < panels; ++i)
        for (int lane = 0; lane < s.tile.panels[i].count; ++lane)
          add_row(b, at, s, {rule, s.tile.panels[i], lane, s.rows[i * size + lane]}, values, key0);
    }
  }
  const backward::Piece piece{head0, 0, 0, key0, key1, false, true};
  if (dk) write_keys(b, at, s, {p.heads.k, b.fold.args.dk, dk, b.fold.k_shares, 1.0f}, piece);
  if (dv) write_keys(b, at, s, {p.heads.v, b.fold.args.dv, dv, b.fold.v_shares, 1.0f}, piece);
}

std::string refuse(const BackwardProblem& p) {
  if (p.forward.heads.norm != Norm::entmax) return "weights are softmax";
  if (p.forward.dtype == DType::f64) return "dtype is f64: this kernel computes in f32";
  if (!p.forward.lse) return "it starts from the thresholds of the forward (lse), and none are given";
  if (p.wants.bias || p.wants.relative) return "dbias and drelative of entmax are summed by ref";
  if (p.forward.kv_tokens >= Index{1} << 31) return "lists of keys end at 2^31";
  return {};
}

BackwardProblem as_softmax(BackwardProblem p) {
  p.forward.heads.norm = Norm::softmax;
  return p;
}
std::size_t whole(const Arena& arena) {
  return static_cast<std::size_t>(round_up(static_cast<Index>(arena.used()), Index{Arena::kAlign}));
}
Index runs_of(const AttentionProblem& p) {
  return ceil_div(p.heads.q.heads, std::gcd(p.heads.k.group, p.heads.v.group));
}

struct Shared {
  RowState rows;
  float *q_shares, *k_shares, *v_shares;
  ListScratch* scratch;
  backward::BackwardScratch* folds;
};
Shared book_shared(const BackwardProblem& p, int threads, Arena& arena) {
  const AttentionProblem& f = p.forward;
  const Index batch = f.ragged ? 1 : f.batch;
  const Checked rows = Checked(batch) * Checked(f.heads.q.heads) * Checked(f.ragged ? f.q_total : f.q_tokens);
  const Checked units = Checked(batch) * Checked(runs_of(f)) * Checked(f.ragged ? f.kv_total : f.kv_tokens);
  const auto take = [&]<class T>(Type<T>, bool wanted, const char* name, Checked count) {
    T* piece = wanted ? arena.take<T>(name, saturated(count)) : nullptr;
    return piece;
  };
  Shared s{};
  for (float** to : {&s.rows.top, &s.rows.tau, &s.rows.inverse, &s.rows.delta})
    *to = take(Type<float>{}, true, "entmax.rows", rows);
  s.rows.scale = take(Type<double>{}, p.wants.scale, "entmax.scale", rows);
  s.rows.slope = take(Type<double>{}, p.wants.slopes, "entmax.slopes", rows);
  s.rows.sink = take(Type<double>{}, p.wants.sinks, "entmax.sinks", rows);
  s.rows.alpha = take(Type<double>{}, p.wants.alpha, "entmax.alpha", rows);
  s.q_shares =
      take(Type<float>{}, p.wants.q && backward::q_is_shared(p), "entmax.dq", rows * Checked(f.heads.q.dim));
  s.k_shares =
      take(Type<float>{}, p.wants.k && backward::k_is_shared(p), "entmax.dk", units * Checked(f.heads.k.dim));
  s.v_shares =
      take(Type<float>{}, p.wants.v && backward::v_is_shared(p), "entmax.dv", units * Checked(f.heads.v.dim));
  s.scratch = take(Type<ListScratch>{}, true, "entmax.workers", Checked(threads));
  s.folds = take(Type<backward::BackwardScratch>{}, true, "entmax.workers", Checked(threads));
  return s;
}
/// A worker's lists, rows of dk and dv, and line for folding.
struct Own {
  ListScratch lists;
  double* line;
};
Own book_own(const BackwardProblem& p, const Core& core, int threads, Arena& arena) {
  const AttentionProblem& f = p.forward;
  const auto line_of = [](const HeadLayout& l) { return l.row > 0 ? l.row : l.slots() * l.dim; };
  Own own{};
  own.lists = book_lists(f, core, list_rows_for(f, core, threads), true, arena);
  own.lists.dk =
      p.wants.k ? arena.take<float>("entmax.dk", kTaskKeys * round_up(f.heads.k.dim, 16)) : nullptr;
  own.lists.dv =
      p.wants.v ? arena.take<float>("entmax.dv", kTaskKeys * round_up(f.heads.v.dim, 16)) : nullptr;
  own.line = arena.take<double>("entmax.line", std::max({backward::q_is_shared(p) ? line_of(f.heads.q) : 0,
                                                         backward::k_is_shared(p) ? line_of(f.heads.k) : 0,
                                                         backward::v_is_shared(p) ? line_of(f.heads.v) : 0}));
  return own;
}
std::size_t worker_bytes(const BackwardProblem& p, const Core& core, int threads) {
  Arena count = Arena::measuring();
  book_own(p, core, threads, count);
  return whole(count);
}
std::size_t workspace_bytes(const BackwardProblem& p, int threads) {
  Arena count = Arena::measuring();
  book_shared(p, threads, count);
  const Core& core = forward::core_for(p.forward, *chosen_isa().kernels());
  return std::max(whole(count) + static_cast<std::size_t>(threads) * worker_bytes(p, core, threads),
                  cpu::backward::kBackward.workspace_bytes(as_softmax(p), threads));
}

Status run_backward(const BackwardProblem& p, const BackwardArgs& args, std::span<std::byte> workspace,
                    ThreadPool& pool) noexcept {
  const AttentionProblem& f = p.forward;
  if (all_softmax(f, args.forward)) return cpu::backward::kBackward.run(as_softmax(p), args, workspace, pool);
  const TileKernels& kernels = *chosen_isa().kernels();
  const Core& core = forward::core_for(f, kernels);
  Arena arena(workspace);
  const int threads = pool.threads();
  const Shared shared = book_shared(p, threads, arena);
  const std::size_t first = whole(arena), each = worker_bytes(p, core, threads);
  for (int worker = 0; worker < threads; ++worker) {
    Arena memory(workspace.subspan(first + static_cast<std::size_t>(worker) * each, each));
    const Own own = book_own(p, core, threads, memory);
    shared.scratch[worker] = own.lists;
    shared.folds[worker] = {};
    shared.folds[worker].line = own.line;
  }
  const OnlineRun whole_run =
      forward::run_of(f, args.forward, kernels, core, list_rows_for(f, core, threads));
  BackwardProblem others = p;  // sinks and alpha have shares of their own
  others.wants.sinks = false;
  Gradients b{{others, args, whole_run, core, 0, 0, 0, shared.rows.delta, shared.rows.scale,
               shared.rows.slope, shared.q_shares, shared.k_shares, shared.v_shares},
              whole_run,
              shared.rows};
  b.run.run_heads = 1;
  b.run.scaled_first = true;
  const Index heads = f.heads.q.heads, all = f.batch * heads, blocks = ceil_div(f.q_tokens, b.run.task_rows);
  if (f.heads.terms.rows) {
    backward::clear_unlisted(b.fold, pool, threads);
    const Index rows = (f.ragged ? 1 : f.batch) * heads * b.fold.q_rows();
    for (double* share : {shared.rows.sink, shared.rows.alpha})
      if (share) std::fill_n(share, rows, 0.0);
  }
  const auto row_task = [&](Index task, int worker) {
    by_rows(b, shared.scratch[worker], task % all / heads, task % heads, blocks - 1 - task / all);
  };
  pool.parallel_for(all * blocks, row_task);
  const Index runs = runs_of(f), groups = f.batch * runs, key_blocks = ceil_div(f.kv_tokens, kTaskKeys);
  const auto key_task = [&](Index task, int worker) {
    by_keys(b, shared.scratch[worker], task % groups / runs, task % runs * b.fold.forward.run_heads,
            task / groups * kTaskKeys);
  };
  if (b.fold.key_side()) pool.parallel_for(groups * key_blocks, key_task);
  backward::fold_terms(b.fold, pool, threads);
  if (p.wants.sinks) backward::fold_shares(b.fold, args.dsinks, shared.rows.sink, pool, threads);
  if (p.wants.alpha) backward::fold_shares(b.fold, args.dalpha, shared.rows.alpha, pool, threads);
  backward::fold_tensors(b.fold, shared.folds, pool, threads);
  return Status::ok;
}

std::string numerics(const BackwardProblem& p) { return kForward.numerics(p.forward) + " backward"; }

}  // namespace

const BackwardKernel kBackward{"cpu/entmax", kWritten, refuse, workspace_bytes, run_backward, numerics};

}  // namespace headwise::cpu::entmax
