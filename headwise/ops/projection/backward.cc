#include "headwise/ops/projection/backward.h"

#include <utility>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/gemm/column_sums.h"
#include "headwise/ops/attention/choice.h"
#include "headwise/ops/checks/in_out.h"
#include "headwise/ops/checks/matrix.h"
#include "headwise/ops/checks/view.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/products.h"
#include "headwise/ops/device/rows.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "projection_backward";

/// A gradient that is written: one place per element, apart from what is read and from the others.
void check_written(const char* name, const AnyView& v, const ProjectionGrads& a) {
  require(each_element_once(v), ErrorKind::bad_argument, kOp, name, " is ", v,
          " with steps that put several elements in one place; give each its own");
  const std::pair<const char*, const AnyView*> all[] = {{"dy", &a.dy},           {"x", &a.x},
                                                        {"weight", &a.weight},   {"dx", &a.dx},
                                                        {"dweight", &a.dweight}, {"dbias", &a.dbias}};
  for (const auto& [other, view] : all)
    require(view == &v || !may_share_bytes(v, *view), ErrorKind::bad_argument, kOp, name, " overlaps ", other,
            "; give it memory of its own");
}
void check_given(const char* name, const AnyView& v, const char* why) {
  require(v.given(), ErrorKind::bad_argument, kOp, name, " is missing; ", why, " needs it");
  check_matrix_memory(kOp, name, v);
}

}  // namespace

ProjectionBackwardProblem projection_backward_problem_of(const ProjectionGrads& a) {
  ProjectionBackwardProblem p;
  check_given("dy", a.dy, "every gradient");
  p.wants_dx = a.dx.given(), p.wants_dweight = a.dweight.given(), p.wants_dbias = a.dbias.given();
  require(p.wants_dx || p.wants_dweight || p.wants_dbias, ErrorKind::bad_argument, kOp,
          "no gradient is asked; give dx, dweight or dbias");
  const AnyView& shape = p.wants_dx ? a.weight : a.dweight;  // [out in]
  Index out = -1, in = -1;
  if (p.wants_dx || p.wants_dweight) {
    if (p.wants_dx) check_given("weight", a.weight, "dx");
    require(shape.rank == 2, ErrorKind::bad_shape, kOp, p.wants_dx ? "weight" : "dweight", " is ", shape,
            "; give [out in]");
    out = shape.size[0], in = shape.size[1];
  } else {
    out = a.dbias.count();
  }
  const Index rows = rows_of(kOp, "dy", a.dy, out);
  if (p.wants_dx) {
    check_given("dx", a.dx, "a run");
    const Index got = rows_of(kOp, "dx", a.dx, in);
    require(got == rows, ErrorKind::bad_shape, kOp, "dx is ", a.dx, ", ", got, " rows, but dy is ", a.dy,
            ", ", rows, " rows; give as many");
    check_written("dx", a.dx, a);
    p.dx = {.m = rows, .n = in, .k = out, .a = a.dy.dtype, .b = a.weight.dtype, .out = a.dx.dtype};
    p.dx.parts = a.parts;
    check_gemm_problem(kOp, p.dx);
  }
  if (p.wants_dweight) {
    check_given("x", a.x, "dweight");
    check_given("dweight", a.dweight, "a run");
    require(a.dweight.rank == 2 && a.dweight.size[0] == out && a.dweight.size[1] == in, ErrorKind::bad_shape,
            kOp, "dweight is ", a.dweight, "; give [", out, " ", in, "] as the weight");
    const Index got = rows_of(kOp, "x", a.x, in);
    require(got == rows, ErrorKind::bad_shape, kOp, "x is ", a.x, ", ", got, " rows, but dy is ", a.dy, ", ",
            rows, " rows; give as many");
    check_written("dweight", a.dweight, a);
    p.dweight = {.m = out,
                 .n = in,
                 .k = rows,
                 .a = a.dy.dtype,
                 .b = a.x.dtype,
                 .out = a.dweight.dtype,
                 .accumulate = true,
                 .parts = a.parts};
    check_gemm_problem(kOp, p.dweight);
  }
  if (p.wants_dbias) {
    check_given("dbias", a.dbias, "a run");
    require(a.dbias.rank == 1 && a.dbias.size[0] == out, ErrorKind::bad_shape, kOp, "dbias is ", a.dbias,
            "; give [", out, "], one number an output");
    check_written("dbias", a.dbias, a);
  }
  return p;
}

ProjectionBackwardPlan::ProjectionBackwardPlan(const ProjectionBackwardProblem& problem, const Context& ctx)
    : ProjectionBackwardPlan(problem, ctx.threads(), ctx.kernels()) {}

ProjectionBackwardPlan::ProjectionBackwardPlan(const ProjectionBackwardProblem& problem, int threads,
                                               std::string kernels)
    : problem_(problem), threads_(threads) {
  const Choice<GemmKernel, GemmProblem> choice{kOp, gemm_kernels()};
  if (problem_.wants_dx) dx_kernel_ = &choice.first(kernels, problem_.dx);
  if (problem_.wants_dweight) dweight_kernel_ = &choice.first(kernels, problem_.dweight);
  workspace_bytes_ = bytes_for(threads_);
}

/// The products run one after the other in the same memory.
std::size_t ProjectionBackwardPlan::bytes_for(int threads) const {
  const std::size_t a = dx_kernel_ ? dx_kernel_->workspace_bytes(problem_.dx, threads) : 0;
  const std::size_t b = dweight_kernel_ ? dweight_kernel_->workspace_bytes(problem_.dweight, threads) : 0;
  return with_room_to_align(a < b ? b : a);
}

