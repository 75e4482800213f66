#include "headwise/layers/multi_head/leaf_heads.h"

#include <algorithm>
#include <cstring>

#include "headwise/distributed/slices.h"
#include "headwise/layers/basic/leaves.h"
#include "headwise/layers/multi_head/head_rows.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "multi_head";

AnyView rows_between(const AnyView& v, Index begin, Index end) {
  if (!v.given()) return {};
  AnyView r = v;
  r.size[0] = end - begin;
  r.data = static_cast<std::byte*>(v.data) + begin * v.step[0] * size_of(v.dtype);
  return r;
}

/// Columns [begin, begin + part's) of `whole`, there (into the part) or back.
void copy_columns(const AnyView& whole, const AnyView& part, Index begin, bool back) {
  const Index width = size_of(whole.dtype);
  const auto bytes = static_cast<std::size_t>(part.size[1] * width);
  for (Index row = 0; row < part.size[0] && bytes > 0; ++row) {
    auto* a = static_cast<std::byte*>(whole.data) + (row * whole.step[0] + begin) * width;
    auto* b = static_cast<std::byte*>(part.data) + row * part.size[1] * width;
    back ? std::memcpy(a, b, bytes) : std::memcpy(b, a, bytes);
  }
}

/// to += from, both side by side, of one dtype.
void add_numbers(void* to, const void* from, DType dtype, Index count, Context& ctx) {
  const AnyView a = AnyView::packed(to, dtype, {1, count});
  add(a, InputView(ConstView::packed(from, dtype, {1, count})), a, ctx);
}

/// A mask whose answer follows from the place of a sequence in the batch.
bool knows_sequences(const MaskSet& masks) {
  for (Index i = 0; i < masks.count; ++i)
    for (int s = 0; s < masks.views[i].count; ++s) {
      const MaskStep& step = masks.views[i].steps[s];
      if (step.op == MaskOp::lengths || (step.op == MaskOp::dense && step.size[0] != 1)) return true;
    }
  return false;
}

}  // namespace

LeafHeads::LeafHeads(ParamSet& params, std::string_view name, std::string_view head,
                     const MultiHeadOptions& options, const HeadCut& cut)
    : options_(options), cut_(cut) {
  const Communicator& ranks = team();
  all_leaves_ = cut.leaves * ranks.ranks();
  MultiHeadOptions own = options;
  own.teams = nullptr;
  ParamSet whole = ParamSet::blank(params.dtype());
  const MultiHead shape(whole, name, head, own);
  const std::string words = by_heads() ? cut_head(head,
                                                  {.layer = own.layer,
                                                   .depth = own.depth,
                                                   .model_dim = own.model_dim,
                                                   .key_model_dim = own.key_model_dim},
                                                  static_cast<int>(all_leaves_), Order::one_rank)
                                             .words
                                       : std::string(head);
  const std::string out = text(name, ".out.");
  for (Index i = 0; i < cut.leaves; ++i) {
    Leaf& leaf = leaves_.emplace_back(Leaf{.params = ParamSet::blank(params.dtype())});
    leaf.layer.emplace(leaf.params, name, words, own);
    const auto number = static_cast<int>(ranks.rank() * cut.leaves + i);
    for (Param& p : leaf.params.all()) {
      Place& place = leaf.places.emplace_back();
      if (by_heads() && p.name.starts_with(out)) continue;  // the layer's W_O is cut by itself
      const auto same_name = [&](const Param& w) { return w.name == p.name; };
      const auto from = std::find_if(whole.all().begin(), whole.all().end(), same_name);
      const auto to = std::find_if(params.all().begin(), params.all().end(), same_name);
      require(from != whole.all().end() && to != params.all().end(), ErrorKind::bad_argument, kOp, p.name,
              " of a leaf is not in the layer; this head cannot be cut over ranks");
      SlicePlace mine, own_place;
      if (by_heads()) {
        mine = place_of_slice(p.name, from->value, p.value, number, static_cast<int>(all_leaves_));
        own_place = place_of_slice(p.name, from->value, to->value, ranks.rank(), ranks.ranks());
      }
      require(mine.axis <= 0, ErrorKind::unsupported, kOp, p.name, " is cut along axis ", mine.axis,
              ", which leaves cannot share; cut the data instead");
      const Index row = p.value.count() / max_of(1, p.value.size[0]);
      place.of = &*to;
      place.begin = mine.axis < 0 ? 0 : (mine.begin - (own_place.axis < 0 ? 0 : own_place.begin)) * row;
      place.shared = mine.axis < 0 ? all_leaves_ : all_leaves_ * p.value.size[0] / from->value.size[0];
      p.value.data = static_cast<std::byte*>(to->value.data) + place.begin * size_of(p.value.dtype);
      p.value_memory = {};
    }
  }
}

