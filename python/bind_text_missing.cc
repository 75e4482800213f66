// hw.TextEncoder of a build without ICU: a class that says what is missing.
#include <nanobind/nanobind.h>

#include "headwise/base/error.h"
#include "python/bind.h"

namespace headwise::python {
namespace nb = nanobind;
namespace {

struct TextEncoderMissing {};

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<TextEncoderMissing>(m, "TextEncoder")
      .def("__init__", [](TextEncoderMissing*, nb::args, nb::kwargs) {
        throw Error(ErrorKind::unsupported,
                    "text encoder: this build has no Unicode tables; install ICU (Debian: libicu-dev) and "
                    "build again");
      });
}

}  // namespace headwise::python
