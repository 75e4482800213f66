// Cuts: where a text may be cut into intents, which spans that asks to be read, and the best choice of them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Settings of a recogniser that cuts: `weight` and `shift` are calibrated on dev.
struct CutOptions {
  bool on = false;
  double shift = 0;            // added to the logit of every candidate
  double weight = 1;           // of what the spans' labels say, beside the candidates
  Index most_intents = 3;      // of one text
  Index connector_tokens = 2;  // at most taken off a span's end
  bool operator==(const CutOptions&) const = default;
};

/// Tokens [first, last) of a text, [CLS] and [SEP] not counted.
struct TokenRange {
  Index first = 0, last = 0;
  bool operator==(const TokenRange&) const = default;
};

/// What the tags say of one token, as logits.
struct TokenTags {
  double start = 0, connector = 0;
  bool begins_word = true;  // pieces inside a word begin no intent
};

/// Candidates of one text, every set of them that may be the right cuts, and the spans these have.
struct CutReading {
  std::vector<double> candidates;               // logits, in the text's order
  std::vector<unsigned> ways;                   // bit i: candidate i is cut at
  std::vector<std::vector<std::size_t>> parts;  // of each way: numbers of spans, in order
  std::vector<TokenRange> spans;                // each once; the first is the whole text
  std::vector<std::vector<double>> scores;      // of each span: ln p of every label; filled by whoever reads
};
/// scores are left empty.
CutReading plan_cuts(std::span<const TokenTags> tokens, const CutOptions& options);

struct ChosenSpan {
  std::size_t span = 0;  // of the reading
  Index label = 0;
};
/// The way with the largest sum of ln sigmoid(+-(logit + shift)) over candidates and weight * ln p over
/// spans; labels of one text are different ones.
std::vector<ChosenSpan> choose_cuts(const CutReading& reading, double shift, double weight);

}  // namespace headwise
#pragma GCC visibility pop
