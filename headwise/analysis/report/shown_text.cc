#include "headwise/analysis/report/shown_text.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "headwise/base/error.h"
#include "headwise/text/unicode.h"

namespace headwise {
namespace {

bool is_upper(char32_t c) { return c >= 'A' && c <= 'Z'; }
bool is_letter(char32_t c) { return (c >= 'a' && c <= 'z') || is_upper(c) || (c >= 0xC0 && c < 0x250); }
bool is_digit(char32_t c) { return (c >= '0' && c <= '9') || (c >= 0xFF10 && c <= 0xFF19); }
/// Marks that turn the direction of what follows, and zero-width characters that hide in it.
bool is_hidden(char32_t c) {
  return (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) ||
         c == 0xFEFF || c == 0x061C;
}

// The most common surnames; a mask that misses a rare one is why the page says what is masked.
constexpr std::u32string_view kSurnames =
    U"王李张刘陈杨黄赵吴周徐孙马朱胡郭何高林罗郑梁谢宋唐许韩冯邓曹彭曾肖田董袁潘于蒋蔡余杜叶程苏魏吕丁任沈姚"
    U"卢姜崔";
constexpr std::array<std::u32string_view, 4> kTitles = {U"先生", U"女士", U"小姐", U"老师"};

bool is_surname(char32_t c) { return kSurnames.find(c) != std::u32string_view::npos; }

std::vector<CodePoint> code_points(std::string_view text) {
  std::vector<CodePoint> all;
  for (Index at = 0; at < static_cast<Index>(text.size()); at = all.back().end)
    all.push_back(decode_utf8(text, at));
  return all;
}

/// A Latin word c[first..end) that looks like a name; `begins`: it is the first of a sentence.
bool is_name(const std::vector<CodePoint>& c, std::size_t first, std::size_t end, bool begins,
             const std::u32string& before) {
  if (before == U"Mr" || before == U"Mrs" || before == U"Ms" || before == U"Dr") return true;
  const bool alone = end - first == 1 && c[first].value == 'I';
  return is_upper(c[first].value) && !begins && !alone;
}

}  // namespace

std::vector<bool> private_bytes(std::string_view text) {
  const std::vector<CodePoint> c = code_points(text);
  std::vector<bool> masked(text.size(), false);
  const auto mask = [&](std::size_t from, std::size_t to) {
    for (Index b = c[from].begin; b < c[to - 1].end; ++b) masked[static_cast<std::size_t>(b)] = true;
  };
  bool begins = true;  // a sentence
  std::u32string before;
  for (std::size_t i = 0; i < c.size();) {
    if (is_digit(c[i].value)) mask(i, i + 1);
    if (is_letter(c[i].value)) {
      std::size_t end = i;
      std::u32string word;
      while (end < c.size() && is_letter(c[end].value)) word.push_back(c[end++].value);
      if (is_name(c, i, end, begins, before)) mask(i, end);
      before = word, begins = false, i = end;
      continue;
    }
    for (const std::u32string_view title : kTitles)
      if (is_surname(c[i].value) && i + 2 < c.size() && c[i + 1].value == title[0] &&
          c[i + 2].value == title[1])
        mask(i, i + 1);
    if ((c[i].value == U'小' || c[i].value == U'老') && i + 1 < c.size() && is_surname(c[i + 1].value))
      mask(i + 1, i + 2);
    if (c[i].value == '.' || c[i].value == '!' || c[i].value == '?') {
      // "Mr. Li": a title's full stop ends no sentence
      if (before != U"Mr" && before != U"Mrs" && before != U"Ms" && before != U"Dr") begins = true;
    } else if (!is_white_space(c[i].value)) {
      before.clear();
    }
    ++i;
  }
  for (std::size_t at = text.find('@'); at != std::string_view::npos; at = text.find('@', at + 1)) {
    const auto blank = [&](std::size_t b) { return text[b] == ' ' || text[b] == '\n' || text[b] == '\t'; };
    std::size_t from = at, to = at;
    while (from > 0 && !blank(from - 1)) --from;
    while (to < text.size() && !blank(to)) ++to;
    std::fill(masked.begin() + static_cast<std::ptrdiff_t>(from),
              masked.begin() + static_cast<std::ptrdiff_t>(to), true);
  }
  return masked;
}

std::string shown(std::string_view text, TextSpan span, const std::vector<bool>* masked, Index most) {
  std::vector<std::string> pieces;
  for (Index at = span.begin; at < span.end;) {
    const CodePoint c = decode_utf8(text, at);
    std::string piece;
    if (masked && (*masked)[static_cast<std::size_t>(at)]) {
      piece = "•";
    } else if (c.value == '\t' || c.value == '\n' || c.value == '\r') {
      piece = " ";
    } else if (is_hidden(c.value) || c.value < 0x20 || (c.value >= 0x7F && c.value < 0xA0)) {
      char name[16];
      std::snprintf(name, sizeof name, "<U+%04X>", static_cast<unsigned>(c.value));
      piece = name;
    } else {
      append_utf8(piece, c.value);
    }
    pieces.push_back(std::move(piece));
    at = c.end;
  }
  std::string out;
  const auto count = static_cast<Index>(pieces.size());
  for (Index i = 0; i < count; ++i) {
    if (count > most && i == most / 2) {
      out += headwise::text(" … ", count - most, " characters more … ");
      i = count - most / 2 - 1;
      continue;
    }
    out += pieces[static_cast<std::size_t>(i)];
  }
  return out;
}

std::string shown(std::string_view text, Index most) {
  return shown(text, {0, static_cast<Index>(text.size())}, nullptr, most);
}

std::string html(std::string_view s) {
  std::string out;
  for (const char c : s) switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  return out;
}

std::string script_string(std::string_view s) {
  std::string out = "\"";
  for (std::size_t i = 0; i < s.size(); ++i) {
    const auto c = static_cast<unsigned char>(s[i]);
    const std::string_view three = s.substr(i, 3);
    if (three == "\xE2\x80\xA8" || three == "\xE2\x80\xA9") {
      out += three.back() == '\xA8' ? "\\u2028" : "\\u2029";
      i += 2;
    } else if (c == '"' || c == '\\') {
      (out += '\\') += static_cast<char>(c);
    } else if (c < 0x20 || c == '<' || c == '>' || c == '&') {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += static_cast<char>(c);
    }
  }
  return out + '"';
}

std::string base64(const std::vector<unsigned char>& bytes) {
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    const std::size_t left = std::min<std::size_t>(3, bytes.size() - i);
    unsigned value = static_cast<unsigned>(bytes[i]) << 16;
    if (left > 1) value |= static_cast<unsigned>(bytes[i + 1]) << 8;
    if (left > 2) value |= bytes[i + 2];
    for (std::size_t d = 0; d < 4; ++d) out += d <= left ? kDigits[value >> (18 - 6 * d) & 63] : '=';
  }
  return out;
}

}  // namespace headwise
