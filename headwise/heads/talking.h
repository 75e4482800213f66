// Talking heads (Shazeer et al. 2020): heads exchange logits before and weights after the normalizer. Both
// matrices start as the identity, which is MHA.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/heads/head.h"

namespace headwise {

struct Talking {
  static constexpr std::string_view name = "talking";
  static constexpr std::string_view meets = "in the logits and the weights of every pair, and in W_O";
  struct Config {
    Index heads = 8, key_heads = 0, value_heads = 0, dim = 0;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads with a softmax"},
             Field{"key_heads", &Config::key_heads, "number of heads of queries and keys; 0: heads"},
             Field{"value_heads", &Config::value_heads, "number of heads of values and outputs; 0: heads"},
             Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"}};
  static Config as_mha(Index heads, Index dim) { return {heads, heads, heads, dim}; }
  static Config small(Index heads, Index dim) { return {heads, heads - 1, heads + 1, dim}; }

  Talking(Config c, ParamSet& params, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    require(c.key_heads >= 0 && c.value_heads >= 0, ErrorKind::bad_shape, name, "got ", c.key_heads,
            " key_heads and ", c.value_heads, " value_heads; both start at 1, and 0 stands for heads");
    if (c.key_heads == 0) config_.key_heads = c.heads;
    if (c.value_heads == 0) config_.value_heads = c.heads;
    before_ = matrix(params, "mix_before", config_.key_heads, config_.heads);
    after_ = matrix(params, "mix_after", config_.heads, config_.value_heads);
  }
  const Config& config() const { return config_; }
  Widths widths() const {
    const Index keys = config_.key_heads * config_.dim, values = config_.value_heads * config_.dim;
    return {.q = keys, .k = keys, .v = values, .out = values};
  }
  HeadSpec spec() const {
    const auto keys = HeadLayout::split(config_.key_heads, config_.dim);
    HeadSpec s{.q = keys, .k = keys, .v = HeadLayout::split(config_.value_heads, config_.dim)};
    s.before = s.after = Mix::fixed, s.heads = config_.heads;
    return s;
  }
  void bind(HeadInputs& in, HeadGrads& grads) const {
    in.mix_before = before_.value(), in.mix_after = after_.value();
    grads.mix_before = before_.grad(), grads.mix_after = after_.grad();
  }

 private:
  /// The identity where it is square; else normal with the variance of a projection from `from` heads.
  static Learned matrix(ParamSet& params, std::string_view as, Index from, Index to) {
    if (from == to) return params.identity(as, from);
    return params.add(as, {from, to}, Init::normal(1 / std::sqrt(static_cast<double>(from))));
  }
  Config config_;
  Learned before_, after_;
};
static_assert(Head<Talking>);

}  // namespace headwise
