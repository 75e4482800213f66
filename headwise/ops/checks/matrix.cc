#include "headwise/ops/checks/matrix.h"

#include "headwise/ops/checks/in_out.h"

namespace headwise {
namespace {

/// Axes begin..end of v as one, in two levels at most; false when they need more.
bool join(const AnyView& v, int begin, int end, MatrixAxis& axis) {
  Index size[kMaxRank], step[kMaxRank];
  int levels = 0;
  axis = {};
  axis.size = 1;
  for (int i = begin; i < end; ++i) axis.size *= v.size[i];
  if (axis.size == 0) return true;
  for (int i = begin; i < end; ++i) {
    if (v.size[i] == 1) continue;
    if (levels > 0 && step[levels - 1] == v.size[i] * v.step[i]) {
      size[levels - 1] *= v.size[i], step[levels - 1] = v.step[i];
      continue;
    }
    if (levels == 2) return false;
    size[levels] = v.size[i], step[levels++] = v.step[i];
  }
  if (levels > 0) axis.inner = size[levels - 1], axis.step = step[levels - 1];
  if (levels == 2) axis.outer_step = step[0];
  return true;
}

/// Where the columns begin, or -1.
int first_column(const AnyView& v, Index columns) {
  if (v.rank >= 1 && v.size[v.rank - 1] == columns) return v.rank - 1;
  if (v.rank < 2) return -1;
  const Checked two = Checked(v.size[v.rank - 2]) * Checked(v.size[v.rank - 1]);
  return two.ok && two.value == columns ? v.rank - 2 : -1;
}

}  // namespace

void check_gemm_problem(std::string_view op, const GemmProblem& p) {
  require(p.m >= 0 && p.n >= 0 && p.k >= 0, ErrorKind::bad_shape, op, "got ", p.m, " rows, ", p.k, " in and ",
          p.n, " out; sizes start at 0");
  for (const DType t : {p.a, p.b, p.out})
    require(is_float(t), ErrorKind::bad_dtype, op, "got ", t, "; give f32, bf16, f16 or f64");
  const Checked most = Checked(max_of(p.m, 1)) * Checked(max_of(p.n, 1)) * Checked(8);
  const Checked sides = Checked(max_of(p.m, p.n)) * Checked(max_of(p.k, 1)) * Checked(8);
  require(most.ok && sides.ok, ErrorKind::bad_shape, op, "got ", p.m, " rows, ", p.k, " in and ", p.n,
          " out, which no memory holds; use smaller sizes");
}

void check_matrix_memory(std::string_view op, std::string_view name, const AnyView& v) {
  require(is_float(v.dtype), ErrorKind::bad_dtype, op, name, " is ", v, "; give f32, bf16, f16 or f64");
  check_memory(op, name, v);
}

Index rows_of(std::string_view op, std::string_view name, const AnyView& v, Index columns) {
  const int at = first_column(v, columns);
  require(at >= 0, ErrorKind::bad_shape, op, name, " is ", v,
          " but its last axis, or its last two multiplied, must be ", columns);
  Checked rows(1);
  for (int axis = 0; axis < at; ++axis) rows = rows * Checked(v.size[axis]);
  require(rows.ok, ErrorKind::bad_shape, op, name, " is ", v, ", which no memory holds; use smaller sizes");
  return rows.value;
}

MatrixView matrix_of(std::string_view op, std::string_view name, const AnyView& v, Index columns) {
  rows_of(op, name, v, columns);
  const int at = first_column(v, columns);
  MatrixView m;
  m.data = v.data, m.dtype = v.dtype;
  require(join(v, 0, at, m.rows) && join(v, at, v.rank, m.columns), ErrorKind::unsupported, op, name, " is ",
          v, " with three axes of rows whose steps do not join; copy it to fewer axes first");
  return m;
}

}  // namespace headwise
