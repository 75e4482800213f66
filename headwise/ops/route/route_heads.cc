#include "headwise/ops/route/route_heads.h"

#include "headwise/ops/checks/view.h"
#include "headwise/ops/route/token.h"

namespace headwise {
namespace routing {

void check_options(std::string_view op, const RouteOptions& o) {
  require(o.heads >= 1 && o.shared >= 0 && o.shared <= o.heads, ErrorKind::bad_argument, op, o.shared, " of ",
          o.heads, " heads are shared; shared heads run from 0 to all");
  require(o.chosen >= 0 && o.chosen <= o.routed(), ErrorKind::bad_argument, op, "a token chooses ", o.chosen,
          " heads but only ", o.routed(), " of ", o.heads, " are routed; choose at most these");
  require(o.shared + o.chosen >= 1, ErrorKind::bad_argument, op,
          "no head is shared and none is chosen; a token needs one head at least");
}

void check_rows(std::string_view op, const TokenRows& r, const AnyView& like, bool written) {
  const ArgChecks checks{op};
  const Index batch = like.rank >= 2 ? like.size[0] : 0, tokens = like.rank >= 2 ? like.size[1] : 0;
  checks.check_view(r.name, r.view,
                    {r.integers ? only(DType::i64) : kAnyFloat, {batch, tokens, r.columns}, r.axes});
  require_here(op, r.name, r.view);
  checks.check_memory(r.name, r.view, written);
}

void check_chosen(std::string_view op, const RouteOptions& o, const AnyView& chosen) {
  for (Index b = 0; b < chosen.size[0]; ++b)
    for (Index t = 0; t < chosen.size[1]; ++t)
      for (Index i = 0; i < o.chosen; ++i) {
        const Index head = chosen_at(chosen, b, t, i),
                    before = i > 0 ? chosen_at(chosen, b, t, i - 1) : o.shared - 1;
        require(before < head && head < o.heads, ErrorKind::bad_argument, op, "chosen names head ", head,
                " after ", before, " for token ", t, " of sequence ", b, "; routed heads run from ", o.shared,
                " to ", o.heads - 1, ", ascending");
      }
}

namespace {

constexpr double kLeastSum = 1e-9;  // of chosen scores, before they are divided by it

/// What every token of a call is checked for.
void check_args(std::string_view op, const RouteOptions& o, const RouteArgs& a, bool writes) {
  check_options(op, o);
  if (o.weighs_shared())
    check_rows(op, {"shared", a.shared, o.shared, "[batch tokens shared]"}, a.gate, false);
  check_rows(op, {"routed", a.routed, o.routed(), "[batch tokens routed]"}, a.gate, false);
  if (o.has_stages()) check_rows(op, {"stages", a.stages, 2, "[batch tokens 2]"}, a.gate, false);
  check_rows(op, {"chosen", a.chosen, o.chosen, "[batch tokens chosen]", true}, a.gate, writes);
}

/// The scores of one token.
struct Scores {
  double *shared, *routed, *mark;
  double stage[2] = {1, 1};
  double of_shared = 1, of_routed = 1, of_stage = 1;  // factors of the named convention
  double sum = 1;                                     // of chosen scores
  static Index doubles(const RouteOptions& o) { return 4 * o.heads + 4; }

