#include "headwise/ops/projection/leaf_sums.h"

#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/float_env.h"
#include "headwise/kernels/cpu/gemm/gemm.h"
#include "headwise/kernels/cpu/gemm/leaves.h"
#include "headwise/ops/attention/choice.h"
#include "headwise/ops/checks/in_out.h"
#include "headwise/ops/checks/matrix.h"
#include "headwise/ops/checks/view.h"
#include "headwise/ops/projection/projection.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "leaf_sums";

void check_like_out(std::string_view name, const AnyView& v, const AnyView& out) {
  if (!v.given()) return;
  check_matrix_memory(kOp, name, v);
  require(v.size[v.rank - 1] == out.size[1] && (v.rank == 1 || v.size[0] == out.size[0]),
          ErrorKind::bad_shape, kOp, name, " is ", v, " and out ", out, "; give as many columns and rows");
  check_apart(kOp, out, name, v);
}

cpu::gemm::LeafTerm term_of(const LeafTermArgs& t, const LeafSumsArgs& a) {
  for (const InputView* v : {&t.x, &t.weight}) check_matrix_memory(kOp, v == &t.x ? "x" : "weight", *v);
  require(t.x.rank == 2 && t.weight.rank == 2 && t.repeats > 0 && a.leaves % t.repeats == 0 &&
              t.x.size[1] == t.weight.size[1] * t.repeats && t.x.size[1] % a.leaves == 0 &&
              t.x.size[0] == a.out.size[0] && t.weight.size[0] == a.out.size[1],
          ErrorKind::bad_shape, kOp, "x is ", t.x, ", weight ", t.weight, " and out ", a.out, " in ",
          a.leaves,
          " leaves; give [rows in], [columns in] and [rows columns], leaves that divide in, "
          "and repeats that divide leaves");
  check_apart(kOp, a.out, "x", t.x);
  check_apart(kOp, a.out, "weight", t.weight);
  return {.a = matrix_of(kOp, "x", t.x, t.x.size[1]),
          .b = matrix_of(kOp, "weight", t.weight, t.weight.size[1]).transposed(),
          .k = t.x.size[1],
          .repeats = t.repeats};
}

}  // namespace

bool leaf_sums(const LeafSumsArgs& a, Context& ctx) {
  check_matrix_memory(kOp, "out", a.out);
  require(a.out.rank == 2 && a.leaves > 0 && each_element_once(a.out), ErrorKind::bad_shape, kOp, "out is ",
          a.out, " in ", a.leaves, " leaves; give [rows columns], one place each, and 1 leaf or more");
  check_like_out("bias", a.bias, a.out);
  check_like_out("residual", a.residual, a.out);
  std::vector<cpu::gemm::LeafTerm> terms;
  for (const LeafTermArgs& t : a.terms) terms.push_back(term_of(t, a));
  const cpu::gemm::LeafGemm g{
      .m = a.out.size[0],
      .n = a.out.size[1],
      .leaves = a.leaves,
      .terms = terms,
      .out = matrix_of(kOp, "out", a.out, a.out.size[1]),
      .residual = a.residual.given() ? matrix_of(kOp, "residual", a.residual, a.out.size[1]) : MatrixView{},
      .bias = a.bias};
  const Choice<GemmKernel, GemmProblem> choice{kOp, gemm_kernels()};
  for (const cpu::gemm::LeafTerm& t : terms)
    if (choice.first(ctx.kernels(), g.part(t, a.parts)).run != cpu::gemm::kPacked.run) return false;
  if (!takes_leaves(g, a.parts)) return false;
  const FloatEnv env;
  const std::size_t bytes = with_room_to_align(leaf_workspace_bytes(g, ctx.threads()));
  run_leaves(g, aligned_part(kOp, ctx.workspace(bytes), bytes, true), ctx.pool());
  return true;
}

}  // namespace headwise