void LeafHeads::check(const MultiHeadArgs& a, const Call& call) const {
  require(!call.training || options_.dropout == 0, ErrorKind::unsupported, kOp, "dropout ", options_.dropout,
          " of attention weights is drawn by heads and sequences of a whole run, not of leaves; set it to 0");
  require(!a.bias.given() && !a.weights.given() && a.taps == nullptr && !a.gates.given() &&
              !a.dgates.given() && a.edit == nullptr && a.memory == nullptr,
          ErrorKind::unsupported, kOp,
          "this head runs in leaves over ranks, where taps, gates, edits, memories, weights and score biases "
          "are not there yet; leave them out or use no ranks");
  require(by_heads() ? !knows_heads(a.mask) : !knows_sequences(a.mask), ErrorKind::unsupported, kOp,
          "the mask differs from ", by_heads() ? "head to head" : "sequence to sequence",
          ", and this head runs in leaves of them over ranks; give one mask for all");
}

AnyView LeafHeads::forward(const MultiHeadArgs& a, Call& call, MultiHead::Saved* saved,
                           const Linear* out) const {
  check_cut(call, saved != nullptr, 0, *options_.teams);
  check(a, call);
  if (saved) saved->args = a, saved->leaves.clear(), saved->leaves.resize(leaves_.size());
  return by_heads() ? forward_by_heads(a, call, saved, *out) : forward_by_sequences(a, call, saved);
}

MultiHeadGrads LeafHeads::backward(const AnyView& dy, Call& call, MultiHead::Saved& saved,
                                   const AnyView& residual, const Linear* out) const {
  require(saved.leaves.size() == leaves_.size(), ErrorKind::bad_argument, kOp,
          "backward was called, and no forward saved what it needs; call forward with the same saved first");
  start_grads();
  const MultiHeadGrads g = by_heads() ? backward_by_heads(dy, call, saved, residual, *out)
                                      : backward_by_sequences(dy, call, saved, residual);
  add_grads(call.ctx);
  return g;
}

AnyView LeafHeads::forward_by_heads(const MultiHeadArgs& a, Call& call, MultiHead::Saved* saved,
                                    const Linear& out) const {
  const AnyView y = call.memory.take(a.x.dtype, {a.x.size[0], out.in()});
  const Index wide = out.in() / own_leaves();
  for (Index i = 0; i < own_leaves(); ++i) {
    std::optional<HeadRun> local;
    std::optional<HeadRun>& run = saved ? saved->leaves[static_cast<std::size_t>(i)].run : local;
    leaves_[static_cast<std::size_t>(i)].layer->attend(a, call, run, saved != nullptr);
    copy_columns(y, as_rows(run->call.y, wide), i * wide, true);
  }
  return out.forward(y, call, saved ? &saved->out : nullptr, a.tail);
}

MultiHeadGrads LeafHeads::backward_by_heads(const AnyView& dy, Call& call, MultiHead::Saved& saved,
                                            const AnyView& residual, const Linear& out) const {
  const AnyView dhead = out.backward(dy, call, saved.out);
  const Index wide = out.in() / own_leaves();
  std::vector<AnyView> dx, dkeys, dvalues;
  for (Index i = 0; i < own_leaves(); ++i) {
    const AnyView part = call.memory.take(dhead.dtype, {dhead.size[0], wide});
    copy_columns(dhead, part, i * wide, false);
    const MultiHeadGrads g = leaves_[static_cast<std::size_t>(i)].layer->attend_backward(
        part, saved.args, call, *saved.leaves[static_cast<std::size_t>(i)].run, {});
    dx.push_back(g.dx), dkeys.push_back(g.dkeys), dvalues.push_back(g.dvalues);
  }
  MultiHeadGrads all{.dx = sum_of_leaves(dx, call)};
  if (residual.given()) add(all.dx, residual, all.dx, call.ctx);
  if (dkeys[0].given()) all.dkeys = sum_of_leaves(dkeys, call);
  if (dvalues[0].given()) all.dvalues = sum_of_leaves(dvalues, call);
  return all;
}

