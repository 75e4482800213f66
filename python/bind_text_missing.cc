// hw.TextEncoder and hw.Decoder of a build without ICU: classes that say what is missing.
#include <nanobind/nanobind.h>

#include "headwise/base/error.h"
#include "python/bind.h"

namespace headwise::python {
namespace nb = nanobind;
namespace {

struct TextEncoderMissing {};
struct DecoderMissing {};

[[noreturn]] void refuse(const char* op) {
  throw Error(ErrorKind::unsupported, text(op,
                                           ": this build has no Unicode tables; install ICU (Debian: "
                                           "libicu-dev) and build again"));
}

}  // namespace

void bind_text(nb::module_& m) {
  nb::class_<TextEncoderMissing>(m, "TextEncoder")
      .def("__init__", [](TextEncoderMissing*, nb::args, nb::kwargs) { refuse("text encoder"); });
}

void bind_decoder(nb::module_& m) {
  nb::class_<DecoderMissing>(m, "DecoderCore").def("__init__", [](DecoderMissing*, nb::args, nb::kwargs) {
    refuse("decoder");
  });
}

}  // namespace headwise::python
