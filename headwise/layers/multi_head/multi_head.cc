#include "headwise/layers/multi_head/multi_head.h"

#include <vector>

#include "headwise/heads/sums.h"
#include "headwise/layers/basic/embed.h"
#include "headwise/layers/basic/leaves.h"
#include "headwise/layers/basic/team_rows.h"
#include "headwise/layers/multi_head/cut_weights.h"
#include "headwise/layers/multi_head/head_gates.h"
#include "headwise/layers/multi_head/head_rows.h"
#include "headwise/layers/multi_head/leaf_heads.h"
#include "headwise/layers/multi_head/mixed_taps.h"
#include "headwise/ops/projection/backward.h"
#include "headwise/ops/projection/projection.h"
#include "headwise/ops/row/rope.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "multi_head";

AnyHead head_in(ParamSet& params, std::string_view name, std::string_view head, const MultiHeadOptions& o) {
  require(o.model_dim > 0, ErrorKind::bad_shape, kOp, "model_dim is ", o.model_dim, "; it starts at 1");
  const auto scope = params.scope(name);
  return make_head(
      head, params,
      {.layer = o.layer, .depth = o.depth, .model_dim = o.model_dim, .key_model_dim = o.key_model_dim});
}

HeadCut cut_of(std::string_view head, const MultiHeadOptions& o) {
  if (o.teams == nullptr) return {.words = std::string(head)};
  require(o.model_dim > 0, ErrorKind::bad_shape, kOp, "model_dim is ", o.model_dim, "; it starts at 1");
  return cut_head(
      head, {.layer = o.layer, .depth = o.depth, .model_dim = o.model_dim, .key_model_dim = o.key_model_dim},
      o.teams->tensor_ranks(), o.teams->order);
}

/// The values or gradients of parameters that lie side by side as one: rows of all of them.
AnyView spanned(const AnyView& first, Index rows) {
  AnyView v = first;
  if (v.given()) v.size[0] = rows;
  return v;
}

/// Parts [rows width] that lie one after the other, as [rows parts width].
AnyView side_by_side(const AnyView& first, Index parts) {
  AnyView v = first;
  v.rank = 3;
  v.size[1] = parts, v.step[1] = first.size[0] * first.size[1];
  v.size[2] = first.size[1], v.step[2] = 1;
  return v;
}

/// A head's backward; booking begins its gradients anew, so what is asked of the score bias comes behind it.
void run_backward(HeadRun& run, const AnyView& dbias, Call& call) {
  Arena measure = Arena::measuring();
  run.book_backward(measure);
  Arena arena(call.memory.take_bytes(measure.used()), call.memory.device());
  run.book_backward(arena);
  if (dbias.given()) run.call.run.dbias = dbias;
  run.backward(call.ctx, &call.memory.plans());
}

/// Rows [rows columns] as rope reads them under a layout: [outer tokens slots dim].
AnyView turned_view(const AnyView& rows, const HeadLayout& layout, const Sequences& s) {
  const Index outer = s.ragged() ? 1 : s.batch, tokens = s.ragged() ? rows.size[0] : s.tokens;
  return AnyView::packed(rows.data, rows.dtype, {outer, tokens, layout.slots(), layout.dim}).on(rows.where());
}

}  // namespace

