#include "headwise/ops/projection/projection.h"

#include <cstdint>
#include <utility>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/ops/attention/choice.h"
#include "headwise/ops/checks/in_out.h"
#include "headwise/ops/checks/matrix.h"
#include "headwise/ops/checks/view.h"
#include "headwise/ops/device/here.h"
#include "headwise/ops/device/products.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "projection";

Choice<GemmKernel, GemmProblem> choice() { return {kOp, gemm_kernels()}; }

void check_weight(const AnyView& weight) {
  require(weight.rank == 2, ErrorKind::bad_shape, kOp, "weight is ", weight, "; give [out in]");
  check_matrix_memory(kOp, "weight", weight);
}
/// A tensor of out's rows and columns; false: it is not given.
bool check_like_out(const char* name, const AnyView& v, const ProjectionArgs& args, const GemmProblem& p) {
  if (!v.given()) return false;
  check_matrix_memory(kOp, name, v);
  const Index given = rows_of(kOp, name, v, p.n);
  require(given == p.m, ErrorKind::bad_shape, kOp, name, " is ", v, ", ", given, " rows, but x has ", p.m,
          "; give as many");
  require(v.dtype != DType::f64 || p.out == DType::f64, ErrorKind::bad_dtype, kOp, name, " is ", v,
          " but out is ", args.out, "; an f64 ", name, " needs an f64 out");
  check_apart(kOp, args.out, name, v);
  return true;
}
std::byte* aligned(const Buffer& buffer) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(buffer.data()) % Arena::kAlign;
  return buffer.data() + (past ? Arena::kAlign - past : 0);
}

}  // namespace

PackedMatrix pack_matrix(const InputView& weight, DType x, Context& ctx, bool parts) {
  check_weight(weight);
  PackedMatrix r;
  r.problem_ = {
      .n = weight.size[0], .k = weight.size[1], .a = x, .b = weight.dtype, .packed = true, .parts = parts};
  check_gemm_problem("pack_matrix", r.problem_);
  r.kernel_ =
      &Choice<GemmKernel, GemmProblem>{"pack_matrix", gemm_kernels()}.first(ctx.kernels(), r.problem_);
  r.layout_ = r.kernel_->layout(r.problem_);
  r.memory_ = Buffer(with_room_to_align(r.kernel_->packed_bytes(r.problem_)));
  if (r.memory_.size() > 0)
    r.kernel_->pack(r.problem_, matrix_of("pack_matrix", "weight", weight, weight.size[1]).transposed(),
                    aligned(r.memory_), ctx.pool());
  return r;
}

ProjectionPlan::ProjectionPlan(const GemmProblem& problem, const Context& ctx)
    : ProjectionPlan(problem, ctx.threads(), ctx.kernels()) {}

ProjectionPlan::ProjectionPlan(const GemmProblem& problem, int threads, std::string kernels)
    : problem_(problem), threads_(threads), kernels_(std::move(kernels)) {
  check_gemm_problem(kOp, problem_);
  kernel_ = &choice().first(kernels_, problem_);
  workspace_bytes_ = with_room_to_align(kernel_->workspace_bytes(problem_, threads_));
}

std::vector<Refusal> ProjectionPlan::refusals() const { return choice().before(kernel_, kernels_, problem_); }

void ProjectionPlan::run(const ProjectionArgs& args, Context& ctx) const {
  const std::size_t bytes = ctx.threads() == threads_
                                ? workspace_bytes_
                                : with_room_to_align(kernel_->workspace_bytes(problem_, ctx.threads()));
  run(args, ctx.workspace(bytes), ctx.pool());
}

void ProjectionPlan::run(const ProjectionArgs& args, std::span<std::byte> workspace, ThreadPool& pool) const {
  const GemmProblem given = projection_problem_of(args, problem_.activation);
  require(given == problem_, ErrorKind::bad_argument, kOp, "x is ", args.x, " and out is ", args.out,
          ", but the plan is for ", problem_.m, " rows of ", problem_.a, ", ", problem_.k, " in, ",
          problem_.n,
          " out with the bias, residual and packing it was made with; make a plan for these tensors");
  GemmArgs g;
  g.a = matrix_of(kOp, "x", args.x, problem_.k);
  g.out = matrix_of(kOp, "out", args.out, problem_.n);
  g.bias = args.bias;
  if (problem_.residual) g.residual = matrix_of(kOp, "residual", args.residual, problem_.n);
  if (problem_.factor) g.factor = matrix_of(kOp, "factor", args.factor, problem_.n);
  if (problem_.slope) g.slope = matrix_of(kOp, "slope", args.slope, problem_.n);
  if (problem_.packed) {
    require(args.packed->kernel_ == kernel_ && args.packed->layout_ == kernel_->layout(problem_),
            ErrorKind::bad_argument, kOp, "the weight was packed for another kernel or x dtype (",
            args.packed->x(), ") than this run's; pack it again");
    g.packed = aligned(args.packed->memory_);
  } else {
    g.b = matrix_of(kOp, "weight", args.weight, problem_.k).transposed();
  }
  const FloatEnv env;
  const bool planned = pool.threads() == threads_;
  const std::size_t needed =
      planned ? workspace_bytes_ : with_room_to_align(kernel_->workspace_bytes(problem_, pool.threads()));
  kernel_->run(problem_, g, aligned_part(kOp, workspace, needed, planned), pool);
}