  Scores(const RouteOptions& o, const RouteArgs& a, Index b, Index t, double* memory)
      : shared(memory), routed(memory + o.heads), mark(memory + 2 * o.heads) {
    const bool code = o.score == RouteScore::code;
    if (o.weighs_shared())
      load_softmax(a.shared, b, t, o.shared, shared);
    else if (o.shared == 1)
      shared[0] = 1;
    load_softmax(a.routed, b, t, o.routed(), routed);
    if (o.has_stages()) load_softmax(a.stages, b, t, 2, stage);
    if (code) {
      of_shared = static_cast<double>(o.shared), of_routed = static_cast<double>(o.chosen);
      of_stage = o.has_stages() ? 2 : 1;
    }
  }
  void add_up(const RouteOptions& o) {
    if (o.score == RouteScore::paper) return;
    sum = 0;
    for (Index h = 0; h < o.routed(); ++h) sum += mark[h] * routed[h];
    divides = !(sum < kLeastSum);
    if (!divides) sum = kLeastSum;
  }
  bool divides = true;  // else the sum was too small to divide by
  double shared_gate(Index h) const { return of_stage * stage[0] * of_shared * shared[h]; }
  double routed_gate(Index h) const {
    return mark[h] == 0 ? 0.0 : of_stage * stage[1] * of_routed * routed[h] / sum;
  }
};

}  // namespace
}  // namespace routing

using namespace routing;

void route_heads(const RouteOptions& o, const RouteArgs& a, Context& ctx) {
  constexpr std::string_view kOp = "route_heads";
  check_rows(kOp, {"gate", a.gate, o.heads, "[batch tokens heads]"}, a.routed, true);
  check_args(kOp, o, a, true);
  for (const AnyView* out : {&a.gate, &a.chosen})
    for (const AnyView* in : {&a.shared, &a.routed, &a.stages})
      ArgChecks{kOp}.check_apart(out == &a.gate ? "gate" : "chosen", *out, "logits", *in);
  each_token(a.gate, Scores::doubles(o), ctx, [&](Index b, Index t, double* memory) {
    Scores s(o, a, b, t, memory);
    double* logits = memory + 3 * o.heads;  // choices go by logits: two that round to one score stay apart
    for (Index h = 0; h < o.routed(); ++h) logits[h] = get(a.routed, b, t, h);
    mark_largest(logits, o.routed(), o.chosen, s.mark);
    s.add_up(o);
    for (Index h = 0; h < o.shared; ++h) put(a.gate, b, t, h, s.shared_gate(h));
    Index n = 0;
    for (Index h = 0; h < o.routed(); ++h) {
      put(a.gate, b, t, o.shared + h, s.routed_gate(h));
      if (s.mark[h] != 0)
        static_cast<Index*>(
            a.chosen.data)[b * a.chosen.step[0] + t * a.chosen.step[1] + n++ * a.chosen.step[2]] =
            o.shared + h;
    }
  });
}

void route_heads_backward(const RouteOptions& o, const RouteArgs& args, const RouteGrads& g, Context& ctx) {
  constexpr std::string_view kOp = "route_heads_backward";
  RouteArgs a = args;
  a.gate = g.dgate;
  check_rows(kOp, {"dgate", g.dgate, o.heads, "[batch tokens heads]"}, a.routed, false);
  check_args(kOp, o, a, false);
  check_chosen(kOp, o, a.chosen);
  if (g.dshared.given())
    check_rows(kOp, {"dshared", g.dshared, o.shared, "[batch tokens shared]"}, g.dgate, true);
  if (g.drouted.given())
    check_rows(kOp, {"drouted", g.drouted, o.routed(), "[batch tokens routed]"}, g.dgate, true);
  if (g.dstages.given()) check_rows(kOp, {"dstages", g.dstages, 2, "[batch tokens 2]"}, g.dgate, true);
  each_token(g.dgate, Scores::doubles(o), ctx, [&](Index b, Index t, double* memory) {
    Scores s(o, a, b, t, memory);
    for (Index h = 0; h < o.routed(); ++h) s.mark[h] = 0;
    for (Index i = 0; i < o.chosen; ++i) s.mark[chosen_at(a.chosen, b, t, i) - o.shared] = 1;
    s.add_up(o);
    double* d = memory + 3 * o.heads;
    // g = a_1 (shared s): ds = a_1 shared dg, da_1 = shared s . dg; likewise for routed heads
    double dstage[2] = {0, 0};
    for (Index h = 0; h < o.shared; ++h) {
      const double dg = get(g.dgate, b, t, h);
      d[h] = s.of_stage * s.stage[0] * s.of_shared * dg;
      dstage[0] += s.of_stage * s.of_shared * s.shared[h] * dg;
    }
    softmax_backward(s.shared, d, o.shared);
    for (Index h = 0; h < o.shared && g.dshared.given(); ++h) put(g.dshared, b, t, h, d[h]);
    // g = a_2 k r / S over chosen heads, S = sum r: dr_h = a_2 k / S (dg_h - sum_j dg_j r_j / S)
    double mean = 0;
    for (Index h = 0; h < o.routed(); ++h) {
      d[h] = s.mark[h] == 0 ? 0.0 : get(g.dgate, b, t, o.shared + h);
      mean += d[h] * s.routed[h] / s.sum;
    }
    dstage[1] = s.of_stage * s.of_routed * mean;
    if (o.score == RouteScore::paper || !s.divides) mean = 0;
    for (Index h = 0; h < o.routed(); ++h)
      if (s.mark[h] != 0) d[h] = s.of_stage * s.stage[1] * s.of_routed / s.sum * (d[h] - mean);
    softmax_backward(s.routed, d, o.routed());
    for (Index h = 0; h < o.routed() && g.drouted.given(); ++h) put(g.drouted, b, t, h, d[h]);
    if (!g.dstages.given()) return;
    if (o.has_stages())
      softmax_backward(s.stage, dstage, 2);
    else
      dstage[0] = dstage[1] = 0;
    for (Index i = 0; i < 2; ++i) put(g.dstages, b, t, i, dstage[i]);
  });
}

void list_rows(const RouteOptions& o, const InputView& chosen, const InputView& q_offsets,
               const RowLists& lists) {
  constexpr std::string_view kOp = "list_rows";
  const ArgChecks checks{kOp};
  check_options(kOp, o);
  check_rows(kOp, {"chosen", chosen, o.chosen, "[batch tokens chosen]", true}, chosen, false);
  check_chosen(kOp, o, chosen);
  const bool ragged = q_offsets.given();
  const Index tokens = chosen.size[1], rows = chosen.size[0] * tokens;
  require(!ragged || (chosen.size[0] == 1 && q_offsets.rank == 1 && q_offsets.dtype == DType::i64 &&
                      q_offsets.size[0] >= 1),
          ErrorKind::bad_shape, kOp, "q_offsets is ", q_offsets, " and chosen is ", chosen,
          " but ragged batches need i64 [batch + 1] and [1 tokens chosen]");
  const Index batch = ragged ? q_offsets.size[0] - 1 : chosen.size[0];
  const auto start = [&](Index b) {
    return ragged ? static_cast<const Index*>(q_offsets.data)[b * q_offsets.step[0]] : b * tokens;
  };
  for (Index b = 0; b < batch; ++b)
    require(0 <= start(b) && start(b) <= start(b + 1), ErrorKind::bad_shape, kOp, "q_offsets go from ",
            start(b), " to ", start(b + 1), " at sequence ", b, "; offsets start at 0 and never fall");
  require(start(0) == 0 && start(batch) == rows, ErrorKind::bad_shape, kOp, "q_offsets run from ", start(0),
          " to ", start(batch), " but must run from 0 to ", rows, ", the tokens of chosen");
  checks.check_view("offsets", lists.offsets,
                    {only(DType::i64), {batch * o.heads + 1}, "[batch * heads + 1]"});
  checks.check_view("index", lists.index,
                    {only(DType::i64), {listed_rows(o, rows)}, "[tokens * (shared + chosen)]"});
  checks.check_memory("offsets", lists.offsets, true), checks.check_memory("index", lists.index, true);
  const auto offset = [&](Index n) -> Index& {
    return static_cast<Index*>(lists.offsets.data)[n * lists.offsets.step[0]];
  };
  // Count, add up, fill: offsets[n + 1] stands for the end of list n while it grows.
  const auto each = [&](auto&& f) {
    for (Index b = 0; b < batch; ++b)
      for (Index row = start(b); row < start(b + 1); ++row) {
        for (Index h = 0; h < o.shared; ++h) f(b * o.heads + h, row - start(b));
        for (Index i = 0; i < o.chosen; ++i)
          f(b * o.heads + chosen_at(chosen, ragged ? 0 : b, ragged ? row : row - start(b), i),
            row - start(b));
      }
  };
  for (Index n = 0; n <= batch * o.heads; ++n) offset(n) = 0;
  each([&](Index list, Index) {
    if (list + 2 <= batch * o.heads) ++offset(list + 2);
  });
  for (Index n = 2; n <= batch * o.heads; ++n) offset(n) += offset(n - 1);
  each([&](Index list, Index row) {
    static_cast<Index*>(lists.index.data)[offset(list + 1)++ * lists.index.step[0]] = row;
  });
}

}  // namespace headwise
