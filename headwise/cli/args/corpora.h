// Corpora of a command: files that were named, or the built-in corpus with its splits.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/cli/args/args.h"
#include "headwise/intent/corpus/builtin.h"

namespace headwise::cli {

struct CorpusChoice {
  std::vector<std::string> files;
  bool builtin = false;
  std::string text_column = {}, label_column = {}, separator = "#";

  CorpusOptions options() const {
    require(separator.size() <= 1, ErrorKind::bad_argument, "--label-separator", "got ", quoted(separator),
            "; give one ASCII character, or \"\" where a field is one label");
    return {.between_labels = separator.empty() ? '\0' : separator[0],
            .text_column = text_column,
            .label_column = label_column};
  }
};
struct Corpora {
  Corpus train, dev, test;  // files fill train alone
};

/// Refuses neither and both.
inline Corpora read_corpora_of(const CorpusChoice& choice, std::string_view op) {
  require(choice.builtin != !choice.files.empty(), ErrorKind::bad_argument, op, "got ", choice.files.size(),
          " files", choice.builtin ? " and --builtin" : "", "; give files of labelled texts, or --builtin");
  if (!choice.builtin) return {.train = read_corpora(choice.files, choice.options()), .dev = {}, .test = {}};
  BuiltinCorpus own = builtin_corpus();
  return {std::move(own.train), std::move(own.dev), std::move(own.test)};
}

/// How files say which column is what.
inline void add_column_options(CLI::App& word, CorpusChoice& choice) {
  word.add_option("--text-column", choice.text_column,
                  "Column of the texts, in any case; none: text, utterance, sentence, ...");
  word.add_option("--label-column", choice.label_column,
                  "Column of the labels, in any case; none: labels, label, intent, category, ...");
  word.add_option("--label-separator", choice.separator, "Stands between the labels of one field")
      ->capture_default_str();
}

}  // namespace headwise::cli
