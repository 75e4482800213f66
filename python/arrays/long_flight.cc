#include "python/arrays/long_flight.h"

namespace headwise::python {
namespace {

bool signal_raised() noexcept {
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool raised = PyErr_CheckSignals() != 0;  // what it raised stays with the thread
  PyGILState_Release(state);
  return raised;
}

/// Python handles signals on its main thread alone: others do not wait for the GIL to ask.
bool on_main_thread() {
  static const auto main_thread = nanobind::cast<unsigned long>(
      nanobind::module_::import_("threading").attr("main_thread")().attr("ident"));
  return PyThread_get_thread_ident() == main_thread;
}

}  // namespace

LongFlight::LongFlight() : watch_(on_main_thread() ? &signal_raised : nullptr) { flight_.emplace(); }

void LongFlight::end() {
  flight_.reset();
  if (watch_.happened()) nanobind::raise_python_error();
}

}  // namespace headwise::python
