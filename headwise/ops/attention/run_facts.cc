#include "headwise/ops/attention/run_facts.h"

#include <cmath>

#include "headwise/kernels/cuda/inputs/copies.h"
#include "headwise/kernels/cuda/inputs/mask_arrays.h"
#include "headwise/kernels/cuda/inputs/places.h"
#include "headwise/ops/checks/view.h"

namespace headwise {
namespace {

bool holds_numbers(const AnyView& v, DType dtype, Index count) {
  return v.on_cpu() && v.dtype == dtype && v.rank == 1 && v.size[0] == count && (v.data || count == 0);
}
/// What places and masks are made of is as long as the batch; what is not, the checks of the run refuse.
bool is_readable(const AttentionProblem& p, const AttentionArgs& a) {
  if (a.q_start.given() && !holds_numbers(a.q_start, DType::i64, 1) &&
      !holds_numbers(a.q_start, DType::i64, p.batch))
    return false;
  for (const AnyView* offsets : {&a.q_offsets, p.keys == KeyForm::paged ? &a.q_offsets : &a.kv_offsets})
    if (p.ragged && !holds_numbers(*offsets, DType::i64, p.batch + 1)) return false;
  if (p.keys == KeyForm::paged && !holds_numbers(a.page_table.lengths, DType::i64, p.batch)) return false;
  for (Index n = 0; n < a.mask.count; ++n)
    for (int i = 0; i < min_of(a.mask.views[n].count, MaskView::kMaxSteps); ++i) {
      const MaskStep& s = a.mask.views[n].steps[i];
      if (s.op == MaskOp::lengths && s.n != p.batch) return false;
    }
  return true;
}

void read_scale(const AnyView& scale, RunFacts& f) {
  if (!scale.given()) return;
  f.scales = scale.size[0] == 1 ? 1 : 2;
  if (!scale.on_cpu() || !scale.data || !is_float(scale.dtype) || scale.size[0] != 1) return;
  const double x = load_double(scale.data, scale.dtype, 0);
  f.large_scale = !(std::fabs(x) < 1e4), f.no_positive_scale = x <= 0;
}

void read_mask(const AttentionProblem& p, const AttentionArgs& a, RunFacts& f) {
  cuda::Band band;
  f.mask = static_cast<std::uint8_t>(cuda::read_band(a.mask, 0, band));
  f.mask_bytes = static_cast<Index>(cuda::mask_bytes(p, a.mask));
  f.apart = !cuda::alike(p, a, band);
  if (band.documents) f.pieces = cuda::pieces_of(band);
  if (band.blocks) f.block_rows = band.blocks->n, f.block_keys = band.blocks->b;
  for (Index b = 0; b < p.batch && !f.far; ++b) {
    cuda::Place place;
    f.far = !cuda::place_for(p, a, b, 0, {}, place);
    if (cuda::alike(p, a, {})) break;
  }
}

std::uint8_t unfit(const AnyView& v) {
  return v.given() && v.data ? static_cast<std::uint8_t>(cuda::copy_need(without_idle_steps(v))) : 0;
}

}  // namespace

RunFacts run_facts(const AttentionProblem& p, const AttentionArgs& a) {
  RunFacts f;
  if (p.device.is_cpu()) return f;
  const HeadInputs& in = a.inputs;
  f.unfit[RunFacts::q] = unfit(a.q), f.unfit[RunFacts::k] = unfit(a.k);
  f.unfit[RunFacts::v] = unfit(a.v), f.unfit[RunFacts::out] = unfit(a.out);
  f.wide_bias = in.bias.given() && in.bias.dtype == DType::f64;
  f.listed_there = in.rows.given() && in.rows.on_device();
  if (p.heads.terms.relative) f.buckets = in.buckets.buckets, f.max_distance = in.buckets.max_distance;
  if (const AnyView& table = a.page_table.table; p.keys == KeyForm::paged && table.rank == 2)
    f.large_table = p.batch * table.step[0] + table.size[1] * table.step[1] > cuda::kFar;
  // cuda/hopper has tanh to 1e-7 of the cap: past this a score of 1 would keep fewer digits than bf16 has.
  f.large_softcap = in.softcap > 4096;
  read_scale(in.scale, f);
  if (is_readable(p, a)) read_mask(p, a, f);
  return f;
}

RunFacts run_facts(const BackwardProblem& problem, const BackwardArgs& a) {
  const AttentionProblem& p = problem.forward;
  RunFacts f = run_facts(p, a.forward);
  if (p.device.is_cpu()) return f;
  f.unfit[RunFacts::dout] = unfit(a.dout), f.unfit[RunFacts::dq] = unfit(a.dq);
  f.unfit[RunFacts::dk] = unfit(a.dk), f.unfit[RunFacts::dv] = unfit(a.dv);
  if (!f.far && is_readable(p, a.forward)) {
    const cuda::Padded rows = cuda::padded_of(p, a.forward);
    f.padded_q = rows.q, f.padded_kv = rows.kv;
  }
  return f;
}

void require_planned(std::string_view op, const RunFacts& planned, const RunFacts& run) {
  if (planned == run) [[likely]]
    return;
  constexpr const char* kViews[] = {"q", "k", "v", "out", "dout", "dq", "dk", "dv"};
  const char* part = "mask, start or offsets";
  if (planned.scales != run.scales || planned.large_scale != run.large_scale ||
      planned.no_positive_scale != run.no_positive_scale)
    part = "scale";
  if (planned.buckets != run.buckets || planned.max_distance != run.max_distance)
    part = "table of relative positions";
  if (planned.large_softcap != run.large_softcap) part = "softcap";
  if (planned.wide_bias != run.wide_bias) part = "bias's dtype";
  if (planned.listed_there != run.listed_there) part = "place of row lists";
  for (int n = RunFacts::kViews - 1; n >= 0; --n)
    if (planned.unfit[n] != run.unfit[n])
      throw Error(ErrorKind::bad_argument,
                  text(op, ": the address or steps of ", kViews[n],
                       " are of another kind than those the plan was made for, and kernels differ by them; "
                       "plan with this run's tensors"));
  throw Error(ErrorKind::bad_argument,
              text(op, ": the run's ", part, " is of another kind than the plan was made for, and kernels ",
                   "differ by it; plan with this run's arguments"));
}

}  // namespace headwise
