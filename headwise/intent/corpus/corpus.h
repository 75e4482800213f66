// Corpus: labelled utterances read from TSV, CSV, .xlsx, JSON lines or NLU++ folds without trust.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

#pragma GCC visibility push(default)
namespace headwise {

struct Utterance {
  std::string text;
  std::vector<std::string> labels;  // in order, each once; none is legal: an utterance without intent
  std::vector<std::string> extra;   // further columns of a TSV, such as a fold or a role
  Index line = 0;                   // where it begins in its file, from 1
};

struct Corpus {
  std::string name;  // for sentences: the file, or the files
  std::vector<Utterance> rows;
};

enum class CorpusFormat {
  by_name,     // by the ending, without .gz: tsv or txt, csv, jsonl or ndjson, json
  tsv,         // text<TAB>a#b[<TAB>extra...], one utterance a line, no quoting; a header may come first
  csv,         // a header, then rows; quotes as RFC 4180 has them; commas, semicolons or tabs
  json_lines,  // {"text": "...", "labels": ["a", "b"]} a line; "label", "intent", "intents" and "category"
               // too
  json_list    // the same in one list: a fold of NLU++, which leaves out labels where there are none
};

struct CorpusOptions {
  CorpusFormat format = CorpusFormat::by_name;
  char between_labels = '#';          // in one field; 0: a field is one label
  std::string text_column = {};       // CSV and TSV, in any case; empty: text, utterance, sentence, ...
  std::string label_column = {};      // CSV and TSV; empty: labels, label, intents, intent, category, ...
  Index file_bytes = Index{1} << 30;  // at most, unpacked
};

/// Refused with file and line: a missing file, bytes that are no UTF-8, a row without its columns, an empty
/// text, a file without rows.
Corpus read_corpus(const std::string& path, const CorpusOptions& options = {});
/// Several files as one, such as the folds of a split.
Corpus read_corpora(const std::vector<std::string>& paths, const CorpusOptions& options = {});
/// The same from memory; `name` only begins sentences. An .xlsx workbook is known by its bytes: its first
/// sheet is read, with a header.
Corpus parse_corpus(std::string_view bytes, std::string_view name, const CorpusOptions& options = {});

/// What gzip packed; `most` bytes of it at most. Needs a build with zlib.
std::string unpack_gzip(std::string_view packed, Index most, std::string_view name);
bool is_gzip(std::string_view bytes);

}  // namespace headwise
#pragma GCC visibility pop
