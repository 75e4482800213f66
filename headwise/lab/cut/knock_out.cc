#include "headwise/lab/cut/knock_out.h"

#include <limits>

namespace headwise {

namespace {

constexpr std::string_view kOp = "lab";

}  // namespace

Tensor pairs_bias(std::span<const HeadPair> pairs, const PairScores& scores) {
  const auto& [heads, q_tokens, kv_tokens, maps] = scores;
  const Index layer = pairs[0].head.layer;
  Tensor bias(DType::f32, {1, heads * maps, q_tokens, kv_tokens});
  const std::span<float> to = bias.values<float>();
  std::fill(to.begin(), to.end(), 0.0f);
  for (const HeadPair& p : pairs) {
    require(p.part == pairs[0].part && p.head.layer == layer, ErrorKind::unsupported, kOp, "pairs of layers ",
            layer, " and ", p.head.layer,
            ", or of two attentions, are named; knock out "
            "pairs of one layer at a time");
    require(p.head.head >= 0 && p.head.head < heads, ErrorKind::bad_argument, kOp, "head ", p.head.head,
            " of layer ", layer, " is named; it has ", heads, " heads");
    require(p.query >= 0 && p.query < q_tokens && p.key >= 0 && p.key < kv_tokens, ErrorKind::bad_argument,
            kOp, "the pair (", p.query, ", ", p.key, ") is outside a text of ", kv_tokens,
            " tokens; count from 0");
    for (Index map = p.head.head * maps; map < (p.head.head + 1) * maps; ++map)
      to[static_cast<std::size_t>((map * q_tokens + p.query) * kv_tokens + p.key)] =
          -std::numeric_limits<float>::infinity();
  }
  return bias;
}

Index maps_of_head(const MultiHead& a) {
  const HeadSpec spec = a.head().spec();
  const Index heads = a.head_count();
  require(!spec.mixes() && heads > 0 && spec.q.heads % heads == 0, ErrorKind::unsupported, kOp, "pairs of ",
          a.head().name(),
          " belong to several heads at once; knock out pairs of heads that do not share scores");
  return spec.q.heads / heads;
}

Tensor knocked_out(const LabModel& model, std::span<const HeadPair> pairs, Index tokens) {
  require(!pairs.empty(), ErrorKind::bad_argument, kOp, "there are no pairs to knock out; name some");
  const Index layer = pairs[0].head.layer;
  require(layer >= 0 && layer < model.layers(), ErrorKind::bad_argument, kOp, "layer ", layer,
          " is named; the model has 0 to ", model.layers() - 1);
  const MultiHead& attention = model.attention(layer);
  const Index maps = maps_of_head(attention);
  require(pairs[0].part == AttentionPart::own, ErrorKind::unsupported, kOp,
          "the model has one stack of self-attention; name part own");
  return pairs_bias(pairs, {attention.head_count(), tokens, tokens, maps});
}

}  // namespace headwise
