#include "headwise/ops/attention.h"

#include <utility>

#include "headwise/base/arena.h"
#include "headwise/ops/attention_checks.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "attention";

const AttentionKernel& kernel_named(std::string_view name) {
  for (const AttentionKernel& kernel : attention_kernels())
    if (name == kernel.name) return kernel;
  std::string known;
  for (const AttentionKernel& kernel : attention_kernels())
    known += (known.empty() ? "" : ", ") + std::string(kernel.name);
  throw Error(ErrorKind::bad_argument, text(kOp, ": there is no kernel \"", name, "\"; there are: ", known));
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && s.front() == ' ') s.remove_prefix(1);
  while (!s.empty() && s.back() == ' ') s.remove_suffix(1);
  return s;
}

/// Calls visit(kernel) over the kernels of a list "a,b", or over all for an empty one, until it answers true.
template <class Visit>
void each_kernel(std::string_view list, Visit&& visit) {
  if (trimmed(list).empty()) {
    for (const AttentionKernel& kernel : attention_kernels())
      if (visit(kernel)) return;
    return;
  }
  for (bool more = true; more;) {
    const std::size_t comma = list.find(',');
    more = comma != std::string_view::npos;
    if (visit(kernel_named(trimmed(list.substr(0, comma))))) return;
    if (more) list.remove_prefix(comma + 1);
  }
}

/// Kernels ask for memory aligned to Arena::kAlign: callers' memory is not, so a plan asks for one step more.
std::size_t with_room_to_align(std::size_t bytes) { return bytes ? bytes + Arena::kAlign : 0; }

std::span<std::byte> aligned(std::span<std::byte> memory) {
  const std::size_t past = reinterpret_cast<std::uintptr_t>(memory.data()) % Arena::kAlign;
  const std::size_t skip = past ? Arena::kAlign - past : 0;
  return skip <= memory.size() ? memory.subspan(skip) : std::span<std::byte>();
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionProblem& problem, int threads, std::string kernels)
    : problem_(problem), threads_(threads), kernels_(std::move(kernels)) {
  check_problem(problem_);
  each_kernel(kernels_, [&](const AttentionKernel& kernel) {
    if (!kernel_ && kernel.refuse(problem_).empty()) kernel_ = &kernel;
    return false;  // read on: a misspelt name behind the chosen one is an error too
  });
  if (!kernel_) {
    std::string all;
    for (const Refusal& r : refusals()) all += text("\n  ", r.kernel, ": ", r.why);
    throw Error(ErrorKind::unsupported,
                text(kOp, ": every kernel of \"", kernels_, "\" refused; add ref to the list", all));
  }
  workspace_bytes_ = with_room_to_align(kernel_->workspace_bytes(problem_, threads_));
}

std::vector<Refusal> AttentionPlan::refusals() const {
  std::vector<Refusal> all;
  each_kernel(kernels_, [&](const AttentionKernel& kernel) {
    if (&kernel == kernel_) return true;
    all.push_back({kernel.name, kernel.refuse(problem_)});
    return false;
  });
  return all;
}

void AttentionPlan::run(const AttentionArgs& args, Context& ctx) const {
  const std::size_t bytes = ctx.threads() == threads_
                                ? workspace_bytes_
                                : with_room_to_align(kernel_->workspace_bytes(problem_, ctx.threads()));
  run(args, ctx.workspace(bytes), ctx.pool());
}

void AttentionPlan::run(const AttentionArgs& args, std::span<std::byte> workspace, ThreadPool& pool) const {
  const AttentionArgs checked = check_args(problem_, args);
  const std::size_t needed = pool.threads() == threads_
                                 ? workspace_bytes_
                                 : with_room_to_align(kernel_->workspace_bytes(problem_, pool.threads()));
  const std::span<std::byte> memory = aligned(workspace);
  const std::size_t used = needed ? needed - Arena::kAlign : 0;
  require(memory.size() >= used, ErrorKind::out_of_workspace, "attention.workspace", "needs ", needed,
          " bytes at offset 0 but the workspace has ", workspace.size(),
          "; size it with plan.workspace_bytes()",
          pool.threads() == threads_ ? "" : " of a plan made for this number of threads");
  const Status status = kernel_->run(problem_, checked, memory, pool);
  require(status == Status::ok, ErrorKind::out_of_memory, kOp, "kernel ", kernel_->name,
          " found no memory for its rows of ", problem_.kv_tokens,
          " keys; use fewer threads or smaller sizes");
}

