// Mixture-of-Head attention (Jin et al. 2024): every token chooses some of the heads, a gate weighs them; MHA
// with zero routers and all heads chosen.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cmath>

#include "headwise/heads/head.h"
#include "headwise/heads/sums.h"
#include "headwise/ops/route/route_heads.h"

namespace headwise {

/// learned: routers read the layer's input. norm: the longest queries, without parameters, straight through.
enum class Router : std::uint8_t { learned, norm };
constexpr auto names_of(Router) { return std::array<std::string_view, 2>{"learned", "norm"}; }
constexpr auto names_of(RouteScore) { return std::array<std::string_view, 2>{"code", "paper"}; }
constexpr auto names_of(BalanceScale) { return std::array<std::string_view, 2>{"code", "paper"}; }

struct Moh {
  static constexpr std::string_view name = "moh";
  static constexpr std::string_view meets = "in the routers' softmax over heads, and in W_O";
  struct Config {
    Index heads = 16, shared = 4, k = 4, kv_heads = 0, dim = 0;
    Router router = Router::learned;
    RouteScore score = RouteScore::code;
    BalanceScale balance = BalanceScale::code;
    double weight = 0.01;
    bool skip = true;
  };
  static constexpr auto fields = Fields{
      Field{"heads", &Config::heads, "number of heads; the head's own where it lies over another"},
      Field{"shared", &Config::shared, "heads that work for every token: the first ones"},
      Field{"k", &Config::k, "routed heads each token chooses"},
      Field{"kv_heads", &Config::kv_heads, "number of key/value heads; 0: as many as heads"},
      Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"},
      Field{"router", &Config::router, "learned, or norm: by the length of queries, for converted models"},
      Field{"score", &Config::score, "how gates are scaled: as the released code, or as the paper"},
      Field{"balance", &Config::balance,
            "the scale of the balance loss: as the released code, or as the paper"},
      Field{"weight", &Config::weight, "what the balance loss is multiplied by"},
      Field{"skip", &Config::skip, "whether attention leaves out the heads a token did not choose"}};
  static Config as_mha(Index heads, Index dim) {
    const Index shared = heads > 1 ? 1 : 0;
    Config c;
    c.heads = heads, c.shared = shared, c.k = heads - shared, c.dim = dim;
    return c;
  }
  static Config small(Index heads, Index dim) {
    Config c;
    c.heads = heads, c.shared = heads / 2, c.k = heads / 2 > 1 ? heads / 2 - 1 : heads - heads / 2,
    c.dim = dim;
    return c;
  }
  /// A router whose gates are 0 and 1 has no slope of its own: its gradient is that of the scores.
  static bool is_smooth(const Config& c) { return c.router != Router::norm; }

  Moh(Config c, ParamSet& params, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    config_.kv_heads = kv_heads_of(name, c.heads, c.kv_heads);
    const Index wide = config_.heads * config_.dim, shared = config_.kv_heads * config_.dim;
    const auto kv = HeadLayout::grouped(config_.heads, config_.kv_heads, config_.dim);
    declare({{HeadLayout::split(config_.heads, config_.dim), kv, kv}, {wide, shared, shared, wide}}, params,
            place);
  }
  Moh(Config c, ParamSet& params, Place place, const Below& below) : config_(c) {
    config_.heads = below.spec.v.heads, config_.kv_heads = below.spec.v.slots();
    config_.dim = below.spec.v.dim;
    require(!below.spec.mixes(), ErrorKind::unsupported, name,
            "the head below mixes its heads, so none can be left out; leave one of them out");
    require(c.router == Router::learned, ErrorKind::unsupported, name,
            "router=norm reads the queries of its own heads; name moh first, before the +");
    declare(below, params, place);
  }
  const Config& config() const { return config_; }
  Widths widths() const { return widths_; }
  HeadSpec spec() const { return spec_; }
  double head_share() const {
    return config_.skip ? static_cast<double>(config_.shared + config_.k) / static_cast<double>(config_.heads)
                        : 1;
  }

  struct Work {
    AnyView shared, routed, stages;                // logits
    AnyView gate, chosen, offsets, index;          // [outer tokens heads], [.. k], the row lists
    AnyView dgate, dshared, drouted, dstages, dx;  // backward
  };
  Work book(HeadCall& c, Arena& arena) const {
    const RouteOptions o = options(0);
    const DType t = c.problem.dtype == DType::f64 ? DType::f64 : DType::f32;
    const Index outer = c.outer(), tokens = c.q_tokens();
    Work w;
    if (config_.router == Router::learned) {
      if (o.weighs_shared()) w.shared = take(arena, "moh.shared", t, {outer, tokens, o.shared});
      w.routed = take(arena, "moh.routed", t, {outer, tokens, o.routed()});
      if (o.has_stages()) w.stages = take(arena, "moh.stages", t, {outer, tokens, 2});
    }
    w.gate = take(arena, "moh.gate", t, {outer, tokens, o.heads});
    w.chosen = take(arena, "moh.chosen", DType::i64, {outer, tokens, o.chosen});
    if (config_.skip) {
      w.offsets = take(arena, "moh.rows", DType::i64, {c.problem.batch * o.heads + 1});
      w.index = take(arena, "moh.rows", DType::i64, {listed_rows(o, outer * tokens)});
    }
    return w;
  }
  void prepare(HeadCall& c, Work& w, Context& ctx) const {
    const RouteOptions o = options(c.head_budget);
    const AnyView chosen = first_columns(w.chosen, o.chosen);
    if (config_.router == Router::norm) {
      route_by_norm(o, heads_of(c.q, spec_.q), w.gate, chosen, ctx);
    } else {
      if (w.shared.given()) project(c.x, of_shared_, {}, Activation::none, w.shared, ctx);
      if (of_routed_.given()) project(c.x, of_routed_, {}, Activation::none, w.routed, ctx);
      if (w.stages.given()) project(c.x, of_stages_, {}, Activation::none, w.stages, ctx);
      route_heads(o, {w.shared, w.routed, w.stages, w.gate, chosen}, ctx);
      if (config_.weight != 0) {
        c.loss += config_.weight * balance_loss(o, config_.balance, w.routed, chosen, ctx);
        c.has_loss = true;
      }
    }
    c.inputs().gate = w.gate;
    if (!config_.skip) return;
    AnyView index = w.index;
    index.size[0] = listed_rows(o, w.gate.size[0] * w.gate.size[1]);
    c.inputs().rows = {w.offsets, index};
    list_rows(o, chosen, c.problem.ragged ? c.run.forward.q_offsets : AnyView{}, c.inputs().rows);
  }

