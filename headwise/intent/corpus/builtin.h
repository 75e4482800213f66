// The built-in corpus: financial utterances drawn from a grammar, the same ones for the same seed,
// everywhere.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "headwise/intent/corpus/corpus.h"
#include "headwise/intent/corpus/grammar.h"

#pragma GCC visibility push(default)
namespace headwise {

struct BuiltinOptions {
  std::vector<std::string> languages = {"en", "zh"};
  Index train = 6000, dev = 600, test = 1200;  // utterances; texts differ in more than case
  double two = 0.3, three = 0.1;               // shares of utterances with two and three intents
  std::uint64_t seed = 1;
};

/// train and dev are drawn from the training templates, test from the held-out templates and joins alone: no
/// sentence pattern of the test was ever shown.
struct BuiltinCorpus {
  Corpus train, dev, test;
};
BuiltinCorpus builtin_corpus(const BuiltinOptions& options = {}, const Grammar& grammar = builtin_grammar());

}  // namespace headwise
#pragma GCC visibility pop