MultiHead::MultiHead(ParamSet& params, std::string_view name, std::string_view words,
                     const MultiHeadOptions& o)
    : options_(o), cut_(cut_of(words, o)), head_(head_in(params, name, cut_.words, o)) {
  const auto scope = params.scope(name);
  const Widths w = head().widths();
  const LinearOptions in{.bias = o.bias, .init_scale = o.init_scale};
  if (options_.key_model_dim == 0) options_.key_model_dim = o.model_dim;
  if (options_.value_model_dim == 0) options_.value_model_dim = options_.key_model_dim;
  parts_[0].emplace(params, "q", o.model_dim, w.q, in);
  parts_[1].emplace(params, "k", options_.key_model_dim, w.k / cut_.repeats, in);
  parts_[2].emplace(params, "v", options_.value_model_dim, w.v / cut_.repeats, in);
  const Teams* const teams = cut_.by == CutBy::sequences ? nullptr : o.teams;
  const int ranks = teams ? teams->tensor_ranks() : 1;
  if (w.out > 0)
    parts_[3].emplace(params, "out", w.out * ranks, o.model_dim,
                      LinearOptions{.bias = o.out_bias,
                                    .init_scale = o.init_scale,
                                    .cut = Cut::in,
                                    .teams = teams,
                                    .leaves = cut_.leaves * ranks});
  const bool all = options_.key_model_dim == o.model_dim;
  // Leaves read rows of all three: side by side on some ranks alone, they would be other products there.
  if (options_.value_model_dim == options_.key_model_dim && cut_.by != CutBy::leaf_heads) {
    const auto join = [&](const auto& of) { params.join({all ? of(0) : Learned{}, of(1), of(2)}); };
    join([&](int i) { return parts_[i]->weight(); });
    join([&](int i) { return parts_[i]->bias(); });
  }
  const HeadSpec spec = head().spec();
  require(!o.rope || (spec.q.row == 0 && spec.k.row == 0), ErrorKind::unsupported, kOp, "head ",
          head().name(), " has heads that overlap in their row, which rope cannot turn; use other positions");
  require(!o.alibi || ranks == 1 || spec.normal_heads() == cut_.heads / ranks, ErrorKind::unsupported, kOp,
          "head ", head().name(),
          " has several maps a head, whose slopes are not cut over ranks; use other positions");
  if (o.alibi)
    slopes_ =
        alibi_slopes_of(ranks * spec.normal_heads(), params.dtype() == DType::f64 ? DType::f64 : DType::f32);
  if (in_context()) {
    require(cut_.by == CutBy::heads, ErrorKind::unsupported, kOp, "head ", head().name(),
            " runs in leaves over its tensor team, where tokens are not cut besides; use --context alone");
    make_context_head();
  }
  if (cut_.by == CutBy::heads) return;
  require(!o.alibi || cut_.by == CutBy::sequences, ErrorKind::unsupported, kOp, "head ", head().name(),
          " runs leaf by leaf over ranks, where slopes are not there yet; use other positions");
  const std::string& first = parts_[0]->name();
  leaves_ =
      std::make_shared<const LeafHeads>(params, first.substr(0, first.rfind(".q.")), words, options_, cut_);
}

AttentionProblem MultiHead::sizes_of(const MultiHeadArgs& a) const {
  const Sequences& q = a.sequences;
  const Sequences& kv = a.kv_sequences;
  require(q.count() == kv.count() && q.ragged() == kv.ragged(), ErrorKind::bad_shape, kOp, "x has ",
          q.count(), " sequences and keys have ", kv.count(),
          "; give as many, both padded or both with offsets");
  AttentionProblem p;
  p.device = a.x.where(), p.dtype = a.x.dtype;
  p.batch = q.count();
  p.ragged = q.ragged();
  p.q_tokens = q.longest(), p.kv_tokens = kv.longest();
  if (p.ragged) p.q_total = q.rows(), p.kv_total = kv.rows();
  p.heads.terms = {.alibi = options_.alibi, .bias = a.bias.given()};
  return p;
}

void MultiHead::turn(const AnyView& rows, const HeadLayout& layout, const Sequences& s, bool back,
                     Call& call) const {
  const Scratch scratch(call.memory);
  const AnyView v = turned_view(rows, layout, s);
  const RopePositions at = s.ragged() ? RopePositions(positions_of(s, call)) : RopePositions(Index{0});
  if (back)
    rope_backward(v, at, v, *options_.rope, call.ctx);
  else
    rope(v, at, v, *options_.rope, call.ctx);
}

KvMemory MultiHead::remember(const InputView& rows, const Sequences& sequences, Call& call) const {
  check_activation(kOp, "memory", rows, options_.key_model_dim, sequences);
  require(options_.value_model_dim == options_.key_model_dim, ErrorKind::bad_shape, kOp, "keys read ",
          options_.key_model_dim, " columns and values ", options_.value_model_dim,
          "; one memory serves both only where these are equal");
  KvMemory m{.rows = rows, .sequences = sequences};
  AnyView parts[3];
  project(1, 3, rows, call, parts);
  m.k = parts[1], m.v = parts[2];
  return m;
}

