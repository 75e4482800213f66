// The module headwise._core.
#include <exception>

#include "headwise/base/version.h"
#include "python/arrays/bind.h"
#include "python/arrays/contexts.h"
#include "python/arrays/errors.h"
#include "python/layers/ranks.h"
#include "python/text/bind_align.h"
#include "python/text/bind_recognizer.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "headwise in C++: attention, masks, contexts.";
  m.attr("__version__") = headwise::kVersion;
  nb::set_leak_warnings(
      false);  // objects that torch keeps until the process ends are no leak, and a library prints nothing
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const headwise::Error& e) {
      PyErr_SetString(headwise::python::exception_of(e.kind()), e.what());
    }
  });
  headwise::python::watch_forks();
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&headwise::python::close_contexts));
  headwise::python::bind_base(m);
  headwise::python::bind_masks(m);
  headwise::python::bind_kv(m);
  headwise::python::bind_heads(m);
  headwise::python::bind_attention(m);
  headwise::python::bind_backward(m);
  headwise::python::bind_torch_node(m);
  headwise::python::bind_jax(m);
  headwise::python::bind_linear(m);
  headwise::python::bind_ops(m);
  headwise::python::bind_ranks(m);
  headwise::python::bind_layers(m);
  headwise::python::bind_model(m);
  headwise::python::bind_text(m);
  headwise::python::bind_decoder(m);
  headwise::python::bind_view(m);
  headwise::python::bind_align(m);
  headwise::python::bind_lab(m);
  headwise::python::bind_recognizer(m);
}
