// Overlapped heads (MOHSA, Zhang and Yan 2024): each head also reads a rim of both neighbours; MHA at rim 0.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cmath>

#include "headwise/heads/head.h"

namespace headwise {

/// How wide the rim is at layer l of depth n: from the input on, or reversed, from the output on with n - 1 -
/// l for l.
enum class RimSchedule : std::uint8_t {
  constant,              // rim, everywhere
  layer,                 // l
  layer_plus_1,          // l + 1
  half,                  // l / 2
  half_plus_1,           // l / 2 + 1
  reversed,              // n - 1 - l
  reversed_plus_1,       // n - l
  reversed_half,         // (n - 1 - l) / 2
  reversed_half_plus_1,  // (n - 1 - l) / 2 + 1
};
constexpr auto names_of(RimSchedule) {
  return std::array<std::string_view, 9>{
      "constant",        "layer",         "layer_plus_1",        "half", "half_plus_1", "reversed",
      "reversed_plus_1", "reversed_half", "reversed_half_plus_1"};
}

struct Overlapped {
  static constexpr std::string_view name = "overlapped";
  static constexpr std::string_view meets = "in the columns of q, k and v that neighbours share, and in W_O";
  struct Config {
    Index heads = 8, dim = 0;
    RimSchedule schedule = RimSchedule::layer;
    Index rim = 1;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads"},
             Field{"dim", &Config::dim, "width of one head without its rims; 0: model_dim / heads"},
             Field{"schedule", &Config::schedule, "how the rim follows the layer"},
             Field{"rim", &Config::rim, "columns of each neighbour under schedule=constant"}};
  static Config as_mha(Index heads, Index dim) { return {heads, dim, RimSchedule::constant, 0}; }
  static Config small(Index heads, Index dim) { return {heads, dim, RimSchedule::constant, 2}; }

  Overlapped(Config c, ParamSet&, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    rim_ = rim_at(c, place);
    const Index row = config_.heads * config_.dim;
    require(rim_ >= 0 && rim_ <= row, ErrorKind::bad_shape, name, "the rim is ", rim_, " at layer ",
            place.layer, " but must be 0 to ", row, ", the columns of all heads; choose another schedule");
    scale_ = 1 / std::sqrt(static_cast<double>(config_.dim));
  }
  const Config& config() const { return config_; }
  /// The rim of this layer.
  Index rim() const { return rim_; }
  Widths widths() const {
    const Index row = config_.heads * config_.dim;
    return {.q = row, .k = row, .v = row, .out = row + 2 * rim_ * config_.heads};
  }
  HeadSpec spec() const {
    const auto wide = HeadLayout::overlapped(config_.heads, config_.dim, rim_);
    return {.q = wide, .k = wide, .v = wide};
  }
  /// 1 / sqrt(dim) of the dim without rims, which attention cannot see.
  void bind(HeadInputs& in, HeadGrads&) const {
    if (!in.scale.given()) in.scale = ConstView::packed(&scale_, DType::f64, {1});
  }

 private:
  static Index rim_at(const Config& c, const Place& place) {
    const Index from_end = place.depth - 1 - place.layer;
    switch (c.schedule) {
      case RimSchedule::constant: return c.rim;
      case RimSchedule::layer: return place.layer;
      case RimSchedule::layer_plus_1: return place.layer + 1;
      case RimSchedule::half: return place.layer / 2;
      case RimSchedule::half_plus_1: return place.layer / 2 + 1;
      case RimSchedule::reversed: return from_end;
      case RimSchedule::reversed_plus_1: return from_end + 1;
      case RimSchedule::reversed_half: return from_end / 2;
      case RimSchedule::reversed_half_plus_1: return from_end / 2 + 1;
    }
    return 0;
  }

  Config config_;
  Index rim_ = 0;
  double scale_ = 1;
};
static_assert(Head<Overlapped>);

}  // namespace headwise
