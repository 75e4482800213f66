// Knocking heads (2025): one matrix shared by all heads turns their q, k and v; the identity at the start, so
// MHA.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>

#include "headwise/heads/head.h"
#include "headwise/heads/sums.h"
#include "headwise/ops/projection/backward.h"
#include "headwise/ops/row/activation.h"

namespace headwise {

/// What values go through: nothing, v T_V, or 2 ((v W_up) * sigmoid(v W_gate)) W_down.
enum class KnockValues : std::uint8_t { none, linear, mlp };
constexpr auto names_of(KnockValues) { return std::array<std::string_view, 3>{"none", "linear", "mlp"}; }

struct Knocking {
  static constexpr std::string_view name = "knocking";
  static constexpr std::string_view meets = "in the T_Q, T_K, T_V all heads share, and in W_O";
  struct Config {
    Index heads = 8, kv_heads = 0, dim = 0;
    bool queries = true, keys = true;
    KnockValues values = KnockValues::linear;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads"},
             Field{"kv_heads", &Config::kv_heads, "number of key/value heads; 0: as many as heads"},
             Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"},
             Field{"queries", &Config::queries, "whether T_Q is there"},
             Field{"keys", &Config::keys, "whether T_K is there"},
             Field{"values", &Config::values, "what values go through"}};
  static Config as_mha(Index heads, Index dim) {
    return {heads, heads, dim, true, true, KnockValues::linear};
  }

  Knocking(Config c, ParamSet& params, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    config_.kv_heads = kv_heads_of(name, c.heads, c.kv_heads);
    const Index d = config_.dim;
    if (c.queries) q_ = params.identity("knock_q", d);
    if (c.keys) k_ = params.identity("knock_k", d);
    if (c.values == KnockValues::linear) v_ = params.identity("knock_v", d);
    if (c.values == KnockValues::mlp) {
      up_ = params.identity("knock_up", d), down_ = params.identity("knock_down", d);
      gate_ = params.add("knock_gate", {d, d});
    }
  }
  const Config& config() const { return config_; }
  Widths widths() const {
    const Index wide = config_.heads * config_.dim, shared = config_.kv_heads * config_.dim;
    return {.q = wide, .k = shared, .v = shared, .out = wide};
  }
  HeadSpec spec() const {
    const auto kv = HeadLayout::grouped(config_.heads, config_.kv_heads, config_.dim);
    return {.q = HeadLayout::split(config_.heads, config_.dim), .k = kv, .v = kv};
  }

  /// One product of dim x dim for every vector of q, k and v; three of them under values=mlp.
  double flops(const AttentionProblem& p) const {
    const Index q = p.ragged ? p.q_total : p.batch * p.q_tokens,
                kv = p.ragged ? p.kv_total : p.batch * p.kv_tokens;
    const Index vectors = (q_.given() ? q * config_.heads : 0) + (k_.given() ? kv * config_.kv_heads : 0) +
                          ((v_.given() ? 1 : 0) + (up_.given() ? 3 : 0)) * kv * config_.kv_heads;
    return 2.0 * static_cast<double>(vectors * config_.dim * config_.dim);
  }

  struct Work {
    AnyView q, k, v, up, gate, joined;                    // joined = 2 up * sigmoid(gate)
    AnyView dq, dk, dv, d_up, d_gate, d_joined, scratch;  // backward
  };
  Work book(HeadCall& c, Arena& arena) const {
    Work w;
    if (q_.given()) w.q = take_rows(arena, c, c.q_tokens(), config_.heads);
    if (k_.given()) w.k = take_rows(arena, c, c.kv_tokens(), config_.kv_heads);
    if (config_.values != KnockValues::none) w.v = take_rows(arena, c, c.kv_tokens(), config_.kv_heads);
    if (up_.given())
      for (AnyView* v : {&w.up, &w.gate, &w.joined})
        *v = take_rows(arena, c, c.kv_tokens(), config_.kv_heads);
    return w;
  }
  /// One row a head: the same matrix multiplies them all.
  void prepare(HeadCall& c, Work& w, Context& ctx) const {
    AttentionArgs& a = c.run.forward;
    if (q_.given()) project(per_head(c.q), q_, {}, Activation::none, per_head(w.q), ctx), a.q = w.q;
    if (k_.given()) project(per_head(c.k), k_, {}, Activation::none, per_head(w.k), ctx), a.k = w.k;
    if (v_.given()) project(per_head(c.v), v_, {}, Activation::none, per_head(w.v), ctx), a.v = w.v;
    if (up_.given()) {
      project(per_head(c.v), up_, {}, Activation::none, per_head(w.up), ctx);
      project(per_head(c.v), gate_, {}, Activation::none, per_head(w.gate), ctx);
      gated(Activation::sigmoid, w.up, w.gate, w.joined, ctx);
      add_to(w.joined, w.joined, ctx);  // 2 x: the sigmoid starts at 1/2
      project(per_head(w.joined), down_, {}, Activation::none, per_head(w.v), ctx), a.v = w.v;
    }
  }

  void book_backward(HeadCall& c, Work& w, Arena& arena) const {
    const auto like = [&](const AnyView& v) { return take_like(arena, "knocking.gradient", v); };
    if (q_.given()) c.run.dq = w.dq = like(w.q);
    if (k_.given()) c.run.dk = w.dk = like(w.k);
    if (w.v.given()) c.run.dv = w.dv = like(w.v);
    if (up_.given())
      w.d_up = like(w.up), w.d_gate = like(w.gate), w.d_joined = like(w.joined), w.scratch = like(w.v);
  }
  void prepare_backward(HeadCall& c, Work& w, Context& ctx) const {
    const auto back = [&](const AnyView& dy, const AnyView& x, const Learned& t, const AnyView& dx) {
      projection_backward({.dy = per_head(dy),
                           .x = per_head(x),
                           .weight = t.value(),
                           .dx = per_head(dx),
                           .dweight = t.grad()},
                          ctx);
    };
    if (q_.given()) back(w.dq, c.q, q_, c.dq);
    if (k_.given()) back(w.dk, c.k, k_, c.dk);
    if (v_.given()) back(w.dv, c.v, v_, c.dv);
    if (up_.given()) {
      back(w.dv, w.joined, down_, w.d_joined);
      add_to(w.d_joined, w.d_joined, ctx);
      gated_backward(Activation::sigmoid, w.up, w.gate, w.d_joined, w.d_up, w.d_gate, ctx);
      back(w.d_up, c.v, up_, c.dv);
      back(w.d_gate, c.v, gate_, w.scratch);
      add_to(c.dv, w.scratch, ctx);
    }
  }

 private:
  AnyView take_rows(Arena& arena, const HeadCall& c, Index tokens, Index heads) const {
    return take(arena, "knocking.rows", c.problem.dtype, {c.outer(), tokens, heads, config_.dim});
  }
  /// [outer tokens heads*dim] or [outer tokens heads dim] as [outer*tokens*heads dim].
  AnyView per_head(const AnyView& v) const {
    return AnyView::packed(v.data, v.dtype, {v.count() / config_.dim, config_.dim});
  }

  Config config_;
  Learned q_, k_, v_, up_, gate_, down_;  // [dim dim]
};
static_assert(Head<Knocking>);

}  // namespace headwise
