#include "headwise/heads/run.h"

#include "headwise/heads/rows.h"
#include "headwise/ops/attention_backward.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "head";

Terms either(const Terms& a, const Terms& b) {
  Terms t = a;
  t.softcap |= b.softcap, t.alibi |= b.alibi, t.bias |= b.bias, t.relative |= b.relative;
  t.sinks |= b.sinks, t.dropout |= b.dropout, t.gate |= b.gate;
  return t;
}

/// What a head fills the caller leaves empty: two biases or gates would need a sum or product nobody asked
/// for.
void check_free(std::string_view head, const char* input, bool fills, const AnyView& given) {
  require(!fills || !given.given(), ErrorKind::unsupported, head, "this head fills ", input,
          " itself; leave inputs.", input, " empty");
}

void check_rows(const char* name, const AnyView& v, Index outer, Index tokens, Index columns) {
  require(v.rank == 3 && v.size[0] == outer && v.size[1] == tokens && v.size[2] == columns,
          ErrorKind::bad_shape, kOp, name, " is ", v, " but [", outer, " ", tokens, " ", columns,
          "] is needed");
}

}  // namespace

HeadRun::HeadRun(const AnyHead& head, AttentionProblem sizes, bool keep)
    : table_(&head.table()), head_(head.get()), keep_(keep) {
  const Terms terms = sizes.heads.terms;
  call.problem = sizes;
  call.problem.heads = head.spec();
  call.problem.heads.terms = either(call.problem.heads.terms, terms);
  call.problem.lse = keep;
}

void HeadRun::book(Arena& arena) {
  const AttentionProblem& p = call.problem;
  const HeadLayout& v = p.heads.v;
  AttentionArgs& a = call.run.forward;
  a.out = take(arena, "head.out", p.dtype, {call.outer(), call.q_tokens(), v.heads, v.dim});
  if (keep_)
    a.lse = take(arena, "head.lse", p.dtype == DType::f64 ? DType::f64 : DType::f32,
                 {call.outer(), p.heads.q.heads, call.q_tokens()});
  call.y = rows_of_heads(a.out);
  if (table_->book) table_->book(head_, call, work_, arena);
}

void HeadRun::forward(Context& ctx) {
  const HeadSpec spec = table_->spec(head_);
  const Widths widths = table_->widths(head_);
  AttentionArgs& a = call.run.forward;
  check_rows("q", call.q, call.outer(), call.q_tokens(), widths.q);
  check_rows("k", call.k, call.outer(), call.kv_tokens(), widths.k);
  check_rows("v", call.v, call.outer(), call.kv_tokens(), widths.v);
  check_free(table_->name, "gate", spec.terms.gate, a.inputs.gate);
  check_free(table_->name, "bias", spec.terms.bias, a.inputs.bias);
  learned_ = {};
  if (table_->bind) table_->bind(head_, a.inputs, learned_);
  if (table_->prepare) {
    a.q = a.k = a.v = {};
    table_->prepare(head_, call, work_, ctx);
  }
  if (!a.q.given() || !table_->prepare) a.q = heads_of(call.q, spec.q);
  if (!a.k.given() || !table_->prepare) a.k = heads_of(call.k, spec.k);
  if (!a.v.given() || !table_->prepare) a.v = heads_of(call.v, spec.v);
  AttentionPlan(call.problem, ctx).run(a, ctx);
  if (table_->finish) table_->finish(head_, call, work_, ctx);
}

void HeadRun::book_backward(Arena& arena) {
  require(keep_, ErrorKind::bad_argument, kOp, "this run keeps nothing for a backward; make it with keep");
  const HeadSpec spec = table_->spec(head_);
  BackwardArgs& b = call.run;
  b.dout = table_->finish ? take_like(arena, "head.dout", b.forward.out) : AnyView{};
  b.dq = b.dk = b.dv = {};
  each_pair(learned_, b, [](const char*, const AnyView&, AnyView& written) { written = {}; });
  if (table_->book_backward) table_->book_backward(head_, call, work_, arena);
  if (!table_->finish)
    b.dout = AnyView::packed(
        call.dy.data, b.forward.out.dtype,
        {b.forward.out.size[0], b.forward.out.size[1], b.forward.out.size[2], b.forward.out.size[3]});
  if (!b.dq.given()) b.dq = heads_of(call.dq, spec.q);
  if (!b.dk.given()) b.dk = heads_of(call.dk, spec.k);
  if (!b.dv.given()) b.dv = heads_of(call.dv, spec.v);
  each_pair(learned_, b, [&](const char* name, const AnyView& sum, AnyView& written) {
    if (sum.given() && !written.given()) written = take_like(arena, name, sum);
  });
}

void HeadRun::backward(Context& ctx) {
  if (table_->finish) table_->finish_backward(head_, call, work_, ctx);
  BackwardArgs& b = call.run;
  const BackwardProblem problem{call.problem, backward_problem_of(b, call.problem.heads).wants};
  BackwardPlan(problem, ctx).run(b, ctx);
  each_pair(learned_, b, [&](const char*, const AnyView& sum, const AnyView& written) {
    if (sum.given()) add_to(sum, written, ctx);
  });
  if (table_->prepare) table_->prepare_backward(head_, call, work_, ctx);
}

}  // namespace headwise
