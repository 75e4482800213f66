// Gated heads (Qiu et al. 2025; GLU fusion): outputs times an activation of the input, or of the heads
// themselves.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cmath>

#include "headwise/heads/head.h"
#include "headwise/heads/sums.h"
#include "headwise/ops/row/activation.h"

namespace headwise {

/// input: Y * act(X W_g + b). heads: (Y W_1) * act(Y W_2 + b) in place of W_O.
enum class GateSource : std::uint8_t { input, heads };
enum class GateForm : std::uint8_t { sigmoid, silu, gelu, linear };
/// A gate for every column, or one for every head.
enum class GateGrain : std::uint8_t { element, head };
constexpr auto names_of(GateSource) { return std::array<std::string_view, 2>{"input", "heads"}; }
constexpr auto names_of(GateForm) {
  return std::array<std::string_view, 4>{"sigmoid", "silu", "gelu", "linear"};
}
constexpr auto names_of(GateGrain) { return std::array<std::string_view, 2>{"element", "head"}; }

struct Gated {
  static constexpr std::string_view name = "gated";
  static constexpr std::string_view meets = "source=input: in W_O alone; source=heads: in W_1 and W_2";
  static constexpr bool on_devices = true;
  struct Config {
    Index heads = 8, kv_heads = 0, dim = 0;
    GateSource source = GateSource::input;
    GateForm act = GateForm::sigmoid;
    GateGrain grain = GateGrain::element;
    bool bias = false;
  };
  static constexpr auto fields = Fields{
      Field{"heads", &Config::heads, "number of heads; the head's own where it lies over another"},
      Field{"kv_heads", &Config::kv_heads, "number of key/value heads; 0: as many as heads"},
      Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"},
      Field{"source", &Config::source, "what the gate is computed from: the layer's input, or the heads"},
      Field{"act", &Config::act, "what the gate goes through"},
      Field{"grain", &Config::grain, "one gate for every column, or for every head"},
      Field{"bias", &Config::bias, "whether the gate has a bias"}};
  static Config as_mha(Index heads, Index dim) {
    return {heads, heads, dim, GateSource::input, GateForm::linear, GateGrain::element, true};
  }

  Gated(Config c, ParamSet& params, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    config_.kv_heads = kv_heads_of(name, c.heads, c.kv_heads);
    const Index wide = config_.heads * config_.dim, shared = config_.kv_heads * config_.dim;
    const auto kv = HeadLayout::grouped(config_.heads, config_.kv_heads, config_.dim);
    declare({{HeadLayout::split(config_.heads, config_.dim), kv, kv}, {wide, shared, shared, wide}}, params,
            place);
  }
  Gated(Config c, ParamSet& params, Place place, const Below& below) : config_(c) {
    config_.heads = below.spec.v.heads, config_.kv_heads = below.spec.v.slots();
    config_.dim = below.spec.v.dim;
    require(below.widths.out > 0, ErrorKind::unsupported, name,
            "the head below gives the layer's output itself; put gated before it");
    declare(below, params, place);
  }
  const Config& config() const { return config_; }
  Widths widths() const { return widths_; }
  HeadSpec spec() const { return spec_; }

  struct Work {
    AnyView z, gate, y;  // the gate before and behind its activation; source=heads: Y W_2
    AnyView a;           // source=heads: Y W_1
    AnyView dz, da, dx;  // backward
  };
  Work book(HeadCall& c, Arena& arena) const {
    const DType t = c.problem.dtype;
    const Index outer = c.outer(), tokens = c.q_tokens();
    Work w;
    w.z = take(arena, "gated.z", t, {outer, tokens, gates_});
    if (per_head()) {  // attention multiplies by the gate; there is nothing to finish
      w.gate = take(arena, "gated.gate", t, {outer, tokens, gates_});
      return w;
    }
    if (config_.source == GateSource::heads) w.a = take(arena, "gated.a", t, {outer, tokens, gates_});
    c.y = w.y = take(arena, "gated.y", t, {outer, tokens, gates_});
    return w;
  }
  void prepare(HeadCall& c, Work& w, Context& ctx) const {
    if (config_.source != GateSource::input) return;
    project(c.x, weight_, bias_, Activation::none, w.z, ctx);
    if (!per_head()) return;
    activation(act(), w.z, w.gate, ctx);
    c.inputs().gate = w.gate;
  }
  void finish(HeadCall& c, Work& w, Context& ctx) const {
    if (config_.source == GateSource::heads) {
      project(c.o, value_, {}, Activation::none, w.a, ctx);
      project(c.o, weight_, bias_, Activation::none, w.z, ctx);
    }
    gated(act(), config_.source == GateSource::heads ? w.a : c.o, w.z, w.y, ctx);
  }

