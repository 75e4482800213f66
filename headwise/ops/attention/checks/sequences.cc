// Checks of where sequences lie: offsets, pages and starts.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/ops/attention/checks/arg_checks.h"

namespace headwise {

void ArgChecks::check_offsets(const char* name, const AnyView& v, Index batch, Index rows,
                              Index longest) const {
  check_view(name, v, {only(DType::i64), {batch + 1}, "[batch + 1]"});
  const auto at = [&](Index i) { return static_cast<const Index*>(v.data)[i * v.step[0]]; };
  require(at(0) == 0 && at(batch) == rows, ErrorKind::bad_shape, op, name, " run from ", at(0), " to ",
          at(batch), " but must run from 0 to ", rows, ", the rows of the tensor");
  for (Index b = 0; b < batch; ++b) {
    require(at(b) <= at(b + 1), ErrorKind::bad_shape, op, name, " fall from ", at(b), " to ", at(b + 1),
            " at sequence ", b, "; offsets never fall");
    require(at(b + 1) - at(b) <= longest, ErrorKind::bad_shape, op, name, " give sequence ", b, " ",
            at(b + 1) - at(b), " tokens but the plan was made for at most ", longest,
            "; plan for these offsets");
  }
}

void ArgChecks::check_starts(const AttentionProblem& p, const AnyView& v) const {
  if (!v.given()) return;
  check_view("q_start", v, {only(DType::i64), {p.batch}, "[batch] or [1]", true});
  for (Index b = 0; b < v.size[0]; ++b) {
    const Index start = static_cast<const Index*>(v.data)[b * v.step[0]];
    require(start == kStartEnd || (-kMaxPosition <= start && start <= kMaxPosition), ErrorKind::bad_argument,
            op, "q_start is ", start, " for sequence ", b, "; positions stay inside +-2^62");
  }
}

void ArgChecks::check_sequences(const AttentionProblem& p, const AttentionArgs& a) const {
  if (p.ragged) {
    check_offsets("q_offsets", a.q_offsets, p.batch, p.q_total, p.q_tokens);
    if (p.keys != KeyForm::paged) check_offsets("kv_offsets", a.kv_offsets, p.batch, p.kv_total, p.kv_tokens);
  } else {
    require(!a.q_offsets.given() && !a.kv_offsets.given(), ErrorKind::bad_argument, op,
            "offsets are given but the plan is for a padded batch; plan a ragged one");
  }
  check_page_table(p, a);
  check_starts(p, a.q_start);
}

}  // namespace headwise
