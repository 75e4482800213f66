// draw: the next token from its logits; noise depends on seed, position and token alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "headwise/text/vocabulary.h"

#pragma GCC visibility push(default)
namespace headwise {

struct SamplingOptions {
  double temperature = 0;  // 0: the largest logit, the lowest id among equals
  double min_p = 0;        // drop tokens below min_p times the likeliest
  Index top_k = 0;         // keep the k likeliest, ties by the lowest id; 0: all
  double top_p = 1;        // keep the shortest head whose sum reaches it
  double repetition_penalty = 1, frequency_penalty = 0, presence_penalty = 0;
  std::vector<std::pair<TokenId, double>> bias = {};  // added to logits
  std::uint64_t seed = 0;

  /// Throws with the option's name when a value cannot be.
  void check(Index vocabulary) const;
};

/// What was said so far: penalties look at it.
struct History {
  std::span<const TokenId> prompt, output;
};

struct TokenLogprob {
  TokenId token = -1;
  double logprob = 0;
};

struct Drawn {
  TokenId token = -1;
  double logprob = 0;             // of the logits as the model gave them
  std::vector<TokenLogprob> top;  // likeliest first, then by id
};

struct DrawPlace {
  Index position = 0;                    // of the token that is drawn, in its text
  std::span<const TokenId> closed = {};  // may not be drawn
  Index tokens = 0;                      // ids from here on are padding and never drawn; 0: all may be
  Index top = 0;                         // log-probs wanted beside the drawn one's
  bool logprobs = true;                  // false: Drawn has none, which saves their sum
};

/// Order: bias, closed ids, penalties, temperature, min_p, top_k, top_p, then the largest of l + g. Here g =
/// -ln(-ln u), u = (x + 0.5) / 2^32, x word id % 4 of Philox4x32-10 of key seed and counter (position, id /
/// 4). Sums and exponentials in double, by ascending id. NaN, or nothing left to draw, throws.
Drawn draw(std::span<const float> logits, const SamplingOptions& options, const History& history,
           const DrawPlace& place);

}  // namespace headwise
#pragma GCC visibility pop
