// Grammar: templates of labelled utterances with slots, read from a small text format.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One language of one intent: what trains, and what is held out for the test.
struct Templates {
  std::vector<std::string> train, test;
};

struct GrammarIntent {
  std::string name, group;                     // intents of one group are never joined
  std::map<std::string, Templates> languages;  // "en" -> its templates
};

struct GrammarLanguage {
  std::map<std::string, std::vector<std::string>> slots;
  Templates joins;  // with {a} and {b}
  std::vector<std::string> openings;
};

struct Grammar {
  std::vector<GrammarIntent> intents;
  std::map<std::string, GrammarLanguage> languages;

  /// Refuses, with the line: an unknown word, a slot nobody defines, an intent without templates of both
  /// kinds in some language, a template twice.
  static Grammar parse(std::string_view text, std::string_view name);
};

/// The project's own grammar of 38 financial intents in English ("en") and Chinese ("zh").
const Grammar& builtin_grammar();
/// Greetings, weather, food, keys struck at random: what has nothing to do with a bank.
const Grammar& everyday_grammar();

}  // namespace headwise
#pragma GCC visibility pop
