#include "headwise/text/word_breaks.h"

#include <unicode/ubrk.h>
#include <unicode/utext.h>

#include <memory>

#include "headwise/base/error.h"

namespace headwise {
namespace {

void require_icu(UErrorCode code, const char* what) {
  require(U_SUCCESS(code), ErrorKind::unsupported, "text", "ICU gives no ", what, " (", u_errorName(code),
          "); install its package whole");
}

}  // namespace

std::vector<Index> word_breaks(std::string_view text) {
  std::vector<Index> breaks;
  if (text.empty()) return breaks;
  UErrorCode code = U_ZERO_ERROR;
  const std::unique_ptr<UText, UText* (*)(UText*)> bytes(
      utext_openUTF8(nullptr, text.data(), static_cast<std::int64_t>(text.size()), &code), utext_close);
  require_icu(code, "reader of UTF-8");
  // Breaks of any language: a dictionary is used where a script needs one.
  const std::unique_ptr<UBreakIterator, void (*)(UBreakIterator*)> words(
      ubrk_open(UBRK_WORD, "", nullptr, 0, &code), ubrk_close);
  require_icu(code, "word breaks");
  ubrk_setUText(words.get(), bytes.get(), &code);
  require_icu(code, "word breaks of this text");
  for (std::int32_t at = ubrk_first(words.get()); at != UBRK_DONE; at = ubrk_next(words.get()))
    if (at < static_cast<std::int32_t>(text.size())) breaks.push_back(at);
  return breaks;
}

}  // namespace headwise
