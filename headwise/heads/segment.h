// Segment heads: some heads learn where a text breaks and stop there; scores fall by a learned cumulative
// decay.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cmath>

#include "headwise/base/context.h"
#include "headwise/heads/head.h"
#include "headwise/heads/sums.h"
#include "headwise/heads/windows.h"

namespace headwise {

/// Which keys a head that stops sees: all of them, those up to its own, or those from its own on.
enum class SegmentLook : std::uint8_t { both, back, ahead };
constexpr auto names_of(SegmentLook) { return std::array<std::string_view, 3>{"both", "back", "ahead"}; }

struct Segment {
  static constexpr std::string_view name = "segment";
  static constexpr std::string_view meets = "in W_O alone";
  struct Config {
    Index heads = 8, kv_heads = 0, dim = 0, stops = 0;
    SegmentLook look = SegmentLook::both;
    double start = -3;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads"},
             Field{"kv_heads", &Config::kv_heads, "number of key/value heads; 0: as many as heads"},
             Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"},
             Field{"stops", &Config::stops, "the first so many heads stop at breaks; 0: half of them"},
             Field{"look", &Config::look, "which keys they see; both needs memory for every pair of tokens"},
             Field{"start", &Config::start, "where the decay of a token starts: softplus of it"}};
  static Config as_mha(Index heads, Index dim) {
    return {heads, heads, dim, heads, SegmentLook::both, kNoDecay};
  }
  static Config small(Index heads, Index dim) { return {heads, 0, dim, heads - 1, SegmentLook::both, -1}; }

  Segment(Config c, ParamSet& params, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    config_.kv_heads = kv_heads_of(name, c.heads, c.kv_heads);
    require(c.stops >= 0 && c.stops <= c.heads, ErrorKind::bad_argument, name, "stops is ", c.stops,
            " but there are ", c.heads, " heads; give 1 to ", c.heads, ", or 0 for half of them");
    if (c.stops == 0) config_.stops = (c.heads + 1) / 2;
    require(std::isfinite(c.start), ErrorKind::bad_argument, name, "start is ", c.start,
            "; give a number, such as -3");
    require(place.key_dim() > 0, ErrorKind::bad_shape, name, "model_dim is ", place.key_dim(),
            "; breaks are read from rows of the layer's input, so give the model's width");
    weight_ = params.add("breaks", {config_.stops, place.key_dim()});
    bias_ = params.add("breaks_bias", {config_.stops}, Init::constant(c.start));
  }
  const Config& config() const { return config_; }
  Widths widths() const {
    const Index wide = config_.heads * config_.dim, shared = config_.kv_heads * config_.dim;
    return {.q = wide, .k = shared, .v = shared, .out = wide};
  }
  HeadSpec spec() const {
    const auto kv = HeadLayout::grouped(config_.heads, config_.kv_heads, config_.dim);
    HeadSpec s{.q = HeadLayout::split(config_.heads, config_.dim), .k = kv, .v = kv};
    s.terms.bias = true;
    return s;
  }

  /// x_kv times the rows of breaks, and two for every number of the bias.
  double flops(const AttentionProblem& p) const {
    const auto kv = static_cast<double>(p.ragged ? p.kv_total : p.batch * p.kv_tokens),
               rows = one_sided() ? 1.0 : static_cast<double>(p.q_tokens);
    return 2 * kv * static_cast<double>(weight_.value().count()) +
           2 * rows * static_cast<double>(config_.stops * p.batch * p.kv_tokens);
  }

