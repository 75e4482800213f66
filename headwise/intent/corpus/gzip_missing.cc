// unpack_gzip and unpack_deflate of a build without zlib: a sentence.
#include "headwise/base/error.h"
#include "headwise/intent/corpus/corpus.h"
#include "headwise/intent/corpus/workbook.h"

namespace headwise {

std::string unpack_gzip(std::string_view, Index, std::string_view name) {
  throw Error(ErrorKind::unsupported,
              text("corpus: ", name,
                   ": is gzip, and this build has no zlib; unpack it with gunzip, or build with zlib1g-dev"));
}

std::string unpack_deflate(std::string_view, std::uint32_t, Index, std::string_view name) {
  throw Error(ErrorKind::unsupported,
              text("corpus: ", name, ": is a workbook, and this build has no zlib; save the sheet as ",
                   "\"CSV UTF-8\", or build with zlib1g-dev"));
}

}  // namespace headwise
