// Differential heads (Ye et al. 2024): two maps share values and one is subtracted; MHA at lambda 0 without
// norm.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/base/context.h"
#include "headwise/heads/head.h"
#include "headwise/heads/sums.h"
#include "headwise/ops/norm/norm.h"

namespace headwise {

struct Differential {
  static constexpr std::string_view name = "differential";
  static constexpr std::string_view meets = "in the difference of two maps over one value head, and in W_O";
  struct Config {
    Index heads = 8, kv_heads = 0, dim = 0, value_dim = 0;
    bool learned = true, norm = true;
    double start = -1;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads, two maps each"},
             Field{"kv_heads", &Config::kv_heads, "number of key/value heads; 0: as many as heads"},
             Field{"dim", &Config::dim, "width of one map's queries; 0: model_dim / heads / 2"},
             Field{"value_dim", &Config::value_dim, "width of one head's values; 0: 2 dim"},
             Field{"learned", &Config::learned, "whether lambda is learned; otherwise it stays at its start"},
             Field{"norm", &Config::norm, "whether each head's output is RMS-normalized"},
             Field{"start", &Config::start, "where lambda starts; below 0: 0.8 - 0.6 exp(-0.3 layer)"}};
  static Config as_mha(Index heads, Index dim) { return {heads, heads, dim, dim, false, false, 0}; }

  Differential(Config c, ParamSet& params, Place place) : config_(c) {
    if (c.dim == 0)
      require(c.heads > 0 && place.model_dim % (2 * c.heads) == 0, ErrorKind::bad_shape, name, "model_dim (",
              place.model_dim, ") must be a multiple of 2 heads (2 x ", c.heads,
              "): each has two maps; change one of them or give dim");
    config_.dim = c.dim ? dim_of(name, c.heads, c.dim, place) : place.model_dim / (2 * c.heads);
    config_.kv_heads = kv_heads_of(name, c.heads, c.kv_heads);
    require(c.value_dim >= 0, ErrorKind::bad_shape, name, "value_dim is ", c.value_dim,
            "; give the width of a head's values, or 0 for 2 dim");
    if (c.value_dim == 0) config_.value_dim = 2 * config_.dim;
    if (c.start < 0) config_.start = 0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(place.layer));
    if (c.learned)
      for (int i = 0; i < 4; ++i) lambda_[i] = params.add(kVectors[i], {config_.dim}, Init::normal(0.1));
    if (c.norm) norm_ = params.add("norm", {config_.value_dim}, Init::constant(1));
  }
  const Config& config() const { return config_; }
  /// Head h's maps are the query heads 2 h and 2 h + 1; keys are shared by division, as the authors do.
  Widths widths() const {
    const Config& c = config_;
    return {.q = 2 * c.heads * c.dim,
            .k = 2 * c.kv_heads * c.dim,
            .v = c.kv_heads * c.value_dim,
            .out = c.heads * c.value_dim};
  }
  HeadSpec spec() const {
    const Index maps = 2 * config_.heads;
    return {.q = HeadLayout::split(maps, config_.dim),
            .k = HeadLayout::grouped(maps, 2 * config_.kv_heads, config_.dim),
            .v = HeadLayout::grouped(maps, config_.kv_heads, config_.value_dim)};
  }
  /// exp(q1.k1) - exp(q2.k2) + start, or start.
  double lambda() const {
    if (!config_.learned) return config_.start;
    return std::exp(dot(0)) - std::exp(dot(2)) + config_.start;
  }

  /// Two for the difference, four more for the norm, of every column.
  double flops(const AttentionProblem& p) const {
    const Index rows = p.ragged ? p.q_total : p.batch * p.q_tokens;
    return (config_.norm ? 6.0 : 2.0) * static_cast<double>(rows * config_.heads * config_.value_dim);
  }

  struct Work {
    AnyView a, y;              // a = o_2h - lambda o_2h+1, [outer tokens heads value_dim]
    AnyView da, sums, d_norm;  // backward; sums [pieces] f64
  };
  Work book(HeadCall& c, Arena& arena) const {
    Work w;
    w.a = take(arena, "differential.a", c.problem.dtype,
               {c.outer(), c.q_tokens(), config_.heads, config_.value_dim});
    w.y = config_.norm ? take_like(arena, "differential.y", w.a) : w.a;
    c.y = rows_of_heads(w.y);
    return w;
  }
  void finish(HeadCall& c, Work& w, Context& ctx) const {
    const double lambda_now = lambda();
    visit_float(w.a.dtype, [&]<class T>(Type<T>) {
      using C = Computed<T>;
      const T* const o = static_cast<const T*>(c.o.data);
      T* const a = static_cast<T*>(w.a.data);
      const Index wide = config_.value_dim;
      each_token(tokens(w), ctx, [&](Index t) {
        for (Index h = t * config_.heads; h < (t + 1) * config_.heads; ++h)
          for (Index i = 0; i < wide; ++i)
            a[h * wide + i] =
                static_cast<T>(static_cast<C>(o[2 * h * wide + i]) -
                               static_cast<C>(lambda_now) * static_cast<C>(o[(2 * h + 1) * wide + i]));
      });
    });
    if (!config_.norm) return;
    rms_norm(w.a, norm_.value(), w.y, kNorm, ctx);
    scale(w.y, 1 - config_.start, ctx);  // the authors' factor: the norm hides lambda's size, this keeps it
  }

