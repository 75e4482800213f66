// Circuits: what a head's weights say of single tokens: which looks at which (QK), what it writes (OV).
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

struct TokenPair {
  std::string from, to;
  float score = 0;
};

/// Scores [tokens tokens]. qk: of a query token for a key token, minus the query's mean over the vocabulary
/// that was read. ov: what a token that is looked at adds to the logit of another, minus the mean over that
/// vocabulary.
struct HeadCircuit {
  Index layer = 0, head = 0;
  std::vector<float> qk = {}, ov = {};
  std::vector<TokenPair> top_qk = {}, top_ov = {};  // of the vocabulary, the largest first
};

struct Circuits {
  std::vector<std::string> tokens;  // of the text, each once
  Index vocabulary = 0, read = 0;   // tokens the model has, and how many of them were read
  bool all_pairs = true;            // else pairs of the tokens that stand out, with everything
  std::vector<HeadCircuit> heads;
};

}  // namespace headwise
#pragma GCC visibility pop
