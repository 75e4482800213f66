// Fuzzes the corpus readers: any bytes in any format give rows with texts, or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>

#include "headwise/base/error.h"
#include "headwise/intent/corpus/report.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  if (size == 0) return 0;
  constexpr CorpusFormat kFormats[] = {CorpusFormat::tsv, CorpusFormat::csv, CorpusFormat::json_lines,
                                       CorpusFormat::json_list};
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const Corpus corpus =
        parse_corpus(bytes, "fuzz", {.format = kFormats[data[0] % 4], .file_bytes = 1 << 20});
    for (const Utterance& row : corpus.rows)
      if (row.text.empty() || row.line < 1) std::abort();
    examine(corpus).print(corpus);
  } catch (const Error&) {
  }
  return 0;
}
