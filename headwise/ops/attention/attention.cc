#include "headwise/ops/attention/attention.h"

#include <utility>

#include "headwise/base/context.h"
#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/attention/choice.h"
#include "headwise/ops/attention/run_facts.h"
#include "headwise/ops/checks/view.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "attention";

Choice<AttentionKernel, AttentionProblem> choice(const AttentionProblem& p) {
  return {kOp, attention_kernels(), p.device};
}

}  // namespace

AttentionProblem in_context(AttentionProblem problem, const Context& ctx, std::string_view op) {
  if (!ctx.device() || problem.device == *ctx.device()) return problem;
  require(problem.device.is_cpu(), ErrorKind::bad_argument, op, "q lies on ", problem.device,
          " but the context is for ", *ctx.device(), "; bring them together");
  problem.device = *ctx.device();
  return problem;
}

AttentionPlan::AttentionPlan(const AttentionProblem& problem, const Context& ctx)
    : AttentionPlan(in_context(problem, ctx), ctx.threads(), ctx.kernels()) {}

AttentionPlan::AttentionPlan(const AttentionProblem& problem, int threads, std::string kernels)
    : problem_(problem), threads_(threads), kernels_(std::move(kernels)) {
  check_problem(problem_);
  kernel_ = &choice(problem_).first(kernels_, problem_);
  workspace_bytes_ = with_room_to_align(kernel_->workspace_bytes(problem_, threads_));
}

std::vector<Refusal> AttentionPlan::refusals() const {
  return choice(problem_).before(kernel_, kernels_, problem_);
}

void AttentionPlan::run(const AttentionArgs& args, Context& ctx) const {
  if (kernel_->start) return start(args, ctx.stream());
  const std::size_t bytes = ctx.threads() == threads_
                                ? workspace_bytes_
                                : with_room_to_align(kernel_->workspace_bytes(problem_, ctx.threads()));
  run(args, ctx.workspace(bytes), ctx.pool());
}

void AttentionPlan::start(const AttentionArgs& args, void* stream) const {
  const AttentionArgs checked = check_args(problem_, args);
  require_planned(kOp, problem_.run, run_facts(problem_, args));
  require_started(kOp, problem_.device, kernel_->start(problem_, checked, stream));
}

void AttentionPlan::run(const AttentionArgs& args, std::span<std::byte> workspace, ThreadPool& pool) const {
  refuse_workspace(kOp, problem_.device);
  const AttentionArgs checked = check_args(problem_, args);
  const bool planned = pool.threads() == threads_;
  const std::size_t needed =
      planned ? workspace_bytes_ : with_room_to_align(kernel_->workspace_bytes(problem_, pool.threads()));
  const std::span<std::byte> memory = aligned_part(kOp, workspace, needed, planned);
  const Status status = kernel_->run(problem_, checked, memory, pool);
  require(status == Status::ok, ErrorKind::out_of_memory, kOp, "kernel ", kernel_->name,
          " found no memory for its rows of ", problem_.kv_tokens,
          " keys; use fewer threads or smaller sizes");
}

namespace {

void check_rank(std::string_view op, const char* name, const AnyView& v, int rank, const char* axes) {
  require(v.given(), ErrorKind::bad_argument, op, name, " is not given; pass it as ", axes);
  require(v.rank == rank, ErrorKind::bad_shape, op, name, " is ", v, " but rank ", rank, " is needed, ",
          axes);
}

/// A plain tensor's layout: its head axis, shared by division.
HeadLayout plain_layout(std::string_view op, const char* name, const AnyView& v, Index heads) {
  check_rank(op, name, v, 4, "[batch tokens heads dim]");
  const Index slots = v.size[2];
  require(slots > 0 ? heads % slots == 0 : heads == 0, ErrorKind::bad_shape, op, "heads (", heads,
          ") must be a multiple of kv_heads (", slots, ") of ", name, "; repeat or drop heads of ", name,
          " until it is");
  return HeadLayout::grouped(heads, slots, v.size[3]);
}

/// Longest sequence of [batch + 1] offsets; check_args later checks each of them.
Index longest_of(std::string_view op, const char* name, const AnyView& offsets) {
  require_here(op, name, offsets);
  require(offsets.rank == 1 && offsets.dtype == DType::i64 && offsets.size[0] >= 1 && offsets.data,
          ErrorKind::bad_shape, op, name, " is ", offsets, " but i64 [batch + 1] is needed");
  const auto at = [&](Index i) { return static_cast<const Index*>(offsets.data)[i * offsets.step[0]]; };
  Index longest = 0;
  for (Index b = 0; b + 1 < offsets.size[0]; ++b) {
    require(0 <= at(b) && at(b) <= at(b + 1), ErrorKind::bad_shape, op, name, " go from ", at(b), " to ",
            at(b + 1), " at sequence ", b, "; offsets start at 0 and never fall");
    longest = max_of(longest, at(b + 1) - at(b));
  }
  return longest;
}

/// The most tokens a sequence has in pages; check_args later checks each of them.
Index longest_in(std::string_view op, const AnyView& lengths) {
  require_here(op, "page lengths", lengths);
  require(lengths.rank == 1 && lengths.dtype == DType::i64 && (lengths.data || lengths.size[0] == 0),
          ErrorKind::bad_shape, op, "page lengths are ", lengths, " but i64 [batch] is needed");
  Index longest = 0;
  for (Index b = 0; b < lengths.size[0]; ++b)
    longest = max_of(longest, static_cast<const Index*>(lengths.data)[b * lengths.step[0]]);
  return longest;
}

}  // namespace

