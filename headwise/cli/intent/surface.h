// The language of what the program says about an answer: by --language, else by the locale.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace headwise::cli {

/// Sentences of `headwise predict`; {} are filled in by fmt.
struct PredictWords {
  const char *none, *said_by, *reasons, *missed, *more_than, *which_has, *against, *no_word, *without,
      *either, *words, *heads, *head, *no_heads, *lines;
};

/// "en" or "zh": `asked`, or where that is empty what LC_ALL, LC_MESSAGES or LANG prefers, the first that is
/// set.
std::string surface_language(const std::string& asked);
const PredictWords& predict_words(const std::string& language);
void add_language_option(CLI::App& word, std::string& language);

}  // namespace headwise::cli
