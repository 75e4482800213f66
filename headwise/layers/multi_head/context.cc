// Attention over a context team: each rank has some of the rows. Heads are exchanged for tokens, or keys are
// gathered; either way every row is computed as on one rank.
#include "headwise/layers/basic/embed.h"
#include "headwise/layers/multi_head/head_rows.h"
#include "headwise/layers/multi_head/multi_head.h"
#include "headwise/ops/row/rope.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "multi_head";

/// The rows of `held` as they belong to the sequences of all rows: where they begin, and at which position.
struct HeldSequences {
  Sequences sequences;
  AnyView starts;  // [batch] i64

  HeldSequences(const Sequences& all, const Slice& held, Call& call) {
    const Index count = all.count(), end = held.begin + held.size;
    const AnyView made = call.memory.take(DType::i64, {count + 1});
    sequences.offsets = made;
    starts = call.memory.take(DType::i64, {count});
    auto* offsets = static_cast<Index*>(made.data);
    auto* first = static_cast<Index*>(starts.data);
    for (Index b = 0; b <= count; ++b) offsets[b] = min_of(max_of(all.at(b), held.begin), end) - held.begin;
    for (Index b = 0; b < count; ++b)
      first[b] = offsets[b + 1] > offsets[b] ? max_of(0, held.begin - all.at(b)) : 0;
  }
};

/// The same sequences with offsets.
Sequences ragged(const Sequences& s, Call& call) {
  if (s.ragged()) return {.offsets = s.offsets};
  const AnyView offsets = call.memory.take(DType::i64, {s.count() + 1});
  for (Index b = 0; b <= s.count(); ++b) static_cast<Index*>(offsets.data)[b] = s.at(b);
  return {.offsets = offsets};
}

/// A dense mask goes by the number of a query among those of a run, which is another one here.
bool counts_queries(const MaskSet& masks) {
  for (Index i = 0; i < masks.count; ++i)
    for (int s = 0; s < masks.views[i].count; ++s) {
      const MaskStep& step = masks.views[i].steps[s];
      if (step.op == MaskOp::dense && step.size[2] != 1) return true;
    }
  return false;
}

}  // namespace

void MultiHead::make_context_head() {
  ParamSet none = ParamSet::blank();
  const Place place{.layer = options_.layer,
                    .depth = options_.depth,
                    .model_dim = options_.model_dim,
                    .key_model_dim = options_.key_model_dim};
  const std::string words = part_of_heads(cut_.words, place, options_.teams->context_ranks());
  if (!words.empty()) context_head_ = make_head(words, none, place);
}

void MultiHead::check_context(const MultiHeadArgs& a, const Call& call, bool keeps) const {
  const Communicator& team = *options_.teams->context;
  const auto refuse = [&](bool allowed, std::string_view what) {
    require(allowed, ErrorKind::unsupported, kOp, "tokens are cut over ", team.ranks(), " ranks, where ",
            what);
  };
  refuse(!call.training || options_.dropout == 0,
         "dropout of attention weights is drawn by heads that a rank does not know yet; set it to 0");
  require(!keeps || call.rows_team == &team, ErrorKind::bad_argument, kOp,
          "a backward follows over a context team; set call.rows_team to it, in the backward too");
  refuse(!a.bias.given() && !a.weights.given() && a.taps == nullptr && !a.gates.given() &&
             !a.dgates.given() && a.edit == nullptr && a.memory == nullptr,
         "taps, gates, edits, memories, weights and score biases are not there yet; use one rank");
  refuse(!counts_queries(a.mask), "a dense mask does not know which queries a rank has; use a mask of terms");
  require(a.sequences.held.has_value(), ErrorKind::bad_argument, kOp, "there are ", team.ranks(),
          " ranks in the context team and x does not say which rows it has; set sequences.held");
  const Slice due = slice_of(a.sequences.rows(), team.rank(), team.ranks()), held = *a.sequences.held;
  require(held.begin == due.begin && held.size == due.size, ErrorKind::bad_argument, kOp, "rank ",
          team.rank(), " holds ", held.size, " rows from ", held.begin, " on; of ", a.sequences.rows(),
          " rows over ", team.ranks(), " ranks it must be ", due.size, " from ", due.begin, " on");
}

/// Rotates this rank's rows by their places among all.
void MultiHead::turn_held(const AnyView& rows, const HeadLayout& layout, const Sequences& s, bool back,
                          Call& call) const {
  const Scratch scratch(call.memory);
  AnyView places = positions_of(s, call);
  places.data = static_cast<Index*>(places.data) + s.held->begin;
  places.size[0] = s.held->size;
  const AnyView v = AnyView::packed(rows.data, rows.dtype, {1, rows.size[0], layout.slots(), layout.dim});
  if (s.held->size == 0) return;
  if (back)
    rope_backward(v, RopePositions(places), v, *options_.rope, call.ctx);
  else
    rope(v, RopePositions(places), v, *options_.rope, call.ctx);
}

bool MultiHead::exchanges_heads(const MultiHeadArgs& a, bool self) const {
  return self && context_head_ && !knows_heads(a.mask);
}

