#include "headwise/ops/attention_backward_checks.h"

#include "headwise/ops/attention_checks.h"
#include "headwise/ops/view_checks.h"

namespace headwise {
namespace {

constexpr ArgChecks kChecks{kBackwardOp};

/// Every gradient with its name. `visit(name, view)`.
template <class Args, class F>
void each_gradient(Args& a, F&& visit) {
  visit("dq", a.dq), visit("dk", a.dk), visit("dv", a.dv);
  visit("dbias", a.dbias), visit("dslopes", a.dslopes), visit("drelative", a.drelative);
  visit("dsinks", a.dsinks), visit("dscale", a.dscale), visit("dgate", a.dgate);
  visit("dmix_before", a.dmix_before), visit("dmix_after", a.dmix_after);
  visit("dmix_q", a.dmix_q), visit("dmix_k", a.dmix_k);
  visit("dalpha", a.dalpha);
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
  const auto like = [&](const char* name, const AnyView& v, bool wanted, const char* input_name,
                        const AnyView& input, unsigned dtypes, const char* axes) {
    if (!asked(name, v, wanted)) return;
    require(input.given(), ErrorKind::bad_argument, kBackwardOp, name, " is given but ", input_name,
            " is not; give the ", input_name, " of the forward or leave ", name, " empty");
    const Index* n = input.size;
    switch (input.rank) {
      case 1: return kChecks.check_view(name, v, {dtypes, {n[0]}, axes});
      case 2: return kChecks.check_view(name, v, {dtypes, {n[0], n[1]}, axes});
      case 3: return kChecks.check_view(name, v, {dtypes, {n[0], n[1], n[2]}, axes});
      default: return kChecks.check_view(name, v, {dtypes, {n[0], n[1], n[2], n[3]}, axes});
    }
  };
  like("dbias", a.dbias, wants.bias, "bias", in.bias, kAnyFloat, "the sizes of bias");
  like("dslopes", a.dslopes, wants.slopes, "alibi slopes", in.slopes, kAnyFloat, "[heads]");
  like("drelative", a.drelative, wants.relative, "relative table", in.relative, kAnyFloat, "[buckets heads]");
  like("dsinks", a.dsinks, wants.sinks, "sinks", in.sinks, kAnyFloat, "[heads]");
  like("dscale", a.dscale, wants.scale, "scale", in.scale, kWide, "the size of scale");
  like("dgate", a.dgate, wants.gate, "gate", in.gate, kAnyFloat,
       p.ragged ? "[1 tokens heads]" : "[batch q_tokens heads]");
  like("dmix_before", a.dmix_before, wants.mix_before, "mix_before", in.mix_before, kAnyFloat,
       "the sizes of mix_before");
  like("dmix_after", a.dmix_after, wants.mix_after, "mix_after", in.mix_after, kAnyFloat,
       "the sizes of mix_after");
  like("dmix_q", a.dmix_q, wants.mix_q, "mix_q", in.mix_q, kAnyFloat, "the sizes of mix_q");
  like("dmix_k", a.dmix_k, wants.mix_k, "mix_k", in.mix_k, kAnyFloat, "the sizes of mix_k");
  like("dalpha", a.dalpha, wants.alpha, "alpha", in.alpha, kAnyFloat, "[heads]");
  for (Index h = 0; wants.alpha && h < p.heads.q.heads; ++h)
    require(load_double(in.alpha.data, in.alpha.dtype, h * in.alpha.step[0]) > 1, ErrorKind::bad_argument,
            kBackwardOp, "dalpha is asked but alpha of head ", h,
            " is 1, softmax, where its slope is not computed; learn an alpha from 1.01 on");
}

void check_overlaps(const BackwardArgs& a) {
  each_gradient(a, [&](const char* name, const AnyView& gradient) {
    each_view(a.forward, [&](const char* read, const AnyView& v, bool) {
      kChecks.check_apart(name, gradient, read, v);
    });
    kChecks.check_apart(name, gradient, "dout", a.dout);
    each_gradient(
        a, [&](const char* other, const AnyView& v) { kChecks.check_apart(name, gradient, other, v); });
  });
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
          "no gradient is asked; give at least one of dq, dk, dv, dbias, dslopes, drelative, dsinks, dscale, "
          "dgate, dmix_before, dmix_after, dmix_q, dmix_k, dalpha");
  const auto check = [](bool wanted, bool there, const char* name, const char* input) {
    require(!wanted || there, ErrorKind::bad_argument, kBackwardOp, name, " is asked but the forward has no ",
            input, "; leave ", name, " out, or plan with ", input);
  };
  const Terms& terms = p.heads.terms;
  check(wants.bias, terms.bias, "dbias", "bias");
  check(wants.slopes, terms.alibi, "dslopes", "alibi slopes");
  check(wants.relative, terms.relative, "drelative", "relative table");
  check(wants.sinks, terms.sinks, "dsinks", "sinks");
  check(wants.gate, terms.gate, "dgate", "gate");
  check(wants.mix_before, p.heads.before != Mix::none, "dmix_before", "mix before the normalizer");
  check(wants.mix_after, p.heads.after != Mix::none, "dmix_after", "mix after the normalizer");
  check(wants.mix_q, p.heads.mix_stages() > 0, "dmix_q", "dynamic mix");
  check(wants.mix_k, p.heads.mix_stages() > 0, "dmix_k", "dynamic mix");
  check(wants.alpha, p.heads.norm == Norm::entmax, "dalpha", "alpha");
}

BackwardArgs check_backward_args(const BackwardProblem& problem, const BackwardArgs& args) {
  const AttentionProblem& p = problem.forward;
  refuse_probes(args.forward.probe);
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
  each_view(a.forward, [](const char*, AnyView& v, bool) { v = without_idle_steps(v); });
  a.dout = without_idle_steps(a.dout);
  each_gradient(a, [](const char*, AnyView& v) { v = without_idle_steps(v); });
  kChecks.check_inputs(p, a.forward);
  check_gradients(problem, a);
  check_overlaps(a);
  if (p.heads.terms.bias) ArgChecks::spread_bias(p, a.forward.inputs.bias);
  return a;
}

}  // namespace headwise
