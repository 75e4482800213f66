// suggest_rows: which unlabelled texts to label next: those a recogniser is unsure of, and no two alike.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <string>
#include <vector>

#include "headwise/intent/recognizer/recognizer.h"

#pragma GCC visibility push(default)
namespace headwise {

struct Suggestion {
  Index text = 0;    // its place among the texts
  double doubt = 0;  // 1 - (largest - second probability): 1 is a draw
  double apart = 1;  // how far from everything suggested before it, 0 to 1
  Prediction prediction;
};

/// At most `most`, best first: each next one has the largest doubt times distance. The distance of two texts
/// is that of their probabilities (Hellinger). Texts that are equal but for case and white space count once.
std::vector<Suggestion> suggest_rows(const Recognizer& recognizer, std::span<const std::string> texts,
                                     Index most, Session& session);

}  // namespace headwise
#pragma GCC visibility pop
