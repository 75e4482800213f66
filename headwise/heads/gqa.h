// Grouped-query attention (Ainslie et al. 2023): several query heads share one key/value head; MHA at
// kv_heads == heads.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/heads/head.h"

namespace headwise {

struct Gqa {
  static constexpr std::string_view name = "gqa";
  static constexpr std::string_view meets = "in the keys and values a group shares, and in W_O";
  struct Config {
    Index heads = 8, kv_heads = 2, dim = 0, value_dim = 0;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of query heads"},
             Field{"kv_heads", &Config::kv_heads, "number of key/value heads; 1 is multi-query attention"},
             Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"},
             Field{"value_dim", &Config::value_dim, "width of one head's values; 0: dim"}};
  static Config as_mha(Index heads, Index dim) { return {heads, heads, dim, dim}; }
  static bool says(const Config& c, std::string_view key) {
    return key != "value_dim" || (c.value_dim > 0 && c.value_dim != c.dim);
  }

  Gqa(Config c, ParamSet&, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    config_.value_dim = value_dim_of(name, config_.dim, c.value_dim);
    require(c.kv_heads > 0 && c.heads % c.kv_heads == 0, ErrorKind::bad_shape, name, "heads (", c.heads,
            ") must be a multiple of kv_heads (", c.kv_heads, "); change one of them");
  }
  const Config& config() const { return config_; }
  Widths widths() const {
    const Config& c = config_;
    return {.q = c.heads * c.dim,
            .k = c.kv_heads * c.dim,
            .v = c.kv_heads * c.value_dim,
            .out = c.heads * c.value_dim};
  }
  HeadSpec spec() const {
    const Config& c = config_;
    return {.q = HeadLayout::split(c.heads, c.dim),
            .k = HeadLayout::grouped(c.heads, c.kv_heads, c.dim),
            .v = HeadLayout::grouped(c.heads, c.kv_heads, c.value_dim)};
  }

 private:
  Config config_;
};
static_assert(Head<Gqa>);

}  // namespace headwise
