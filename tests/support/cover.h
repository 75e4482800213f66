// Cover: choices in which every pair of option values appears, greedily, within a budget a case may cost.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <random>
#include <set>

#include "tests/support/setting/setting.h"

namespace headwise::test {

using Pair = std::array<int, 4>;  // option, value, option, value; the first option is the lower

/// Each case starts from a pair nobody has shown yet and takes, option by option in random order, the value
/// that shows most missing pairs.
class Cover {
 public:
  /// `counts`: how many values of each option take part, from value 0 on. `work`: what work_of() may say.
  Cover(unsigned seed, const Choice& counts, double work) : counts_(counts), work_(work), random_(seed) {
    for (int i = 0; i < kOptions; ++i)
      for (int j = i + 1; j < kOptions; ++j)
        for (int x = 0; x < count(i); ++x)
          for (int y = 0; y < count(j); ++y) missing_.insert({i, x, j, y});
  }
  static Choice all_values() {
    Choice counts{};
    for (int i = 0; i < kOptions; ++i) counts[static_cast<std::size_t>(i)] = values_of(i);
    return counts;
  }
  bool done() const { return missing_.empty(); }
  std::size_t missing() const { return missing_.size(); }

  Choice next() {
    const Pair first = *missing_.begin();
    Choice c{}, fixed{};
    // Small sizes until chosen, so that the budget says no only to what is really large.
    for (const int option : {kHeadDim, kValueDim, kHeads})
      c[static_cast<std::size_t>(option)] = small(option, 1);
    for (const int option : {kQTokens, kKvTokens}) c[static_cast<std::size_t>(option)] = small(option, 2);
    set(c, fixed, first[0], first[1]);
    set(c, fixed, first[2], first[3]);
    std::vector<int> order;
    for (int i = 0; i < kOptions; ++i)
      if (!fixed[static_cast<std::size_t>(i)]) order.push_back(i);
    std::shuffle(order.begin(), order.end(), random_);
    for (const int option : order) {
      int best = -1, best_gain = -1;
      const int n = count(option), from = static_cast<int>(random_() % static_cast<unsigned>(n));
      for (int k = 0; k < n; ++k) {
        const int value = (from + k) % n;
        Choice trial = c;
        trial[static_cast<std::size_t>(option)] = value;
        if (work_of(trial) > work_) continue;
        const int gain = gain_of(trial, fixed, option, value);
        if (gain > best_gain) best = value, best_gain = gain;
      }
      set(c, fixed, option, best < 0 ? c[static_cast<std::size_t>(option)] : best);
    }
    for (int i = 0; i < kOptions; ++i)
      for (int j = i + 1; j < kOptions; ++j)
        missing_.erase({i, c[static_cast<std::size_t>(i)], j, c[static_cast<std::size_t>(j)]});
    missing_.erase(first);
    return c;
  }

 private:
  int count(int option) const { return counts_[static_cast<std::size_t>(option)]; }
  int small(int option, int value) const { return std::min(value, count(option) - 1); }
  static void set(Choice& c, Choice& fixed, int option, int value) {
    c[static_cast<std::size_t>(option)] = value;
    fixed[static_cast<std::size_t>(option)] = 1;
  }
  int gain_of(const Choice& c, const Choice& fixed, int option, int value) const {
    int gain = 0;
    for (int other = 0; other < kOptions; ++other) {
      if (!fixed[static_cast<std::size_t>(other)] || other == option) continue;
      const int theirs = c[static_cast<std::size_t>(other)];
      const Pair p = other < option ? Pair{other, theirs, option, value} : Pair{option, value, other, theirs};
      gain += static_cast<int>(missing_.count(p));
    }
    return gain;
  }
  Choice counts_;
  double work_;
  std::set<Pair> missing_;
  std::mt19937 random_;
};

}  // namespace headwise::test
