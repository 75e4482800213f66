#include "headwise/ops/attention/checks/backward.h"

#include "headwise/ops/attention/checks/arg_checks.h"
#include "headwise/ops/attention/checks/overlaps.h"
#include "headwise/ops/checks/view.h"

namespace headwise {
namespace {

constexpr ArgChecks kChecks{kBackwardOp};

/// Every gradient with its name. `visit(name, view)`.
template <class Args, class F>
void each_gradient(Args& a, F&& visit) {
  for (const Gradient& g : kGradients) visit(g.name, a.*g.view);
}

/// "dq, dk, dv, ..."
std::string gradient_names() {
  std::string all;
  for (const Gradient& g : kGradients) all += (all.empty() ? "" : ", ") + std::string(g.name);
  return all;
}

/// What the forward left: out and lse come together, or the plan was made without them.
void check_saved(const AttentionProblem& p, const AttentionArgs& a) {
  if (p.lse || a.out.given()) kChecks.check_out("out", a.out, p);
  kChecks.check_lse(a.lse, p);
}

void check_gradients(const BackwardProblem& problem, const BackwardArgs& a) {
  const AttentionProblem& p = problem.forward;
  const GradientSpec& wants = problem.wants;
  const HeadInputs& in = a.forward.inputs;
  const auto asked = [](const char* name, const AnyView& v, bool wanted) {
    return kChecks.check_asked(name, v, wanted, "it");
  };
  if (asked("dq", a.dq, wants.q)) kChecks.check_heads("dq", a.dq, p, p.heads.q);
  if (asked("dk", a.dk, wants.k)) kChecks.check_heads("dk", a.dk, p, p.heads.k);
  if (asked("dv", a.dv, wants.v)) kChecks.check_heads("dv", a.dv, p, p.heads.v);
  for (const Gradient& g : kGradients) {
    if (g.term == nullptr || !asked(g.name, a.*g.view, wants.*g.wanted)) continue;
    const ScoreTerm& t = *g.term;
    const AnyView& input = in.*t.input;
    require(input.given(), ErrorKind::bad_argument, kBackwardOp, g.name, " is given but ", t.name,
            " is not; give the ", t.name, " of the forward or leave ", g.name, " empty");
    const char* axes = t.gradient_axes           ? t.gradient_axes
                       : t.of_tokens && p.ragged ? "[1 tokens heads]"
                                                 : t.axes;
    const Index* n = input.size;
    kChecks.check_view(g.name, a.*g.view, {{n[0], n[1], n[2], n[3]}, input.rank},
                       {t.wide ? kWide : kAnyFloat, {}, axes});
  }
  for (Index h = 0; wants.alpha && in.alpha.on_cpu() && h < p.heads.q.heads; ++h)
    require(load_double(in.alpha.data, in.alpha.dtype, h * in.alpha.step[0]) > 1, ErrorKind::bad_argument,
            kBackwardOp, "dalpha is asked but alpha of head ", h,
            " is 1, softmax, where its slope is not computed; learn an alpha from 1.01 on");
}

void check_overlaps(const BackwardArgs& a) {
  Overlaps all;
  each_view(a.forward, [&](const char* name, const AnyView& v, bool) { all.add(name, v, false); });
  all.add("dout", a.dout, false);
  each_gradient(a, [&](const char* name, const AnyView& v) { all.add(name, v, true); });
  all.check(kChecks);
}

}  // namespace

void refuse_probes(const ProbeOut& probe) {
  AttentionArgs only_probes;
  only_probes.probe = probe;
  each_view(only_probes, [](const char* name, const AnyView& v, bool) {
    require(!v.given(), ErrorKind::bad_argument, kBackwardOp, name,
            " is given, but probes have no gradient; leave forward.probe empty");
  });
}

void check_backward_problem(const BackwardProblem& problem) {
  const AttentionProblem& p = problem.forward;
  const GradientSpec& wants = problem.wants;
  require(is_float(p.dtype), ErrorKind::bad_dtype, kBackwardOp,
          "gradients asked of integer inputs: q, k and v are ", p.dtype, "; use f32, bf16, f16 or f64");
  require(!p.eight_bit_kv(), ErrorKind::bad_dtype, kBackwardOp, "gradients asked of 8-bit inputs: k or v is ",
          p.kv_dtype(), "; use the floats it was made of");
  require(p.keys == KeyForm::plain, ErrorKind::unsupported, kBackwardOp,
          p.keys == KeyForm::packed
              ? "keys are packed, and gradients are computed of plain ones; unpack them"
              : "keys lie in pages, and gradients are computed of tensors in one piece; gather them");
  require(!p.probe.any(), ErrorKind::bad_argument, kBackwardOp,
          "the problem asks for probes, but probes have no gradient; plan without them");
  kChecks.check_problem(p);
  require(!(wants == GradientSpec{}), ErrorKind::bad_argument, kBackwardOp,
          "no gradient is asked; give at least one of ", gradient_names());
  for (const Gradient& g : kGradients) {
    if (g.term == nullptr || !(wants.*g.wanted) || in_plan(*g.term, p.heads)) continue;
    const char* source = g.term->source ? g.term->source : g.term->name;
    require(false, ErrorKind::bad_argument, kBackwardOp, g.name, " is asked but the forward has no ", source,
            "; leave ", g.name, " out, or plan with ", source);
  }
}

void check_backward_places(const BackwardProblem& problem, const BackwardArgs& args) {
  const AttentionProblem& p = problem.forward;
  kChecks.check_places(p, args.forward);
  kChecks.check_place("dout", args.dout, p.device);
  each_gradient(args, [&](const char* name, const AnyView& v) {
    if (&v != &args.dscale || v.on_cpu() == p.device.is_cpu()) kChecks.check_place(name, v, p.device);
  });
}

BackwardArgs check_backward_args(const BackwardProblem& problem, const BackwardArgs& args) {
  const AttentionProblem& p = problem.forward;
  refuse_probes(args.forward.probe);
  check_backward_places(problem, args);
  kChecks.check_tensors(p, args.forward);
  check_saved(p, args.forward);
  kChecks.check_out("dout", args.dout, p);
  const auto check_memory = [](const char* name, const AnyView& v, bool written) {
    if (v.given()) kChecks.check_memory(name, v, written);
  };
  each_view(args.forward, [&](const char* name, const AnyView& v, bool) { check_memory(name, v, false); });
  check_memory("dout", args.dout, false);
  each_gradient(args, [&](const char* name, const AnyView& v) { check_memory(name, v, true); });

  BackwardArgs a = args;
  const auto settle = [](AnyView& v) {
    if (v.given()) v = without_idle_steps(v);
  };
  each_view(a.forward, [&](const char*, AnyView& v, bool) { settle(v); });
  settle(a.dout);
  each_gradient(a, [&](const char*, AnyView& v) { settle(v); });
  kChecks.check_sequences(p, a.forward);
  kChecks.check_inputs(p, a.forward);
  check_gradients(problem, a);
  check_overlaps(a);
  if (p.heads.terms.bias) ArgChecks::spread_bias(p, a.forward.inputs.bias);
  return a;
}

}  // namespace headwise