std::string ProjectionBackwardPlan::numerics() const {
  std::string s;
  if (dx_kernel_) s += "dx: " + dx_kernel_->numerics(problem_.dx);
  if (dweight_kernel_)
    s += (s.empty() ? "" : "; ") + ("dweight: " + dweight_kernel_->numerics(problem_.dweight));
  return s;
}

void ProjectionBackwardPlan::run(const ProjectionGrads& args, Context& ctx) const {
  run(args, ctx.workspace(ctx.threads() == threads_ ? workspace_bytes_ : bytes_for(ctx.threads())),
      ctx.pool());
}

void ProjectionBackwardPlan::run(const ProjectionGrads& a, std::span<std::byte> workspace,
                                 ThreadPool& pool) const {
  require(projection_backward_problem_of(a) == problem_, ErrorKind::bad_argument, kOp, "dy is ", a.dy,
          ", but the plan is for other sizes, dtypes or gradients; make a plan for these tensors");
  const FloatEnv env;
  const bool planned = pool.threads() == threads_;
  const std::span<std::byte> memory =
      aligned_part(kOp, workspace, planned ? workspace_bytes_ : bytes_for(pool.threads()), planned);
  const Index out = problem_.wants_dx        ? problem_.dx.k
                    : problem_.wants_dweight ? problem_.dweight.m
                                             : a.dbias.size[0];
  const MatrixView dy = matrix_of(kOp, "dy", a.dy, out);
  if (problem_.wants_dx) {  // y = x W^T  ->  dx = dy W
    GemmArgs g;
    g.a = dy, g.b = matrix_of(kOp, "weight", a.weight, problem_.dx.n);
    g.out = matrix_of(kOp, "dx", a.dx, problem_.dx.n);
    dx_kernel_->run(problem_.dx, g, memory, pool);
  }
  if (problem_.wants_dweight) {  // y = x W^T  ->  dW = dy^T x
    GemmArgs g;
    g.a = dy.transposed(), g.b = matrix_of(kOp, "x", a.x, problem_.dweight.n);
    g.out = matrix_of(kOp, "dweight", a.dweight, problem_.dweight.n);
    dweight_kernel_->run(problem_.dweight, g, memory, pool);
  }
  if (problem_.wants_dbias) cpu::gemm::add_column_sums(dy, a.dbias, pool);  // y = ... + b  ->  db = sum of dy
}

namespace {

/// On a CUDA device: two products and column sums in leaves of rows counted from row 0.
void projection_backward_there(const ProjectionGrads& given, Device there, Context& ctx) {
  ProjectionGrads a = given;
  for (InputView* v : {&a.dy, &a.x, &a.weight}) *v = as_checked(*v);
  for (AnyView* v : {&a.dx, &a.dweight, &a.dbias}) *v = as_checked(*v);
  ProjectionBackwardProblem p = projection_backward_problem_of(a);
  const auto product = [&](GemmProblem problem, const GemmArgs& g) {
    problem.device = there;
    if (problem.m > 0 && problem.n > 0) CudaProductPlan(problem, ctx.kernels()).run(g, ctx.stream());
  };
  const Index out = p.wants_dx ? p.dx.k : p.wants_dweight ? p.dweight.m : a.dbias.size[0];
  const MatrixView dy = matrix_of(kOp, "dy", a.dy, out);
  if (p.wants_dx) {
    GemmArgs g;
    g.a = dy, g.b = matrix_of(kOp, "weight", a.weight, p.dx.n), g.out = matrix_of(kOp, "dx", a.dx, p.dx.n);
    product(p.dx, g);
  }
  if (p.wants_dweight) {
    GemmArgs g;
    g.a = dy.transposed(), g.b = matrix_of(kOp, "x", a.x, p.dweight.n);
    g.out = matrix_of(kOp, "dweight", a.dweight, p.dweight.n);
    product(p.dweight, g);
  }
  if (!p.wants_dbias) return;
  require(dy.rows.size <= 1 || dy.rows.inner >= dy.rows.size || dy.rows.inner <= 1, ErrorKind::unsupported,
          kOp, "dy is ", given.dy, " on ", there, " with rows that do not lie at one step; copy it");
  // Columns may lie in parts, [rows parts width]: each part is rows of its own.
  const Index width = dy.columns.size <= dy.columns.inner || dy.columns.inner <= 1 ? out : dy.columns.inner;
  for (Index first = 0; first < out; first += width) {
    AnyView part =
        AnyView::packed(static_cast<std::byte*>(dy.data) + dy.columns.at(first) * size_of(dy.dtype), dy.dtype,
                        {dy.rows.size, width});
    part.step[0] = dy.rows.size > 1 ? dy.rows.at(1) : width,
    part.step[1] = dy.columns.at(1) - dy.columns.at(0);
    start(cuda::ColumnSumTask{.x = rows_on_device(kOp, "dy", part.on(there)),
                              .sums = sums_on_device(kOp, "dbias", a.dbias.on(there)) + first,
                              .rows = dy.rows.size,
                              .columns = width},
          there, ctx.stream());
  }
}

}  // namespace

void projection_backward(const ProjectionGrads& args, Context& ctx) {
  const Device there = device_of(kOp, {{"dy", args.dy},
                                       {"x", args.x},
                                       {"weight", args.weight},
                                       {"dx", args.dx},
                                       {"dweight", args.dweight},
                                       {"dbias", args.dbias}});
  if (!there.is_cpu()) return projection_backward_there(args, there, ctx);
  ProjectionBackwardPlan(projection_backward_problem_of(args), ctx).run(args, ctx);
}

}  // namespace headwise