namespace {

void check_rank(const char* name, const AnyView& v, int rank, const char* axes) {
  require(v.given(), ErrorKind::bad_argument, kOp, name, " is not given; pass it as ", axes);
  require(v.rank == rank, ErrorKind::bad_shape, kOp, name, " is ", v, " but rank ", rank, " is needed, ",
          axes);
}

/// A plain tensor's layout: its head axis, shared by division.
HeadLayout plain_layout(const char* name, const AnyView& v, Index heads) {
  check_rank(name, v, 4, "[batch tokens heads dim]");
  const Index slots = v.size[2];
  require(slots > 0 ? heads % slots == 0 : heads == 0, ErrorKind::bad_shape, kOp, "heads (", heads,
          ") must be a multiple of kv_heads (", slots, ") of ", name, "; repeat or drop heads of ", name,
          " until it is");
  return HeadLayout::grouped(heads, slots, v.size[3]);
}

/// Longest sequence of [batch + 1] offsets; check_args later checks each of them.
Index longest_of(const char* name, const AnyView& offsets) {
  require(offsets.rank == 1 && offsets.dtype == DType::i64 && offsets.size[0] >= 1 && offsets.data,
          ErrorKind::bad_shape, kOp, name, " is ", offsets, " but i64 [batch + 1] is needed");
  const auto at = [&](Index i) { return static_cast<const Index*>(offsets.data)[i * offsets.step[0]]; };
  Index longest = 0;
  for (Index b = 0; b + 1 < offsets.size[0]; ++b) {
    require(0 <= at(b) && at(b) <= at(b + 1), ErrorKind::bad_shape, kOp, name, " go from ", at(b), " to ",
            at(b + 1), " at sequence ", b, "; offsets start at 0 and never fall");
    longest = max_of(longest, at(b + 1) - at(b));
  }
  return longest;
}

}  // namespace

AttentionProblem problem_of(const AttentionArgs& args, const ProbeSpec& probe, const HeadSpec& heads) {
  AttentionProblem p;
  p.heads = heads;
  if (heads.q.heads == 0) {
    check_rank("q", args.q, 4, "[batch q_tokens heads head_dim]");
    p.heads.q = HeadLayout::split(args.q.size[2], args.q.size[3]);
  }
  const Index count = p.heads.q.heads;
  if (heads.k.heads == 0) p.heads.k = plain_layout("k", args.k, count);
  if (heads.v.heads == 0) p.heads.v = plain_layout("v", args.v, count);
  check_rank("q", args.q, p.heads.q.row > 0 ? 3 : 4,
             p.heads.q.row > 0 ? "[batch tokens row]" : "[batch tokens heads dim]");
  check_rank("k", args.k, p.heads.k.row > 0 ? 3 : 4,
             p.heads.k.row > 0 ? "[batch tokens row]" : "[batch tokens heads dim]");

  p.dtype = args.q.dtype;
  p.batch = args.q.size[0];
  p.q_tokens = args.q.size[1];
  p.kv_tokens = args.k.size[1];
  p.ragged = args.q_offsets.given() || args.kv_offsets.given();
  if (p.ragged) {
    p.q_total = p.q_tokens;
    p.kv_total = p.kv_tokens;
    p.q_tokens = longest_of("q_offsets", args.q_offsets);
    p.kv_tokens = longest_of("kv_offsets", args.kv_offsets);
    p.batch = args.q_offsets.size[0] - 1;
  }
  const HeadInputs& in = args.inputs;
  p.heads.terms = {.softcap = in.softcap != 0,
                   .alibi = in.slopes.given(),
                   .bias = in.bias.given(),
                   .relative = in.relative.given(),
                   .sinks = in.sinks.given(),
                   .dropout = in.dropout != 0,
                   .gate = in.gate.given()};
  p.lse = args.lse.given();
  p.probe = probe;
  return p;
}

void attention(const AttentionArgs& args, Context& ctx, const ProbeSpec& probe, const HeadSpec& heads) {
  AttentionPlan(problem_of(args, probe, heads), ctx).run(args, ctx);
}

}  // namespace headwise