AttentionProblem problem_of(const AttentionArgs& args, const ProbeSpec& probe, const HeadSpec& heads) {
  return problem_in(kOp, args, probe, heads);
}

AttentionProblem problem_in(std::string_view op, const AttentionArgs& args, const ProbeSpec& probe,
                            const HeadSpec& heads) {
  AttentionProblem p;
  p.heads = heads;
  if (heads.q.heads == 0) {
    check_rank(op, "q", args.q, 4, "[batch q_tokens heads head_dim]");
    p.heads.q = HeadLayout::split(args.q.size[2], args.q.size[3]);
  }
  const Index count = p.heads.q.heads;
  if (args.packed.given()) p.keys = KeyForm::packed;
  if (args.page_table.given()) {
    require(!args.packed.given(), ErrorKind::bad_argument, op,
            "packed keys came with a page table; give one of both");
    p.keys = KeyForm::paged;
  }
  if (heads.k.heads == 0 && p.keys == KeyForm::packed) {
    const Index slots = args.packed.kv_heads;
    require(slots > 0 ? count % slots == 0 : count == 0, ErrorKind::bad_shape, op, "heads (", count,
            ") must be a multiple of kv_heads (", slots,
            ") of the packed keys; repeat or drop heads of q until it is");
    p.heads.k = HeadLayout::grouped(count, slots, args.packed.dim);
  } else if (heads.k.heads == 0) {
    p.heads.k = plain_layout(op, "k", args.k, count);
  }
  const Index v_heads = read_mix(op, args.inputs, p.heads);
  if (heads.v.heads == 0) p.heads.v = plain_layout(op, "v", args.v, v_heads);
  check_rank(op, "q", args.q, p.heads.q.row > 0 ? 3 : 4,
             p.heads.q.row > 0 ? "[batch tokens row]" : "[batch tokens heads dim]");
  if (p.keys == KeyForm::packed)
    check_rank(op, "k", args.k, 3, "[batch kv_heads room]");
  else
    check_rank(op, "k", args.k, p.heads.k.row > 0 ? 3 : 4,
               p.heads.k.row > 0 ? "[batch tokens row]" : "[batch tokens heads dim]");

  p.device = args.q.where();
  p.dtype = args.q.dtype;
  p.batch = args.q.size[0];
  p.q_tokens = args.q.size[1];
  p.kv_tokens = p.keys == KeyForm::packed ? args.packed.tokens : args.k.size[1];
  if (p.keys == KeyForm::paged) {
    p.pages = args.k.size[0], p.page_size = args.k.size[1];
    p.kv_tokens = longest_in(op, args.page_table.lengths);
  }
  for (const AnyView* x : {&args.v, &args.k})
    if (is_eight_bit_kv(x->dtype)) p.kv = x->dtype;
  p.ragged = args.q_offsets.given() || args.kv_offsets.given();
  if (p.ragged) {
    p.q_total = p.q_tokens;
    p.q_tokens = longest_of(op, "q_offsets", args.q_offsets);
    if (p.keys != KeyForm::paged) {
      p.kv_total = p.kv_tokens;
      p.kv_tokens = longest_of(op, "kv_offsets", args.kv_offsets);
    }
    p.batch = args.q_offsets.size[0] - 1;
  }
  const HeadInputs& in = args.inputs;
  p.heads.terms = {.rows = in.rows.given()};
  for (const ScoreTerm& t : kScoreTerms)
    if (t.planned != nullptr) p.heads.terms.*t.planned = brings(in, t);
  if (in.alpha.given()) p.heads.norm = Norm::entmax;
  p.lse = args.lse.given();
  p.probe = probe;
  p.run = run_facts(p, args);
  return p;
}

ProbeSpec probe_of(const ProbeOut& out) {
  const AnyView& top = out.top_keys.given() ? out.top_keys : out.top_weights;
  return {.rows = out.any_row(),
          .top_k = top.given() ? top.size[3] : 0,
          .classes = out.class_mass.given() ? out.class_mass.size[3] : 0,
          .columns = out.column_sums.given(),
          .picked = out.picks.given() ? out.picks.size[0] : 0};
}

void attention(const AttentionArgs& args, Context& ctx, const ProbeSpec& probe, const HeadSpec& heads) {
  require_device(kOp, args.q, ctx);
  const AttentionProblem problem = problem_of(args, probe, heads);
  if (!problem.device.is_cpu()) ArgChecks{kOp}.check_places(problem, args);  // before its kernels are asked
  AttentionPlan(problem, ctx).run(args, ctx);
}

}  // namespace headwise
