// DCMHA, dynamically composable heads (Xiao et al. 2024): every pair of tokens mixes its heads by
// coefficients of its query and its key. Coefficients of 0 are MHA.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/base/context.h"
#include "headwise/heads/head.h"
#include "headwise/heads/sums.h"
#include "headwise/heads/windows.h"
#include "headwise/ops/row/activation.h"

namespace headwise {

struct Dcmha {
  static constexpr std::string_view name = "dcmha";
  static constexpr std::string_view meets =
      "in the logits and the weights of every pair, by coefficients of its two tokens, and in W_O";
  struct Config {
    Index heads = 8, kv_heads = 0, dim = 0, rank = 2;
    bool fixed = false;
    Index window = 256, global_every = 2;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads"},
             Field{"kv_heads", &Config::kv_heads, "number of key/value heads; 0: heads"},
             Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"},
             Field{"rank", &Config::rank, "rank of a token's part of a mix"},
             Field{"fixed", &Config::fixed, "learned matrices beside the coefficients, from 0 on"},
             Field{"window", &Config::window,
                   "keys a local layer sees on each side, its own counted; 0: all layers are global"},
             Field{"global_every", &Config::global_every,
                   "one layer in so many, the second of them, is global; 1: all, 0: none"}};
  static Config as_mha(Index heads, Index dim) { return {heads, heads, dim, 2, false, 0, 1}; }
  static Config small(Index heads, Index dim) { return {heads, heads, dim, 1, false, 3, 0}; }

  Dcmha(Config c, ParamSet& params, Place place) : config_(c), columns_{place.model_dim, place.key_dim()} {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    config_.kv_heads = kv_heads_of(name, c.heads, c.kv_heads);
    require(c.rank >= 1, ErrorKind::bad_argument, name, "rank is ", c.rank, "; it starts at 1");
    require(c.window >= 0 && c.global_every >= 0, ErrorKind::bad_argument, name, "got window ", c.window,
            " and global_every ", c.global_every, "; both start at 0");
    local_ =
        c.window > 0 && !(c.global_every == 1 || (c.global_every > 1 && place.layer % c.global_every == 1));
    if (c.fixed) {
      before_ = params.add("mix_before", {c.heads, c.heads});
      after_ = params.add("mix_after", {c.heads, c.heads});
    }
    // The authors' start, at which every mix is close to the identity.
    const auto h = static_cast<double>(c.heads), r = static_cast<double>(c.rank);
    const auto k = static_cast<double>(hidden());
    for (int n = 0; n < kNets; ++n) {
      const auto scope = params.scope(kNames[n]);
      const Index columns = columns_[n % 2];
      const auto d = static_cast<double>(columns);
      nets_[n] = {
          params.add("hidden", {hidden(), columns}, Init::normal(std::sqrt(2 / (d + k)))),
          params.add("out", {hidden(), hidden()}, Init::normal(0.02 / (std::sqrt(2 * h * r) * (h + r)))),
          params.add("gate", {c.heads, columns}, Init::normal(0.005 * std::sqrt(2 / (h + d))))};
    }
  }
  const Config& config() const { return config_; }
  Widths widths() const {
    const Index wide = config_.heads * config_.dim, shared = config_.kv_heads * config_.dim;
    return {.q = wide, .k = shared, .v = shared, .out = wide};
  }
  HeadSpec spec() const {
    const auto kv = HeadLayout::grouped(config_.heads, config_.kv_heads, config_.dim);
    HeadSpec s{.q = HeadLayout::split(config_.heads, config_.dim), .k = kv, .v = kv};
    s.before = s.after = Mix::dynamic, s.mix_rank = config_.rank;
    return s;
  }
  /// Does this layer see a window alone?
  bool local() const { return local_; }
  Index window() const { return local_ ? config_.window - 1 : -1; }
  void bind(HeadInputs& in, HeadGrads& grads) const {
    in.mix_before = before_.value(), in.mix_after = after_.value();
    grads.mix_before = before_.grad(), grads.mix_after = after_.grad();
  }
  void become_mha() const {
    for (const Net& net : nets_)
      for (const AnyView& v : {net.out.value(), net.gate.value()})
        for (Index i = 0; i < v.count(); ++i) store_double(v.data, v.dtype, i, 0);
  }

  /// Of each net: x W1, gelu of it, that times W2 (w1 and w2 before the norm), x W_g.
  struct Work {
    void *before_gelu[4], *after_gelu[4], *raw[4], *gate[4];
    void* mix[2];     // mix_q, mix_k
    MaskView* masks;  // of a local layer, [heads]
    void *dz, *scratch, *draw, *dgate, *scratch_x;
  };

