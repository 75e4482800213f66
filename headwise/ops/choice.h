// Choice: the kernel of a plan out of a list "a,b", why others were refused, and the memory its run is
// handed.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/base/arena.h"
#include "headwise/base/words.h"
#include "headwise/ops/attention.h"

namespace headwise {

/// Does any op have a kernel of this name? One list serves all ops: each skips the names that are not its
/// own.
bool names_a_kernel(std::string_view name);

/// The kernels of one op; `op` is what the user called.
template <class Kernel, class Problem>
struct Choice {
  std::string_view op;
  std::span<const Kernel> kernels;

  /// Calls visit(kernel) over the kernels of a list, or over all for an empty one, until it answers true.
  template <class Visit>
  void each(std::string_view list, Visit&& visit) const {
    if (trimmed(list).empty()) {
      for (const Kernel& kernel : kernels)
        if (visit(kernel)) return;
      return;
    }
    for (bool more = true; more;) {
      const std::size_t comma = list.find(',');
      more = comma != std::string_view::npos;
      const Kernel* kernel = named(trimmed(list.substr(0, comma)));
      if (kernel && visit(*kernel)) return;
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
    if (all.empty())
      throw Error(ErrorKind::unsupported,
                  text(op, ": \"", list, "\" holds no kernel of this op; there are: ", names()));
    const std::string_view asked = trimmed(list);
    throw Error(ErrorKind::unsupported,
                text(op, ": every kernel ", asked.empty() ? "" : text("of \"", asked, "\" "), "refused",
                     all.find("\n  ref: ") == std::string::npos ? "; add ref to the list" : "", all));
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
  std::string names() const {
    std::string known;
    for (const Kernel& kernel : kernels) known += (known.empty() ? "" : ", ") + std::string(kernel.name);
    return known;
  }
  /// Null for a kernel of another op.
  const Kernel* named(std::string_view name) const {
    for (const Kernel& kernel : kernels)
      if (name == kernel.name) return &kernel;
    require(names_a_kernel(name), ErrorKind::bad_argument, op, "there is no kernel \"", name,
            "\" for CPU tensors; there are: ", names());
    return nullptr;
  }
};

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
