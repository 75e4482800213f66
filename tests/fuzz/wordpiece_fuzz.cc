// Fuzzes WordPiece: a vocabulary of any lines is taken or refused; any text gives spans that lie in it.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string>

#include "headwise/base/error.h"
#include "headwise/text/wordpiece.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwise;
  // Up to the first NUL: the vocabulary's lines; behind it: the text.
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::size_t mark = std::min(all.find('\0'), all.size());
  std::vector<std::string> pieces = {"[UNK]", "[CLS]", "[SEP]"};
  for (std::size_t at = 0; at < mark;) {
    const std::size_t end = std::min(all.find('\n', at), mark);
    pieces.emplace_back(all.substr(at, end - at));
    at = end + 1;
  }
  const std::string_view text = all.substr(std::min(mark + 1, all.size()));
  WordPieceOptions options;
  options.words.word_chars = 8;
  options.words.strip_accents = size % 2;
  try {
    const WordPiece tokens(Vocabulary(pieces), options);
    const Encoding e = tokens.encode(text, {.around = true, .most = 64});
    if (e.ids.size() != e.spans.size() || e.ids.size() > 64) std::abort();
    for (std::size_t i = 0; i < e.ids.size(); ++i) {
      const TextSpan s = e.spans[i];
      if (s.begin < 0 || s.end < s.begin || s.end > static_cast<Index>(text.size())) std::abort();
      if (e.ids[i] < 0 || e.ids[i] >= tokens.vocabulary().size()) std::abort();
    }
    tokens.decode(e.ids);
  } catch (const Error&) {
  }
  return 0;
}
