// Generation: the tokens that a decoder wrote, and what its heads did at each of them, by the row probes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One token that was drawn. The query of the token before it looked at the text.
struct GeneratedStep {
  double probability = 0;
  std::vector<std::pair<std::string, double>> likely = {};  // tokens and probabilities, likeliest first
};

struct Generation {
  Index prompt = 0;                  // tokens before the first that was drawn
  std::vector<std::string> written;  // every token of the text with its spaces
  std::vector<GeneratedStep> steps;
  /// [steps layers heads]: in nats; the largest weight; the weight on the first token.
  std::vector<float> entropy, largest, first;
};

}  // namespace headwise
#pragma GCC visibility pop
