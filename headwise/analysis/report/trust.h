// Trust: whether a confidence is what it says: reliability, its error, and accuracy against coverage.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

class ReportWords;

/// An answer: how sure it was, and whether it was right.
struct Trusted {
  double confidence = 0;
  bool right = false;
};

/// Texts that are answered, and how many of those answers are right.
struct Coverage {
  Index texts = 0, answered = 0, right = 0;
  double share() const;
  double accuracy() const;
};

struct Trust {
  static constexpr std::size_t kBins = 10;
  struct Bin {
    Index answers = 0, right = 0;
    double confidence = 0;  // their sum
  };
  std::array<Bin, kBins> bins = {};  // by confidence, [0, 0.1) to [0.9, 1]
  /// Expected calibration error: sum over bins of share |accuracy - mean confidence|.
  double error = 0;
  /// Accuracy of the surest answers for shares of the texts from few to all, at most 100 points.
  std::vector<std::pair<double, double>> curve = {};
};
Trust trust_of(std::span<const Trusted> answers);
/// What is left where answers below a confidence are held back.
Coverage covered(std::span<const Trusted> answers, double abstain);

/// A section of the report: reliability, the curve, and a table of what abstaining brings.
std::string trust_section(std::span<const Trusted> answers, const ReportWords& say);

}  // namespace headwise
#pragma GCC visibility pop
