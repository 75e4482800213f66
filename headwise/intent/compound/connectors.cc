#include "headwise/intent/compound/connectors.h"

#include <algorithm>

#include "headwise/base/words.h"
#include "headwise/intent/corpus/report.h"
#include "headwise/text/unicode.h"

namespace headwise {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";
constexpr int kMostTogether = 3;

bool is_word_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/// Nothing of a longer word on either side.
bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  const bool left = begin == 0 || !is_word_byte(text[begin]) || !is_word_byte(text[begin - 1]);
  const bool right = end == text.size() || !is_word_byte(text[end - 1]) || !is_word_byte(text[end]);
  // "1,000" and "3.5" hold no connector.
  const bool digits = begin > 0 && end < text.size() && text[begin - 1] >= '0' && text[begin - 1] <= '9' &&
                      text[end] >= '0' && text[end] <= '9';
  return left && right && !digits;
}

}  // namespace

const std::vector<std::string>& default_connectors() {
  static const std::vector<std::string> all = {",",
                                               ";",
                                               ".",
                                               "and",
                                               "and also",
                                               "and then",
                                               "also",
                                               "then",
                                               "plus",
                                               "besides",
                                               "after that",
                                               "by the way",
                                               "another thing",
                                               "one more thing",
                                               "in addition",
                                               "as well as",
                                               "，",
                                               "。",
                                               "；",
                                               "、",
                                               "和",
                                               "还有",
                                               "另外",
                                               "然后",
                                               "同时",
                                               "并且",
                                               "而且",
                                               "顺便",
                                               "再就是",
                                               "此外",
                                               "对了",
                                               "以及",
                                               ":",
                                               "："};
  return all;
}

std::vector<ConnectorPlace> connector_places(std::string_view original,
                                             std::span<const std::string> connectors, Index most) {
  const std::string text = lowered(original);
  std::vector<ConnectorPlace> single, all;
  for (const std::string& connector : connectors) {
    const std::string wanted = lowered(connector);
    if (wanted.empty()) continue;
    for (std::size_t at = text.find(wanted); at != text.npos; at = text.find(wanted, at + 1))
      if (stands_alone(text, at, at + wanted.size()))
        single.push_back({static_cast<Index>(at), static_cast<Index>(at + wanted.size())});
    if (static_cast<Index>(single.size()) > most) return {};
  }
  const auto earlier = [](const ConnectorPlace& a, const ConnectorPlace& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  };
  std::sort(single.begin(), single.end(), earlier);
  all = single;
  std::size_t first = 0;
  for (int together = 2; together <= kMostTogether; ++together) {
    const std::size_t last = all.size();
    for (std::size_t i = first; i < last; ++i)
      for (const ConnectorPlace& next : single) {
        if (next.begin < all[i].end) continue;
        const std::string_view between = std::string_view(text).substr(
            static_cast<std::size_t>(all[i].end), static_cast<std::size_t>(next.begin - all[i].end));
        if (between.find_first_not_of(kBlanks) != between.npos) break;
        all.push_back({all[i].begin, next.end});
      }
    first = last;
  }
  std::sort(all.begin(), all.end(), earlier);
  all.erase(std::unique(all.begin(), all.end(),
                        [](const ConnectorPlace& a, const ConnectorPlace& b) {
                          return a.begin == b.begin && a.end == b.end;
                        }),
            all.end());
  if (static_cast<Index>(all.size()) > most) all.clear();
  return all;
}

std::string_view without_blanks(std::string_view text) { return trimmed(text, kBlanks); }

std::string piece_key(std::string_view text) {
  std::string key = text_key(text);
  for (bool cut = true; cut;) {
    cut = false;
    for (const std::string_view mark : {"?", ".", "!", " ", "？", "。", "！"})
      if (key.size() > mark.size() && key.ends_with(mark)) key.resize(key.size() - mark.size()), cut = true;
  }
  return key;
}

bool holds_chinese(std::string_view text) {
  for (Index at = 0; at < static_cast<Index>(text.size());) {
    const CodePoint c = decode_utf8(text, at);
    if (is_chinese(c.value)) return true;
    at = c.end;
  }
  return false;
}

}  // namespace headwise