int MultiHead::end_of_product(int first, int last) const {
  const auto follows = [](const Learned& a, const Learned& b) {
    const auto behind = [](const AnyView& x, const AnyView& y) {
      return static_cast<const std::byte*>(x.data) + x.count() * size_of(x.dtype) == y.data;
    };
    if (!a.given()) return !b.given();
    return b.given() && behind(a.value(), b.value()) &&
           (a.grad().given() ? behind(a.grad(), b.grad()) : !b.grad().given());
  };
  int end = first + 1;
  while (end < last && parts_[end]->in() == parts_[first]->in() &&
         parts_[end]->out() == parts_[first]->out() &&
         follows(parts_[end - 1]->weight(), parts_[end]->weight()) &&
         follows(parts_[end - 1]->bias(), parts_[end]->bias()))
    ++end;
  return end;
}

void MultiHead::take_parts(int first, int last, DType dtype, Index rows, Call& call, AnyView* parts) const {
  for (int i = first, end; i < last; i = end) {
    end = end_of_product(i, last);
    const Index width = parts_[i]->out();
    const AnyView all = call.memory.take(dtype, {(end - i) * rows, width});
    for (int j = i; j < end; ++j)
      parts[j] = AnyView::packed(static_cast<std::byte*>(all.data) + (j - i) * rows * width * size_of(dtype),
                                 dtype, {rows, width})
                     .on(all.where());
  }
}

void MultiHead::project(int first, int last, const AnyView& from, Call& call, AnyView* parts) const {
  take_parts(first, last, from.dtype, from.size[0], call, parts);
  for (int i = first, end; i < last; i = end) {
    end = end_of_product(i, last);
    const Linear& part = *parts_[i];
    const Index count = end - i;
    ProjectionArgs args{.x = from,
                        .bias = spanned(part.bias().value(), count * part.out()),
                        .out = side_by_side(parts[i], count)};
    read_weight(spanned(part.weight().value(), count * part.out()), call, args);
    projection(args, Activation::none, call.ctx);
  }
}

AnyView MultiHead::project_backward(int first, int last, const AnyView* slopes, const AnyView& from,
                                    Call& call, AnyView residual) const {
  if (sums()) return cut_backward(first, last, slopes, from, call, residual);
  for (int i = first, end; i < last; i = end) {
    end = end_of_product(i, last);
    const Linear& part = *parts_[i];
    const Index width = (end - i) * part.out();
    residual = project_rows_backward(side_by_side(slopes[i], end - i), from,
                                     {.weight = spanned(part.weight().value(), width),
                                      .dweight = spanned(part.weight().grad(), width),
                                      .dbias = spanned(part.bias().grad(), width)},
                                     call, residual);
  }
  return residual;
}

/// W_Q, W_K, W_V are cut by their columns: dx is a sum over the heads of all ranks, dW is this rank's own. A
/// kv head that several leaves use gets its dk and dv from all of them first.
AnyView MultiHead::cut_backward(int first, int last, const AnyView* slopes, const AnyView& from, Call& call,
                                const AnyView& residual) const {
  std::vector<LeafProduct> products;
  for (int i = first; i < last; ++i)
    products.push_back({.x = slopes[i],
                        .weight = turned(parts_[i]->weight().value()),
                        .repeats = i == 0 ? 1 : cut_.repeats});
  const AnyView dx =
      sum_leaves(products, cut_.leaves, {.residual = residual}, call, *options_.teams, parts_[first]->name());
  const Scratch scratch(call.memory);
  for (int i = first; i < last; ++i) {
    AnyView dy = slopes[i];
    if (i > 0 && (cut_.repeats > 1 || cut_.shared > 1)) {
      const Communicator alone;  // where nothing is cut over ranks the order of sums is the same
      const Communicator& all = options_.teams->tensor ? *options_.teams->tensor : alone;
      const auto shared = static_cast<int>(cut_.shared);
      const AnyView folded = fold_heads(dy, kv_dim(i), cut_.repeats, call);
      dy = call.memory.take(dy.dtype, {folded.size[0], folded.size[1]});
      all.part(all.rank() / shared * shared, shared)
          .sum(folded, dy, Order::tree, call.ctx, parts_[i]->name());
    }
    parameter_gradients({.dy = dy,
                         .x = from,
                         .dweight = parts_[i]->weight().grad(),
                         .dbias = parts_[i]->bias().grad(),
                         .parts = call.training},
                        call);
  }
  return dx;
}

