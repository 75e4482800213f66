#include "headwise/lab/model/attention_cut.h"

#include <cstring>
#include <optional>

namespace headwise {
namespace {

constexpr std::string_view kOp = "cut";

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Blocks of `wide` entries each, one after another.
std::vector<Index> entries(const std::vector<Index>& blocks, Index wide) {
  std::vector<Index> all;
  for (const Index b : blocks)
    for (Index i = 0; i < wide; ++i) all.push_back(b * wide + i);
  return all;
}

/// What heads that are left read: heads a kv head serves, and the slots of k and v that stay.
struct Shared {
  Index group = 1;
  std::vector<Index> k = {}, v = {};
};

/// The slot that each `group` neighbours of `maps` read, or none where two of them read different ones.
std::optional<std::vector<Index>> slots_of(const HeadLayout& layout, const std::vector<Index>& maps,
                                           Index group) {
  std::vector<Index> slots;
  for (std::size_t m = 0; m < maps.size(); ++m) {
    const Index slot = layout.slot(maps[m]);
    if (m % at(group) == 0) slots.push_back(slot);
    if (slots.back() != slot) return {};
  }
  return slots;
}

/// The largest groups in which the heads of `order` can still share keys and values; 1 always works.
Shared shared_by(const HeadSpec& spec, const std::vector<Index>& order, Index maps_each) {
  const std::vector<Index> maps = entries(order, maps_each);
  for (auto group = static_cast<Index>(order.size()); group > 1; --group) {
    if (static_cast<Index>(order.size()) % group != 0) continue;
    auto k = slots_of(spec.k, maps, group), v = slots_of(spec.v, maps, maps_each * group);
    if (k && v) return {group, std::move(*k), std::move(*v)};
  }
  return {1, *slots_of(spec.k, maps, 1), *slots_of(spec.v, maps, maps_each)};
}

/// Why a head of this kind cannot be cut; "": it can.
std::string refusal_of(const AnyHead& head) {
  for (const AnyHead::Stage& s : head.stages()) {
    const std::string_view name = s.table->name;
    if (name == "dcmha") return "every pair of tokens mixes all its heads, so one that is off still acts";
    if (name == "moh")
      return "its routers share one softmax over all heads, so the others' gates would change";
    if (name == "reach") return "how far a head sees goes by its number, so the others would change";
    if (name == "segment") return "which heads stop goes by their number, so the others would change";
    if (name == "overlapped") return "a head reads columns of its neighbours, so they cannot be taken out";
    if (s.table->settings(s.head.get()).find("source=heads") != std::string::npos)
      return "it gives the layer's output itself, whose columns belong to no head";
  }
  return {};
}

/// Parameters of the head itself that have a row, or some, for each of its heads.
bool is_by_head(std::string_view name) {
  const std::string_view last = name.substr(name.rfind('.') + 1);
  for (const std::string_view known : {"gate", "gate_bias", "alpha_logit", "mixing", "content"})
    if (last == known) return true;
  return false;
}

}  // namespace

Index setting_in(const std::string& settings, const std::string& key, Index otherwise) {
  for (const char before : {':', ','}) {
    const std::size_t found = settings.find(text(before, key, '='));
    if (found != settings.npos) return std::stol(settings.substr(found + key.size() + 2));
  }
  return otherwise;
}

std::string with_setting(std::string settings, const std::string& key, Index value) {
  for (const char before : {':', ','}) {
    const std::string front = text(before, key, '=');
    for (std::size_t found = settings.find(front); found != settings.npos;
         found = settings.find(front, found + 1)) {
      const std::size_t from = found + front.size(), end = settings.find_first_of(",+", from);
      settings.replace(from, (end == settings.npos ? settings.size() : end) - from, text(value));
    }
  }
  return settings;
}

AttentionCut cut_attention(const MultiHead& attention, const std::vector<Index>& order,
                           const ParamSet& params, std::string_view name) {
  const AnyHead& head = attention.head();
  const std::string why = refusal_of(head);
  require(why.empty(), ErrorKind::unsupported, kOp, "heads of ", head.name(), " stay together: ", why);
  require(!attention.options().alibi, ErrorKind::unsupported, kOp,
          "the slopes of alibi go by the number of heads, so the others would change; cut models with other "
          "positions");
  const HeadSpec spec = head.spec();
  const Index heads = attention.head_count(), left = static_cast<Index>(order.size());
  require(left > 0, ErrorKind::bad_argument, kOp, "a layer would keep no head; keep one of it");
  for (const Index h : order)
    require(h >= 0 && h < heads, ErrorKind::bad_argument, kOp, "head ", h, " is asked for but there are ",
            heads, "; name 0 to ", heads - 1);
  AttentionCut c;
  c.heads = head.settings();
  const auto rows_of = [&](const char* part, std::vector<Index> rows) {
    c.kept[text(name, '.', part, ".weight")] = {0, rows};
    c.kept[text(name, '.', part, ".bias")] = {0, std::move(rows)};
  };
  if (spec.mixes()) {
    // Value heads go; logits and weights before them stay, as every value head reads all of them.
    c.heads = with_setting(c.heads, "value_heads", left);
    c.kept[text(name, ".mix_after")] = {1, order};
    rows_of("v", entries(order, spec.v.dim));
  } else {
    const Index maps = spec.q.heads / heads;                         // two of a differential head
    const bool one_key = spec.k.slots() == 1 && spec.v.slots() > 1;  // collaborative: columns all heads share
    const Shared kv = shared_by(spec, order, maps);
    c.heads = with_setting(c.heads, "heads", left);
    c.heads = with_setting(c.heads, "kv_heads", left / kv.group);
    if (!one_key) {
      rows_of("q", entries(order, maps * spec.q.dim));
      rows_of("k", entries(kv.k, spec.k.dim));
    }
    rows_of("v", entries(kv.v, spec.v.dim));
  }
  c.kept[text(name, ".out.weight")] = {1, entries(order, spec.v.dim)};
  for (const Param& p : params.all())
    if (p.name.starts_with(text(name, '.')) && is_by_head(p.name))
      c.kept[p.name] = {0, entries(order, p.value.size[0] / heads)};
  return c;
}

Tensor keep_entries(const AnyView& from, const KeptEntries& kept) {
  const auto count = static_cast<Index>(kept.of.size());
  const Index size = size_of(from.dtype);
  if (from.rank == 1 || kept.axis == 0) {
    const Index row = from.rank == 1 ? 1 : from.size[1];
    Tensor to = from.rank == 1 ? Tensor(from.dtype, {count}) : Tensor(from.dtype, {count, row});
    for (Index i = 0; i < count; ++i)
      std::memcpy(static_cast<std::byte*>(to.view().data) + i * row * size,
                  static_cast<const std::byte*>(from.data) + kept.of[at(i)] * row * size, at(row * size));
    return to;
  }
  Tensor to(from.dtype, {from.size[0], count});
  for (Index r = 0; r < from.size[0]; ++r)
    for (Index i = 0; i < count; ++i)
      std::memcpy(static_cast<std::byte*>(to.view().data) + (r * count + i) * size,
                  static_cast<const std::byte*>(from.data) + (r * from.size[1] + kept.of[at(i)]) * size,
                  at(size));
  return to;
}

}  // namespace headwise
