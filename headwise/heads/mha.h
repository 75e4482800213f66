// Multi-head attention (Vaswani et al. 2017): every head has queries, keys and values of its own; the law.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/heads/head.h"

namespace headwise {

struct Mha {
  static constexpr std::string_view name = "mha";
  static constexpr std::string_view meets = "in W_O alone";
  struct Config {
    Index heads = 8, dim = 0, value_dim = 0;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads"},
             Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"},
             Field{"value_dim", &Config::value_dim, "width of one head's values; 0: dim"}};
  static Config as_mha(Index heads, Index dim) { return {heads, dim, dim}; }
  static bool says(const Config& c, std::string_view key) {
    return key != "value_dim" || (c.value_dim > 0 && c.value_dim != c.dim);
  }

  Mha(Config c, ParamSet&, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    config_.value_dim = value_dim_of(name, config_.dim, c.value_dim);
  }
  const Config& config() const { return config_; }
  Widths widths() const {
    const Index wide = config_.heads * config_.dim, values = config_.heads * config_.value_dim;
    return {.q = wide, .k = wide, .v = values, .out = values};
  }
  HeadSpec spec() const {
    const auto split = HeadLayout::split(config_.heads, config_.dim);
    return {.q = split, .k = split, .v = HeadLayout::split(config_.heads, config_.value_dim)};
  }

 private:
  Config config_;
};
static_assert(Head<Mha>);

}  // namespace headwise
