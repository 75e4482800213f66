#include "headwise/layers/multi_head/merged.h"

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
  const Widths w = inner_.head().widths();
  std::optional<HeadRun> local;
  std::optional<HeadRun>& run = saved ? saved->run : local;
  inner_.attend({.x = x,
                 .keys = call.source,
                 .sequences = call.sequences,
                 .kv_sequences = call.source_sequences,
                 .mask = call.source_mask},
                call, run, saved != nullptr);
  const AnyView own = inner_.part(2).forward(x, call, nullptr);
  const AnyView mean = call.memory.take(x.dtype, {x.size[0], w.out});
  running_mean(own, call.sequences, mean, call.ctx);
  add(mean, as_rows(run->call.y, w.out), mean, call.ctx);
  if (saved) saved->x = x;
  return inner_.part(3).forward(mean, call, saved ? &saved->out : nullptr, tail);
}

AnyView MergedAttention::backward(const InputView& dy, Call& call, Saved& saved,
                                  const InputView& residual) const {
  const AnyView dsum = inner_.part(3).backward(dy, call, saved.out);
  const MultiHeadGrads g = inner_.attend_backward(dsum,
                                                  {.x = saved.x,
                                                   .keys = call.source,
                                                   .values = call.source,
                                                   .sequences = call.sequences,
                                                   .kv_sequences = call.source_sequences},
                                                  call, *saved.run, residual);
  if (call.dsource.given()) add(call.dsource, g.dkeys, call.dsource, call.ctx);
  const AnyView down = call.memory.take(dy.dtype, {dsum.size[0], dsum.size[1]});
  fill_zeros(down);
  running_mean_backward(dsum, call.sequences, down, call.ctx);
  const Linear& v = inner_.part(2);
  return project_rows_backward(down, saved.x, v.weight(), v.bias(), call, g.dx);
}

}  // namespace headwise
