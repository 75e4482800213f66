// headwise.jax of a build without jaxlib's headers: it says what is missing.
#include <nanobind/nanobind.h>

#include "headwise/base/error.h"
#include "python/arrays/bind.h"

namespace headwise::python {
namespace nb = nanobind;

void bind_jax(nb::module_& m) {
  m.def("_jax_targets", []() -> nb::dict {
    throw Error(ErrorKind::unsupported,
                "headwise.jax: this build was made without jaxlib; install jax and build headwise again");
  });
}

}  // namespace headwise::python