  void book_backward(HeadCall& c, Work& w, Arena& arena) const {
    w.dz = take_like(arena, "gated.dz", w.z);
    if (w.a.given()) w.da = take_like(arena, "gated.da", w.a);
    if (per_head()) c.run.dgate = w.dz;
    w.dx = config_.source == GateSource::input ? take_like(arena, "gated.dx", c.dx)
                                               : take_like(arena, "gated.d_o", c.d_o);
  }
  void finish_backward(HeadCall& c, Work& w, Context& ctx) const {
    if (config_.source == GateSource::input) {
      gated_backward(act(), c.o, w.z, c.dy, c.d_o, w.dz, ctx);
      return;
    }
    gated_backward(act(), w.a, w.z, c.dy, w.da, w.dz, ctx);
    clear(c.d_o, ctx);
    project_backward(w.da, c.o, value_, {}, c.d_o, w.dx, ctx);
    project_backward(w.dz, c.o, weight_, bias_, c.d_o, w.dx, ctx);
  }
  void prepare_backward(HeadCall& c, Work& w, Context& ctx) const {
    if (config_.source != GateSource::input) return;
    if (per_head()) activation_backward(act(), w.z, w.dz, w.dz, ctx);
    project_backward(w.dz, c.x, weight_, bias_, c.dx, w.dx, ctx);
  }

  /// W_g = 0, b = 1.
  void become_mha() const {
    fill(weight_.value(), 0);
    if (bias_.given()) fill(bias_.value(), 1);
  }

 private:
  bool per_head() const { return config_.grain == GateGrain::head; }
  Activation act() const {
    switch (config_.act) {
      case GateForm::sigmoid: return Activation::sigmoid;
      case GateForm::silu: return Activation::silu;
      case GateForm::gelu: return Activation::gelu;
      case GateForm::linear: return Activation::none;
    }
    return Activation::none;
  }
  void declare(const Below& below, ParamSet& params, const Place& place) {
    const bool heads = config_.source == GateSource::heads;
    require(!(heads && per_head()), ErrorKind::unsupported, name,
            "source=heads gates columns of the layer's output, which belong to no head; use grain=element");
    require(place.model_dim > 0, ErrorKind::bad_shape, name, "model_dim is ", place.model_dim,
            "; the gate reads rows of the layer's input or gives them, so give the model's width");
    spec_ = below.spec, widths_ = below.widths;
    spec_.terms.gate = per_head();
    gates_ = heads ? place.model_dim : per_head() ? spec_.v.heads : widths_.out;
    const Index in = heads ? widths_.out : place.model_dim;
    const Init start = Init::normal(1 / std::sqrt(static_cast<double>(in)));
    if (heads) value_ = params.add("gated_value", {gates_, in}, start), widths_.out = 0;
    weight_ = params.add("gate", {gates_, in}, start);
    if (config_.bias) bias_ = params.add("gate_bias", {gates_});
  }

  Config config_;
  HeadSpec spec_;
  Widths widths_;
  Index gates_ = 0;
  Learned weight_, bias_, value_;  // [gates in], [gates]; source=heads: W_1 [model_dim out]
};
static_assert(Head<Gated>);

}  // namespace headwise
