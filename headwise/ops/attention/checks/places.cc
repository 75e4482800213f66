// Checks of where tensors lie: beside q, or on the CPU for what is read there.
#include <algorithm>
#include <iterator>

#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/checks/view.h"

namespace headwise {

void ArgChecks::check_place(const char* name, const AnyView& v, Device there) const {
  if (!v.given() || v.device == there.byte()) [[likely]]
    return;
  require(false, ErrorKind::bad_argument, op, "q lies on ", there, " but ", name, " on ", v.where(),
          "; bring them together");
}

void ArgChecks::check_places(const AttentionProblem& p, const AttentionArgs& a) const {
  require(a.q.where() == p.device, ErrorKind::bad_argument, op, "q lies on ", a.q.where(),
          " but the plan is for ", p.device, "; plan for these tensors");
  const AnyView* const here[] = {&a.inputs.scale, &a.inputs.sequence_ids, &a.q_start,     &a.q_offsets,
                                 &a.kv_offsets,   &a.page_table.lengths,  &a.probe.picks, &a.probe.class_of};
  const AnyView *const offsets = &a.inputs.rows.offsets, *const index = &a.inputs.rows.index;
  each_view(a, [&](const char* name, const AnyView& v, bool) {
    if (!v.given()) return;
    if (v.on_cpu() && (p.device.is_cpu() || &v == offsets || (&v == index && offsets->on_cpu()))) return;
    if (std::find(std::begin(here), std::end(here), &v) != std::end(here)) return require_here(op, name, v);
    check_place(name, v, &v == index ? offsets->where() : p.device);
  });
}

}  // namespace headwise
