// The end of a split and of a panel: states are folded, rows, log-sum-exps and probes written.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "headwise/kernels/cpu/forward/panel.h"

namespace headwise::cpu::forward {
namespace {

/// The state of the split and the total change places.
void exchange(const OnlineRun& run, Panel& panel) {
  std::swap(panel.o, panel.total_o);
  if (run.problem.probe.rows) {
    std::swap(panel.stats.weighted_score, panel.total_stats.weighted_score);
    std::swap(panel.stats.square, panel.total_stats.square);
    std::swap(panel.stats.distance, panel.total_stats.distance);
  }
  std::swap(panel.class_mass, panel.total_class_mass);
}

/// Divides and gates the panel's outputs and writes them where the caller wants them.
void write_rows(const OnlineRun& run, const SequenceLocation& at, const Scratch& s, const Panel& panel,
                const float* total, const float* gate) {
  const Core& core = run.core;
  const Index value_dim = run.problem.heads.v.dim, step = run.value_rows();
  const AnyView& out = run.args.out;
  const auto row_at = [&](int lane) {
    const Index row = at.q_row + panel.token[lane];
    return static_cast<std::byte*>(out.data) +
           (at.tensor_batch * out.step[0] + row * out.step[1] + panel.head[lane] * out.step[2]) *
               size_of(out.dtype);
  };
  const bool one_head = panel.count == core.panel && panel.head[0] == panel.head[panel.count - 1] &&
                        panel.token[panel.count - 1] - panel.token[0] == panel.count - 1;
  if (panel.folded && one_head && out.dtype == DType::f32 && out.step[3] == 1)
    return core.passes.finish(panel.total_o, value_dim, total, gate, reinterpret_cast<float*>(row_at(0)),
                              out.step[1]);
  if (panel.folded)
    core.passes.finish(panel.total_o, value_dim, total, gate, s.rows, step);
  else
    std::fill_n(s.rows, core.panel * step, 0.0f);
  for (int i = 0; i < panel.count; ++i)
    run.kernels.store_row(s.rows + i * step, value_dim, row_type(out.dtype), row_at(i), out.step[3]);
}

}  // namespace

void fold(const OnlineRun& run, Scratch& s, Panel& panel) {
  const Core& core = run.core;
  const Index n = core.panel;
  panel.started = false;
  if (!panel.folded) {  // merging into an empty total multiplies by exactly 1 and adds exactly 0
    std::copy_n(panel.top, n, panel.total_top);
    std::copy_n(panel.sum, n, panel.total_sum);
    exchange(run, panel);
    panel.folded = true;
    return;
  }
  float *old_top = s.lane_f[0], *joined_top = s.lane_f[1], *used = s.lane_f[2];
  std::copy_n(panel.total_top, n, old_top);
  std::copy_n(panel.top, n, joined_top);
  core.passes.advance(panel.total_top, panel.top, panel.factor, used, s.a);  // a: what the total shrinks by
  core.passes.advance(joined_top, old_top, panel.factor, used, s.b);         // b: what the split shrinks by
  if (run.problem.probe.rows || run.problem.probe.classes) {
    float *delta_a = s.lane_f[3], *delta_b = s.lane_f[4];
    for (Index i = 0; i < n; ++i) {
      delta_a[i] = panel.total_sum[i] > 0 ? (old_top[i] - used[i]) * panel.factor[i] : 0;
      delta_b[i] = panel.sum[i] > 0 ? (panel.top[i] - used[i]) * panel.factor[i] : 0;
    }
    rebase_stats(run, panel.total_stats, panel.total_sum, delta_a, s.a, panel.total_class_mass);
    rebase_stats(run, panel.stats, panel.sum, delta_b, s.b, panel.class_mass);
    if (run.problem.probe.rows)
      for (Index i = 0; i < n; ++i) {
        panel.total_stats.weighted_score[i] += panel.stats.weighted_score[i];
        panel.total_stats.square[i] += panel.stats.square[i];
        panel.total_stats.distance[i] += panel.stats.distance[i];
      }
    for (Index i = 0; i < n * run.problem.probe.classes; ++i)
      panel.total_class_mass[i] += panel.class_mass[i];
  }
  core.passes.join(panel.total_o, panel.o, run.problem.heads.v.dim, s.a, s.b);
  core.passes.join(panel.total_sum, panel.sum, 1, s.a, s.b);
}

void finish_panel(const OnlineRun& run, const SequenceLocation& at, Scratch& s, Panel& panel) {
  const AttentionProblem& p = run.problem;
  const Core& core = run.core;
  const HeadInputs& in = run.args.inputs;
  if (panel.started) fold(run, s, panel);
  const bool empty = !panel.folded;
  float *total = s.a, *gate = s.b, *sink_mass = s.lane_f[0], *lse = s.lane_f[1], *shrink = s.lane_f[2],
        *weight = s.lane_f[3];
  const bool wants_lse = run.args.lse.given() || p.heads.terms.sinks;
  const bool looked_at = run.tops != nullptr || p.probe.any();
  for (int i = 0; i < core.panel; ++i) {
    // A row whose open logits are all NaN has no top, but its sum is NaN: it is not empty.
    const bool open = panel.total_top[i] != -INFINITY || std::isnan(panel.total_sum[i]);
    total[i] = open ? panel.total_sum[i] : 1.0f;
    weight[i] = looked_at && open ? 1.0f / total[i] : 0.0f;
    sink_mass[i] = 0;
    gate[i] = 1;
    if (!wants_lse) continue;
    const double top = run.scaled_first
                           ? static_cast<double>(panel.total_top[i])
                           : static_cast<double>(panel.total_top[i]) * static_cast<double>(panel.scale[i]);
    lse[i] = open ? static_cast<float>(top + std::log(static_cast<double>(total[i]))) : -INFINITY;
    if (p.heads.terms.sinks) {
      const double sink = load_double(in.sinks.data, in.sinks.dtype, panel.head[i] * in.sinks.step[0]);
      shrink[i] = 1.0f;
      if (!open && sink == -INFINITY) continue;
      const double most = open ? (top > sink ? top : sink) : sink;
      const double down = open ? std::exp(top - most) : 0.0, own = std::exp(sink - most);
      const double sum = (open ? static_cast<double>(panel.total_sum[i]) * down : 0.0) + own;
      shrink[i] = static_cast<float>(down);
      total[i] = static_cast<float>(sum);
      sink_mass[i] = static_cast<float>(own / sum);
      lse[i] = static_cast<float>(most + std::log(sum));
      weight[i] = open ? static_cast<float>(down / sum) : 0.0f;
    }
  }
  if (p.heads.terms.gate)
    for (int i = 0; i < panel.count; ++i)
      if (panel.total_top[i] != -INFINITY ||
          std::isnan(panel.total_sum[i]))  // an empty row is +0 whatever its gate
        gate[i] = static_cast<float>(load_double(in.gate.data, in.gate.dtype,
                                                 at.tensor_batch * in.gate.step[0] +
                                                     (at.q_row + panel.token[i]) * in.gate.step[1] +
                                                     panel.head[i] * in.gate.step[2]));
  if (!empty && p.heads.terms.sinks) core.passes.shrink(panel.total_o, p.heads.v.dim, shrink);
  write_rows(run, at, s, panel, total, gate);
  if (run.args.lse.given() || run.tops)
    for (int i = 0; i < panel.count; ++i) {
      const Index b = at.tensor_batch, head = panel.head[i], row = at.q_row + panel.token[i];
      const AnyView& l = run.args.lse;
      if (l.given()) static_cast<float*>(l.data)[b * l.step[0] + head * l.step[1] + row * l.step[2]] = lse[i];
      if (!run.tops) continue;
      const Index rows = p.ragged ? p.q_total : p.q_tokens;
      float* to = run.tops + 2 * ((b * p.heads.q.heads + head) * rows + row);
      to[0] = panel.total_top[i] == -INFINITY ? 0.0f : panel.total_top[i], to[1] = weight[i];
    }
  if (p.probe.rows || p.probe.top_k > 0 || p.probe.classes > 0)
    write_probes(run, at, panel, sink_mass, weight);
  if (panel.folded) exchange(run, panel);  // the next task finds the panel as it was booked
}

void write_unlisted(const OnlineRun& run, Index sequence, Index head) {
  const SequenceLocation at = place_of(run.problem, run.args, sequence);
  const AnyView &out = run.args.out, &lse = run.args.lse;
  const Index dim = run.problem.heads.v.dim, unit = size_of(out.dtype);
  each_unlisted(run, at, head, [&](Index first, Index end) {
    for (Index row = at.q_row + first; row < at.q_row + end; ++row) {
      auto* to = static_cast<std::byte*>(out.data) +
                 (at.tensor_batch * out.step[0] + row * out.step[1] + head * out.step[2]) * unit;
      if (out.step[3] == 1)
        std::memset(to, 0, static_cast<std::size_t>(dim * unit));
      else
        for (Index c = 0; c < dim; ++c) store_double(to, out.dtype, c * out.step[3], 0);
      if (lse.given())
        static_cast<float*>(
            lse.data)[at.tensor_batch * lse.step[0] + head * lse.step[1] + row * lse.step[2]] = -INFINITY;
    }
  });
}

}  // namespace headwise::cpu::forward
