#include <algorithm>
#include <cmath>

#include "headwise/kernels/cpu/forward/panel.h"

namespace headwise::cpu::forward {
namespace {

constexpr double kLn2 = 0.6931471805599453;

float* at3(const AnyView& v, Index b, Index h, Index q) {
  return static_cast<float*>(v.data) + b * v.step[0] + h * v.step[1] + q * v.step[2];
}

}  // namespace

Index probe_floats(const AttentionProblem& p, const Core& core) {
  return saturated((Checked(p.probe.classes) + Checked(p.probe.rows ? 4 : 0)) * Checked(core.panel));
}
Index probe_keys(const AttentionProblem& p, const Core& core) { return p.probe.rows ? core.panel : 0; }
PanelProbes lay_probes(const AttentionProblem& p, const Core& core, float* floats, Index* keys) {
  PanelProbes probes{};
  if (!floats) return probes;  // nothing is asked, or a workspace is measured
  RowStats& r = probes.stats;
  if (p.probe.rows)
    for (float** f : {&r.weighted_score, &r.square, &r.distance, &r.best}) *f = floats, floats += core.panel;
  r.best_key = keys, probes.class_mass = floats;
  return probes;
}

void copy_probes(const OnlineRun& run, const PanelProbes& from, const PanelProbes& to) {
  const Index panel = run.core.panel, rows = run.problem.probe.rows ? panel : 0;
  const RowStats &a = from.stats, &b = to.stats;
  std::copy_n(a.weighted_score, rows, b.weighted_score);
  std::copy_n(a.square, rows, b.square);
  std::copy_n(a.distance, rows, b.distance);
  std::copy_n(a.best, rows, b.best);
  std::copy_n(a.best_key, rows, b.best_key);
  std::copy_n(from.class_mass, panel * run.problem.probe.classes, to.class_mass);
}

void take_probes(const OnlineRun& run, Panel& panel, const PanelProbes& probes) {
  const RowStats& late = probes.stats;
  RowStats& own = panel.stats;
  panel.class_mass = probes.class_mass;
  if (!run.problem.probe.rows) return;
  own.weighted_score = late.weighted_score, own.square = late.square, own.distance = late.distance;
  for (Index i = 0; i < run.core.panel; ++i)
    if (late.best[i] > own.best[i]) own.best[i] = late.best[i], own.best_key[i] = late.best_key[i];
}

void push_best(const OnlineRun& run, const Panel& panel, const float* s, const TileKeys& t) {
  const Index k_best = run.problem.probe.top_k, size = run.core.panel;
  for (Index k = t.from; k < t.to; ++k)
    for (int lane = 0; lane < panel.count; ++lane) {
      const float x = s[k * size + lane];
      float* scores = panel.best_scores + lane * k_best;
      if (!(x > scores[k_best - 1])) continue;  // also drops ties (the lower key stays), closed pairs and NaN
      Index* keys = panel.best_keys + lane * k_best;
      Index i = k_best - 1;
      for (; i > 0 && x > scores[i - 1]; --i) scores[i] = scores[i - 1], keys[i] = keys[i - 1];
      scores[i] = x, keys[i] = t.key0 + k;
    }
}

void push_classes(const OnlineRun& run, const SequenceLocation& at, const Panel& panel, const float* p,
                  const TileKeys& t) {
  const AnyView& c = run.args.probe.class_of;
  const Index size = run.core.panel;
  for (Index k = t.from; k < t.to; ++k) {
    const Index which = static_cast<const std::int32_t*>(
        c.data)[at.tensor_batch * c.step[0] + (at.kv_row + t.key0 + k) * c.step[1]];
    if (which < 0 || which >= run.problem.probe.classes) continue;
    float* mass = panel.class_mass + which * size;
    for (Index lane = 0; lane < size; ++lane) mass[lane] += p[k * size + lane];
  }
}

void rebase_stats(const OnlineRun& run, const RowStats& stats, const float* sum, const float* delta,
                  const float* shrink, float* class_mass) {
  const Index size = run.core.panel;
  if (run.problem.probe.rows)
    for (Index i = 0; i < size; ++i) {
      // p' = p * shrink and d' = d + delta, so sum p' d' = shrink * (sum p d + delta * sum p)
      stats.weighted_score[i] = shrink[i] * (stats.weighted_score[i] + delta[i] * sum[i]);
      stats.square[i] *= shrink[i] * shrink[i];
      stats.distance[i] *= shrink[i];
    }
  for (Index c = 0; c < run.problem.probe.classes; ++c)
    for (Index i = 0; i < size; ++i) class_mass[c * size + i] *= shrink[i];
}

void write_probes(const OnlineRun& run, const SequenceLocation& at, const Panel& panel,
                  const float* sink_mass, const float* weight) {
  const ProbeSpec& probe = run.problem.probe;
  const ProbeOut& out = run.args.probe;
  const Index size = run.core.panel;
  for (int i = 0; i < panel.count; ++i) {
    const Index b = at.tensor_batch, h = panel.head[i], q = at.q_row + panel.token[i];
    const auto w = static_cast<double>(weight[i]);
    const bool open = w != 0;
    const auto top =
        static_cast<double>(panel.total_top[i]);  // in the units of scores: before the scale or after it
    const double scale = run.scaled_first ? 1.0 : static_cast<double>(panel.scale[i]);
    if (probe.rows) {
      // -sum w p ln(w p) over keys, with sum p ln p gathered in powers of two
      const auto sink = static_cast<double>(sink_mass[i]);
      double entropy = 0;
      if (open)
        entropy = -w * (static_cast<double>(panel.total_sum[i]) * std::log(w) +
                        static_cast<double>(panel.total_stats.weighted_score[i]) * kLn2);
      if (sink > 0) entropy -= sink * std::log(sink);
      const bool found = panel.stats.best_key[i] >= 0;
      const double best = w * std::exp((static_cast<double>(panel.stats.best[i]) - top) * scale);
      const auto put = [&](const AnyView& to, double value) {
        if (to.given()) *at3(to, b, h, q) = static_cast<float>(value);
      };
      put(out.entropy, std::max(entropy, 0.0));
      put(out.top_weight, found ? best : 0);
      put(out.second_moment, open ? w * w * static_cast<double>(panel.total_stats.square[i]) : 0);
      put(out.mean_distance, open ? w * static_cast<double>(panel.total_stats.distance[i]) : 0);
      put(out.sink_mass, sink);
      const AnyView& t = out.top_position;
      if (t.given())
        static_cast<Index*>(t.data)[b * t.step[0] + h * t.step[1] + q * t.step[2]] = panel.stats.best_key[i];
    }
    for (Index c = 0; c < probe.classes; ++c)
      at3(out.class_mass, b, h, q)[c * out.class_mass.step[3]] =
          open ? static_cast<float>(w * static_cast<double>(panel.total_class_mass[c * size + i])) : 0.0f;
    for (Index j = 0; j < probe.top_k; ++j) {
      const AnyView& t = out.top_keys;
      const Index key = panel.best_keys[i * probe.top_k + j];
      const double x = (static_cast<double>(panel.best_scores[i * probe.top_k + j]) - top) * scale;
      static_cast<Index*>(t.data)[b * t.step[0] + h * t.step[1] + q * t.step[2] + j * t.step[3]] = key;
      at3(out.top_weights, b, h, q)[j * out.top_weights.step[3]] =
          key >= 0 ? static_cast<float>(w * std::exp(x)) : 0.0f;
    }
  }
}

}  // namespace headwise::cpu::forward