  struct Work {
    AnyView z;                    // [outer kv stops]: how much of a break each token is, before softplus
    AnyView c;                    // [batch stops kv] f64: the decay summed up to each token
    AnyView bias;                 // [batch heads q kv], of longest sequences; one-sided: [batch heads 1 kv]
    MaskView* masks;              // [heads], one-sided
    AnyView d_bias, d_c, dz, dx;  // backward
  };
  Work book(HeadCall& c, Arena& arena) const {
    const AttentionProblem& p = c.problem;
    Work w = {};
    w.z = take(arena, "segment.z", p.dtype, {c.outer(), c.kv_tokens(), config_.stops});
    w.c = take(arena, "segment.c", DType::f64, {p.batch, config_.stops, p.kv_tokens});
    const Index rows = one_sided() ? 1 : p.q_tokens;
    const Checked pairs = Checked(p.batch * config_.heads) * Checked(rows) * Checked(p.kv_tokens);
    require(one_sided() || (pairs.ok && pairs.value <= kMostPairs), ErrorKind::unsupported, name,
            "look=both keeps a number for every pair of ", p.q_tokens, " and ", p.kv_tokens, " tokens, ",
            p.batch, " times for ", config_.heads, " heads, more than ", kMostPairs,
            "; give fewer or shorter sequences at a time, or look=back or ahead");
    w.bias = take(arena, "segment.bias", p.dtype == DType::f64 ? DType::f64 : DType::f32,
                  {p.batch, config_.heads, rows, p.kv_tokens});
    w.masks = arena.take<MaskView>("segment.masks", one_sided() ? config_.heads : 0);
    return w;
  }
  /// c_t = sum over s <= t of softplus(u . x_s + b), and scores get -|c_p - c_j|, p a query's place among
  /// the keys. Of keys on one side the row's own c_p is the same for all, which a softmax does not see.
  void prepare(HeadCall& c, Work& w, Context& ctx) const {
    project(c.x_kv, weight_, bias_, Activation::none, w.z, ctx);
    each_stop(c, ctx, [&](Index h, const SequenceLocation& at) {
      double* const sums = sums_in(w.c, at.sequence, h);
      double sum = 0;
      for (Index j = 0; j < at.kv_tokens; ++j) sums[j] = sum += softplus(number_in(w.z, at, j, h));
    });
    visit_bias(w.bias.dtype, [&]<class T>(Type<T>) {
      ctx.pool().parallel_for(c.problem.batch * config_.heads, [&](Index n, int) {
        fill_bias<T>(w, place_of(c.problem, c.run.forward, n / config_.heads), n % config_.heads);
      });
    });
    c.inputs().bias = w.bias;
    if (one_sided()) join_masks(c, w);
  }

  void book_backward(HeadCall& c, Work& w, Arena& arena) const {
    c.run.dbias = w.d_bias = take_like(arena, "segment.d_bias", w.bias);
    w.d_c = take_like(arena, "segment.d_c", w.c);
    w.dz = take_like(arena, "segment.dz", w.z);
    w.dx = take_like(arena, "segment.dx", c.dx_kv);
  }
  /// d c_j += sign(c_p - c_j) d bias_pj, d c_p the opposite; d z_s = sigmoid(z_s) sum over t >= s of d c_t.
  void prepare_backward(HeadCall& c, Work& w, Context& ctx) const {
    clear(w.dz, ctx);
    visit_bias(w.d_bias.dtype, [&]<class T>(Type<T>) {
      each_stop(c, ctx, [&](Index h, const SequenceLocation& at) {
        double* const d_c = sums_in(w.d_c, at.sequence, h);
        for (Index j = 0; j < at.kv_tokens; ++j) d_c[j] = 0;
        add_slopes<T>(w, at, h, d_c);
        double sum = 0;
        for (Index s = at.kv_tokens; s-- > 0;) {
          sum += d_c[s];
          store_double(w.dz.data, w.dz.dtype, place_in(w.dz, at, s, h),
                       sum / (1 + std::exp(-number_in(w.z, at, s, h))));
        }
      });
    });
    project_backward(w.dz, c.x_kv, weight_, bias_, c.dx_kv, w.dx, ctx);
  }

  /// A decay of 0, so no head stops.
  void become_mha() const {
    fill(weight_.value(), 0);
    fill(bias_.value(), kNoDecay);
  }

 private:
  static constexpr double kNoDecay = -1000;            // softplus of it is 0
  static constexpr Index kMostPairs = Index{1} << 28;  // of look=both: 1 GiB in f32
  static constexpr Index kFar = Index{1} << 40;        // a window's side without an end

