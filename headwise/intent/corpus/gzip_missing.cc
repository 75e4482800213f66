// unpack_gzip of a build without zlib: a sentence.
#include "headwise/base/error.h"
#include "headwise/intent/corpus/corpus.h"

namespace headwise {

std::string unpack_gzip(std::string_view, Index, std::string_view name) {
  throw Error(ErrorKind::unsupported,
              text("corpus: ", name,
                   ": is gzip, and this build has no zlib; unpack it with gunzip, or build with zlib1g-dev"));
}

}  // namespace headwise
