#include "headwise/view/decoder/decoder_circuits.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "headwise/analysis/report/shown_text.h"
#include "headwise/ops/norm/layer_norm.h"
#include "headwise/ops/norm/norm.h"
#include "headwise/ops/projection/projection.h"
#include "headwise/view/decoder/top_pairs.h"

namespace headwise {
namespace {

constexpr const char* kOp = "view";
constexpr double kProducts = 3e10;
constexpr Index kTextTokens = 48, kTop = 24, kBytes = 4'000'000;

std::size_t at(Index i) { return static_cast<std::size_t>(i); }
using Rows = std::vector<float>;  // [rows columns]

class Reader {
 public:
  Reader(DecoderSource& source, const CircuitQuestion& question, Context& ctx)
      : source_(source), question_(question), c_(source.config()), ctx_(ctx) {}

  Circuits read() {
    choose();
    const std::string out = c_.tied ? "embed" : "head";
    embed_ = chosen_rows(matrix("embed", c_.vocabulary, c_.model_dim));
    unembed_ = c_.tied ? embed_ : chosen_rows(matrix(out, c_.vocabulary, c_.model_dim));
    for (float& x : embed_) x = static_cast<float>(x * c_.embed_scale);
    scale_by_norm(unembed_);
    for (Index layer = 0; layer < c_.layers; ++layer) {
      std::vector<Index> heads;
      for (const auto& [l, h] : heads_)
        if (l == layer) heads.push_back(h);
      if (!heads.empty()) add_layer(layer, heads);
    }
    return std::move(made_);
  }

 private:
  /// Which heads, which tokens of the text, and how much of the vocabulary.
  void choose() {
    heads_ = question_.heads;
    if (heads_.empty())
      for (Index l = 0; l < c_.layers; ++l)
        for (Index h = 0; h < c_.heads; ++h) heads_.emplace_back(l, h);
    const auto count = static_cast<double>(heads_.size());
    const auto room = static_cast<Index>(std::sqrt(static_cast<double>(kBytes) / (4 * count)));
    const Index most = std::clamp<Index>(room, 8, kTextTokens);
    for (const TokenId id : question_.text)
      if (std::ssize(tokens_) < most && std::find(tokens_.begin(), tokens_.end(), id) == tokens_.end())
        tokens_.push_back(id);
    text_ = std::ssize(tokens_);
    const double each = 4.0 * static_cast<double>(c_.model_dim * c_.head_dim) * count;
    made_.vocabulary = std::min(c_.vocabulary, question_.vocabulary);
    made_.read = std::min(made_.vocabulary, std::max<Index>(static_cast<Index>(kProducts / each), 256));
    made_.all_pairs = made_.read <= kAllPairs;
    for (const TokenId id : tokens_) made_.tokens.push_back(question_.name(id));
    for (Index id = 0; id < made_.read; ++id) tokens_.push_back(static_cast<TokenId>(id));
  }

  Rows matrix(const std::string& name, Index rows, Index columns) {
    Rows all(at(std::max<Index>(rows, 1) * columns));
    source_.read(name, rows, columns, all.data());
    return all;
  }
  /// Rows of the text's tokens, then those of the vocabulary.
  Rows chosen_rows(const Rows& all) const {
    Rows some;
    for (const TokenId id : tokens_)
      some.insert(some.end(), all.begin() + id * c_.model_dim, all.begin() + (id + 1) * c_.model_dim);
    return some;
  }
  ConstView view(const Rows& rows, Index columns) const {
    return ConstView::packed(rows.data(), DType::f32, {std::ssize(rows) / columns, columns});
  }

