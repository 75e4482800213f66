#include "headwise/model/json_reader.h"

#include "headwise/base/words.h"

namespace headwise {
namespace {

constexpr Index kLargest = Index{1} << 53;

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

void append_utf8(std::string& out, std::uint32_t point) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80u | ((point >> shift) & 0x3fu)); };
  if (point < 0x80) {
    out += static_cast<char>(point);
  } else if (point < 0x800) {
    out += static_cast<char>(0xc0u | (point >> 6)), tail(0);
  } else if (point < 0x10000) {
    out += static_cast<char>(0xe0u | (point >> 12)), tail(6), tail(0);
  } else {
    out += static_cast<char>(0xf0u | (point >> 18)), tail(12), tail(6), tail(0);
  }
}

}  // namespace

std::string quoted(std::string_view name) {
  constexpr std::size_t kMost = 80;
  std::size_t end = name.size() < kMost ? name.size() : kMost;
  while (end < name.size() && end > 0 && (static_cast<unsigned char>(name[end]) & 0xc0u) == 0x80u) --end;
  const std::string out = json_string(name.substr(0, end), {.also = "\x7f"});
  return end < name.size() ? text(out, "... (", name.size(), " bytes)") : out;
}

Index first_bad_utf8(std::string_view bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  for (std::size_t i = 0; i < bytes.size();) {
    const unsigned lead = byte(i);
    if (lead != 0 && lead < 0x80) {
      ++i;
      continue;
    }
    const int more = lead >= 0xc2 && lead < 0xe0   ? 1
                     : (lead & 0xf0u) == 0xe0      ? 2
                     : lead >= 0xf0 && lead < 0xf5 ? 3
                                                   : 0;
    if (more == 0 || bytes.size() - i <= static_cast<std::size_t>(more)) return static_cast<Index>(i);
    // The second byte also rules out overlong forms, surrogates and what lies above U+10FFFF.
    const unsigned second = byte(i + 1);
    const unsigned low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (second < low || second > high) return static_cast<Index>(i);
    for (int j = 2; j <= more; ++j)
      if ((byte(i + static_cast<std::size_t>(j)) & 0xc0u) != 0x80u) return static_cast<Index>(i);
    i += static_cast<std::size_t>(more) + 1;
  }
  return -1;
}

char JsonReader::peek() {
  while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  return at_ < text_.size() ? text_[at_] : '\0';
}

std::string_view JsonReader::character() const {
  std::size_t end = at_ < text_.size() ? at_ + 1 : at_;
  while (end < text_.size() && (static_cast<unsigned char>(text_[end]) & 0xc0u) == 0x80u) ++end;
  return text_.substr(at_, end - at_);
}

void JsonReader::take(char c, std::string_view what) {
  const char next = peek();
  if (next == c) {
    ++at_;
    return;
  }
  if (next == '\0') refuse(what, " needs a '", c, "' but the text ends; its end is missing");
  refuse(what, " needs a '", c, "', got ", quoted(character()));
}

bool JsonReader::try_take(char c) {
  if (peek() != c) return false;
  ++at_;
  return true;
}

std::uint32_t JsonReader::hex4(std::string_view what) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) refuse(what, " has a \\u escape that is not four hexadecimal digits");
    value = value * 16 + static_cast<std::uint32_t>(digit);
    ++at_;
  }
  return value;
}

void JsonReader::escape(std::string& out, std::string_view what) {
  const char kind = at_ < text_.size() ? text_[at_++] : '\0';
  switch (kind) {
    case '"':
    case '\\':
    case '/': out += kind; return;
    case 'b': out += '\b'; return;
    case 'f': out += '\f'; return;
    case 'n': out += '\n'; return;
    case 'r': out += '\r'; return;
    case 't': out += '\t'; return;
    case 'u': break;
    default: refuse(what, " has an escape JSON does not know");
  }
  std::uint32_t point = hex4(what);
  if (point >= 0xd800 && point < 0xdc00) {
    if (text_.substr(at_, 2) != "\\u") refuse(what, " has half a surrogate pair");
    at_ += 2;
    const std::uint32_t low = hex4(what);
    if (low < 0xdc00 || low > 0xdfff) refuse(what, " has half a surrogate pair");
    point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
  } else if (point >= 0xdc00 && point < 0xe000) {
    refuse(what, " has half a surrogate pair");
  }
  if (point == 0) refuse(what, " holds a NUL; leave it out");
  append_utf8(out, point);
}