  void book_backward(HeadCall& c, Work& w, Arena& arena) const {
    w.dgate = take_like(arena, "moh.dgate", w.gate);
    c.run.dgate = w.dgate;
    if (config_.router == Router::norm) return;
    if (w.shared.given()) w.dshared = take_like(arena, "moh.dshared", w.shared);
    w.drouted = take_like(arena, "moh.drouted", w.routed);
    if (w.stages.given()) w.dstages = take_like(arena, "moh.dstages", w.stages);
    w.dx = take_like(arena, "moh.dx", c.dx);
  }
  void prepare_backward(HeadCall& c, Work& w, Context& ctx) const {
    const RouteOptions o = options(c.head_budget);
    const AnyView chosen = first_columns(w.chosen, o.chosen);
    if (config_.router == Router::norm) {
      route_by_norm_backward(o, heads_of(c.q, spec_.q), w.dgate, heads_of(c.dq, spec_.q), ctx);
      return;
    }
    route_heads_backward(o, {w.shared, w.routed, w.stages, w.gate, chosen},
                         {w.dgate, w.dshared, w.drouted, w.dstages}, ctx);
    if (config_.weight != 0 && c.loss_gradient != 0)
      balance_loss_backward(o, config_.balance, config_.weight * c.loss_gradient, w.routed, chosen, w.drouted,
                            ctx);
    if (w.shared.given()) project_backward(w.dshared, c.x, of_shared_, {}, c.dx, w.dx, ctx);
    if (of_routed_.given()) project_backward(w.drouted, c.x, of_routed_, {}, c.dx, w.dx, ctx);
    if (w.stages.given()) project_backward(w.dstages, c.x, of_stages_, {}, c.dx, w.dx, ctx);
  }

  /// Zero routers: all scores are equal.
  void become_mha() const {
    for (const Learned* w : {&of_shared_, &of_routed_, &of_stages_})
      if (w->given()) fill(w->value(), 0);
  }

 private:
  RouteOptions options(Index budget) const {
    require(0 <= budget && budget <= config_.k, ErrorKind::bad_argument, name, "head_budget is ", budget,
            " but the head was made with k = ", config_.k, "; a call may use fewer routed heads, not more");
    return {config_.heads, config_.shared, budget ? budget : config_.k, config_.score};
  }
  static AnyView first_columns(AnyView v, Index n) {
    v.size[2] = n;
    return v;
  }
  void declare(const Below& below, ParamSet& params, const Place& place) {
    const Config& c = config_;
    require(0 <= c.shared && c.shared <= c.heads, ErrorKind::bad_argument, name, c.shared, " of ", c.heads,
            " heads are shared; shared heads run from 0 to all");
    require(0 <= c.k && c.k <= c.heads - c.shared, ErrorKind::bad_argument, name, "k (", c.k,
            ") is above the number of routed heads (", c.heads - c.shared, "); lower k or share fewer heads");
    require(c.shared + c.k >= 1, ErrorKind::bad_argument, name,
            "no head is shared and none is chosen; a token needs one head at least");
    spec_ = below.spec, widths_ = below.widths;
    spec_.terms = {};
    spec_.terms.gate = true, spec_.terms.rows = c.skip;
    if (c.router == Router::norm) return;
    require(place.model_dim > 0, ErrorKind::bad_shape, name, "model_dim is ", place.model_dim,
            "; the routers read rows of the layer's input, so give the model's width");
    const RouteOptions o = options(0);
    const Init start = Init::normal(1 / std::sqrt(static_cast<double>(place.model_dim)));
    if (o.weighs_shared()) of_shared_ = params.add("router_shared", {o.shared, place.model_dim}, start);
    if (o.routed() > 0) of_routed_ = params.add("router_routed", {o.routed(), place.model_dim}, start);
    if (o.has_stages()) of_stages_ = params.add("router_stages", {2, place.model_dim}, start);
  }

  Config config_;
  HeadSpec spec_;
  Widths widths_;
  Learned of_shared_, of_routed_, of_stages_;
};
static_assert(Head<Moh>);

}  // namespace headwise
