#include "headwise/ops/attention/checks/arg_checks.h"

namespace headwise {

void ArgChecks::check_rows(const AttentionProblem& p, const AttentionArgs& a) const {
  const RowLists& rows = a.inputs.rows;
  const Index lists = p.batch * p.heads.q.heads;
  const bool asked = check_asked("rows.offsets", rows.offsets, p.heads.terms.rows, "row lists");
  check_asked("rows.index", rows.index, p.heads.terms.rows, "row lists");
  if (!asked) return;
  check_view("rows.offsets", rows.offsets, {only(DType::i64), {lists + 1}, "[batch * heads + 1]"});
  require(rows.index.given() && rows.index.rank == 1 && rows.index.dtype == DType::i64, ErrorKind::bad_shape,
          op, "rows.index is ", rows.index, " but i64 [listed] is needed, the query rows of all lists");
  if (rows.on_device()) return;  // kernels pass over rows that are not there
  const Index listed = rows.index.size[0];
  require(rows.begin(0) == 0 && rows.begin(lists) == listed, ErrorKind::bad_shape, op,
          "rows.offsets run from ", rows.begin(0), " to ", rows.begin(lists), " but must run from 0 to ",
          listed, ", the size of rows.index");
  for (Index n = 0; n < lists; ++n)
    require(rows.begin(n) <= rows.begin(n + 1), ErrorKind::bad_shape, op, "rows.offsets fall from ",
            rows.begin(n), " to ", rows.begin(n + 1), " at list ", n, "; offsets never fall");
  for (Index n = 0; n < lists; ++n) {
    const Index tokens = place_of(p, a, n / p.heads.q.heads).q_tokens;
    Index before = -1;
    for (Index i = rows.begin(n); i < rows.begin(n + 1); ++i) {
      const Index row = rows.row(i);
      require(before < row && row < tokens, ErrorKind::bad_argument, op, "rows of head ", n % p.heads.q.heads,
              " of sequence ", n / p.heads.q.heads, " have ", row, " after ", before,
              "; a list ascends and stays inside the sequence's ", tokens, " query rows");
      before = row;
    }
  }
}

void ArgChecks::check_alpha(const AttentionProblem& p, const AttentionArgs& a) const {
  const AnyView& alpha = a.inputs.alpha;
  if (!check_asked("alpha", alpha, p.heads.norm == Norm::entmax, "entmax")) return;
  check_view("alpha", alpha, {kAnyFloat, {p.heads.q.heads}, "[heads]"});
  if (!alpha.on_cpu()) return;  // its numbers cannot be read here
  for (Index h = 0; h < p.heads.q.heads; ++h) {
    const double x = load_double(alpha.data, alpha.dtype, h * alpha.step[0]);
    require(x == 1 || (x >= kLeastAlpha - 1e-6 && x <= 2), ErrorKind::bad_argument, op, "alpha of head ", h,
            " is ", x, "; give 1 (softmax) or a number from 1.01 to 2 (sparsemax)");
  }
}

}  // namespace headwise
