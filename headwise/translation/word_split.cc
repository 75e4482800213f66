#include "headwise/translation/word_split.h"

#include "headwise/text/unicode.h"

namespace headwise {
namespace {

bool inside_words(char32_t c) {
  return is_unicode_letter(c) || is_unicode_number(c) || is_accent(c) || c == '_';
}
bool joins(char32_t c) { return c == '-' || c == '\'' || c == 0x2019; }

}  // namespace

std::vector<TextSpan> split_sentence(std::string_view text) {
  std::vector<TextSpan> words;
  const auto size = static_cast<Index>(text.size());
  bool open = false;  // the last word may go on
  for (Index at = 0; at < size;) {
    const CodePoint c = decode_utf8(text, at);
    at = c.end;
    if (inside_words(c.value)) {
      if (!open) words.push_back({c.begin, c.end});
      words.back().end = c.end, open = true;
    } else if (open && joins(c.value) && at < size && inside_words(decode_utf8(text, at).value)) {
      words.back().end = c.end;
    } else {
      if (!is_white_space(c.value)) words.push_back({c.begin, c.end});
      open = false;
    }
  }
  return words;
}

std::vector<WordRange> words_of_tokens(const Bpe& bpe, std::span<const std::int32_t> tokens,
                                       std::span<const TextSpan> words) {
  std::vector<WordRange> found;
  Index begin = 0;
  const auto count = static_cast<Index>(words.size());
  for (Index first = 0; const std::int32_t token : tokens) {
    const Index end = begin + static_cast<Index>(bpe.bytes(token).size());
    while (first < count && words[static_cast<std::size_t>(first)].end <= begin) ++first;
    Index last = first;
    while (last < count && words[static_cast<std::size_t>(last)].begin < end) ++last;
    found.push_back({first, last});
    begin = end;
  }
  return found;
}

}  // namespace headwise