  Rows normed(const std::string& name) {
    const Rows weight = matrix(name + ".weight", 0, c_.model_dim);
    Rows out(embed_.size());
    const AnyView to = AnyView::packed(out.data(), DType::f32, {std::ssize(tokens_), c_.model_dim});
    const ConstView w = ConstView::packed(weight.data(), DType::f32, {c_.model_dim});
    if (c_.norm == NormKind::layer) {
      const Rows bias = matrix(name + ".bias", 0, c_.model_dim);
      layer_norm({.x = view(embed_, c_.model_dim),
                  .weight = w,
                  .bias = ConstView::packed(bias.data(), DType::f32, {c_.model_dim}),
                  .out = to,
                  .eps = c_.eps},
                 ctx_);
    } else {
      rms_norm(view(embed_, c_.model_dim), w, to, {.eps = c_.eps, .weight_form = c_.norm_weight}, ctx_);
    }
    return out;
  }
  /// The last norm multiplies by its weight; what it divides by depends on the text and is left out.
  void scale_by_norm(Rows& rows) {
    const Rows weight = matrix("norm.weight", 0, c_.model_dim);
    const float more = c_.norm_weight == WeightForm::one_plus ? 1.0f : 0.0f;
    for (std::size_t r = 0; r < rows.size(); r += at(c_.model_dim)) {
      double mean = 0;
      for (Index i = 0; i < c_.model_dim; ++i) mean += rows[r + at(i)] *= weight[at(i)] + more;
      mean /= static_cast<double>(c_.model_dim);
      // A layer norm takes the mean off what it reads, which is the same as taking it off here.
      for (Index i = 0; c_.norm == NormKind::layer && i < c_.model_dim; ++i)
        rows[r + at(i)] -= static_cast<float>(mean);
    }
  }

  /// Rows of x times some rows of a weight, with their bias.
  Rows product(const Rows& x, const Rows& weight, const Rows& bias, Index first) {
    const Index in = c_.model_dim, out = c_.head_dim;
    Rows y(x.size() / at(in) * at(out));
    ProjectionArgs args{.x = view(x, in),
                        .weight = ConstView::packed(weight.data() + first * in, DType::f32, {out, in}),
                        .out = AnyView::packed(y.data(), DType::f32, {std::ssize(x) / in, out})};
    if (!bias.empty()) args.bias = ConstView::packed(bias.data() + first, DType::f32, {out});
    projection(args, Activation::none, ctx_);
    return y;
  }
  void head_norm(Rows& rows, const std::string& name) {
    if (!c_.head_norms) return;
    const Rows weight = matrix(name, 0, c_.head_dim);
    const AnyView v = AnyView::packed(rows.data(), DType::f32, {std::ssize(rows) / c_.head_dim, c_.head_dim});
    rms_norm(v, ConstView::packed(weight.data(), DType::f32, {c_.head_dim}), v,
             {.eps = c_.eps, .weight_form = c_.norm_weight}, ctx_);
  }
  /// The vocabulary's mean is taken off all rows.
  void center(Rows& rows) const {
    const Index d = c_.head_dim;
    for (Index i = 0; i < d; ++i) {
      double mean = 0;
      for (Index r = 0; r < made_.read; ++r) mean += rows[at((text_ + r) * d + i)];
      mean /= static_cast<double>(made_.read);
      for (std::size_t r = 0; r < tokens_.size(); ++r) rows[r * at(d) + at(i)] -= static_cast<float>(mean);
    }
  }