/// Over several ranks weights alone may be asked of single heads: a rank knows its own.
void MultiHead::check_cut_args(const MultiHeadArgs& a, const Call& call, bool backward) const {
  check_cut(call, backward, options_.dropout, *options_.teams);
  const bool asks = a.weights.given() || a.taps != nullptr;
  require(
      options_.teams->tensor_ranks() == 1 ||
          (!a.bias.given() && !a.gates.given() && !a.dgates.given() && a.edit == nullptr &&
           (!asks || has_plain_weights(cut_)) && (!a.taps || (!a.taps->rows && !a.taps->slopes))),
      ErrorKind::unsupported, kOp, "heads are cut over ", options_.teams->tensor_ranks(),
      " ranks, where gates, edits and score biases of single heads are not there yet, and weights of heads "
      "that are cut by heads alone, without rows and slopes; use one rank");
}

/// Empty keys and values stand for x, or for the memory's.
MultiHeadArgs MultiHead::completed(const MultiHeadArgs& given) const {
  MultiHeadArgs a = given;
  require(a.keys.given() || !a.values.given(), ErrorKind::bad_argument, kOp,
          "values are given without keys; give both, or keys alone");
  check_activation(kOp, "x", a.x, options_.model_dim, a.sequences);
  if (a.memory) {
    a.kv_sequences = a.memory->sequences;
    return a;
  }
  if (!a.keys.given()) a.keys = a.x, a.kv_sequences = a.sequences;
  if (!a.values.given()) a.values = a.keys;
  check_activation(kOp, "keys", a.keys, options_.key_model_dim, a.kv_sequences);
  check_activation(kOp, "values", a.values, options_.value_model_dim, a.kv_sequences);
  return a;
}

void MultiHead::attend(MultiHeadArgs a, Call& call, std::optional<HeadRun>& run, bool keep) const {
  const bool self = !a.memory && !a.keys.given();
  a = completed(a);
  AttentionProblem sizes = sizes_of(a);
  const DropoutOptions dropped = call.next_dropout(options_.dropout);
  sizes.heads.terms.dropout = dropped.p > 0;
  if (a.weights.given()) sizes.probe.scores = ScoreStage::weights;
  run.emplace(head(), sizes, keep);
  HeadCall& c = run->call;
  const bool mixes = c.problem.heads.mixes();
  if (a.taps && !mixes) ask_weights(c.problem, c.run.forward.probe, a.sequences, call);
  AnyView parts[3] = {{}, a.memory ? a.memory->k : AnyView{}, a.memory ? a.memory->v : AnyView{}};
  const auto& [q, k, v] = parts;
  project(0, self ? 3 : 1, a.x, call, parts);
  if (!self && !a.memory) {
    const bool one = a.keys.data == a.values.data;
    project(1, one ? 3 : 2, a.keys, call, parts);
    if (!one) project(2, 3, a.values, call, parts);
  }
  if (cut_.repeats > 1)
    for (int i = 1; i < 3; ++i) parts[i] = repeat_heads(parts[i], kv_dim(i), cut_.repeats, call);
  if (options_.rope && self) {
    const HeadSpec spec = head().spec();
    turn(q, spec.q, a.sequences, false, call);
    turn(k, spec.k, a.kv_sequences, false, call);
  }
  c.head_budget = call.head_budget;
  c.x = as_sequences(a.x, a.sequences);
  c.x_kv = as_sequences(a.memory ? a.memory->rows : a.keys, a.kv_sequences);
  c.q = as_sequences(q, a.sequences);
  c.k = as_sequences(k, a.kv_sequences), c.v = as_sequences(v, a.kv_sequences);
  AttentionArgs& f = c.run.forward;
  f.mask = a.mask;
  f.q_offsets = a.sequences.offsets, f.kv_offsets = a.kv_sequences.offsets;
  f.inputs.bias = a.bias;
  if (options_.alibi) f.inputs.slopes = to(own_slopes(), call.memory, call.ctx);
  // The draws of weights go by sequence, head, query and key; the site keeps layers apart.
  f.inputs.dropout = dropped.p, f.inputs.seed = dropped.seed + dropped.site;
  const Communicator* const team = options_.teams ? options_.teams->tensor : nullptr;
  f.probe.scores = own_weights(a.weights, team ? team->ranks() : 1, call);
  run_head(*run, call);
  if (team && team->ranks() > 1 && a.weights.given())
    team->gather(f.probe.scores, a.weights, 1, "weights of heads");
  if (c.has_loss) call.add_loss(c.loss);
  if (a.taps && mixes) keep_mixed_weights(c.problem, f, a.sequences, a.kv_sequences, call, *a.taps);
  if (a.taps && !mixes) {
    keep_weights(c.problem, f.probe, a.sequences, a.kv_sequences, call.block, *a.taps);
    if (team && team->ranks() > 1) join_taps(*team, a.sequences.count(), *a.taps);
    if (a.taps->rows && self) keep_rows(q, k, v, a.sequences, *a.taps);
  }
}

