// Overlaps: the bytes that views reach over, so that only views that meet are looked at closely.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>

#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/checks/view.h"
#include "headwise/spec/backward.h"
#include "headwise/spec/terms.h"

namespace headwise {

/// Views that were given, in the order in which sentences name them. Everything is compared with what is
/// written: of some 45 views of a run few are there, and no two of these share a byte.
class Overlaps {
 public:
  void add(const char* name, const AnyView& v, bool written) {
    if (!v.given()) return;
    const auto begin = reinterpret_cast<std::uintptr_t>(v.data);
    const auto bytes = static_cast<std::uintptr_t>(reach_of(v).value * size_of(v.dtype));
    all_.at(count_++) = {name, &v, begin, begin + bytes, written};
  }
  void check(const ArgChecks& checks) const {
    for (std::size_t w = 0; w < count_; ++w)
      for (std::size_t i = 0; all_[w].written && i < count_; ++i)
        if (all_[w].begin < all_[i].end && all_[i].begin < all_[w].end)
          checks.check_apart(all_[w].name, *all_[w].view, all_[i].name, *all_[i].view);
  }

 private:
  struct Stretch {
    const char* name;
    const AnyView* view;
    std::uintptr_t begin, end;
    bool written;
  };
  static constexpr std::size_t kOthers = 40;  // views of each_view that are no terms, and dout
  std::array<Stretch, std::size(kScoreTerms) + std::size(kGradients) + kOthers> all_;
  std::size_t count_ = 0;
};

}  // namespace headwise