AnyView MultiHead::attend_in_context(const MultiHeadArgs& given, Call& call, Saved* saved) const {
  const bool self = !given.keys.given();
  const MultiHeadArgs a = completed(given);
  AnyView parts[3];
  project(0, self ? 3 : 1, a.x, call, parts);
  if (!self) {
    const bool one = a.keys.data == a.values.data;
    project(1, one ? 3 : 2, a.keys, call, parts);
    if (!one) project(2, 3, a.values, call, parts);
  }
  if (cut_.repeats > 1)
    for (int i = 1; i < 3; ++i) parts[i] = repeat_heads(parts[i], kv_dim(i), cut_.repeats, call);
  if (options_.rope && self) {
    const HeadSpec spec = head().spec();
    turn_held(parts[0], spec.q, a.sequences, false, call);
    turn_held(parts[1], spec.k, a.sequences, false, call);
  }
  if (exchanges_heads(a, self)) return context_by_heads(a, parts, call, saved);
  return saved ? context_whole(a, parts, call, *saved) : context_by_keys(a, parts, call);
}

/// Of the heads this rank of a tensor team has.
InputView MultiHead::own_slopes() const {
  InputView slopes = slopes_.view();
  if (!options_.teams) return slopes;
  const Slice own = slice_of(slopes.size[0], options_.teams->tensor_rank(), options_.teams->tensor_ranks());
  slopes.data = static_cast<std::byte*>(slopes.data) + own.begin * size_of(slopes.dtype);
  slopes.size[0] = own.size;
  return slopes;
}

AnyView MultiHead::context_by_heads(const MultiHeadArgs& a, const AnyView* parts, Call& call,
                                    Saved* saved) const {
  const Communicator& team = *options_.teams->context;
  const Index ranks = team.ranks(), out = head().widths().out;
  const AnyView y = call.memory.take(a.x.dtype, {a.x.size[0], out});
  std::optional<Scratch> scratch;
  if (saved == nullptr) scratch.emplace(call.memory);
  AnyView whole[3];
  for (int i = 0; i < 3; ++i) {
    whole[i] = call.memory.take(a.x.dtype, {a.sequences.rows(), parts[i].size[1] / ranks});
    team.exchange(parts[i], 1, whole[i], parts_[i]->name());
  }
  MultiHeadArgs all = a;
  all.sequences.held.reset();
  all.kv_sequences = all.sequences;
  std::optional<HeadRun> local;
  HeadRun& run = (saved ? saved->run : local).emplace(*context_head_, sizes_of(all), saved != nullptr);
  HeadCall& c = run.call;
  c.q = as_sequences(whole[0], all.sequences);
  c.x = c.x_kv = c.q;  // heads that read them are not exchanged
  c.k = as_sequences(whole[1], all.sequences), c.v = as_sequences(whole[2], all.sequences);
  AttentionArgs& f = c.run.forward;
  f.mask = a.mask;
  f.q_offsets = f.kv_offsets = all.sequences.offsets;
  if (options_.alibi) {
    const InputView own = own_slopes();
    const Slice mine = slice_of(own.size[0], team.rank(), team.ranks());
    f.inputs.slopes = own;
    f.inputs.slopes.data = static_cast<std::byte*>(own.data) + mine.begin * size_of(own.dtype);
    f.inputs.slopes.size[0] = mine.size;
  }
  run_head(run, call);
  team.exchange(as_rows(c.y, out / ranks), 0, y, parts_[3]->name());
  return y;
}

AnyView MultiHead::context_by_keys(const MultiHeadArgs& a, const AnyView* parts, Call& call) const {
  const Communicator& team = *options_.teams->context;
  const Index out = parts_[3] ? head().widths().out : options_.model_dim;
  const AnyView y = call.memory.take(a.x.dtype, {a.x.size[0], out});
  const Scratch scratch(call.memory);
  const bool gathers = a.kv_sequences.held.has_value();
  const auto gathered = [&](const AnyView& own, std::string_view what) {
    if (!gathers) return own;
    const AnyView whole = call.memory.take(own.dtype, {a.kv_sequences.rows(), own.size[1]});
    team.gather(own, whole, 0, what);
    return whole;
  };
  const AnyView k = gathered(parts[1], parts_[1]->name()), v = gathered(parts[2], parts_[2]->name());
  const AnyView keys = reads_rows(head()) ? gathered(a.keys, "rows that heads read") : k;
  if (a.x.size[0] == 0) return y;
  const HeldSequences held(a.sequences, *a.sequences.held, call);
  MultiHeadArgs own = a;
  own.sequences = held.sequences, own.kv_sequences = ragged(a.kv_sequences, call);
  HeadRun run(head(), sizes_of(own), false);
  HeadCall& c = run.call;
  c.head_budget = call.head_budget;
  c.x = as_sequences(a.x, own.sequences), c.x_kv = as_sequences(keys, own.kv_sequences);
  c.q = as_sequences(parts[0], own.sequences);
  c.k = as_sequences(k, own.kv_sequences), c.v = as_sequences(v, own.kv_sequences);
  AttentionArgs& f = c.run.forward;
  f.mask = a.mask;
  f.q_start = held.starts;
  f.q_offsets = own.sequences.offsets, f.kv_offsets = own.kv_sequences.offsets;
  if (options_.alibi) f.inputs.slopes = own_slopes();
  run_head(run, call);
  copy_rows(as_rows(c.y, out), y);
  return y;
}

}  // namespace headwise