  void add_layer(Index layer, const std::vector<Index>& heads) {
    const std::string name = text("layers.", layer, ".");
    const Index q = c_.heads * c_.head_dim, kv = c_.kv_heads * c_.head_dim, d = c_.head_dim;
    const Rows x = normed(name + "norm_1");
    const Rows wq = matrix(name + "q.weight", q, c_.model_dim),
               wk = matrix(name + "k.weight", kv, c_.model_dim);
    const Rows wv = matrix(name + "v.weight", kv, c_.model_dim),
               wo = matrix(name + "o.weight", c_.model_dim, q);
    Rows bq, bk, bv;
    if (c_.qkv_bias)
      bq = matrix(name + "q.bias", 0, q), bk = matrix(name + "k.bias", 0, kv),
      bv = matrix(name + "v.bias", 0, kv);
    const double scale = c_.scale > 0 ? c_.scale : 1 / std::sqrt(static_cast<double>(d));
    for (const Index h : heads) {
      const Index own = h * d, shared = h / (c_.heads / c_.kv_heads) * d;
      HeadCircuit circuit{.layer = layer, .head = h};
      Rows queries = product(x, wq, bq, own), keys = product(x, wk, bk, shared);
      head_norm(queries, name + "q_norm.weight"), head_norm(keys, name + "k_norm.weight");
      for (float& f : queries) f = static_cast<float>(f * scale);
      center(keys);
      fill(queries, keys, circuit.qk, circuit.top_qk);
      Rows turned(at(d * c_.model_dim));  // W_O of this head, [head_dim model_dim]
      for (Index m = 0; m < c_.model_dim; ++m)
        for (Index i = 0; i < d; ++i) turned[at(i * c_.model_dim + m)] = wo[at(m * q + own + i)];
      const Rows values = product(x, wv, bv, shared);
      Rows logits = product(unembed_, turned, {}, 0);
      center(logits);
      fill(values, logits, circuit.ov, circuit.top_ov);
      made_.heads.push_back(std::move(circuit));
    }
  }
  /// Scores of the text's tokens, and the largest of the vocabulary.
  void fill(const Rows& from, const Rows& to, std::vector<float>& scores, std::vector<TokenPair>& top) {
    const Index d = c_.head_dim;
    for (Index i = 0; i < text_; ++i)
      for (Index j = 0; j < text_; ++j)
        scores.push_back(static_cast<float>(
            std::inner_product(from.begin() + i * d, from.begin() + (i + 1) * d, to.begin() + j * d, 0.0)));
    const VectorLists lists{.rows = std::span(from).subspan(at(text_ * d)),
                            .columns = std::span(to).subspan(at(text_ * d)),
                            .count = made_.read,
                            .dim = d};
    for (const IndexPair& p : top_pairs(lists, kTop, ctx_))
      top.push_back({question_.name(static_cast<TokenId>(p.row)),
                     question_.name(static_cast<TokenId>(p.column)), p.score});
  }

  DecoderSource& source_;
  const CircuitQuestion& question_;
  const DecoderConfig& c_;
  Context& ctx_;
  std::vector<std::pair<Index, Index>> heads_;
  std::vector<TokenId> tokens_;  // of the text, each once, then the vocabulary's
  Index text_ = 0;
  Rows embed_, unembed_;
  Circuits made_;
};

}  // namespace

std::vector<std::pair<Index, Index>> parse_heads(const std::string& words, const DecoderConfig& c) {
  std::vector<std::pair<Index, Index>> heads;
  if (words == "all") return heads;
  for (std::size_t begin = 0; begin <= words.size();) {
    const std::size_t end = std::min(words.find(',', begin), words.size());
    const std::string one = words.substr(begin, end - begin);
    Index layer = -1, head = -1;
    const char *first = one.data(), *last = first + one.size();
    const auto [point, bad] = std::from_chars(first, last, layer);
    const bool layered = bad == std::errc{} && point != last && *point == '.';
    const bool whole = layered && std::from_chars(point + 1, last, head).ptr == last;
    require(whole && layer >= 0 && layer < c.layers && head >= 0 && head < c.heads, ErrorKind::bad_argument,
            kOp, "circuit \"", shown(one, 40), "\" is no head; give all, or layer.head from 0.0 to ",
            c.layers - 1, ".", c.heads - 1);
    heads.emplace_back(layer, head);
    begin = end + 1;
  }
  return heads;
}

Circuits circuits_of(DecoderSource& source, const CircuitQuestion& question, Context& ctx) {
  return Reader(source, question, ctx).read();
}

}  // namespace headwise
