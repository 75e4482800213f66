#include <algorithm>
#include <cmath>
#include <numeric>

#include "headwise/kernels/cpu/backward/panel.h"

namespace headwise::cpu::backward {
namespace {

/// Rows one task of a fold takes.
constexpr Index kFoldRows = 64;

/// Sum of f(row) over the rows of one head, in ascending order of sequence and token.
template <class F>
double over_rows(const BackwardRun& run, F&& f) {
  const AttentionProblem& p = run.problem.forward;
  double sum = 0;
  for (Index b = 0; b < p.batch; ++b) {
    const SequenceLocation at = place_of(p, run.args.forward, b);
    for (Index i = 0; i < at.q_tokens; ++i) sum += f(at, i);
  }
  return sum;
}

/// A view of one number a head, or of one for all heads.
template <class F>
void write_heads(const BackwardRun& run, const AnyView& to, ThreadPool& pool, int threads, F&& of_head) {
  const Index heads = run.problem.forward.heads.q.heads;
  const bool one = to.size[0] == 1 || to.step[0] == 0;
  const auto body = [&](Index task, int) {
    double sum = 0;
    for (Index h = task; h < (one ? heads : task + 1); ++h) sum += of_head(h);
    store_double(to.data, to.dtype, task * to.step[0], sum);
  };
  pool.parallel_for(one ? std::min<Index>(1, to.size[0]) : heads, body, threads);
}

/// One of q, k, v: every element is the sum of what the heads that read it ask, in ascending order.
struct SharedTensor {
  const HeadLayout& layout;
  const AnyView& to;
  const float* shares;  // [batch][heads / unit][rows][dim]
  Index unit, rows;
};
void fold_tensor(const BackwardRun& run, BackwardScratch* scratch, const SharedTensor& t, ThreadPool& pool,
                 int threads) {
  const HeadLayout& layout = t.layout;
  const AnyView& to = t.to;
  const float* shares = t.shares;
  const Index unit = t.unit, rows = t.rows;
  const Index units = ceil_div(layout.heads, unit), dim = layout.dim;
  const Index width = layout.row > 0 ? layout.row : layout.slots() * dim;
  const Index batch = run.problem.forward.ragged ? 1 : run.problem.forward.batch,
              blocks = ceil_div(rows, kFoldRows);
  const auto body = [&](Index task, int worker) {
    double* line = scratch[worker].line;
    const Index b = task / blocks, first = task % blocks * kFoldRows;
    for (Index row = first; row < std::min(rows, first + kFoldRows); ++row) {
      std::fill_n(line, width, 0.0);
      for (Index u = 0; u < units; ++u) {
        const float* share = shares + ((b * units + u) * rows + row) * dim;
        const Index column = layout.row > 0 ? layout.column(u * unit) : layout.slot(u * unit) * dim;
        for (Index c = std::max<Index>(0, -column); c < std::min(dim, width - column); ++c)
          line[column + c] += static_cast<double>(share[c]);
      }
      const Index base = b * to.step[0] + row * to.step[1];
      for (Index c = 0; c < width; ++c)
        store_double(to.data, to.dtype,
                     base + (layout.row > 0 ? c * to.step[2] : c / dim * to.step[2] + c % dim * to.step[3]),
                     line[c]);
    }
  };
  pool.parallel_for(batch * blocks, body, threads);
}

}  // namespace

void row_deltas(const BackwardRun& run, BackwardScratch* scratch, ThreadPool& pool, int threads) noexcept {
  const AttentionProblem& p = run.problem.forward;
  const HeadLayout layout = HeadLayout::split(p.heads.v.heads, p.heads.v.dim);
  const Index batch = p.ragged ? 1 : p.batch, rows = run.q_rows(), heads = p.heads.q.heads,
              dim = p.heads.v.dim;
  const Core& core = run.core;
  const Index size = core.panel, blocks = ceil_div(rows, size);
  const auto body = [&](Index task, int worker) {
    BackwardScratch& s = scratch[worker];
    const Index b = task / (heads * blocks), h = task / blocks % heads, first = task % blocks * size;
    const int count = static_cast<int>(std::min(size, rows - first));
    Rows out[64], dout[64];
    Index row[64];
    std::fill_n(out, size, forward::rows_of(run.args.forward.out, layout, h, b, 0));
    std::fill_n(dout, size, forward::rows_of(run.args.dout, layout, h, b, 0));
    for (Index i = 0; i < size; ++i) row[i] = first + i;
    core.products.pack_queries(out, row, count, dim, s.outs, s.forward.gather);
    core.products.pack_queries(dout, row, count, dim, s.panels[0].douts, s.forward.gather);
    core.gradients.dots(s.outs, s.panels[0].douts, dim, s.lane_sum);
    std::copy_n(s.lane_sum, count, run.delta + (b * heads + h) * rows + first);
  };
  pool.parallel_for(batch * heads * blocks, body, threads);
}

void clear_unlisted(const BackwardRun& run, ThreadPool& pool, int threads) noexcept {
  const AttentionProblem& p = run.problem.forward;
  const GradientSpec& wants = run.problem.wants;
  const Index heads = p.heads.q.heads, dim = p.heads.q.dim;
  const auto body = [&](Index task, int) {
    const Index head = task % heads;
    const SequenceLocation at = place_of(p, run.args.forward, task / heads);
    forward::each_unlisted(run.forward, at, head, [&](Index first, Index end) {
      for (Index token = first; token < end; ++token) {
        const Index row = run.row(at, head, token), place = at.q_row + token;
        if (wants.scale) run.scale[row] = 0;
        if (wants.slopes) run.slope[row] = 0;
        const AnyView &dq = run.args.dq, &dgate = run.args.dgate;
        if (wants.gate)
          store_double(dgate.data, dgate.dtype,
                       at.tensor_batch * dgate.step[0] + place * dgate.step[1] + head * dgate.step[2], 0);
        if (run.q_shares)
          std::fill_n(run.q_shares + row * dim, dim, 0.0f);
        else if (wants.q)
          for (Index c = 0; c < dim; ++c)
            store_double(
                dq.data, dq.dtype,
                at.tensor_batch * dq.step[0] + place * dq.step[1] + head * dq.step[2] + c * dq.step[3], 0);
      }
    });
  };
  pool.parallel_for(p.batch * heads, body, threads);
}

void fold_shares(const BackwardRun& run, const AnyView& to, const double* shares, ThreadPool& pool,
                 int threads) noexcept {
  write_heads(run, to, pool, threads, [&](Index h) {
    return over_rows(run, [&](const SequenceLocation& at, Index i) { return shares[run.row(at, h, i)]; });
  });
}

void fold_terms(const BackwardRun& run, ThreadPool& pool, int threads) noexcept {
  const GradientSpec& wants = run.problem.wants;
  const HeadInputs& in = run.args.forward.inputs;
  if (wants.sinks)
    write_heads(run, run.args.dsinks, pool, threads, [&](Index h) {
      const double sink = load_double(in.sinks.data, in.sinks.dtype, h * in.sinks.step[0]);
      const AnyView& lse = run.args.forward.lse;
      return over_rows(run, [&](const SequenceLocation& at, Index i) {
        const auto l = static_cast<double>(static_cast<const float*>(
            lse.data)[at.tensor_batch * lse.step[0] + h * lse.step[1] + (at.q_row + i) * lse.step[2]]);
        if (sink == -INFINITY || l == -INFINITY) return 0.0;
        return -std::exp(sink - l) * static_cast<double>(run.delta[run.row(at, h, i)]);
      });
    });
  if (wants.slopes) fold_shares(run, run.args.dslopes, run.slope, pool, threads);
  if (wants.scale) fold_shares(run, run.args.dscale, run.scale, pool, threads);
}

void fold_tensors(const BackwardRun& run, BackwardScratch* scratch, ThreadPool& pool, int threads) noexcept {
  const HeadSpec& heads = run.problem.forward.heads;
  const Index unit = run.forward.run_heads;
  if (run.q_shares)
    fold_tensor(run, scratch, {heads.q, run.args.dq, run.q_shares, 1, run.q_rows()}, pool, threads);
  if (run.k_shares)
    fold_tensor(run, scratch, {heads.k, run.args.dk, run.k_shares, unit, run.kv_rows()}, pool, threads);
  if (run.v_shares)
    fold_tensor(run, scratch, {heads.v, run.args.dv, run.v_shares, unit, run.kv_rows()}, pool, threads);
}

}  // namespace headwise::cpu::backward