  Work book(HeadCall& c, Arena& arena) const {
    Work w{};
    for (int n = 0; n < kNets; ++n) {
      const Index rows = rows_of(c, n);
      for (void** to : {&w.before_gelu[n], &w.after_gelu[n], &w.raw[n]})
        *to = take(arena, "dcmha.hidden", c.problem.dtype, {rows, hidden()}).data;
      w.gate[n] = take(arena, "dcmha.gate", c.problem.dtype, {rows, config_.heads}).data;
    }
    for (int side = 0; side < 2; ++side) w.mix[side] = take_mix(c, side, "dcmha.mix", arena).data;
    if (local_) w.masks = arena.take<MaskView>("dcmha.mask", config_.heads);
    return w;
  }

  void prepare(HeadCall& c, Work& w, Context& ctx) const {
    for (int n = 0; n < kNets; ++n) {
      const AnyView& x = n % 2 == 0 ? c.x : c.x_kv;
      project(x, nets_[n].hidden, {}, Activation::none, tensor(c, n, w.before_gelu[n], hidden()), ctx);
      activation(Activation::gelu, tensor(c, n, w.before_gelu[n], hidden()),
                 tensor(c, n, w.after_gelu[n], hidden()), ctx);
      project(tensor(c, n, w.after_gelu[n], hidden()), nets_[n].out, {}, Activation::none,
              tensor(c, n, w.raw[n], hidden()), ctx);
      project(x, nets_[n].gate, {}, Activation::none, tensor(c, n, w.gate[n], config_.heads), ctx);
      each_row(c, n, ctx, [&](Index row) { mix_row(c, w, n, row); });
    }
    c.inputs().mix_q = mix(c, 0, w.mix[0]), c.inputs().mix_k = mix(c, 1, w.mix[1]);
    if (local_) c.run.forward.mask = narrowed(c.run.forward.mask, w.masks);
  }

  void book_backward(HeadCall& c, Work& w, Arena& arena) const {
    const Index rows = max_of(rows_of(c, 0), rows_of(c, 1));
    for (void** to : {&w.dz, &w.scratch, &w.draw})
      *to = take(arena, "dcmha.hidden", c.problem.dtype, {rows, hidden()}).data;
    w.dgate = take(arena, "dcmha.gate", c.problem.dtype, {rows, config_.heads}).data;
    w.scratch_x = take(arena, "dcmha.x", c.problem.dtype, {rows, max_of(columns_[0], columns_[1])}).data;
    c.run.dmix_q = take_mix(c, 0, "dcmha.mix", arena);
    c.run.dmix_k = take_mix(c, 1, "dcmha.mix", arena);
  }

  void prepare_backward(HeadCall& c, Work& w, Context& ctx) const {
    for (int n = 0; n < kNets; ++n) {
      const AnyView &x = n % 2 == 0 ? c.x : c.x_kv, &dx = n % 2 == 0 ? c.dx : c.dx_kv;
      const AnyView z = tensor(c, n, w.after_gelu[n], hidden()), dz = tensor(c, n, w.dz, hidden()),
                    draw = tensor(c, n, w.draw, hidden()),
                    scratch = tensor(c, n, w.scratch_x, columns_[n % 2]);
      each_row(c, n, ctx, [&](Index row) { mix_row_backward(c, w, n, row); });
      project_backward(draw, z, nets_[n].out, {}, dz, tensor(c, n, w.scratch, hidden()), ctx);
      activation_backward(Activation::gelu, tensor(c, n, w.before_gelu[n], hidden()), dz, dz, ctx);
      project_backward(dz, x, nets_[n].hidden, {}, dx, scratch, ctx);
      project_backward(tensor(c, n, w.dgate, config_.heads), x, nets_[n].gate, {}, dx, scratch, ctx);
    }
  }

 private:
  /// Net 2 * mix + side: queries and keys, before and after.
  static constexpr int kNets = 4;
  static constexpr std::string_view kNames[kNets] = {"before_q", "before_k", "after_q", "after_k"};
  static constexpr double kEps = 1e-6;
  struct Net {
    Learned hidden, out, gate;
  };