std::string JsonReader::string(std::string_view what, Index most) {
  take('"', what);
  std::string out;
  for (;;) {
    if (at_ >= text_.size()) refuse(what, " has no closing quote; its end is missing");
    const char c = text_[at_];
    if (c == '"') break;
    if (static_cast<unsigned char>(c) < 0x20) refuse(what, " holds a bare control character; escape it");
    ++at_;
    if (c == '\\')
      escape(out, what);
    else
      out += c;
    if (static_cast<Index>(out.size()) > most)
      refuse(what, " begins ", quoted(out), " and is longer than the ", most, " bytes allowed");
  }
  ++at_;
  return out;
}

void JsonReader::skip_word(std::string_view what) {
  const std::size_t begin = at_;
  while (at_ < text_.size() &&
         std::string_view("+-.0123456789aeflnrstuE").find(text_[at_]) != std::string_view::npos)
    ++at_;
  const std::string_view word = text_.substr(begin, at_ - begin);
  if (word == "true" || word == "false" || word == "null") return;
  // -? digits, no leading zero, then a fraction and an exponent.
  std::size_t i = word.starts_with('-');
  const auto digits = [&] {
    const std::size_t first = i;
    while (i < word.size() && word[i] >= '0' && word[i] <= '9') ++i;
    return i - first;
  };
  const bool zero = i < word.size() && word[i] == '0';
  const std::size_t whole = digits();
  bool ok = whole == 1 || (whole > 1 && !zero);
  if (ok && i < word.size() && word[i] == '.') ++i, ok = digits() > 0;
  if (ok && i < word.size() && (word[i] == 'e' || word[i] == 'E')) {
    ++i;
    if (i < word.size() && (word[i] == '+' || word[i] == '-')) ++i;
    ok = digits() > 0;
  }
  if (ok && i == word.size()) return;
  at_ = begin;
  if (begin >= text_.size()) refuse(what, " needs a value but the text ends; its end is missing");
  refuse(what, " needs a value, got ", quoted(character()));
}

void JsonReader::skip(std::string_view what, int depth) {
  const char next = peek();
  if (next == '"') {
    string(what, kLargest);
  } else if (next == '{' || next == '[') {
    if (depth == 0) refuse(what, " lies too deep; at most 64 lists and objects may lie inside each other");
    const char close = next == '{' ? '}' : ']';
    ++at_;
    for (bool first = true; !try_take(close); first = false) {
      if (!first) take(',', what);
      if (next == '{') {
        string("a key", kLargest);
        take(':', "a key");
      }
      skip(what, depth - 1);
    }
  } else {
    skip_word(what);
  }
}

Index JsonReader::integer(std::string_view what) {
  const char first = peek();
  if (first < '0' || first > '9')
    refuse(what, " must be a plain whole number from 0 up, got ", quoted(character()));
  const std::size_t begin = at_;
  Index value = 0;
  while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
    value = value * 10 + (text_[at_] - '0');
    ++at_;
    if (value >= kLargest) refuse(what, " is 2^53 or more; no file is that long");
  }
  if (first == '0' && at_ - begin > 1) refuse(what, " has a leading zero");
  const char after = at_ < text_.size() ? text_[at_] : '\0';
  if (after == '.' || after == 'e' || after == 'E')
    refuse(what, " must be a whole number, without '.' or 'e'");
  return value;
}

}  // namespace headwise