void MultiHead::run_head(HeadRun& run, Call& call) const {
  Arena measure = Arena::measuring();
  run.book(measure);
  Arena arena(call.memory.take_bytes(measure.used()), call.memory.device());
  run.book(arena);
  run.forward(call.ctx, &call.memory.plans());
}

void MultiHead::run_head_backward(HeadRun& run, Call& call) const { run_backward(run, {}, call); }

/// Gates fit the rows W_O reads.
void MultiHead::check_gates(const MultiHeadArgs& a) const {
  if (!a.gates.given() && !a.dgates.given()) return;
  require(parts_[3].has_value(), ErrorKind::unsupported, kOp, "head ", head().name(),
          " gives the layer's output itself, whose columns belong to no head; leave out head gates");
  const Index heads = head_count(), rows = a.x.size[0];
  if (a.gates.given())
    require(a.gates.rank == 1 && a.gates.size[0] == heads && is_float(a.gates.dtype), ErrorKind::bad_shape,
            kOp, "head gates are ", a.gates, " but ", head().name(), " has ", heads,
            " heads; give a float for each");
  if (a.dgates.given())
    require(a.dgates.rank == 2 && a.dgates.size[0] == rows && a.dgates.size[1] == heads &&
                is_float(a.dgates.dtype),
            ErrorKind::bad_shape, kOp, "gradients of head gates are ", a.dgates, "; give floats [", rows, " ",
            heads, "], a number for each row and head");
}

AnyView MultiHead::forward(const InputView& x, Call& call, Saved* saved, const Tail& tail) const {
  MultiHeadArgs a = asked(call);
  a.x = x, a.sequences = call.sequences, a.mask = call.mask, a.tail = tail;
  a.taps = call.taps && call.taps->wants(call.block) ? call.taps : nullptr;
  return forward(a, call, saved);
}

AnyView MultiHead::forward(const MultiHeadArgs& a, Call& call, Saved* saved) const {
  require(!a.memory || !saved, ErrorKind::bad_argument, kOp,
          "a memory projected before has no gradient; give its rows as keys where a backward follows");
  require(
      !a.edit || (!saved && parts_[3]), ErrorKind::unsupported, kOp,
      saved ? "heads that are edited have no gradient; leave out edit_heads where a backward follows"
            : "this head gives the layer's output itself, so no head's can be edited; leave out edit_heads");
  std::optional<HeadRun> local;
  std::optional<HeadRun>& run = saved ? saved->run : local;
  check_gates(a);
  if (leaves_) return leaves_->forward(a, call, saved, parts_[3] ? &*parts_[3] : nullptr);
  if (options_.teams) check_cut_args(a, call, saved != nullptr);
  AnyView rows;  // what W_O reads, or the layer's output where the head gives that itself
  if (in_context()) {
    check_context(a, call, saved != nullptr);
    rows = attend_in_context(a, call, saved);
  } else {
    attend(a, call, run, saved != nullptr);
    rows = as_rows(run->call.y, parts_[3] ? head().widths().out : options_.model_dim);
  }
  if (saved) saved->args = a;
  if (parts_[3]) {
    if (saved) saved->y = rows;
    if (a.gates.given()) {
      const AnyView gated = call.memory.take(rows.dtype, {rows.size[0], rows.size[1]});
      scale_heads(rows, a.gates, gated, call.ctx);
      rows = gated;
    }
    if (a.edit) (*a.edit)(call.block, rows);
    return parts_[3]->forward(rows, call, saved ? &saved->out : nullptr, a.tail);
  }
  // finish gave the layer's output itself: only the tail is left.
  const DropoutOptions tail = call.next_dropout(a.tail.dropout);
  if (saved) saved->tail = tail;
  if (tail.p == 0 && !a.tail.residual.given()) return rows;
  const AnyView to = call.memory.take(rows.dtype, {rows.size[0], rows.size[1]});
  if (tail.p > 0)
    dropout(rows, a.tail.residual, tail, to, call.ctx);
  else
    add(rows, a.tail.residual, to, call.ctx);
  return to;
}