  void book_backward(HeadCall&, Work& w, Arena& arena) const {
    if (config_.norm) {
      w.da = take_like(arena, "differential.da", w.a);
      w.d_norm = take_like(arena, "differential.d_norm", norm_.value());
    }
    w.sums = take(arena, "differential.sums", DType::f64, {ceil_div(tokens(w), kPiece)});
  }
  void finish_backward(HeadCall& c, Work& w, Context& ctx) const {
    AnyView da = w.a;
    da.data = c.dy.data;
    if (config_.norm) {
      copy_rows(c.dy, w.da, ctx);
      scale(w.da, 1 - config_.start, ctx);
      rms_norm_backward({.x = w.a, .weight = norm_.value(), .dout = w.da, .dx = w.da, .dweight = w.d_norm},
                        kNorm, ctx);
      if (norm_.grad().given()) add_to(norm_.grad(), w.d_norm, ctx);
      da = w.da;
    }
    const double d_lambda = split(c, w, da, ctx);
    if (config_.learned) add_lambda(d_lambda);
  }

 private:
  static constexpr const char* kVectors[] = {"lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"};
  static constexpr RmsNormOptions kNorm{.eps = 1e-5};
  static constexpr Index kPiece = 64;  // tokens summed in one go; pieces are added in order

  static Index tokens(const Work& w) { return w.a.size[0] * w.a.size[1]; }
  static double at(const Learned& p, Index i) { return load_double(p.value().data, p.value().dtype, i); }
  double dot(int first) const {
    double sum = 0;
    for (Index i = 0; i < config_.dim; ++i) sum += at(lambda_[first], i) * at(lambda_[first + 1], i);
    return sum;
  }
  /// d_o_2h = da, d_o_2h+1 = -lambda da; returns d lambda = -sum da . o_2h+1.
  double split(HeadCall& c, Work& w, const AnyView& da, Context& ctx) const {
    const double lambda_now = lambda();
    const Index all = tokens(w), wide = config_.value_dim;
    double* const sums = static_cast<double*>(w.sums.data);
    visit_float(da.dtype, [&]<class T>(Type<T>) {
      using C = Computed<T>;
      const T *const from = static_cast<const T*>(da.data), *const o = static_cast<const T*>(c.o.data);
      T* const to = static_cast<T*>(c.d_o.data);
      ctx.pool().parallel_for(w.sums.size[0], [&](Index piece, int) {
        double sum = 0;
        for (Index h = piece * kPiece * config_.heads; h < min_of(all, (piece + 1) * kPiece) * config_.heads;
             ++h)
          for (Index i = 0; i < wide; ++i) {
            const C d = static_cast<C>(from[h * wide + i]);
            to[2 * h * wide + i] = from[h * wide + i];
            to[(2 * h + 1) * wide + i] = static_cast<T>(static_cast<C>(-lambda_now) * d);
            sum -= static_cast<double>(d) * static_cast<double>(static_cast<C>(o[(2 * h + 1) * wide + i]));
          }
        sums[piece] = sum;
      });
    });
    double sum = 0;
    for (Index piece = 0; piece < w.sums.size[0]; ++piece) sum += sums[piece];
    return sum;
  }
  /// d lambda / d q1 = exp(q1.k1) k1, d lambda / d q2 = -exp(q2.k2) k2, and the other way round.
  void add_lambda(double d) const {
    for (int i = 0; i < 4; ++i) {
      const AnyView g = lambda_[i].grad();
      if (!g.given()) continue;
      const double rate = (i < 2 ? 1 : -1) * std::exp(dot(i / 2 * 2)) * d;
      for (Index n = 0; n < config_.dim; ++n)
        store_double(g.data, g.dtype, n, load_double(g.data, g.dtype, n) + rate * at(lambda_[i ^ 1], n));
    }
  }

  Config config_;
  Learned lambda_[4], norm_;
};
static_assert(Head<Differential>);

}  // namespace headwise
