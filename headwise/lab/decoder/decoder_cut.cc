#include "headwise/lab/decoder/decoder_cut.h"

#include <algorithm>

namespace headwise {
namespace {

constexpr std::string_view kOp = "cut";
constexpr Index kMostTokens = 256;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Query heads that are left, by the key/value head they read.
std::vector<std::vector<Index>> groups_left(const DecoderConfig& c, const HeadPlan& plan, Index layer) {
  std::vector<std::vector<Index>> groups(at(c.kv_heads));
  for (const Index h : plan.kept(layer)) groups[at(h / (c.heads / c.kv_heads))].push_back(h);
  return groups;
}

/// Key/value slots of a layer whose groups have `group` query heads each.
Index slots_needed(const std::vector<std::vector<Index>>& groups, Index group) {
  Index all = 0;
  for (const auto& g : groups) all += (std::ssize(g) + group - 1) / group;
  return all;
}

/// Rows (or entries of a bias) of heads in their new slots.
Tensor rows_in_slots(const Tensor& from, const std::vector<Index>& slots, Index dim) {
  const Index rows = std::ssize(slots) * dim, columns = from.view().rank == 1 ? 1 : from.view().size[1];
  Tensor to = from.view().rank == 1 ? Tensor(DType::f32, {rows}) : Tensor(DType::f32, {rows, columns});
  std::fill_n(to.values<float>().data(), rows * columns, 0.0f);
  for (std::size_t s = 0; s < slots.size(); ++s)
    if (slots[s] >= 0)
      std::copy_n(from.values<float>().data() + slots[s] * dim * columns, dim * columns,
                  to.values<float>().data() + static_cast<Index>(s) * dim * columns);
  return to;
}

Tensor columns_in_slots(const Tensor& from, const std::vector<Index>& slots, Index dim) {
  const Index rows = from.view().size[0], wide = from.view().size[1], columns = std::ssize(slots) * dim;
  Tensor to(DType::f32, {rows, columns});
  std::fill_n(to.values<float>().data(), rows * columns, 0.0f);
  for (Index r = 0; r < rows; ++r)
    for (std::size_t s = 0; s < slots.size(); ++s)
      if (slots[s] >= 0)
        std::copy_n(from.values<float>().data() + r * wide + slots[s] * dim, dim,
                    to.values<float>().data() + r * columns + static_cast<Index>(s) * dim);
  return to;
}

}  // namespace

DecoderTrial::DecoderTrial(const LabDecoder& model, std::span<const std::string> texts, Index most,
                           Context& ctx)
    : model_(model), ctx_(ctx), heads_(model.heads()) {
  const auto rows = std::ssize(texts), count = min_of(rows, most);
  std::vector<std::string> chosen;
  for (Index i = 0; i < count; ++i) chosen.push_back(texts[at(i * rows / count)]);
  texts_ = model.read(chosen, kMostTokens);
  require(!texts_.empty(), ErrorKind::bad_argument, kOp, "no text has two tokens; give longer ones");
}

double DecoderTrial::loss_without(const HeadPlan& plan) {
  return next_token_loss(model_.without(plan, ctx_), texts_, ctx_);
}

std::vector<std::vector<double>> DecoderTrial::michel(MichelSum, bool) {
  throw Error(ErrorKind::unsupported,
              text(kOp,
                   ": a decoder is read without gradients, so no slope can rank its heads; rank by loss "
                   "when off, or greedily"));
}

DecoderSlots slots_of(const DecoderConfig& c, const HeadPlan& plan) {
  Index best = 0, best_cost = 0, best_kv = 0;
  for (Index group = 1; group <= c.heads / c.kv_heads; ++group) {
    Index kv = 0;
    for (Index layer = 0; layer < c.layers; ++layer)
      kv = max_of(kv, slots_needed(groups_left(c, plan, layer), group));
    // q and out of a query head, k and v of a key/value head have equally many numbers.
    const Index cost = kv * (group + 1);
    if (best == 0 || cost < best_cost) best = group, best_cost = cost, best_kv = kv;
  }
  DecoderSlots all{.group = best};
  for (Index layer = 0; layer < c.layers; ++layer) {
    std::vector<Index> query, kv;
    const auto groups = groups_left(c, plan, layer);
    for (std::size_t g = 0; g < groups.size(); ++g)
      for (std::size_t first = 0; first < groups[g].size(); first += at(best)) {
        kv.push_back(static_cast<Index>(g));
        for (std::size_t i = first; i < first + at(best); ++i)
          query.push_back(i < groups[g].size() ? groups[g][i] : -1);
      }
    kv.resize(at(best_kv), -1), query.resize(at(best_kv * best), -1);
    all.query.push_back(std::move(query)), all.kv.push_back(std::move(kv));
  }
  return all;
}

EditedDecoder cut_heads(const LabDecoder& model, const HeadPlan& plan) {
  require(plan.heads == model.heads(), ErrorKind::bad_argument, kOp,
          "the plan is for a model of other heads; make one for this model");
  check_plan(plan, kOp);
  const DecoderConfig& c = model.config();
  const DecoderSlots slots = slots_of(c, plan);
  EditedDecoder edited{.heads = std::ssize(slots.query[0]), .kv_heads = std::ssize(slots.kv[0])};
  for (Index layer = 0; layer < c.layers; ++layer) {
    const auto put = [&](const char* part, const char* kind, const std::vector<Index>& in) {
      const std::string name = text(part, kind);
      if (const Tensor was = model.weight(layer, name); was.view().given())
        edited.values.emplace(text("layers.", layer, ".", name), rows_in_slots(was, in, c.head_dim));
    };
    for (const char* kind : {".weight", ".bias"})
      put("q", kind, slots.query[at(layer)]), put("k", kind, slots.kv[at(layer)]),
          put("v", kind, slots.kv[at(layer)]);
    edited.values.emplace(
        text("layers.", layer, ".o.weight"),
        columns_in_slots(model.weight(layer, "o.weight"), slots.query[at(layer)], c.head_dim));
  }
  return edited;
}

}  // namespace headwise
