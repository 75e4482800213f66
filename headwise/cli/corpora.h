// Corpora of a command: files that were named, or the built-in corpus with its splits.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/intent/corpus/builtin.h"

namespace headwise::cli {

struct CorpusChoice {
  std::vector<std::string> files;
  bool builtin = false;
};
struct Corpora {
  Corpus train, dev, test;  // files fill train alone
};

/// Refuses neither and both.
inline Corpora read_corpora_of(const CorpusChoice& choice, std::string_view op) {
  require(choice.builtin != !choice.files.empty(), ErrorKind::bad_argument, op, "got ", choice.files.size(),
          " files", choice.builtin ? " and --builtin" : "", "; give files of labelled texts, or --builtin");
  if (!choice.builtin) return {.train = read_corpora(choice.files), .dev = {}, .test = {}};
  BuiltinCorpus own = builtin_corpus();
  return {std::move(own.train), std::move(own.dev), std::move(own.test)};
}

}  // namespace headwise::cli