  Index hidden() const {
    return 2 * config_.rank * config_.heads;
  }  // columns of z, and of w1 and w2 together
  static Index rows_of(const HeadCall& c, int n) {
    return c.outer() * (n % 2 == 0 ? c.q_tokens() : c.kv_tokens());
  }
  static AnyView tensor(const HeadCall& c, int n, void* data, Index columns) {
    return AnyView::packed(data, c.problem.dtype,
                           {c.outer(), n % 2 == 0 ? c.q_tokens() : c.kv_tokens(), columns});
  }
  static DType mix_dtype(const HeadCall& c) {
    return c.problem.dtype == DType::f64 ? DType::f64 : DType::f32;
  }
  AnyView mix(const HeadCall& c, int side, void* data) const {
    return AnyView::packed(
        data, mix_dtype(c),
        {c.outer(), side == 0 ? c.q_tokens() : c.kv_tokens(), 2 * (2 * config_.rank + 1), config_.heads});
  }
  AnyView take_mix(const HeadCall& c, int side, std::string_view as, Arena& arena) const {
    const AnyView like = mix(c, side, nullptr);
    return mix(c, side, take(arena, as, like.dtype, {like.count()}).data);
  }
  template <class Body>
  void each_row(const HeadCall& c, int n, Context& ctx, Body&& body) const {
    constexpr Index kPiece = 64;
    const Index rows = rows_of(c, n);
    ctx.pool().parallel_for(ceil_div(rows, kPiece), [&](Index piece, int) {
      for (Index row = piece * kPiece; row < min_of(rows, (piece + 1) * kPiece); ++row) body(row);
    });
  }

  /// w1 = raw / rms(raw) over heads, w2 = raw, gate = tanh(x W_g) into a token's rows of mix_q or mix_k.
  void mix_row(const HeadCall& c, const Work& w, int n, Index row) const {
    const Index heads = config_.heads, rank = config_.rank;
    const DType t = c.problem.dtype, to = mix_dtype(c);
    const Index base = first_of(n, row);
    void* out = w.mix[n % 2];
    for (Index r = 0; r < 2 * rank; ++r) {
      const Index at = row * hidden() + r * heads;
      const double by = r < rank ? inverse_rms(w.raw[n], t, at) : 1;
      for (Index h = 0; h < heads; ++h)
        store_double(out, to, base + r * heads + h, by * load_double(w.raw[n], t, at + h));
    }
    for (Index h = 0; h < heads; ++h)
      store_double(out, to, base + 2 * rank * heads + h,
                   std::tanh(load_double(w.gate[n], t, row * heads + h)));
  }
  /// y = raw / rms: draw = (dy - y mean(dy y)) / rms; dgate = dg (1 - g^2); dz is cleared for the sums to
  /// come.
  void mix_row_backward(const HeadCall& c, const Work& w, int n, Index row) const {
    const Index heads = config_.heads, rank = config_.rank;
    const DType t = c.problem.dtype, of = mix_dtype(c);
    const Index base = first_of(n, row);
    const void *y = w.mix[n % 2], *dy = n % 2 == 0 ? c.run.dmix_q.data : c.run.dmix_k.data;
    for (Index r = 0; r < 2 * rank; ++r) {
      const Index from = base + r * heads, at = row * hidden() + r * heads;
      const double by = r < rank ? inverse_rms(w.raw[n], t, at) : 1;
      double mean = 0;
      for (Index h = 0; r < rank && h < heads; ++h)
        mean += load_double(dy, of, from + h) * load_double(y, of, from + h) / static_cast<double>(heads);
      for (Index h = 0; h < heads; ++h) {
        store_double(w.draw, t, at + h,
                     by * (load_double(dy, of, from + h) - mean * load_double(y, of, from + h)));
        store_double(w.dz, t, at + h, 0);
      }
    }
    for (Index h = 0; h < heads; ++h) {
      const double g = load_double(y, of, base + 2 * rank * heads + h);
      store_double(w.dgate, t, row * heads + h,
                   load_double(dy, of, base + 2 * rank * heads + h) * (1 - g * g));
    }
  }
  double inverse_rms(const void* raw, DType t, Index at) const {
    double sum = 0;
    for (Index h = 0; h < config_.heads; ++h) sum += std::pow(load_double(raw, t, at + h), 2);
    return 1 / std::sqrt(sum / static_cast<double>(config_.heads) + kEps);
  }
  /// Element of a token's first row of net n in mix_q or mix_k.
  Index first_of(int n, Index row) const {
    return (row * 2 + n / 2) * (2 * config_.rank + 1) * config_.heads;
  }

  /// The caller's masks, each joined with the window.
  MaskSet narrowed(const MaskSet& mask, MaskView* masks) const {
    if (mask.views == masks) return mask;  // a second forward of one call
    const Index count = max_of(mask.count, 1);
    for (Index n = 0; n < count; ++n)
      masks[n] = with_window(name, mask.given() ? mask.views[n] : MaskView::all(), config_.window);
    return {masks, count};
  }

  Config config_;
  Index columns_[2] = {0, 0};  // of x and x_kv
  bool local_ = false;
  Learned before_, after_;
  Net nets_[kNets];
};
static_assert(Head<Dcmha>);

}  // namespace headwise
