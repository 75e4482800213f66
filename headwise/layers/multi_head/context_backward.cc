// Gradients over a context team, in the bits of one rank: heads are exchanged for tokens once more; other
// heads run whole on every rank.
#include "headwise/layers/basic/team_rows.h"
#include "headwise/layers/multi_head/head_rows.h"
#include "headwise/layers/multi_head/multi_head.h"

namespace headwise {
namespace {

constexpr std::string_view kWhat = "rows of all ranks";

AnyView held_part(const AnyView& whole, const Sequences& s) {
  return s.held ? part_of_rows(whole, *s.held) : whole;
}

/// The rows of all, where they are cut.
AnyView all_of(const AnyView& own, const Sequences& s, Call& call) {
  return s.held ? rows_of_team(own, call, kWhat) : own;
}

Sequences whole(const Sequences& s) {
  Sequences all = s;
  all.held.reset();
  return all;
}

}  // namespace

AnyView MultiHead::context_whole(const MultiHeadArgs& a, const AnyView* parts, Call& call,
                                 Saved& saved) const {
  MultiHeadArgs all = a;
  all.sequences = whole(a.sequences), all.kv_sequences = whole(a.kv_sequences);
  HeadRun& run = saved.run.emplace(head(), sizes_of(all), true);
  HeadCall& c = run.call;
  const AnyView q = all_of(parts[0], a.sequences, call), k = all_of(parts[1], a.kv_sequences, call),
                v = all_of(parts[2], a.kv_sequences, call);
  AnyView x = q, keys = k;
  if (reads_rows(head())) {
    x = all_of(a.x, a.sequences, call);
    keys = a.keys.data == a.x.data ? x : all_of(a.keys, a.kv_sequences, call);
  }
  c.head_budget = call.head_budget;
  c.x = as_sequences(x, all.sequences), c.x_kv = as_sequences(keys, all.kv_sequences);
  c.q = as_sequences(q, all.sequences);
  c.k = as_sequences(k, all.kv_sequences), c.v = as_sequences(v, all.kv_sequences);
  AttentionArgs& f = c.run.forward;
  f.mask = a.mask;
  f.q_offsets = all.sequences.offsets, f.kv_offsets = all.kv_sequences.offsets;
  if (options_.alibi) f.inputs.slopes = own_slopes();
  run_head(run, call);
  if (c.has_loss) call.add_loss(c.loss);
  return part_of_rows(as_rows(c.y, parts_[3] ? head().widths().out : options_.model_dim), *a.sequences.held);
}

void MultiHead::backward_by_heads(const AnyView& dy, Call& call, HeadRun& run, const AnyView* slopes) const {
  const Communicator& team = *options_.teams->context;
  const Scratch scratch(call.memory);
  const Sequences all = whole(call.sequences);
  const Index rows = all.rows(), ranks = team.ranks();
  const AnyView d = call.memory.take(dy.dtype, {rows, dy.size[1] / ranks});
  team.exchange(dy, 1, d, parts_[3]->name());
  AnyView mine[3];
  for (int i = 0; i < 3; ++i) mine[i] = call.memory.take(dy.dtype, {rows, slopes[i].size[1] / ranks});
  HeadCall& c = run.call;
  c.dy = as_sequences(d, all);
  c.dq = as_sequences(mine[0], all), c.dk = as_sequences(mine[1], all), c.dv = as_sequences(mine[2], all);
  run_head_backward(run, call);
  for (int i = 0; i < 3; ++i) team.exchange(mine[i], 0, slopes[i], parts_[i]->name());
}

MultiHeadGrads MultiHead::backward_in_context(const AnyView& dy, Call& call, Saved& saved,
                                              const AnyView& residual) const {
  const bool self = !saved.args.keys.given();
  const MultiHeadArgs a = completed(saved.args);
  const DType dtype = dy.dtype;
  const Widths w = head().widths();
  const Index rows = a.x.size[0], kv_rows = a.keys.size[0];
  const bool one = self || a.keys.data == a.values.data;
  AnyView slopes[3] = {call.memory.take(dtype, {rows, w.q}), call.memory.take(dtype, {kv_rows, w.k}),
                       call.memory.take(dtype, {kv_rows, w.v})};
  if (!sums()) {  // parts of one product lie side by side
    take_parts(0, self ? 3 : 1, dtype, rows, call, slopes);
    if (!self) take_parts(1, one ? 3 : 2, dtype, kv_rows, call, slopes);
    if (!one) take_parts(2, 3, dtype, kv_rows, call, slopes);
  }
  AnyView base = residual, kv_base;
  if (exchanges_heads(a, self)) {
    backward_by_heads(dy, call, *saved.run, slopes);
  } else {
    const Sequences all = whole(a.sequences), kv_all = whole(a.kv_sequences);
    HeadCall& c = saved.run->call;
    const AnyView dq = call.memory.take(dtype, {all.rows(), w.q}),
                  dk = call.memory.take(dtype, {kv_all.rows(), w.k}),
                  dv = call.memory.take(dtype, {kv_all.rows(), w.v});
    c.dy = as_sequences(all_of(dy, a.sequences, call), all);
    c.dq = as_sequences(dq, all), c.dk = as_sequences(dk, kv_all), c.dv = as_sequences(dv, kv_all);
    if (reads_rows(head())) {
      const AnyView dx = call.memory.take(dtype, {all.rows(), options_.model_dim});
      fill_zeros(dx);
      base = held_part(dx, a.sequences);
      if (residual.given() && rows > 0) add(base, residual, base, call.ctx);
      if (!self) {
        kv_base = call.memory.take(dtype, {kv_all.rows(), options_.key_model_dim});
        fill_zeros(kv_base);
      }
      c.dx = as_sequences(dx, all);
      c.dx_kv = self ? c.dx : as_sequences(kv_base, kv_all);
      c.loss_gradient = call.loss_gradient();
    }
    run_head_backward(*saved.run, call);
    copy_rows(held_part(dq, a.sequences), slopes[0]);
    copy_rows(held_part(dk, a.kv_sequences), slopes[1]);
    copy_rows(held_part(dv, a.kv_sequences), slopes[2]);
  }
  if (options_.rope && self) {
    const HeadSpec spec = head().spec();
    turn_held(slopes[0], spec.q, a.sequences, true, call);
    turn_held(slopes[1], spec.k, a.sequences, true, call);
  }
  MultiHeadGrads g;
  g.dx = project_backward(0, self ? 3 : 1, slopes, a.x, call, base);
  if (self) return g;
  // Rows of a source are not cut: every rank has all their gradients.
  const Communicator* const team = call.rows_team;
  call.rows_team = nullptr;
  g.dkeys = project_backward(1, one ? 3 : 2, slopes, a.keys, call, kv_base);
  if (!one) g.dvalues = project_backward(2, 3, slopes, a.values, call, {});
  call.rows_team = team;
  return g;
}

}  // namespace headwise
