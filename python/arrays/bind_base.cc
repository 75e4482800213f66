// hw.Context and the threads of default contexts.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "headwise/base/context.h"
#include "headwise/ops/attention/backend_cuda.h"
#include "headwise/ops/explain/roofline.h"
#include "python/arrays/bind.h"
#include "python/arrays/contexts.h"
#include "python/arrays/values.h"

namespace headwise::python {

void bind_base(nb::module_& m) {
  nb::class_<CallContext>(
      m, "Context",
      "Threads, workspace, plans and kernel preference of one caller. Calls on one Context take turns.")
      .def(
          "__init__",
          [](CallContext* self, nb::handle threads, nb::handle kernels, nb::handle device) {
            ContextOptions options;
            if (!threads.is_none()) {
              const Index n = read_index({"context", "threads"}, threads);
              require(n >= 1 && n <= 1024, ErrorKind::bad_argument, "context", "threads is ", n,
                      "; give a number from 1 to 1024, or None for all CPUs this process may use");
              options.threads = static_cast<int>(n);
            }
            if (!kernels.is_none()) options.kernels = read_kernels({"context", "kernels"}, kernels);
            if (!device.is_none()) options.device = read_device({"context", "device"}, device);
            new (self) CallContext(std::move(options));
          },
          nb::arg("threads") = nb::none(), nb::arg("kernels") = nb::none(), nb::arg("device") = nb::none(),
          nb::sig("def __init__(self, threads: int | None = None, kernels: str | Sequence[str] | None = "
                  "None, device: object = None) -> None"))
      .def_prop_ro(
          "threads", [](CallContext& self) { return self.engine().context.threads(); },
          "Threads of a call, the caller included.")
      .def_prop_ro(
          "kernels", [](CallContext& self) { return self.engine().context.kernels(); },
          "Allowed kernels, best first; empty: all.")
      .def_prop_ro(
          "device",
          [](CallContext& self) -> std::optional<std::string> {
            const std::optional<Device>& device = self.options().device;
            if (!device) return {};
            return device->is_cpu() ? "cpu" : text("cuda:", device->index);
          },
          "Where every tensor must lie, as in \"cuda:0\"; None: each call runs where its tensors lie.")
      .def("__repr__", [](CallContext& self) {
        const Context& c = self.engine().context;
        return text("Context(threads=", c.threads(),
                    ", kernels=", c.kernels().empty() ? "None" : "\"" + c.kernels() + "\"", ")");
      });

  m.def(
      "set_threads",
      [](nb::handle threads) {
        const Index n = threads.is_none() ? 0 : read_index({"set_threads", "threads"}, threads);
        require((n >= 1 && n <= 1024) || threads.is_none(), ErrorKind::bad_argument, "set_threads",
                "threads is ", n,
                "; give a number from 1 to 1024, or None for all CPUs this process may use");
        set_default_threads(static_cast<int>(n));
      },
      nb::arg("threads").none(), nb::sig("def set_threads(threads: int | None) -> None"),
      "Threads of calls without a Context, in every Python thread, from the next call on. None: "
      "HEADWISE_THREADS, else the\n"
      "CPUs this process may use.");
  m.def(
      "get_threads", [] { return default_context().engine().context.threads(); },
      "Threads of a call without a Context from this Python thread.");

  m.def(
      "cuda_devices", [] { return cuda_words(); },
      "The CUDA devices in one line, or \"none: ...\" with what is missing.");

  m.def(
      "measure_peak",
      [](int threads, int windows, double window_ms) {
        require(threads >= 1 && threads <= 1024 && windows >= 1 && window_ms > 0, ErrorKind::bad_argument,
                "measure_peak", "threads is ", threads, ", windows ", windows, ", window_ms ", window_ms,
                "; give threads from 1 to 1024, at least one window and a length above 0");
        const Flight without_gil;
        return measure_peak(threads, windows, window_ms / 1000);
      },
      nb::arg("threads"), nb::arg("windows") = 20, nb::arg("window_ms") = 50.0,
      "GFLOP/s of f32 multiply-adds that never leave the registers: the best of several windows. For "
      "benchmarks.");
  m.def(
      "measure_read",
      [](int threads) {
        require(threads >= 1 && threads <= 1024, ErrorKind::bad_argument, "measure_read", "threads is ",
                threads, "; give a number from 1 to 1024");
        const Flight without_gil;
        return measure_roofline(threads).read_gbytes;
      },
      nb::arg("threads"), "GB/s of reading memory once, all threads together. For benchmarks.");
}

}  // namespace headwise::python
