#include "headwise/heads/run.h"

#include "headwise/heads/sums.h"
#include "headwise/ops/attention/backward.h"
#include "headwise/ops/attention/run_facts.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "head";

/// What a head fills the caller leaves empty: two biases or gates would need a sum or product nobody asked
/// for.
void check_free(const AnyHead& head, const char* input, bool fills, const AnyView& given) {
  require(!fills || !given.given(), ErrorKind::unsupported, kOp, head.name(), " fills ", input,
          " itself; leave inputs.", input, " empty");
}

/// Heads whose own loops read numbers do so on the CPU.
void check_device(const AnyHead& head, Device device) {
  if (device.is_cpu()) return;
  for (const AnyHead::Stage& s : head.stages())
    require(s.table->on_devices, ErrorKind::unsupported, kOp, s.table->name,
            " computes beside attention on the CPU alone, but its rows lie on ", device,
            "; run it on the CPU, or take another head");
}

void check_rows(const char* name, const AnyView& v, Index outer, Index tokens, Index columns) {
  require(v.rank == 3 && v.size[0] == outer && v.size[1] == tokens && v.size[2] == columns,
          ErrorKind::bad_shape, kOp, name, " is ", v, " but [", outer, " ", tokens, " ", columns,
          "] is needed");
}

}  // namespace

HeadRun::HeadRun(const AnyHead& head, const AttentionProblem& sizes, bool keep) : head_(head), keep_(keep) {
  call.problem = sizes;
  call.problem.heads = head.spec();
  call.problem.heads.terms = either(call.problem.heads.terms, sizes.heads.terms);
  call.problem.lse = keep;
}

void HeadRun::book(Arena& arena) {
  const AttentionProblem& p = call.problem;
  const HeadLayout& v = p.heads.v;
  AttentionArgs& a = call.run.forward;
  a.out = take(arena, "head.out", p.dtype, {call.outer(), call.q_tokens(), v.heads, v.dim});
  if (keep_)
    a.lse = take(arena, "head.lse", p.dtype == DType::f64 ? DType::f64 : DType::f32,
                 {call.outer(), p.heads.normal_heads(), call.q_tokens()});
  rows_[0] = rows_of_heads(a.out);
  for (std::size_t i = 0; i < head_.stages().size(); ++i) {
    const AnyHead::Stage& s = head_.stages()[i];
    call.o = rows_[i], call.y = {};
    if (s.table->book) s.table->book(s.head.get(), call, work_[i], arena);
    finishes_[i] = call.y.given();
    rows_[i + 1] = finishes_[i] ? call.y : rows_[i];
  }
  call.y = rows_[head_.stages().size()];
}

void HeadRun::forward(Context& ctx, PlanShelf* shelf) {
  check_device(head_, call.problem.device);
  const HeadSpec spec = head_.spec();
  const Widths widths = head_.widths();
  AttentionArgs& a = call.run.forward;
  check_rows("q", call.q, call.outer(), call.q_tokens(), widths.q);
  check_rows("k", call.k, call.outer(), call.kv_tokens(), widths.k);
  check_rows("v", call.v, call.outer(), call.kv_tokens(), widths.v);
  check_free(head_, "gate", spec.terms.gate, a.inputs.gate);
  check_free(head_, "bias", spec.terms.bias, a.inputs.bias);
  a.q = a.k = a.v = {};
  HeadGrads grads;
  head_.bind(a.inputs, grads);
  for (std::size_t i = 0; i < head_.stages().size(); ++i)
    if (const AnyHead::Stage& s = head_.stages()[i]; s.table->prepare)
      s.table->prepare(s.head.get(), call, work_[i], ctx);
  if (!a.q.given()) a.q = heads_of(call.q, spec.q);
  if (!a.k.given()) a.k = heads_of(call.k, spec.k);
  if (!a.v.given()) a.v = heads_of(call.v, spec.v);
  call.problem.run = run_facts(call.problem, a);
  if (shelf)
    shelf->forward(call.problem, ctx).run(a, ctx);
  else
    AttentionPlan(call.problem, ctx).run(a, ctx);
  for (std::size_t i = 0; i < head_.stages().size(); ++i) {
    const AnyHead::Stage& s = head_.stages()[i];
    call.o = rows_[i], call.y = rows_[i + 1];
    if (finishes_[i]) s.table->finish(s.head.get(), call, work_[i], ctx);
  }
}

void HeadRun::book_backward(Arena& arena) {
  require(keep_, ErrorKind::bad_argument, kOp, "this run keeps nothing for a backward; make it with keep");
  const HeadSpec spec = head_.spec();
  BackwardArgs& b = call.run;
  b.dq = b.dk = b.dv = b.dout = {};
  HeadInputs values;
  learned_ = {};
  head_.bind(values, learned_);
  each_pair(learned_, b, [](const char*, const AnyView&, AnyView& written) { written = {}; });
  const std::size_t count = head_.stages().size();
  d_rows_[count] = call.dy;
  for (std::size_t i = count; i-- > 0;) {
    const AnyHead::Stage& s = head_.stages()[i];
    d_rows_[i] = finishes_[i] ? take_like(arena, "head.d_o", rows_[i]) : d_rows_[i + 1];
    call.d_o = d_rows_[i];
    if (s.table->book_backward) s.table->book_backward(s.head.get(), call, work_[i], arena);
  }
  const Index* n = b.forward.out.size;
  b.dout =
      AnyView::packed(d_rows_[0].data, b.forward.out.dtype, {n[0], n[1], n[2], n[3]}).on(d_rows_[0].where());
  if (!b.dq.given()) b.dq = heads_of(call.dq, spec.q);
  if (!b.dk.given()) b.dk = heads_of(call.dk, spec.k);
  if (!b.dv.given()) b.dv = heads_of(call.dv, spec.v);
  each_pair(learned_, b, [&](const char* name, const AnyView& sum, AnyView& written) {
    if (sum.given() && !written.given()) written = take_like(arena, name, sum);
  });
}

void HeadRun::backward(Context& ctx, PlanShelf* shelf) {
  BackwardArgs& b = call.run;
  const AnyView dy = call.dy;
  for (std::size_t i = head_.stages().size(); i-- > 0;) {
    const AnyHead::Stage& s = head_.stages()[i];
    call.o = rows_[i], call.y = rows_[i + 1], call.dy = d_rows_[i + 1], call.d_o = d_rows_[i];
    if (finishes_[i]) s.table->finish_backward(s.head.get(), call, work_[i], ctx);
  }
  call.dy = dy;
  call.problem.probe = {}, b.forward.probe = {};  // what was looked at has no gradient
  BackwardProblem problem{call.problem, backward_problem_of(b, call.problem.heads).wants};
  problem.forward.run = run_facts(problem, b);
  if (shelf)
    shelf->backward(problem, ctx).run(b, ctx);
  else
    BackwardPlan(problem, ctx).run(b, ctx);
  each_pair(learned_, b, [&](const char*, const AnyView& sum, const AnyView& written) {
    if (sum.given()) add_to(sum, written, ctx);
  });
  for (std::size_t i = head_.stages().size(); i-- > 0;)
    if (const AnyHead::Stage& s = head_.stages()[i]; s.table->prepare_backward)
      s.table->prepare_backward(s.head.get(), call, work_[i], ctx);
  call.y = rows_[head_.stages().size()];
}

}  // namespace headwise
