// Choice: the kernel of a plan out of a list "a,b", why others were refused, and the memory its run is
// handed.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/base/arena.h"
#include "headwise/base/words.h"
#include "headwise/ops/attention/attention.h"

namespace headwise {

/// Does any op have a kernel of this name? One list serves all ops: each skips the names that are not its
/// own.
bool names_a_kernel(std::string_view name);

/// The kernels of one op; `op` is what the user called.
template <class Kernel, class Problem>
struct Choice {
  std::string_view op;
  std::span<const Kernel> kernels;
  Device device = {};  // kernels of other devices are passed over

  /// Calls visit(kernel) over the kernels of a list, or over all that need no naming for an empty one, until
  /// it answers true.
  template <class Visit>
  void each(std::string_view list, Visit&& visit) const {
    if (trimmed(list).empty()) {
      for (const Kernel& kernel : kernels)
        if (kernel.device == device.kind && !kernel.by_name && visit(kernel)) return;
      return;
    }
    for (bool more = true; more;) {
      const std::size_t comma = list.find(',');
      more = comma != std::string_view::npos;
      const Kernel* kernel = named(trimmed(list.substr(0, comma)));
      if (kernel && kernel->device == device.kind && visit(*kernel)) return;
      if (more) list.remove_prefix(comma + 1);
    }
  }

  /// The first kernel of the list that does not refuse; throws when there is none.
  const Kernel& first(const std::string& list, const Problem& problem) const {
    const Kernel* chosen = nullptr;
    each(list, [&](const Kernel& kernel) {
      if (!chosen && kernel.refuse(problem).empty()) chosen = &kernel;
      return false;  // read on: a misspelt name behind the chosen one is an error too
    });
    if (chosen) return *chosen;
    std::string all;
    for (const Refusal& r : before(nullptr, list, problem)) all += text("\n  ", r.kernel, ": ", r.why);
    if (all.empty()) refuse_list(list);
    if (device.is_cpu())
      throw Error(
          ErrorKind::unsupported,
          text(op, ": every kernel ", trimmed(list).empty() ? "" : text("of \"", trimmed(list), "\" "),
               "refused", all.find("\n  ref: ") == std::string::npos ? "; add ref to the list" : "", all));
    throw Error(ErrorKind::unsupported, text(op, ": every kernel for ", device,
                                             " refused; copy the tensors to the CPU for the rest", all));
  }

  /// Kernels of the list before `chosen`, each with its reason.
  std::vector<Refusal> before(const Kernel* chosen, const std::string& list, const Problem& problem) const {
    std::vector<Refusal> all;
    each(list, [&](const Kernel& kernel) {
      if (&kernel == chosen) return true;
      all.push_back({kernel.name, kernel.refuse(problem)});
      return false;
    });
    return all;
  }

 private:
  /// Nothing of the list is for this op and device.
  [[noreturn]] void refuse_list(std::string_view list) const {
    const char* last = "";
    for (const Kernel& kernel : kernels)
      if (kernel.device == device.kind && !kernel.by_name) last = kernel.name;
    bool of_op = false;
    for (const Kernel& kernel : kernels) of_op = of_op || list.find(kernel.name) != std::string_view::npos;
    if (device.is_cpu() && !of_op)
      throw Error(ErrorKind::unsupported,
                  text(op, ": \"", list, "\" holds no kernel of this op; there are: ", names()));
    throw Error(ErrorKind::unsupported,
                text(op, ": the tensors are on ", device.is_cpu() ? "the CPU" : "a CUDA device",
                     " but the list \"", list, "\" allows no kernel for it; add ", last,
                     device.is_cpu() ? "" : ", or copy the tensors to the CPU"));
  }
  std::string names() const {
    std::string known;
    for (const Kernel& kernel : kernels)
      if (kernel.device == device.kind) known += (known.empty() ? "" : ", ") + std::string(kernel.name);
    return known;
  }
  /// Null for a kernel of another op.
  const Kernel* named(std::string_view name) const {
    for (const Kernel& kernel : kernels)
      if (name == kernel.name) return &kernel;
    require(names_a_kernel(name), ErrorKind::bad_argument, op, "there is no kernel \"", name, "\"", " for ",
            device.is_cpu() ? "CPU" : "CUDA", " tensors", "; there are: ", names());
    return nullptr;
  }
};

/// A context with a device takes no tensors of another one.
inline void require_device(std::string_view op, const AnyView& q, const Context& ctx) {
  require(!ctx.device() || !q.given() || q.where() == *ctx.device(), ErrorKind::bad_argument, op,
          "q lies on ", q.where(), " but the context is for ", ctx.device().value_or(Device()),
          "; bring them together");
}
/// Runs on a CUDA device take memory and stream from elsewhere than the caller's workspace.
inline void refuse_workspace(std::string_view op, Device device) {
  require(device.is_cpu(), ErrorKind::bad_argument, op, "a workspace is given but the plan is for ", device,
          ", where a stream has its own; call run(args, context)");
}
inline void require_started(std::string_view op, Device device, const DeviceStatus& status) {
  require(status.ok(), ErrorKind::device, op, "launch ", status.launch ? status.launch : "", " on ", device,
          " failed with code ", status.code, ": ", status.words ? status.words : "");
}

/// Kernels ask for memory aligned to Arena::kAlign: callers' memory is not, so a plan asks for one step more.
inline std::size_t with_room_to_align(std::size_t bytes) { return bytes ? bytes + Arena::kAlign : 0; }

/// The part of `workspace` a kernel that asked for `needed` bytes, room to align included, may use.
inline std::span<std::byte> aligned_part(std::string_view op, std::span<std::byte> workspace,
                                         std::size_t needed, bool planned_threads) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(workspace.data()) % Arena::kAlign;
  const std::size_t skip = past ? Arena::kAlign - past : 0, used = needed ? needed - Arena::kAlign : 0;
  const std::span<std::byte> memory =
      skip <= workspace.size() ? workspace.subspan(skip) : std::span<std::byte>();
  if (memory.size() < used)
    throw Error(ErrorKind::out_of_workspace,
                text(op, ".workspace: needs ", needed, " bytes at offset 0 but the workspace has ",
                     workspace.size(), "; size it with plan.workspace_bytes()",
                     planned_threads ? "" : " of a plan made for this number of threads"));
  return memory;
}

}  // namespace headwise