/// node(0, leaves) over this rank's and then over the ranks.
AnyView LeafHeads::sum_of_leaves(const std::vector<AnyView>& parts, Call& call) const {
  for (std::size_t width = 1; width < parts.size(); width *= 2)
    for (std::size_t i = 0; i < parts.size(); i += 2 * width)
      add(parts[i], parts[i + width], parts[i], call.ctx);
  team().sum(parts[0], parts[0], Order::tree, call.ctx, "dx of heads");
  return parts[0];
}

LeafHeads::Rows LeafHeads::rows_of_leaf(const Sequences& s, Index leaf) const {
  const Slice own = slice_of(s.count(), static_cast<int>(leaf), static_cast<int>(all_leaves_));
  return {s.at(own.begin), s.at(own.begin + own.size), own.begin, own.size};
}

Sequences LeafHeads::part_of(const Sequences& s, const Rows& rows, Call& call) const {
  if (!s.ragged()) return {.batch = rows.count, .tokens = s.tokens};
  const AnyView offsets = call.memory.take(DType::i64, {rows.count + 1});
  for (Index i = 0; i <= rows.count; ++i)
    static_cast<Index*>(offsets.data)[i] = s.at(rows.first + i) - rows.begin;
  return {.offsets = offsets};
}

MultiHeadArgs LeafHeads::part_of(const MultiHeadArgs& a, Index leaf, Call& call) const {
  MultiHeadArgs part{.mask = a.mask};
  const Rows own = rows_of_leaf(a.sequences, leaf);
  part.x = rows_between(a.x, own.begin, own.end);
  part.sequences = part_of(a.sequences, own, call);
  if (!a.keys.given()) return part;
  const Rows keys = rows_of_leaf(a.kv_sequences, leaf);
  part.keys = rows_between(a.keys, keys.begin, keys.end);
  part.values = rows_between(a.values, keys.begin, keys.end);
  part.kv_sequences = part_of(a.kv_sequences, keys, call);
  return part;
}

/// Rows of every rank's sequences, from each rank's own; `own` lies in its place of the whole.
AnyView LeafHeads::all_rows(const AnyView& whole, const Sequences& s, Call&) const {
  const int ranks = team().ranks();
  if (ranks == 1) return whole;
  const Index width = whole.size[1] * size_of(whole.dtype), leaves = own_leaves();
  const auto place = [&](int r) {
    return Slice{rows_of_leaf(s, r * leaves).begin,
                 rows_of_leaf(s, r * leaves + leaves - 1).end - rows_of_leaf(s, r * leaves).begin};
  };
  Index most = 0;
  for (int r = 0; r < ranks; ++r) most = max_of(most, place(r).size);
  // Ranks may have other numbers of rows: pieces of one size travel.
  std::vector<std::byte> mine(static_cast<std::size_t>(most * width)),
      all(mine.size() * static_cast<std::size_t>(ranks));
  auto* data = static_cast<std::byte*>(whole.data);
  const Slice own = place(team().rank());
  if (own.size > 0)
    std::memcpy(mine.data(), data + own.begin * width, static_cast<std::size_t>(own.size * width));
  team().gather_bytes(mine.data(), all.data(), most * width, "rows of sequences");
  for (int r = 0; r < ranks; ++r)
    if (const Slice theirs = place(r); theirs.size > 0)
      std::memcpy(data + theirs.begin * width, all.data() + r * most * width,
                  static_cast<std::size_t>(theirs.size * width));
  return whole;
}

