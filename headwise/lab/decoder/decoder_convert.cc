#include "headwise/lab/decoder/decoder_convert.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "convert";

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

}  // namespace

DecoderGrams kv_grams(const LabDecoder& model, std::span<const LabDecoder::Text> texts, Context& ctx) {
  const DecoderConfig& c = model.config();
  DecoderGrams g;
  for (Index i = 0; i < c.layers; ++i)
    g.keys.emplace_back(c.kv_heads, c.head_dim), g.values.emplace_back(c.kv_heads, c.head_dim);
  std::vector<float> row(at(c.kv_heads * c.head_dim));
  const auto add = [&](HeadGram& to, const AnyView& x) {
    for (Index t = 0; t < x.size[1]; ++t) {
      for (Index h = 0; h < c.kv_heads; ++h)
        for (Index d = 0; d < c.head_dim; ++d)
          row[at(h * c.head_dim + d)] = static_cast<const float*>(x.data)[t * x.step[1] + h * x.step[2] + d];
      to.add_row(row.data());
    }
  };
  const Decoder whole = model.without(HeadPlan(model.heads()), ctx);
  each_logits(whole, texts, ctx, {}, [&](Index layer, const AnyView&, const AnyView& k, const AnyView& v) {
    add(g.keys[at(layer)], k), add(g.values[at(layer)], v);
  });
  return g;
}

ConvertedDecoder share_kv(const LabDecoder& model, Index kv_heads, MergeBy by, const DecoderGrams& grams) {
  const DecoderConfig& c = model.config();
  require(kv_heads > 0 && c.kv_heads % kv_heads == 0, ErrorKind::bad_argument, kOp, "every layer has ",
          c.kv_heads, " key/value heads, which ", kv_heads, " cannot share evenly; give a divisor of ",
          c.kv_heads);
  require(
      !c.head_norms, ErrorKind::unsupported, kOp, "a ", c.family,
      " norms every head of q and k, so keys of several heads have no common mean; convert another model");
  const Index group = c.heads / c.kv_heads;
  ConvertedDecoder all{.edited = {.heads = c.heads, .kv_heads = kv_heads}};
  for (Index layer = 0; layer < c.layers; ++layer) {
    if (kv_heads == c.kv_heads) {
      all.layers.push_back({0, 0, neighbours(kv_heads, kv_heads)});
      continue;
    }
    const RopeOptions& rope = c.window(layer) > 0 ? c.sliding_rope : c.rope;
    const HeadMerge m = merge_heads(grams.keys[at(layer)], grams.values[at(layer)], kv_heads,
                                    {.by = by, .keys = {.turns = Turns::pairs, .rope = rope}});
    const auto put = [&](const std::string& part, const auto& made) {
      if (const Tensor was = model.weight(layer, part); was.view().given())
        all.edited.values.emplace(text("layers.", layer, ".", part), made(was.view()));
    };
    for (const std::string kind : {".weight", ".bias"}) {
      put("q" + kind, [&](const ConstView& w) { return merged_queries(w, m, group); });
      put("k" + kind, [&](const ConstView& w) { return merged_shared(w, m, true); });
      put("v" + kind, [&](const ConstView& w) { return merged_shared(w, m, false); });
    }
    put("o.weight", [&](const ConstView& w) { return merged_out(w, m, group); });
    all.layers.push_back(m.figures);
  }
  return all;
}

}  // namespace headwise
