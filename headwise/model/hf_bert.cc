#include "headwise/model/hf_bert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <unordered_set>

#include "headwise/model/hf_config.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "pretrained";

std::string shape_of(const std::vector<Index>& sizes) {
  std::string out = "[";
  for (std::size_t i = 0; i < sizes.size(); ++i) out += text(i ? " " : "", sizes[i]);
  return out + "]";
}

bool has_sizes(const SafetensorsEntry& e, const std::vector<Index>& sizes) {
  bool same = e.rank == static_cast<int>(sizes.size());
  for (int axis = 0; same && axis < e.rank; ++axis)
    same = e.size[axis] == sizes[static_cast<std::size_t>(axis)];
  return same;
}

/// Numbers that are not finite.
Index copy_numbers(const ConstView& from, const AnyView& to) {
  Index bad = 0;
  if (from.dtype == DType::f32 && to.dtype == DType::f32) {
    constexpr Index kPart = 4096;  // looked at and copied while it is in a cache
    const auto* x = static_cast<const float*>(from.data);
    for (Index first = 0; first < from.count(); first += kPart) {
      const Index count = min_of(kPart, from.count() - first);
      std::uint32_t here = 0;
      for (Index i = 0; i < count; ++i)
        here += (std::bit_cast<std::uint32_t>(x[first + i]) & 0x7f800000u) == 0x7f800000u;
      std::copy_n(x + first, count, static_cast<float*>(to.data) + first), bad += here;
    }
    return bad;
  }
  for (Index i = 0; i < from.count(); ++i) {
    const double x = load_double(from.data, from.dtype, i);
    bad += !std::isfinite(x);
    store_double(to.data, to.dtype, i, x);
  }
  return bad;
}

/// The older spelling of a norm's name, the name itself otherwise.
std::string older(std::string name) {
  const auto swap = [&](std::string_view now, std::string_view then) {
    if (name.ends_with(now)) name.replace(name.size() - now.size(), now.size(), then);
  };
  swap("LayerNorm.weight", "LayerNorm.gamma");
  swap("LayerNorm.bias", "LayerNorm.beta");
  return name;
}

}  // namespace

std::vector<BertWeights::Name> BertWeights::names_of(const TransformerConfig& c) {
  std::vector<Name> all;
  const auto pair = [&](const std::string& ours, const std::string& theirs, std::vector<Index> sizes) {
    all.push_back({ours + ".weight", theirs + ".weight", sizes});
    all.push_back({ours + ".bias", theirs + ".bias", {sizes[0]}});
  };
  const Index d = c.model_dim, f = c.feed_dim;
  const std::string front = "embeddings.";
  all.push_back({"embed.table", front + "word_embeddings.weight", {c.vocabulary, d}});
  all.push_back({"embed.positions", front + "position_embeddings.weight", {c.max_tokens, d}});
  if (c.token_types > 0)
    all.push_back({"embed.types", front + "token_type_embeddings.weight", {c.token_types, d}});
  pair("embed.norm", front + "LayerNorm", {d});
  for (Index i = 0; i < c.depth; ++i) {
    const std::string ours = text("stack.layers.", i, '.'), theirs = text("encoder.layer.", i, '.');
    ParamSet own = ParamSet::blank();  // the head's, beside q, k, v and out
    const Widths w = make_head(heads_of_layer(c.heads, i, c.depth), own, {i, c.depth, d}).widths();
    for (const Param& p : own.all())
      all.push_back({ours + "attention." + p.name,
                     theirs + "attention.self." + p.name,
                     {p.value.size, p.value.size + p.value.rank}});
    pair(ours + "attention.q", theirs + "attention.self.query", {w.q, d});
    pair(ours + "attention.k", theirs + "attention.self.key", {w.k, d});
    pair(ours + "attention.v", theirs + "attention.self.value", {w.v, d});
    pair(ours + "attention.out", theirs + "attention.output.dense", {d, w.out});
    pair(ours + "norm1", theirs + "attention.output.LayerNorm", {d});
    pair(ours + "feed.in", theirs + "intermediate.dense", {f, d});
    pair(ours + "feed.out", theirs + "output.dense", {d, f});
    pair(ours + "norm2", theirs + "output.LayerNorm", {d});
  }
  return all;
}

