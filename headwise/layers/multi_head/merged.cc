#include "headwise/layers/multi_head/merged.h"

#include "headwise/base/context.h"
#include "headwise/layers/multi_head/head_gates.h"

namespace headwise {
namespace {

constexpr Index kTaskColumns = 32;

/// f(first row, last row + 1, column) for every sequence and column, a task's columns side by side.
template <class F>
void each_column(const AnyView& x, const Sequences& s, Context& ctx, const F& f) {
  const Index cuts = ceil_div(x.size[1], kTaskColumns);
  ctx.pool().parallel_for(s.count() * cuts, [&](Index task, int) noexcept {
    const Index b = task / cuts, begin = task % cuts * kTaskColumns;
    f(s.at(b), s.at(b + 1), begin, min_of(x.size[1], begin + kTaskColumns));
  });
}

/// What the call asks of single heads. Merged attention stands for self- and cross-attention, so it answers
/// to both names.
MultiHeadArgs asked_of_merged(const MultiHead& inner, const InputView& x, Call& call) {
  const AttentionPart running = call.running;
  if (call.asked != AttentionPart::source) call.running = call.asked;
  MultiHeadArgs a = inner.asked(call);
  call.running = running;
  a.x = x, a.keys = a.values = call.source;
  a.sequences = call.sequences, a.kv_sequences = call.source_sequences, a.mask = call.source_mask;
  const Index heads = inner.head_count();
  if (a.gates.given())
    require(a.gates.size[0] == heads && is_float(a.gates.dtype), ErrorKind::bad_shape, "merged",
            "head gates are ", a.gates, " but there are ", heads, " heads; give a float for each");
  if (a.dgates.given())
    require(a.dgates.size[0] == x.size[0] && a.dgates.size[1] == heads && is_float(a.dgates.dtype),
            ErrorKind::bad_shape, "merged", "gradients of head gates are ", a.dgates, "; give floats [",
            x.size[0], " ", heads, "], a number for each row and head");
  return a;
}

/// What W_O reads before the gates: the running mean of the own values, and what the heads give.
AnyView merged_rows(const Linear& values, const InputView& x, const AnyView& heads, Call& call) {
  const AnyView own = values.forward(x, call, nullptr);
  const AnyView mean = call.memory.take(x.dtype, {x.size[0], own.size[1]});
  running_mean(own, call.sequences, mean, call.ctx);
  add(mean, as_rows(heads, own.size[1]), mean, call.ctx);
  return mean;
}

}  // namespace

void running_mean(const AnyView& x, const Sequences& sequences, const AnyView& out, Context& ctx) {
  each_column(x, sequences, ctx, [&](Index first, Index end, Index c0, Index c1) {
    double sum[kTaskColumns] = {};
    for (Index row = first; row < end; ++row)
      for (Index c = c0; c < c1; ++c) {
        sum[c - c0] += load_double(x.data, x.dtype, row * x.step[0] + c * x.step[1]);
        store_double(out.data, out.dtype, row * out.step[0] + c * out.step[1],
                     sum[c - c0] / static_cast<double>(row - first + 1));
      }
  });
}

void running_mean_backward(const AnyView& dout, const Sequences& sequences, const AnyView& dx, Context& ctx) {
  each_column(dout, sequences, ctx, [&](Index first, Index end, Index c0, Index c1) {
    double sum[kTaskColumns] = {};
    for (Index row = end - 1; row >= first; --row)
      for (Index c = c0; c < c1; ++c) {
        sum[c - c0] += load_double(dout.data, dout.dtype, row * dout.step[0] + c * dout.step[1]) /
                       static_cast<double>(row - first + 1);
        const Index at = row * dx.step[0] + c * dx.step[1];
        store_double(dx.data, dx.dtype, at, load_double(dx.data, dx.dtype, at) + sum[c - c0]);
      }
  });
}

MergedAttention::MergedAttention(ParamSet& params, std::string_view name, std::string_view head,
                                 const MultiHeadOptions& options)
    : inner_(params, name, head, options) {
  const Widths w = inner_.head().widths();
  require(w.v == w.out, ErrorKind::unsupported, "merged", "head ", inner_.head().name(), " has values of ",
          w.v, " columns and an output of ", w.out, "; the running mean needs them equal, use mha");
}

AnyView MergedAttention::forward(const InputView& x, Call& call, Saved* saved, const Tail& tail) const {
  require(call.source.given(), ErrorKind::bad_argument, "merged",
          "there are no source rows; set call.source");
  MultiHeadArgs a = asked_of_merged(inner_, x, call);
  require(!a.edit || !saved, ErrorKind::unsupported, "merged",
          "heads that are edited have no gradient; leave out edit_heads where a backward follows");
  a.taps = call.taps && call.taps->wants(call.block) ? call.taps : nullptr;
  std::optional<HeadRun> local;
  std::optional<HeadRun>& run = saved ? saved->run : local;
  inner_.attend(a, call, run, saved != nullptr);
  const AnyView rows = merged_rows(inner_.part(2), x, run->call.y, call);
  if (a.gates.given()) scale_heads(rows, a.gates, rows, call.ctx);
  if (a.edit) (*a.edit)(call.block, rows);
  if (saved) saved->x = x;
  return inner_.part(3).forward(rows, call, saved ? &saved->out : nullptr, tail);
}

AnyView MergedAttention::backward(const InputView& dy, Call& call, Saved& saved,
                                  const InputView& residual) const {
  const AnyView dsum = inner_.part(3).backward(dy, call, saved.out);
  const MultiHeadArgs a = asked_of_merged(inner_, saved.x, call);
  // W_O reads g y  ->  dg = y . d, dy = g d
  if (a.dgates.given())
    gate_gradient(merged_rows(inner_.part(2), saved.x, saved.run->call.y, call), dsum, a.dgates, call.ctx);
  if (a.gates.given()) scale_heads(dsum, a.gates, dsum, call.ctx);
  const MultiHeadGrads g = inner_.attend_backward(dsum, a, call, *saved.run, residual);
  if (call.dsource.given()) add(call.dsource, g.dkeys, call.dsource, call.ctx);
  const AnyView down = call.memory.take(dy.dtype, {dsum.size[0], dsum.size[1]});
  fill_zeros(down);
  running_mean_backward(dsum, call.sequences, down, call.ctx);
  const Linear& v = inner_.part(2);
  return project_rows_backward(down, saved.x, v.weight(), v.bias(), call, g.dx);
}

}  // namespace headwise