MultiHeadGrads MultiHead::backward(const InputView& dy, Call& call, Saved& saved,
                                   const InputView& residual) const {
  if (leaves_) return leaves_->backward(dy, call, saved, residual, parts_[3] ? &*parts_[3] : nullptr);
  require(saved.run.has_value(), ErrorKind::bad_argument, kOp,
          "backward was called, and no forward saved what it needs; call forward with the same saved first");
  AnyView dhead = dy;  // gradient of the head's y
  if (parts_[3]) {
    dhead = parts_[3]->backward(dy, call, saved.out);
    // W_O reads g y  ->  dg = y . d, dy = g d
    if (saved.args.dgates.given()) gate_gradient(saved.y, dhead, saved.args.dgates, call.ctx);
    if (saved.args.gates.given()) scale_heads(dhead, saved.args.gates, dhead, call.ctx);
  } else if (saved.tail.p > 0) {
    dhead = call.memory.take(dy.dtype, {dy.size[0], dy.size[1]});
    dropout_backward(dy, saved.tail, dhead, call.ctx);
  }
  if (in_context()) return backward_in_context(dhead, call, saved, residual);
  return attend_backward(dhead, saved.args, call, *saved.run, residual);
}

MultiHeadGrads MultiHead::attend_backward(const AnyView& dy, const MultiHeadArgs& given, Call& call,
                                          HeadRun& run, const AnyView& residual) const {
  const bool self = !given.keys.given();
  const MultiHeadArgs a = completed(given);
  HeadCall& c = run.call;
  const DType dtype = dy.dtype;
  const Index rows = a.x.size[0], kv_rows = a.keys.size[0];
  const bool one = self || a.keys.data == a.values.data;
  AnyView slopes[3];
  const auto& [dq, dk, dv] = slopes;
  if (sums()) {
    const Widths w = head().widths();
    slopes[0] = call.memory.take(dtype, {rows, w.q});
    slopes[1] = call.memory.take(dtype, {kv_rows, w.k}), slopes[2] = call.memory.take(dtype, {kv_rows, w.v});
  } else {
    take_parts(0, self ? 3 : 1, dtype, rows, call, slopes);
  }
  if (!self && !sums()) {
    take_parts(1, one ? 3 : 2, dtype, kv_rows, call, slopes);
    if (!one) take_parts(2, 3, dtype, kv_rows, call, slopes);
  }
  c.dy = as_sequences(dy, a.sequences);
  c.dq = as_sequences(dq, a.sequences);
  c.dk = as_sequences(dk, a.kv_sequences), c.dv = as_sequences(dv, a.kv_sequences);
  // What the head itself reads of x: its gradient is added to the residual's.
  AnyView base = residual, kv_base;
  if (reads_rows(head())) {
    base = call.memory.take(dtype, {rows, options_.model_dim});
    clear(base, call.ctx);
    if (residual.given()) add(base, residual, base, call.ctx);
    if (!self) {
      kv_base = call.memory.take(dtype, {kv_rows, options_.key_model_dim});
      clear(kv_base, call.ctx);
    }
    c.dx = as_sequences(base, a.sequences);
    c.dx_kv = self ? c.dx : as_sequences(kv_base, a.kv_sequences);
    c.loss_gradient = call.loss_gradient();
  }
  run_backward(run, a.dbias, call);
  if (self && call.taps && call.taps->slopes && call.taps->wants(call.block))
    keep_slopes(as_rows(c.d_o, c.problem.heads.q.heads * head().spec().v.dim), a.sequences, call.block,
                *call.taps);
  if (options_.rope && self) {
    const HeadSpec spec = head().spec();
    turn(dq, spec.q, a.sequences, true, call);
    turn(dk, spec.k, a.kv_sequences, true, call);
  }
  MultiHeadGrads g;
  g.dx = project_backward(0, self ? 3 : 1, slopes, a.x, call, base);
  if (self) return g;
  g.dkeys = project_backward(1, one ? 3 : 2, slopes, a.keys, call, kv_base);
  if (!one) g.dvalues = project_backward(2, 3, slopes, a.values, call, {});
  return g;
}

}  // namespace headwise
