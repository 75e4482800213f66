#include "headwise/text/unicode.h"

#include <unicode/uchar.h>
#include <unicode/unorm2.h>
#include <unicode/ustring.h>

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "headwise/base/error.h"

namespace headwise {
namespace {

struct Range {
  char32_t first, last;
};
constexpr Range kChinese[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},   {0x20000, 0x2A6DF},
                              {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F}, {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};

UChar32 icu(char32_t c) { return static_cast<UChar32>(c); }

/// The category as of Unicode 8, as a mask. Models were trained with tables of that time, and tokens must not
/// change with ICU's version.
std::uint32_t category(char32_t c) {
  switch (c) {  // what has moved since
    case 0x166D:
    case 0x111C9: return U_GC_PO_MASK;
    case 0x1734: return U_GC_MN_MASK;
    case 0x1885:
    case 0x1886: return U_GC_LO_MASK;
    case 0xA9BD: return U_GC_MC_MASK;
    default: break;
  }
  const std::uint32_t now = U_GET_GC_MASK(icu(c));
  if ((now & (U_GC_C_MASK | U_GC_P_MASK | U_GC_MN_MASK)) == 0) return now;
  UVersionInfo age;
  u_charAge(icu(c), age);
  return age[0] > 8 ? U_GC_CN_MASK : now;
}

const UNormalizer2* decomposition() {
  UErrorCode code = U_ZERO_ERROR;
  const UNormalizer2* nfd = unorm2_getNFDInstance(&code);
  require(U_SUCCESS(code), ErrorKind::unsupported, "text", "ICU gives no NFD data (", u_errorName(code),
          "); install its package whole");
  return nfd;
}

}  // namespace

CodePoint decode_utf8(std::string_view text, Index at) {
  const auto byte = [&](Index i) { return static_cast<unsigned char>(text[static_cast<std::size_t>(i)]); };
  const auto size = static_cast<Index>(text.size());
  const unsigned lead = byte(at);
  if (lead < 0x80) return {lead, at, at + 1, true};
  const int more = lead >= 0xc2 && lead < 0xe0   ? 1
                   : (lead & 0xf0u) == 0xe0      ? 2
                   : lead >= 0xf0 && lead < 0xf5 ? 3
                                                 : 0;
  char32_t value = lead & (0x3fu >> more);
  Index next = at + 1;
  for (int i = 0; i < more; ++i, ++next) {
    // The second byte also rules out overlong forms, surrogates and what lies above U+10FFFF.
    const unsigned low = i > 0 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const unsigned high = i > 0 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (next >= size || byte(next) < low || byte(next) > high) return {kReplacement, at, next, false};
    value = value << 6 | (byte(next) & 0x3fu);
  }
  if (more == 0) return {kReplacement, at, next, false};
  return {value, at, next, true};
}

void append_utf8(std::string& out, char32_t value) {
  const auto tail = [&](int shift) { out += static_cast<char>(0x80u | ((value >> shift) & 0x3fu)); };
  if (value < 0x80) {
    out += static_cast<char>(value);
  } else if (value < 0x800) {
    out += static_cast<char>(0xc0u | (value >> 6)), tail(0);
  } else if (value < 0x10000) {
    out += static_cast<char>(0xe0u | (value >> 12)), tail(6), tail(0);
  } else {
    out += static_cast<char>(0xf0u | (value >> 18)), tail(12), tail(6), tail(0);
  }
}

Index count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; });
}

bool is_control(char32_t c) {
  if (c < 0x80) return (c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7f;
  return (category(c) & (U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CS_MASK | U_GC_CO_MASK)) != 0;
}

bool is_white_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return u_isUWhiteSpace(icu(c)) != 0;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7f);
  return (category(c) & U_GC_P_MASK) != 0;
}

bool is_chinese(char32_t c) {
  return std::any_of(std::begin(kChinese), std::end(kChinese),
                     [c](Range r) { return c >= r.first && c <= r.last; });
}

bool is_accent(char32_t c) { return c >= 0x300 && (category(c) & U_GC_MN_MASK) != 0; }

bool is_unicode_letter(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return (U_GET_GC_MASK(icu(c)) & U_GC_L_MASK) != 0;
}
bool is_unicode_number(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  return (U_GET_GC_MASK(icu(c)) & U_GC_N_MASK) != 0;
}

std::string composed(std::string_view text) {
  const auto ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), ascii)) return std::string(text);
  require(text.size() < std::size_t{1} << 29, ErrorKind::bad_argument, "text", "got ", text.size(),
          " bytes to compose; give less than 2^29 at once");
  UErrorCode code = U_ZERO_ERROR;
  const UNormalizer2* nfc = unorm2_getNFCInstance(&code);
  // UTF-16 has at most as many units as UTF-8 bytes; NFC at most three times those.
  const auto bytes = static_cast<std::int32_t>(text.size());
  std::u16string units(text.size(), u'\0'), done(3 * text.size(), u'\0');
  std::int32_t n = 0;
  u_strFromUTF8WithSub(units.data(), bytes, &n, text.data(), bytes, icu(kReplacement), nullptr, &code);
  n = unorm2_normalize(nfc, units.data(), n, done.data(), 3 * bytes, &code);
  std::string out(3 * static_cast<std::size_t>(U_SUCCESS(code) ? n : 0), '\0');
  std::int32_t written = 0;
  u_strToUTF8(out.data(), static_cast<std::int32_t>(out.size()), &written, done.data(), n, &code);
  require(U_SUCCESS(code), ErrorKind::unsupported, "text", "ICU cannot compose this text (",
          u_errorName(code), "); install its package whole");
  out.resize(static_cast<std::size_t>(written));
  return out;
}

int combining_class(char32_t c) { return c < 0x300 ? 0 : u_getCombiningClass(icu(c)); }

void append_decomposition(std::u32string& out, char32_t c) {
  if (c < 0xC0) {
    out += c;
    return;
  }
  static const UNormalizer2* const nfd = decomposition();
  constexpr int kMost = 64;  // the longest of Unicode has 4 code points
  UChar units[kMost];
  UErrorCode code = U_ZERO_ERROR;
  const int n = unorm2_getDecomposition(nfd, icu(c), units, kMost, &code);
  if (n < 0 || n > kMost || U_FAILURE(code)) {
    out += c;
    return;
  }
  for (int i = 0; i < n;) {
    UChar32 point = 0;
    U16_NEXT(units, i, n, point);
    out += static_cast<char32_t>(point);
  }
}

void append_lower_case(std::u32string& out, char32_t c) {
  if (c < 0x80) {
    out += c >= 'A' && c <= 'Z' ? c + 32 : c;
  } else if (c == 0x130) {  // the one code point whose lower case is two
    out += U"i\u0307";
  } else {
    out += static_cast<char32_t>(u_tolower(icu(c)));
  }
}

}  // namespace headwise
