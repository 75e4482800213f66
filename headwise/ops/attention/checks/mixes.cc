#include "headwise/ops/attention/checks/arg_checks.h"

namespace headwise {

Index read_mix(std::string_view op, const HeadInputs& in, HeadSpec& heads) {
  if (!heads.mixes()) {
    const bool dynamic = in.mix_q.given() || in.mix_k.given();
    const Mix kind = dynamic ? Mix::dynamic : Mix::fixed;
    if (dynamic || in.mix_before.given()) heads.before = kind;
    if (dynamic || in.mix_after.given()) heads.after = kind;
    if (dynamic) {
      const AnyView& v = in.mix_q.given() ? in.mix_q : in.mix_k;
      const char* name = in.mix_q.given() ? "mix_q" : "mix_k";
      require(v.rank == 4 && v.size[2] % 4 == 2, ErrorKind::bad_shape, op, name, " is ", v,
              " but [batch tokens 2*(2*rank+1) heads] is needed, coefficients before and after the "
              "normalizer; name a single dynamic mix in the head spec");
      heads.mix_rank = (v.size[2] / 2 - 1) / 2;
    }
  }
  require(in.mix_before.rank != 2 || in.mix_before.size[0] == heads.q.heads, ErrorKind::bad_shape, op,
          "mix_before is ", in.mix_before, " but q has ", heads.q.heads, " heads; give [q_heads heads]");
  const auto columns = [](const AnyView& v, Index otherwise) { return v.rank == 2 ? v.size[1] : otherwise; };
  if (heads.before == Mix::fixed && heads.heads == 0) heads.heads = columns(in.mix_before, heads.q.heads);
  return heads.after == Mix::fixed ? columns(in.mix_after, heads.normal_heads()) : heads.normal_heads();
}

void ArgChecks::check_mix(const AttentionProblem& p) const {
  const HeadSpec& h = p.heads;
  const Index heads = h.normal_heads();
  require(0 <= h.heads && h.heads <= kMaxPosition, ErrorKind::bad_shape, op, "the head spec has ", h.heads,
          " heads between the mixes; it runs from 0 (as many as q) to 2^62");
  require(h.before == Mix::fixed || heads == h.q.heads, ErrorKind::bad_shape, op, "q has ", h.q.heads,
          " heads but ", heads,
          " are normalized; only a fixed mix before the normalizer changes their number");
  require(!h.mixes() || h.after == Mix::fixed || heads == h.v.heads, ErrorKind::bad_shape, op, "v has ",
          h.v.heads, " heads but ", heads,
          " are normalized; only a fixed mix after the normalizer changes their number");
  require(h.mix_rank == 0 || h.mix_stages() > 0, ErrorKind::bad_argument, op, "mix_rank is ", h.mix_rank,
          " but no mix is dynamic; leave it 0");
  require(0 <= h.mix_rank && h.mix_rank <= kMaxWidth, ErrorKind::bad_argument, op, "mix_rank is ", h.mix_rank,
          "; it runs from 0 to 2^31");
  require(!h.mixes() || !p.probe.any(), ErrorKind::unsupported, op,
          "heads are mixed, so that no head has weights of its own to show; leave out probe and weights");
  const Checked mixed = Checked(max_of(p.batch, 1)) *
                        Checked(max_of(max_of(p.ragged ? max_of(p.q_total, p.kv_total) : 1, 1),
                                       max_of(p.q_tokens, p.kv_tokens))) *
                        (Checked(h.mix_rows()) + Checked(max_of(h.v.dim, 1))) *
                        Checked(max_of(heads, h.v.heads)) * Checked(8);
  require(!h.mixes() || mixed.ok, ErrorKind::bad_shape, op, "mixing ", heads, " heads at rank ", h.mix_rank,
          " reaches past 2^63 bytes; use smaller sizes");
}

void ArgChecks::check_mix_inputs(const AttentionProblem& p, const HeadInputs& in) const {
  const HeadSpec& h = p.heads;
  const Index heads = h.normal_heads(), batch = p.ragged ? 1 : p.batch;
  const auto matrix = [&](const char* name, const AnyView& v, Mix kind, Index from, Index to,
                          const char* axes) {
    if (!check_asked(name, v, kind != Mix::none, "this mix")) return;
    if (kind == Mix::fixed || v.given()) check_view(name, v, {kAnyFloat, {from, to}, axes});
  };
  matrix("mix_before", in.mix_before, h.before, h.q.heads, heads, "[q_heads heads]");
  matrix("mix_after", in.mix_after, h.after, heads, h.v.heads, "[heads v_heads]");
  const auto coefficients = [&](const char* name, const AnyView& v, Index rows, const char* axes) {
    if (check_asked(name, v, h.mix_stages() > 0, "a dynamic mix") && v.given())
      check_view(name, v, {kAnyFloat, {batch, rows, h.mix_rows(), heads}, axes});
  };
  coefficients("mix_q", in.mix_q, p.ragged ? p.q_total : p.q_tokens,
               "[batch q_tokens mixes*(2*rank+1) heads]");
  coefficients("mix_k", in.mix_k, p.ragged ? p.kv_total : p.kv_tokens,
               "[batch kv_tokens mixes*(2*rank+1) heads]");
}

}  // namespace headwise
