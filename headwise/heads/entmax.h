// Entmax heads (Peters et al. 2019, Correia et al. 2019): sparse weights by an alpha per head, fixed or
// learned; MHA at alpha 1.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/heads/head.h"

namespace headwise {

class Context;

struct Entmax {
  static constexpr std::string_view name = "entmax";
  static constexpr std::string_view meets = "in W_O alone";
  struct Config {
    Index heads = 8, kv_heads = 0, dim = 0;
    double alpha = 1.5;
    bool learned = false;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads; the head's own where it lies over another"},
             Field{"kv_heads", &Config::kv_heads, "number of key/value heads; 0: as many as heads"},
             Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"},
             Field{"alpha", &Config::alpha, "1 is softmax, 1.5 entmax, 2 sparsemax; from 1.01 to 2 beside 1"},
             Field{"learned", &Config::learned, "whether every head learns its alpha, from that start"}};
  static Config as_mha(Index heads, Index dim) { return {heads, heads, dim, 1, false}; }

  Entmax(Config c, ParamSet& params, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    config_.kv_heads = kv_heads_of(name, c.heads, c.kv_heads);
    const Index wide = config_.heads * config_.dim, shared = config_.kv_heads * config_.dim;
    const auto kv = HeadLayout::grouped(config_.heads, config_.kv_heads, config_.dim);
    declare({{HeadLayout::split(config_.heads, config_.dim), kv, kv}, {wide, shared, shared, wide}}, params);
  }
  Entmax(Config c, ParamSet& params, Place, const Below& below) : config_(c) {
    config_.heads = below.spec.q.heads, config_.kv_heads = below.spec.k.slots();
    config_.dim = below.spec.q.dim;
    require(!below.spec.mixes(), ErrorKind::unsupported, name,
            "the head below mixes its weights, which is computed with softmax alone; leave one of them out");
    declare(below, params);
  }
  const Config& config() const { return config_; }
  Widths widths() const { return widths_; }
  HeadSpec spec() const { return spec_; }

  struct Work {
    AnyView alpha, dalpha;  // [heads] f64
  };
  Work book(HeadCall&, Arena& arena) const {
    return {take(arena, "entmax.alpha", DType::f64, {config_.heads}), {}};
  }
  void prepare(HeadCall& c, Work& w, Context&) const {
    for (Index h = 0; h < config_.heads; ++h)
      static_cast<double*>(w.alpha.data)[h] = config_.learned ? kLeast + kRange * share(h) : config_.alpha;
    c.inputs().alpha = w.alpha;
  }
  void book_backward(HeadCall& c, Work& w, Arena& arena) const {
    if (!config_.learned) return;
    w.dalpha = take_like(arena, "entmax.dalpha", w.alpha);
    c.run.dalpha = w.dalpha;
  }
  /// alpha = 1.01 + 0.99 sigmoid(a): da = dalpha 0.99 sigmoid(a) (1 - sigmoid(a))
  void prepare_backward(HeadCall&, Work& w, Context&) const {
    const AnyView g = logit_.grad();
    if (!config_.learned || !g.given()) return;
    for (Index h = 0; h < config_.heads; ++h)
      store_double(g.data, g.dtype, h,
                   load_double(g.data, g.dtype, h) +
                       static_cast<const double*>(w.dalpha.data)[h] * kRange * share(h) * (1 - share(h)));
  }

 private:
  static constexpr double kLeast = kLeastAlpha, kRange = 2 - kLeastAlpha;

  double share(Index h) const {
    return 1 / (1 + std::exp(-load_double(logit_.value().data, logit_.value().dtype, h)));
  }
  void declare(const Below& below, ParamSet& params) {
    const double a = config_.alpha;
    require(a == 1 || (a >= kLeast && a <= 2), ErrorKind::bad_argument, name, "alpha is ", a,
            "; give 1 (softmax) or a number from 1.01 to 2 (sparsemax)");
    require(!config_.learned || (a > kLeast && a < 2), ErrorKind::bad_argument, name,
            "a learned alpha starts at ", a, "; start between 1.01 and 2, where it can move both ways");
    spec_ = below.spec, widths_ = below.widths;
    spec_.terms = {};
    spec_.norm = Norm::entmax;
    if (!config_.learned) return;
    const double share_now = (a - kLeast) / kRange;
    logit_ =
        params.add("alpha_logit", {config_.heads}, Init::constant(std::log(share_now / (1 - share_now))));
  }

  Config config_;
  HeadSpec spec_;
  Widths widths_;
  Learned logit_;  // [heads]
};
static_assert(Head<Entmax>);

}  // namespace headwise
