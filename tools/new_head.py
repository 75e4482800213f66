#!/usr/bin/env python3
"""Writes a new head that compiles, passes the shared law and the gradient checks, and waits for its idea.

Usage: new_head.py NAME [FOLDER]   writes FOLDER/NAME.h, by default headwise/heads/NAME.h. NAME is one lower-case word that no
                                   head has; its page goes to docs/heads/NAME.md"""
import pathlib
import re
import sys

HEADS = pathlib.Path(__file__).resolve().parent.parent / "headwise/heads"

SKELETON = '''\
// @Name@ heads: every head weighs its output by a learned number of its own; MHA at 1, which is how it starts.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/heads/head.h"
#include "headwise/heads/sums.h"

namespace headwise {

struct @Name@ {
  static constexpr std::string_view name = "@name@";
  static constexpr std::string_view meets = "in W_O alone";
  struct Config {
    Index heads = 8, dim = 0;
  };
  static constexpr auto fields =
      Fields{Field{"heads", &Config::heads, "number of heads"},
                 Field{"dim", &Config::dim, "width of one head; 0: model_dim / heads"}};
  static Config as_mha(Index heads, Index dim) { return {heads, dim}; }

  @Name@(Config c, ParamSet& params, Place place) : config_(c) {
    config_.dim = dim_of(name, c.heads, c.dim, place);
    weight_ = params.add("weight", {c.heads}, Init::constant(1));
  }
  const Config& config() const { return config_; }
  Widths widths() const { return Widths::same(config_.heads * config_.dim); }
  HeadSpec spec() const {
    const auto split = HeadLayout::split(config_.heads, config_.dim);
    HeadSpec s{.q = split, .k = split, .v = split};
    s.terms.gate = true;
    return s;
  }

  struct Work {
    AnyView gate, d_gate;  // [outer tokens heads]
  };
  Work book(HeadCall& c, Arena& arena) const {
    Work w;
    w.gate = take(arena, "@name@.gate", c.problem.dtype, {c.outer(), c.q_tokens(), config_.heads});
    return w;
  }
  /// gate[t h] = weight_h: attention multiplies head h's output by it.
  void prepare(HeadCall& c, Work& w, Context&) const {
    for (Index i = 0; i < w.gate.count(); ++i)
      store_double(w.gate.data, w.gate.dtype, i, load_double(weight_.value().data, weight_.value().dtype, i % config_.heads));
    c.inputs().gate = w.gate;
  }
  void book_backward(HeadCall& c, Work& w, Arena& arena) const {
    c.run.dgate = w.d_gate = take_like(arena, "@name@.d_gate", w.gate);
  }
  /// d weight_h = sum_t d gate[t h].
  void prepare_backward(HeadCall&, Work& w, Context&) const {
    const AnyView g = weight_.grad();
    if (!g.given()) return;
    for (Index h = 0; h < config_.heads; ++h) {
      double sum = load_double(g.data, g.dtype, h);
      for (Index i = h; i < w.d_gate.count(); i += config_.heads)
        sum += load_double(w.d_gate.data, w.d_gate.dtype, i);
      store_double(g.data, g.dtype, h, sum);
    }
  }

 private:
  Config config_;
  Learned weight_;  // [heads]
};
static_assert(Head<@Name@>);

}  // namespace headwise
'''


def main(words):
    if len(words) not in (1, 2) or not re.fullmatch(r"[a-z][a-z0-9]*", words[0]):
        sys.exit(__doc__)
    name, folder = words[0], pathlib.Path(words[1]) if len(words) == 2 else HEADS
    file = folder / f"{name}.h"
    if (HEADS / f"{name}.h").exists() or file.exists():
        sys.exit(f"new_head: {name}.h is there already; choose another name, or move that file away first")
    if not folder.is_dir():
        sys.exit(f"new_head: there is no folder {folder}; make it first")
    with file.open("x") as out:  # never over a file that another process has just written
        out.write(SKELETON.replace("@Name@", name.capitalize()).replace("@name@", name))
    print(f"wrote {file}; next: docs/heads/{name}.md, then build and run the tests heads_laws_test and heads_gradients_test; "
          "tools/heads_index.py renews the table of heads")


if __name__ == "__main__":
    main(sys.argv[1:])
