#include "headwise/intent/corpus/xml.h"

#include <charconv>

#include "headwise/text/unicode.h"

namespace headwise {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

std::string_view without_prefix(std::string_view name) {
  const std::size_t colon = name.find(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

/// &#...; and &#x...;; nothing where it is no character.
std::string numbered(std::string_view digits) {
  const bool hex = digits.starts_with('x');
  if (hex) digits.remove_prefix(1);
  std::uint32_t value = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, hex ? 16 : 10);
  const bool whole = error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
  const bool is_character = value > 0 && value < 0x110000 && (value < 0xd800 || value > 0xdfff);
  std::string out;
  if (whole && is_character) append_utf8(out, static_cast<char32_t>(value));
  return out;
}

std::string resolved(std::string_view text) {
  std::string out;
  for (;;) {
    const std::size_t from = text.find('&'), to = text.find(';', from == std::string_view::npos ? 0 : from);
    out += text.substr(0, from);
    if (from == std::string_view::npos) return out;
    if (to == std::string_view::npos) return out += text.substr(from);
    const std::string_view name = text.substr(from + 1, to - from - 1);
    if (name == "amp") out += '&';
    if (name == "lt") out += '<';
    if (name == "gt") out += '>';
    if (name == "quot") out += '"';
    if (name == "apos") out += '\'';
    if (name.starts_with('#')) out += numbered(name.substr(1));
    text.remove_prefix(to + 1);
  }
}

}  // namespace

XmlReader::Kind XmlReader::text_until(std::size_t end, std::size_t skip, bool verbatim) {
  inside_ = rest_.substr(0, end);
  verbatim_ = verbatim;
  rest_.remove_prefix(end + skip);
  return Kind::text;
}

XmlReader::Kind XmlReader::next() {
  if (closes_) {
    closes_ = false;
    return Kind::close;
  }
  for (;;) {
    if (rest_.empty()) return Kind::end;
    if (rest_.front() != '<') {
      const std::size_t end = rest_.find('<');
      return text_until(end == std::string_view::npos ? rest_.size() : end, 0, false);
    }
    constexpr std::string_view kVerbatim = "<![CDATA[";
    const bool verbatim = rest_.starts_with(kVerbatim), comment = rest_.starts_with("<!--");
    if (verbatim) rest_.remove_prefix(kVerbatim.size());
    const std::string_view last = verbatim ? "]]>" : comment ? "-->" : ">";
    const std::size_t end = rest_.find(last);
    if (end == std::string_view::npos) {
      rest_ = {};
      return Kind::end;
    }
    if (verbatim) return text_until(end, last.size(), true);
    std::string_view tag = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + last.size());
    if (comment || tag.starts_with('?') || tag.starts_with('!')) continue;
    const bool close = tag.starts_with('/');
    if (close) tag.remove_prefix(1);
    closes_ = !close && tag.ends_with('/');
    if (closes_) tag.remove_suffix(1);
    const std::size_t word = tag.find_first_of(kSpace);
    name_ = without_prefix(tag.substr(0, word));
    inside_ = word == std::string_view::npos ? std::string_view() : tag.substr(word);
    return close ? Kind::close : Kind::open;
  }
}

std::string XmlReader::attribute(std::string_view name) const {
  for (std::string_view left = inside_;;) {
    const std::size_t begin = left.find_first_not_of(kSpace);
    const std::size_t equals = left.find('=');
    if (begin == std::string_view::npos || equals == std::string_view::npos || begin > equals) return {};
    std::string_view key = left.substr(begin, equals - begin);
    key = key.substr(0, key.find_first_of(kSpace));
    const std::size_t open = left.find_first_of("\"'", equals);
    const std::size_t close = open == std::string_view::npos ? open : left.find(left[open], open + 1);
    if (close == std::string_view::npos) return {};
    if (without_prefix(key) == name) return resolved(left.substr(open + 1, close - open - 1));
    left.remove_prefix(close + 1);
  }
}

std::string XmlReader::text() const { return verbatim_ ? std::string(inside_) : resolved(inside_); }

}  // namespace headwise
