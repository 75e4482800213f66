// Multi-head attention (Vaswani et al. 2017): every head has queries, keys and values of its own; the law.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/heads/head.h"

namespace headwise {

struct Mha {
  static constexpr std::string_view name = "mha";
  static constexpr std::string_view meets = "in W_O alone";
  struct Config {
    Index heads = 8, dim = 0;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads"},
             Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"}};
  static Config as_mha(Index heads, Index dim) { return {heads, dim}; }

  Mha(Config c, ParamSet&, Place place) : config_(c) { config_.dim = dim_of(name, c.heads, c.dim, place); }
  const Config& config() const { return config_; }
  Widths widths() const { return Widths::same(config_.heads * config_.dim); }
  HeadSpec spec() const {
    const auto split = HeadLayout::split(config_.heads, config_.dim);
    return {.q = split, .k = split, .v = split};
  }

 private:
  Config config_;
};
static_assert(Head<Mha>);

}  // namespace headwise