AnyView LeafHeads::forward_by_sequences(const MultiHeadArgs& a, Call& call, MultiHead::Saved* saved) const {
  const AnyView y = call.memory.take(a.x.dtype, {a.x.size[0], options_.model_dim});
  const double loss = call.loss;
  const Index loss_layers = call.loss_layers;
  for (Index i = 0; i < own_leaves(); ++i) {
    const Index leaf = team().rank() * own_leaves() + i;
    const Rows rows = rows_of_leaf(a.sequences, leaf);
    if (rows.count == 0) continue;
    MultiHead::Saved* own = saved ? &saved->leaves[static_cast<std::size_t>(i)] : nullptr;
    const AnyView part =
        leaves_[static_cast<std::size_t>(i)].layer->forward(part_of(a, leaf, call), call, own);
    copy_rows(part, rows_between(y, rows.begin, rows.end));
  }
  require(!saved || call.loss_layers == loss_layers, ErrorKind::unsupported, kOp,
          "the head has a loss over all tokens of a run (moh: balance), and ranks have some of the sequences "
          "each; make it with weight=0, or cut the data instead");
  call.loss = loss, call.loss_layers = loss_layers;
  all_rows(y, a.sequences, call);
  const DropoutOptions tail = call.next_dropout(a.tail.dropout);
  if (saved) saved->tail = tail;
  if (tail.p > 0)
    dropout(y, a.tail.residual, tail, y, call.ctx);
  else if (a.tail.residual.given())
    add(y, a.tail.residual, y, call.ctx);
  return y;
}

MultiHeadGrads LeafHeads::backward_by_sequences(const AnyView& given, Call& call, MultiHead::Saved& saved,
                                                const AnyView& residual) const {
  const MultiHeadArgs& a = saved.args;
  AnyView dy = given;
  if (saved.tail.p > 0) {
    dy = call.memory.take(given.dtype, {given.size[0], given.size[1]});
    dropout_backward(given, saved.tail, dy, call.ctx);
  }
  const auto like = [&](const InputView& v) {
    return v.given() ? call.memory.take(v.dtype, {v.size[0], v.size[1]}) : AnyView{};
  };
  const bool two = a.values.given() && a.values.data != a.keys.data;
  MultiHeadGrads all{.dx = like(a.x), .dkeys = like(a.keys), .dvalues = two ? like(a.values) : AnyView{}};
  for (Index i = 0; i < own_leaves(); ++i) {
    const Index leaf = team().rank() * own_leaves() + i;
    const Rows rows = rows_of_leaf(a.sequences, leaf);
    if (rows.count == 0) continue;
    const MultiHeadGrads g = leaves_[static_cast<std::size_t>(i)].layer->backward(
        rows_between(dy, rows.begin, rows.end), call, saved.leaves[static_cast<std::size_t>(i)]);
    copy_rows(g.dx, rows_between(all.dx, rows.begin, rows.end));
    if (!a.keys.given()) continue;
    const Rows keys = rows_of_leaf(a.kv_sequences, leaf);
    copy_rows(g.dkeys, rows_between(all.dkeys, keys.begin, keys.end));
    if (two) copy_rows(g.dvalues, rows_between(all.dvalues, keys.begin, keys.end));
  }
  all_rows(all.dx, a.sequences, call);
  if (residual.given()) add(all.dx, residual, all.dx, call.ctx);
  if (a.keys.given()) all_rows(all.dkeys, a.kv_sequences, call);
  if (two) all_rows(all.dvalues, a.kv_sequences, call);
  return all;
}

void LeafHeads::start_grads() const {
  for (Leaf& leaf : leaves_) {
    leaf.params.make_grads();
    leaf.params.zero_grads();
  }
}

/// Gradients of leaves that share a slice are added as a tree, here and over the ranks that hold it; then
/// into the layer's.
void LeafHeads::add_grads(Context& ctx) const {
  const Index own = own_leaves();
  const std::vector<Place>& places = leaves_[0].places;
  const auto grad = [&](Index leaf, std::size_t i) {
    return leaves_[static_cast<std::size_t>(leaf)].params.all()[i].grad;
  };
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].of == nullptr || !places[i].of->grad.given()) continue;
    const AnyView like = grad(0, i);
    const Index together = min_of(places[i].shared, own), ranks = places[i].shared / together;
    for (Index first = 0; first < own; first += together) {
      for (Index width = 1; width < together; width *= 2)
        for (Index l = first; l < first + together; l += 2 * width)
          add_numbers(grad(l, i).data, grad(l + width, i).data, like.dtype, like.count(), ctx);
      const AnyView sum = grad(first, i);
      if (ranks > 1) {
        const auto count = static_cast<int>(ranks);
        team().part(team().rank() / count * count, count).sum(sum, sum, Order::tree, ctx, places[i].of->name);
      }
      const Place& to = leaves_[static_cast<std::size_t>(first)].places[i];
      add_numbers(static_cast<std::byte*>(to.of->grad.data) + to.begin * size_of(like.dtype), sum.data,
                  like.dtype, like.count(), ctx);
    }
  }
}

}  // namespace headwise
