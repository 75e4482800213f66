// Collaborative heads (Cordonnier et al. 2020): one shared query/key space, a mixing row per head; MHA at
// blocks of ones.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cmath>

#include "headwise/heads/head.h"
#include "headwise/heads/sums.h"

#pragma GCC visibility push(default)
namespace headwise {

/// How mixing rows start: ones on a head's own block of the shared columns, ones everywhere, or normal (0.2).
enum class MixingStart : std::uint8_t { blocks, ones, normal };
constexpr auto names_of(MixingStart) { return std::array<std::string_view, 3>{"blocks", "ones", "normal"}; }

struct Collaborative {
  static constexpr std::string_view name = "collaborative";
  static constexpr std::string_view meets = "in the query/key columns all heads share and weigh, and in W_O";
  struct Config {
    Index heads = 8, dim = 0, shared = 0;
    MixingStart mixing = MixingStart::blocks;
    bool content = true;
    double scale = 0;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads"},
             Field{"dim", &Config::dim, "width of one head's values; 0: model_dim / heads"},
             Field{"shared", &Config::shared, "columns of the shared queries and keys; 0: heads dim"},
             Field{"mixing", &Config::mixing, "how the mixing rows start"},
             Field{"content", &Config::content, "whether keys have a bias of their own per head, from b_Q"},
             Field{"scale", &Config::scale, "what scores are multiplied by; 0: 1 / sqrt(shared / heads)"}};
  static Config as_mha(Index heads, Index dim) {
    return {heads, dim, heads * dim, MixingStart::blocks, true, 0};
  }
  static Config small(Index heads, Index dim) { return {heads, dim, 5, MixingStart::normal, true, 0}; }

  Collaborative(Config c, ParamSet& params, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    if (c.shared == 0) config_.shared = c.heads * config_.dim;
    require(config_.shared > 0, ErrorKind::bad_shape, name, "shared is ", c.shared,
            "; the shared queries and keys have at least one column");
    if (c.scale == 0)
      config_.scale = std::sqrt(static_cast<double>(c.heads) / static_cast<double>(config_.shared));
    const Init start = c.mixing == MixingStart::normal ? Init::normal(0.2) : Init::constant(1);
    mixing_ = params.add("mixing", {c.heads, config_.shared}, start);
    if (c.mixing == MixingStart::blocks) start_blocks();
    if (!c.content) return;
    require(place.key_dim() > 0, ErrorKind::bad_shape, name, "model_dim is ", place.key_dim(),
            "; the content bias reads rows of the layer's input, so give the model's width");
    content_ = params.add("content", {c.heads, place.key_dim()});
  }
  const Config& config() const { return config_; }
  Widths widths() const {
    const Index row = config_.heads * config_.dim;
    return {.q = config_.shared, .k = config_.shared, .v = row, .out = row};
  }
  /// All heads read one key of `shared` columns; their queries are the shared one times their row.
  HeadSpec spec() const {
    HeadSpec s{.q = HeadLayout::split(config_.heads, config_.shared),
               .k = HeadLayout::grouped(config_.heads, 1, config_.shared),
               .v = HeadLayout::split(config_.heads, config_.dim)};
    s.terms.bias = config_.content;
    return s;
  }
  void bind(HeadInputs& in, HeadGrads&) const {
    if (!in.scale.given()) in.scale = ConstView::packed(&config_.scale, DType::f64, {1});
  }

  /// A row of q times each mixing row, and x times the content rows.
  double flops(const AttentionProblem& p) const {
    const auto q = static_cast<double>(p.ragged ? p.q_total : p.batch * p.q_tokens),
               kv = static_cast<double>(p.ragged ? p.kv_total : p.batch * p.kv_tokens);
    return q * static_cast<double>(mixing_.value().count()) +
           2 * kv * static_cast<double>(content_.value().count());
  }

  struct Work {
    AnyView q, content, bias;                 // [outer q heads shared], [outer kv heads], [batch heads 1 kv]
    AnyView dq, d_content, d_bias, dx, sums;  // backward; sums [heads shared] f64
  };
  Work book(HeadCall& c, Arena& arena) const {
    Work w;
    w.q = take(arena, "collaborative.q", c.problem.dtype,
               {c.outer(), c.q_tokens(), config_.heads, config_.shared});
    if (!config_.content) return w;
    w.content =
        take(arena, "collaborative.content", c.problem.dtype, {c.outer(), c.kv_tokens(), config_.heads});
    w.bias = bias_over(c, w.content, arena);
    return w;
  }
  /// q_h = q * m_h; bias_h[j] = scale (x_kv[j] . content_h): the scale is outside both in the paper.
  void prepare(HeadCall& c, Work& w, Context& ctx) const;

  void book_backward(HeadCall& c, Work& w, Arena& arena) const {
    c.run.dq = w.dq = take_like(arena, "collaborative.dq", w.q);
    w.sums = take(arena, "collaborative.sums", DType::f64, {config_.heads, config_.shared});
    if (!config_.content) return;
    w.d_content = take_like(arena, "collaborative.d_content", w.content);
    c.run.dbias = w.d_bias = bias_over(c, w.d_content, arena);
    w.dx = take_like(arena, "collaborative.dx", c.dx_kv);
  }
  /// dq = sum_h m_h * dq_h, dm_h = sum_t q * dq_h, d content = scale d bias.
  void prepare_backward(HeadCall& c, Work& w, Context& ctx) const;

 private:
  void start_blocks() const {
    const AnyView m = mixing_.value();
    for (Index h = 0; h < config_.heads; ++h)
      for (Index i = 0; i < config_.shared; ++i)
        store_double(m.data, m.dtype, h * config_.shared + i,
                     i * config_.heads / config_.shared == h ? 1 : 0);
  }
  /// Rows [outer kv heads] as a bias [batch heads 1 kv]: the same memory seen otherwise, or, for sequences of
  /// different lengths, one of the longest for each.
  static AnyView bias_over(const HeadCall& c, const AnyView& rows, Arena& arena) {
    const AttentionProblem& p = c.problem;
    const Index heads = rows.size[2];
    if (p.ragged) return take(arena, "collaborative.bias", rows.dtype, {p.batch, heads, 1, p.kv_tokens});
    AnyView v = AnyView::packed(rows.data, rows.dtype, {p.batch, heads, 1, p.kv_tokens});
    v.step[0] = p.kv_tokens * heads, v.step[1] = 1, v.step[2] = 0, v.step[3] = heads;
    return v;
  }
  Config config_;
  Learned mixing_, content_;  // [heads shared], [heads key_model_dim]
};
static_assert(Head<Collaborative>);

}  // namespace headwise
#pragma GCC visibility pop
