// Heads of different reach: some see near keys, some farther ones, the others all (multi-scale windows for
// long texts).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/heads/head.h"
#include "headwise/heads/windows.h"

namespace headwise {

class Context;

struct Reach {
  static constexpr std::string_view name = "reach";
  static constexpr std::string_view meets = "in W_O alone";
  struct Config {
    Index heads = 8, kv_heads = 0, dim = 0;
    Index near = 32, near_heads = 1, middle = 256, middle_heads = 0;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads; the head's own where it lies over another"},
             Field{"kv_heads", &Config::kv_heads, "number of key/value heads; 0: as many as heads"},
             Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"},
             Field{"near", &Config::near, "keys a near head sees on each side, its own counted"},
             Field{"near_heads", &Config::near_heads, "the first so many heads are near ones"},
             Field{"middle", &Config::middle, "keys a middle head sees on each side, its own counted"},
             Field{"middle_heads", &Config::middle_heads, "the next so many heads; the others see all"}};
  static Config as_mha(Index heads, Index dim) { return {heads, heads, dim, 32, 0, 256, 0}; }
  static Config small(Index heads, Index dim) { return {heads, 0, dim, 2, 1, 3, 1}; }

  Reach(Config c, ParamSet&, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    config_.kv_heads = kv_heads_of(name, c.heads, c.kv_heads);
    const Index wide = config_.heads * config_.dim, shared = config_.kv_heads * config_.dim;
    const auto kv = HeadLayout::grouped(config_.heads, config_.kv_heads, config_.dim);
    below_ = {{HeadLayout::split(config_.heads, config_.dim), kv, kv}, {wide, shared, shared, wide}};
    check();
  }
  Reach(Config c, ParamSet&, Place, const Below& below) : config_(c), below_(below) {
    config_.heads = below.spec.normal_heads(), config_.kv_heads = below.spec.k.slots();
    config_.dim = below.spec.v.dim;
    check();
  }
  const Config& config() const { return config_; }
  Widths widths() const { return below_.widths; }
  HeadSpec spec() const { return below_.spec; }
  /// Keys head h sees on each side, its own counted; 0: all.
  Index keys_of(Index h) const {
    return h < config_.near_heads                          ? config_.near
           : h < config_.near_heads + config_.middle_heads ? config_.middle
                                                           : 0;
  }

  struct Work {
    MaskView* masks;  // [heads]
  };
  Work book(HeadCall&, Arena& arena) const { return {arena.take<MaskView>("reach.masks", config_.heads)}; }
  /// The caller's masks, each joined with its head's window.
  void prepare(HeadCall& c, Work& w, Context&) const {
    MaskSet& mask = c.run.forward.mask;
    if (mask.views == w.masks) return;  // a second forward of one call
    require(mask.count <= 1 || mask.count == config_.heads, ErrorKind::bad_shape, name, "there are ",
            mask.count, " masks for ", config_.heads, " heads; give one for all or one a head");
    for (Index h = 0; h < config_.heads; ++h) {
      const MaskView own = mask.given() ? mask.of(h) : MaskView::all();
      w.masks[h] = keys_of(h) > 0 ? with_window(name, own, keys_of(h)) : own;
    }
    mask = {w.masks, config_.heads};
  }
  void prepare_backward(HeadCall&, Work&, Context&) const {}

 private:
  void check() const {
    const Config& c = config_;
    require(c.near > 0 && c.middle > 0, ErrorKind::bad_argument, name, "got near ", c.near, " and middle ",
            c.middle, "; a head sees at least its own key, so both start at 1");
    require(c.near_heads >= 0 && c.middle_heads >= 0 && c.near_heads + c.middle_heads <= c.heads,
            ErrorKind::bad_argument, name, "near_heads (", c.near_heads, ") and middle_heads (",
            c.middle_heads, ") are together more than the ", c.heads, " heads; make them fewer");
    require(!below_.spec.mixes(), ErrorKind::unsupported, name,
            "the head below mixes its heads, which needs one mask for all; put reach over another head");
  }

  Config config_;
  Below below_;
};
static_assert(Head<Reach>);

}  // namespace headwise