  bool one_sided() const { return config_.look != SegmentLook::both; }
  static double softplus(double z) { return z > 0 ? z + std::log1p(std::exp(-z)) : std::log1p(std::exp(z)); }
  /// What token j of a sequence says of head h, in z and dz.
  static Index place_in(const AnyView& z, const SequenceLocation& at, Index j, Index h) {
    return (at.tensor_batch * z.size[1] + at.kv_row + j) * z.size[2] + h;
  }
  static double number_in(const AnyView& z, const SequenceLocation& at, Index j, Index h) {
    return load_double(z.data, z.dtype, place_in(z, at, j, h));
  }
  static double* sums_in(const AnyView& c, Index sequence, Index h) {
    return static_cast<double*>(c.data) + (sequence * c.size[1] + h) * c.size[2];
  }
  template <class T>
  static T* row_in(const AnyView& bias, Index sequence, Index h, Index i) {
    return static_cast<T*>(bias.data) + ((sequence * bias.size[1] + h) * bias.size[2] + i) * bias.size[3];
  }
  template <class F>
  static void visit_bias(DType dtype, const F& f) {
    dtype == DType::f64 ? f(Type<double>{}) : f(Type<float>{});
  }
  /// f(head, sequence) for every head that stops and every sequence.
  template <class F>
  void each_stop(HeadCall& c, Context& ctx, const F& f) const {
    ctx.pool().parallel_for(c.problem.batch * config_.stops, [&](Index n, int) {
      f(n % config_.stops, place_of(c.problem, c.run.forward, n / config_.stops));
    });
  }
  /// The key a query stands at.
  static Index place_of_query(const SequenceLocation& at, Index i) {
    return max_of(0, min_of(at.q_start + i, at.kv_tokens - 1));
  }

  template <class T>
  void fill_bias(const Work& w, const SequenceLocation& at, Index h) const {
    const Index rows = w.bias.size[2], keys = w.bias.size[3];
    T* const first = row_in<T>(w.bias, at.sequence, h, 0);
    for (Index n = 0; n < rows * keys; ++n) first[n] = static_cast<T>(0);
    if (h >= config_.stops) return;
    const double* const c = sums_in(w.c, at.sequence, h);
    if (one_sided()) {
      const double sign = config_.look == SegmentLook::back ? 1 : -1;
      for (Index j = 0; j < at.kv_tokens; ++j) first[j] = static_cast<T>(sign * c[j]);
      return;
    }
    for (Index i = 0; at.kv_tokens > 0 && i < at.q_tokens; ++i)
      for (Index j = 0, p = place_of_query(at, i); j < at.kv_tokens; ++j)
        first[i * keys + j] = static_cast<T>(j < p ? c[j] - c[p] : c[p] - c[j]);
  }
  template <class T>
  void add_slopes(const Work& w, const SequenceLocation& at, Index h, double* d_c) const {
    if (one_sided()) {
      const double sign = config_.look == SegmentLook::back ? 1 : -1;
      const T* const d = row_in<T>(w.d_bias, at.sequence, h, 0);
      for (Index j = 0; j < at.kv_tokens; ++j) d_c[j] += sign * static_cast<double>(d[j]);
      return;
    }
    for (Index i = 0; at.kv_tokens > 0 && i < at.q_tokens; ++i) {
      const T* const d = row_in<T>(w.d_bias, at.sequence, h, i);
      const Index p = place_of_query(at, i);
      for (Index j = 0; j < at.kv_tokens; ++j) {
        const double slope = j < p ? static_cast<double>(d[j]) : -static_cast<double>(d[j]);
        if (j != p) d_c[j] += slope, d_c[p] -= slope;
      }
    }
  }
  /// The caller's masks; heads that stop see one side of them.
  void join_masks(HeadCall& c, const Work& w) const {
    MaskSet& mask = c.run.forward.mask;
    if (mask.views == w.masks) return;  // a second forward of one call
    require(mask.count <= 1 || mask.count == config_.heads, ErrorKind::bad_shape, name, "there are ",
            mask.count, " masks for ", config_.heads, " heads; give one for all or one a head");
    const MaskStep side =
        config_.look == SegmentLook::back ? MaskView::causal().steps[0] : MaskView::window(0, kFar).steps[0];
    for (Index h = 0; h < config_.heads; ++h) {
      w.masks[h] = mask.given() ? mask.of(h) : MaskView::all();
      if (h < config_.stops) w.masks[h] = with_step(name, w.masks[h], side);
    }
    mask = {w.masks, config_.heads};
  }

  Config config_;
  Learned weight_, bias_;  // [stops key_model_dim], [stops]
};
static_assert(Head<Segment>);

}  // namespace headwise
