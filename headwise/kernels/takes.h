// Takes: the score terms a kernel computes, and the gradients it gives; all else it refuses.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

#include "headwise/base/error.h"
#include "headwise/spec/terms.h"

namespace headwise {

/// The terms a kernel computes, and those whose gradients it gives: what it does not name here it refuses.
struct Takes {
  Terms terms;
  GradientSpec gradients = {};

  std::string refuse(const HeadSpec& heads) const {
    for (const ScoreTerm& t : kScoreTerms)
      if (t.planned != nullptr && heads.terms.*t.planned && !(terms.*t.planned))
        return text(t.name, " is asked for, and this kernel does not compute it");
    if (heads.terms.rows && !terms.rows) return "heads list their rows, and this kernel reads all";
    return {};
  }
  std::string refuse(const GradientSpec& wanted) const {
    for (const Gradient& g : kGradients)
      if (wanted.*g.wanted && !(gradients.*g.wanted))
        return text(g.name, " is asked for, and this kernel does not compute it");
    return {};
  }
};
/// Those the fast kernels were written with, each within its own limits. A term that joins the list of
/// spec/terms.h is refused by them until they are taught it and name it.
inline constexpr Takes kWritten = {.terms = {.softcap = true,
                                             .alibi = true,
                                             .bias = true,
                                             .relative = true,
                                             .sinks = true,
                                             .dropout = true,
                                             .gate = true,
                                             .rows = true},
                                   .gradients = {.q = true,
                                                 .k = true,
                                                 .v = true,
                                                 .bias = true,
                                                 .slopes = true,
                                                 .relative = true,
                                                 .sinks = true,
                                                 .scale = true,
                                                 .gate = true,
                                                 .alpha = true,
                                                 .mix_before = true,
                                                 .mix_after = true,
                                                 .mix_q = true,
                                                 .mix_k = true}};
/// ref's: the whole list.
inline constexpr Takes kEvery = [] {
  Takes all = {};
  each_flag([&](bool Terms::*flag) { all.terms.*flag = true; });
  for (const Gradient& g : kGradients) all.gradients.*g.wanted = true;
  return all;
}();

}  // namespace headwise