std::string BertWeights::name_of(std::string_view ours) const {
  for (const Name& n : names_)
    if (n.ours == ours) return n.theirs;
  return {};
}

std::vector<std::string> BertWeights::names() const {
  if (shards_) return shards_->names();
  std::vector<std::string> all;
  for (const SafetensorsEntry& e : file_->entries()) all.push_back(e.name);
  return all;
}

bool BertWeights::has(const std::string& name) const { return file_ ? file_->has(name) : shards_->has(name); }
const SafetensorsEntry& BertWeights::entry(const std::string& name) {
  return file_ ? file_->entry(name) : shards_->entry(name);
}
void BertWeights::refuse(std::string_view sentence) const {
  throw Error(ErrorKind::bad_argument, text(kOp, ": ", folder_, ": ", sentence));
}

BertWeights::BertWeights(const std::string& folder, const SafetensorsOptions& options)
    : folder_(folder), config_(read_bert_config(folder + "/config.json")) {
  const std::string index = folder + "/model.safetensors.index.json";
  if (std::filesystem::exists(index))
    shards_.emplace(index, options);
  else
    file_.emplace(folder + "/model.safetensors", options);
  const std::vector<std::string> there = names();
  const std::string front = has("bert.embeddings.word_embeddings.weight") ? "bert." : "";
  names_ = names_of(config_);
  std::unordered_set<std::string> used;
  for (Name& n : names_) {
    const std::string now = front + n.theirs;
    n.theirs = has(now) ? now : older(now);
    if (!has(n.theirs)) refuse(text("has no ", quoted(now), "; config.json asks for it"));
    used.insert(n.theirs);
    const SafetensorsEntry& e = entry(n.theirs);
    if (!has_sizes(e, n.sizes))
      refuse(text(quoted(n.theirs), " is ", shape_of({e.size, e.size + e.rank}), " but config.json makes it ",
                  shape_of(n.sizes)));
    if (!e.as_dtype() || !is_float(*e.as_dtype()))
      refuse(text(quoted(n.theirs), " is ", e.dtype, "; F32, F64, BF16 and F16 are read"));
  }
  for (const std::string& name : there) {
    if (used.count(name)) continue;
    const std::string_view own = std::string_view(name).substr(name.starts_with(front) ? front.size() : 0);
    // A number for each position, kept by some writers: ours are counted.
    if (own == "embeddings.position_ids") continue;
    if (own.starts_with("encoder.") || own.starts_with("embeddings."))
      refuse(
          text("holds ", quoted(name), ", which config.json does not ask for; they are of different models"));
    unused_.push_back(name);
  }
}

void BertWeights::load(ParamSet& params, std::string_view scope) {
  for (const Name& n : names_) {
    const Learned to = params.find(scope.empty() ? n.ours : text(scope, '.', n.ours));
    ConstView from = file_ ? file_->view(n.theirs) : shards_->view(n.theirs);
    AnyView out = to.value();
    // A smaller vocabulary than the file's leaves the last rows of its table out.
    if (n.ours == "embed.table") from.size[0] = min_of(from.size[0], out.size[0]);
    require(out.count() == from.count(), ErrorKind::bad_shape, kOp, folder_, ": ", quoted(n.theirs), " is ",
            from, " but ", to.name(), " is ", out, "; make the model of this folder's config()");
    if (const Index bad = copy_numbers(from, out))
      refuse(text(quoted(n.theirs), " holds ", bad, " numbers that are not finite"));
  }
  if (!(file_ ? file_->intact() : shards_->intact()))
    refuse("its weights were cut short while they were read; read them again when their writer is done");
}

}  // namespace headwise