GemmProblem projection_problem_of(const ProjectionArgs& args, Activation activation) {
  GemmProblem p;
  require(
      args.weight.given() != (args.packed != nullptr), ErrorKind::bad_argument, kOp,
      args.packed ? "got a weight and a packed one; give one of them" : "weight is missing; give [out in]");
  if (args.packed) {
    p.n = args.packed->out(), p.k = args.packed->in(), p.b = args.packed->dtype();
  } else {
    check_weight(args.weight);
    p.n = args.weight.size[0], p.k = args.weight.size[1], p.b = args.weight.dtype;
  }
  check_matrix_memory(kOp, "x", args.x);
  check_matrix_memory(kOp, "out", args.out);
  p.m = rows_of(kOp, "x", args.x, p.k);
  const Index rows = rows_of(kOp, "out", args.out, p.n);
  require(rows == p.m, ErrorKind::bad_shape, kOp, "out is ", args.out, ", ", rows, " rows, but x is ", args.x,
          ", ", p.m, " rows; give as many");
  p.a = args.x.dtype, p.out = args.out.dtype;
  p.activation = activation, p.packed = args.packed != nullptr;
  p.parts = args.packed ? args.packed->parts() : args.parts;
  require(each_element_once(args.out), ErrorKind::bad_argument, kOp, "out is ", args.out,
          " with steps that put several elements in one place; give each its own");
  check_apart(kOp, args.out, "x", args.x);
  check_apart(kOp, args.out, "weight", args.weight);
  if (args.bias.given()) {
    check_matrix_memory(kOp, "bias", args.bias);
    require(args.bias.rank == 1 && args.bias.size[0] == p.n, ErrorKind::bad_shape, kOp, "bias is ", args.bias,
            "; give [", p.n, "], one number an output");
    check_apart(kOp, args.out, "bias", args.bias);
    p.bias = true;
  }
  p.residual = check_like_out("residual", args.residual, args, p);
  p.factor = check_like_out("factor", args.factor, args, p);
  p.slope = check_like_out("slope", args.slope, args, p);
  if (p.slope) {
    require(each_element_once(args.slope), ErrorKind::bad_argument, kOp, "slope is ", args.slope,
            " with steps that put several elements in one place; give each its own");
    const std::pair<const char*, const AnyView*> read[] = {{"x", &args.x},
                                                           {"weight", &args.weight},
                                                           {"bias", &args.bias},
                                                           {"residual", &args.residual},
                                                           {"factor", &args.factor}};
    for (const auto& [name, view] : read)
      if (view->given()) check_apart(kOp, args.slope, name, *view, "slope");
  }
  return p;
}

namespace {

/// On a CUDA device, where weights lie as they are.
void projection_there(const ProjectionArgs& given, Activation activation, Device there, Context& ctx) {
  require(given.packed == nullptr, ErrorKind::unsupported, kOp,
          "the weight is packed for the CPU but x lies on ", there, "; give the weight there as it lies");
  ProjectionArgs a = given;
  for (InputView* v : {&a.x, &a.weight, &a.bias, &a.residual, &a.factor}) *v = as_checked(*v);
  for (AnyView* v : {&a.slope, &a.out}) *v = as_checked(*v);
  GemmProblem p = projection_problem_of(a, activation);
  p.device = there;
  GemmArgs g;
  g.a = matrix_of(kOp, "x", a.x, p.k);
  g.b = matrix_of(kOp, "weight", a.weight, p.k).transposed();
  g.out = matrix_of(kOp, "out", a.out, p.n);
  g.bias = a.bias;
  if (p.residual) g.residual = matrix_of(kOp, "residual", a.residual, p.n);
  if (p.factor) g.factor = matrix_of(kOp, "factor", a.factor, p.n);
  if (p.slope) g.slope = matrix_of(kOp, "slope", a.slope, p.n);
  if (p.m > 0 && p.n > 0) CudaProductPlan(p, ctx.kernels()).run(g, ctx.stream());
}

}  // namespace

void projection(const ProjectionArgs& args, Activation activation, Context& ctx) {
  const Device there = device_of(kOp, {{"x", args.x},
                                       {"weight", args.weight},
                                       {"bias", args.bias},
                                       {"residual", args.residual},
                                       {"factor", args.factor},
                                       {"slope", args.slope},
                                       {"out", args.out}});
  if (!there.is_cpu()) return projection_there(args, activation, there, ctx);
  ProjectionPlan(projection_problem_of(args, activation), ctx).run(args, ctx);
}

std::string explain(const ProjectionPlan& plan) {
  const GemmProblem& p = plan.problem();
  std::string s =
      text("projection  ", p.m, " rows, ", p.k, " in, ", p.n, " out; x ", p.a, ", weight ", p.b,
           p.packed ? " packed" : "", ", out ", p.out, p.bias ? ", bias" : "",
           p.activation != Activation::none ? ", " : "",
           p.activation != Activation::none ? name_of(p.activation) : "", p.factor ? ", factor" : "",
           p.residual ? ", residual" : "", p.slope ? ", slope" : "", "\n");
  for (const Refusal& r : plan.refusals()) s += text("kernel      ", r.kernel, "  refused: ", r.why, "\n");
  s += text("kernel      ", plan.kernel(), "  chosen\n", "numerics    ", plan.numerics(), "\nworkspace   ",
            plan.workspace_bytes(), " bytes for ", plan.threads(),
            plan.threads() == 1 ? " thread\n" : " threads\n");
  const auto real = [](Index n) { return static_cast<double>(n); };
  const double flops = 2 * real(p.m) * real(p.n) * real(p.k);
  const double bytes = real(p.m) * real(p.k) * real(size_of(p.a)) +
                       real(p.k) * real(p.n) * real(size_of(p.b)) +
                       real(p.m) * real(p.n) * real(size_of(p.out)) *
                           (1 + (p.residual ? 1 : 0) + (p.factor ? 1 : 0) + (p.slope ? 1 : 0));
  return s + text("cost        ", flops, " FLOP, ", bytes, " bytes read and written once\n");
}

}  // namespace headwise
