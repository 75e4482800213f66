#include <algorithm>
#include <cmath>

#include "headwise/kernels/cpu/mixed/gradients.h"

// What cpu/mixed_backward gathers and writes: rows of queries, keys of a block, and what all of them share.

namespace headwise::cpu::mixed {
namespace {

/// Columns of one head's row into the line of all heads; columns outside the row get no gradient.
void add_to_line(const HeadLayout& layout, Index h, const float* row, float factor, double* line) {
  const Index first = layout.row > 0 ? layout.column(h) : layout.slot(h) * layout.dim;
  const Index end = layout.row > 0 ? layout.row : first + layout.dim;
  for (Index c = 0; c < layout.dim; ++c)
    if (0 <= first + c && first + c < end)
      line[first + c] += static_cast<double>(row[c]) * static_cast<double>(factor);
}
void store_line(const AnyView& to, const HeadLayout& layout, Index batch, Index row, const double* line) {
  const Index base = batch * to.step[0] + row * to.step[1];
  if (layout.row > 0) {
    for (Index c = 0; c < layout.row; ++c) store_double(to.data, to.dtype, base + c * to.step[2], line[c]);
    return;
  }
  for (Index slot = 0; slot < layout.slots(); ++slot)
    for (Index c = 0; c < layout.dim; ++c)
      store_double(to.data, to.dtype, base + slot * to.step[2] + c * to.step[3], line[slot * layout.dim + c]);
}
Index width_of(const HeadLayout& l) { return l.row > 0 ? l.row : l.slots() * l.dim; }

/// One token's coefficients of one mix: number(row, head) with padded ranks, into rows as the caller has
/// them.
template <class Number>
void store_coefficients(const MixedBackwardRun& run, const MixStage& stage, const AnyView& to, Index batch,
                        Index row, Number&& number) {
  const Index rank = run.problem.forward.heads.mix_rank, padded = run.mixed.rank;
  const auto put = [&](Index from, Index at) {
    for (Index h = 0; h < stage.from; ++h)
      store_double(to.data, to.dtype,
                   batch * to.step[0] + row * to.step[1] + (stage.row0 + at) * to.step[2] + h * to.step[3],
                   static_cast<double>(number(from, h)));
  };
  for (Index r = 0; r < rank; ++r) put(r, r), put(padded + r, rank + r);
  put(2 * padded, 2 * rank);
}

}  // namespace

void write_row_sums(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& at) {
  const AttentionProblem& p = run.problem.forward;
  const Core& core = run.mixed.core();
  const MixedGradientPanel& panel = s.panel;
  const forward::Panel& lanes = panel.in.lanes;
  const Index n = core.panel, heads = p.heads.normal_heads();
  const auto row_of = [&](int i) { return at.q_row + lanes.token[i]; };
  if (run.problem.wants.q) {
    const Index wide = core.gradients.columns(p.heads.q.dim), line = width_of(p.heads.q);
    std::fill_n(s.lines, n * line, 0.0);
    for (Index m = 0; m < p.heads.q.heads; ++m) {
      core.gradients.unpanel(panel.dq + m * wide * n, p.heads.q.dim, run.mixed.scales + m * n, s.rows, wide);
      for (int i = 0; i < lanes.count; ++i)
        add_to_line(p.heads.q, m, s.rows + i * wide, 1.0f, s.lines + i * line);
    }
    for (int i = 0; i < lanes.count; ++i)
      store_line(run.args.dq, p.heads.q, at.tensor_batch, row_of(i), s.lines + i * line);
  }
  for (Index m = 0; panel.dscale && m < p.heads.q.heads; ++m) {
    // dscale = sum_i q_i . (sum_j ds_ij k_j); packed queries may carry the scale.
    const float* dq = panel.dq + m * core.gradients.columns(p.heads.q.dim) * n;
    core.gradients.dots(dq, panel.in.queries + m * core.products.query_bytes(p.heads.q.dim), p.heads.q.dim,
                        s.rows);
    double sum = 0;
    for (int i = 0; i < lanes.count; ++i) sum += static_cast<double>(s.rows[i]);
    panel.dscale[m] = run.mixed.scaled_queries ? sum / static_cast<double>(run.mixed.scales[m * n]) : sum;
  }
  const AnyView& dgate = run.args.dgate;
  for (Index v = 0; run.problem.wants.gate && v < p.heads.v.heads; ++v)
    for (int i = 0; i < lanes.count; ++i)
      store_double(dgate.data, dgate.dtype,
                   at.tensor_batch * dgate.step[0] + row_of(i) * dgate.step[1] + v * dgate.step[2],
                   static_cast<double>(panel.dgate[v * n + i]));
  for (int w = 0; w < 2; ++w)
    for (int i = 0; panel.dquery[w] && i < lanes.count; ++i) {
      bool live = false;  // a row without an open pair has no slope, whatever its coefficients are
      for (Index h = 0; h < heads; ++h) live = live || panel.live[h * n + i] != 0;
      const MixStage& stage = run.mixed.stage(w);
      store_coefficients(run, stage, run.args.dmix_q, at.tensor_batch, row_of(i), [&](Index row, Index h) {
        return live ? panel.dquery[w][(row * stage.from + h) * n + i] : 0.0f;
      });
    }
}

void note_open_keys(const MixedBackwardRun& run, GradientScratch& s, const Opening& opening) {
  const Index heads = run.mixed.shared_mask ? 1 : run.mixed.before.to;
  for (Index k = 0; k < opening.to; ++k)
    for (Index h = 0; h < heads; ++h)
      s.seen[k] |= opening.mixed ? s.panel.in.open[h * kMixKeys + k] : ~std::uint64_t{0};
}

void add_unusual_douts(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& location,
                       const Opening& opening) {
  const AttentionProblem& p = run.problem.forward;
  const AnyView& dout = run.args.dout;
  const forward::Panel& lanes = s.panel.in.lanes;
  const Index n = run.mixed.core().panel, wide = run.mixed.core().gradients.columns(p.heads.v.dim);
  for (Index v = 0; v < p.heads.v.heads; ++v)
    for (int i = 0; i < lanes.count; ++i)
      for (Index c = 0; c < p.heads.v.dim; ++c) {
        const double x = load_double(dout.data, dout.dtype,
                                     location.tensor_batch * dout.step[0] +
                                         (location.q_row + lanes.token[i]) * dout.step[1] + v * dout.step[2] +
                                         c * dout.step[3]);
        if (std::isfinite(x)) continue;
        for (Index k = 0; k < opening.to; ++k)
          if (!opening.mixed || (s.some_open[k] >> i & 1u))
            s.dv[(v * kMixKeys + k) * wide + c] +=
                static_cast<float>(x) * s.u[v * run.mixed.tile_step() + k * n + i];
      }
}

void write_key_sums(const MixedBackwardRun& run, GradientScratch& s, const SequenceLocation& at, Index key0,
                    Index keys) {
  const AttentionProblem& p = run.problem.forward;
  const auto lines = [&](const AnyView& to, const HeadLayout& layout, Index heads, const float* sums,
                         Index wide, auto&& factor) {
    const Index line = width_of(layout);
    std::fill_n(s.lines, keys * line, 0.0);
    for (Index k = 0; k < keys; ++k) {
      for (Index h = 0; h < heads; ++h)
        add_to_line(layout, h, sums + (h * kMixKeys + k) * wide, factor(h), s.lines + k * line);
      store_line(to, layout, at.tensor_batch, at.kv_row + key0 + k, s.lines + k * line);
    }
  };
  const Core& core = run.mixed.core();
  if (run.problem.wants.k)
    lines(run.args.dk, p.heads.k, p.heads.q.heads, s.dk, core.gradients.columns(p.heads.q.dim),
          [&](Index m) { return run.mixed.scales[m * core.panel]; });
  if (run.problem.wants.v)
    lines(run.args.dv, p.heads.v, p.heads.v.heads, s.dv, core.gradients.columns(p.heads.v.dim),
          [](Index) { return 1.0f; });
  for (int w = 0; w < 2; ++w)
    for (Index k = 0; s.key_sums[w] && k < keys; ++k) {
      const MixStage& stage = run.mixed.stage(w);
      const float* sums = s.key_sums[w] + k * run.mixed.coefficient_rows() * stage.from;
      store_coefficients(run, stage, run.args.dmix_k, at.tensor_batch, at.kv_row + key0 + k,
                         [&](Index row, Index h) { return s.seen[k] ? sums[row * stage.from + h] : 0.0f; });
    }
}

void fold_shared(const MixedBackwardRun& run, ThreadPool& pool) noexcept {
  const AttentionProblem& p = run.problem.forward;
  const GradientSpec& wants = run.problem.wants;
  const Index n = run.mixed.core().panel, heads = p.heads.normal_heads();
  const auto each_panel = [&](auto&& body) {
    for (Index b = 0; b < p.batch; ++b) {
      const SequenceLocation at = place_of(p, run.args.forward, b);
      for (Index q = 0; q < ceil_div(at.q_tokens, n); ++q) body(run.first_panel(at) + q);
    }
  };
  const auto matrix = [&](int which, const AnyView& to) {
    const MixStage& stage = run.mixed.stage(which);
    for (Index m = 0; m < stage.from; ++m)
      for (Index h = 0; h < stage.to; ++h) {
        double sum = 0;
        each_panel([&](Index at) { sum += run.dmatrix[which][(at * stage.from + m) * stage.to + h]; });
        store_double(to.data, to.dtype, m * to.step[0] + h * to.step[1], sum);
      }
  };
  // One task, so that the pool sets the floating environment.
  pool.parallel_for(1, [&](Index, int) {
    if (wants.mix_before) matrix(0, run.args.dmix_before);
    if (wants.mix_after) matrix(1, run.args.dmix_after);
    const AnyView &dslopes = run.args.dslopes, &dscale = run.args.dscale;
    for (Index h = 0; wants.slopes && h < heads; ++h) {
      double sum = 0;
      each_panel([&](Index at) {
        for (Index i = (at * heads + h) * n; i < (at * heads + h + 1) * n; ++i)
          sum += static_cast<double>(run.dslopes[i]);
      });
      store_double(dslopes.data, dslopes.dtype, h * dslopes.step[0], sum);
    }
    double all = 0;
    for (Index m = 0; wants.scale && m < p.heads.q.heads; ++m) {
      double sum = 0;
      each_panel([&](Index at) { sum += run.dscale[at * p.heads.q.heads + m]; });
      all += sum;
      if (dscale.size[0] > 1) store_double(dscale.data, dscale.dtype, m * dscale.step[0], sum);
    }
    if (wants.scale && dscale.size[0] == 1) store_double(dscale.data, dscale.dtype, 0, all);
    const AnyView &sinks = run.args.forward.inputs.sinks, &to = run.args.dsinks;
    for (Index h = 0; wants.sinks && h < heads; ++h) {
      // w_sink = exp(sink) / (exp(sink) + sum exp(l)), so dsink = -w_sink delta
      const double sink = load_double(sinks.data, sinks.dtype, h * sinks.step[0]);
      double sum = 0;
      each_panel([&](Index at) {
        for (Index i = (at * heads + h) * n; i < (at * heads + h + 1) * n; ++i)
          if (run.live[i] != 0)
            sum -= std::exp(sink - static_cast<double>(run.top[i])) * static_cast<double>(run.delta[i]);
      });
      store_double(to.data, to.dtype, h * to.step[0], sum);
    }
  });
}

}  // namespace headwise::cpu::mixed
