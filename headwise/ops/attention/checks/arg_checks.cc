#include "headwise/ops/attention/checks/arg_checks.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "headwise/kernels/cpu/isa/key_order.h"
#include "headwise/ops/attention/checks/overlaps.h"
#include "headwise/ops/checks/view.h"
#include "headwise/ops/keys/packed_keys.h"

namespace headwise {
namespace {

constexpr unsigned kAll[] = {only(DType::f32), only(DType::bf16), only(DType::f16),
                             only(DType::f64), only(DType::i32),  only(DType::i64),
                             only(DType::u8),  only(DType::i8),   only(DType::e4m3)};

std::string dtype_names(unsigned allowed) {
  std::string names;
  for (unsigned t = 0; t < std::size(kAll); ++t)
    if (allowed & kAll[t])
      names += (names.empty() ? "" : " or ") + std::string(name_of(static_cast<DType>(t)));
  return names;
}
/// Sizes of k and v before their heads.
Index kv_batch(const AttentionProblem& p) {
  return p.keys == KeyForm::paged ? p.pages : p.ragged ? 1 : p.batch;
}
Index batch_in_tensors(const AttentionProblem& p) { return p.ragged ? 1 : p.batch; }
Index q_rows(const AttentionProblem& p) { return p.ragged ? p.q_total : p.q_tokens; }
Index kv_rows(const AttentionProblem& p) {
  return p.keys == KeyForm::paged ? p.page_size : p.ragged ? p.kv_total : p.kv_tokens;
}

std::string in_brackets(std::span<const Index> sizes) {
  std::string s = "[";
  for (Index n : sizes) s += (s.size() > 1 ? " " : "") + std::to_string(n);
  return s + "]";
}

bool fits(const AnyView& v, const Need& need) {
  if (v.rank != static_cast<int>(need.sizes.size())) return false;
  const Index* size = v.size;
  for (Index n : need.sizes) {
    if (*size != n && !(need.repeats && *size == 1)) return false;
    ++size;
  }
  return true;
}

}  // namespace

void ArgChecks::check_view(const char* name, const AnyView& v, const Need& need) const {
  const bool dtype_fits = (need.dtypes & only(v.dtype)) != 0;
  if (dtype_fits && fits(v, need)) [[likely]]
    return;
  const ErrorKind kind = dtype_fits ? ErrorKind::bad_shape : ErrorKind::bad_dtype;
  require(v.given(), ErrorKind::bad_argument, op, name, " is not given; pass it as ",
          dtype_names(need.dtypes), " ", in_brackets({need.sizes.begin(), need.sizes.size()}), ", ",
          need.axes);
  require(false, kind, op, name, " is ", v, " but ", dtype_names(need.dtypes), " ",
          in_brackets({need.sizes.begin(), need.sizes.size()}), " is needed, ", need.axes,
          need.repeats ? "; a size of 1 repeats" : "");
}

bool ArgChecks::check_asked(const char* name, const AnyView& v, bool asked, const char* part) const {
  require(asked || !v.given(), ErrorKind::bad_argument, op, name, " is given but the plan was made without ",
          part, "; plan with it or leave ", name, " empty");
  return asked;
}

void ArgChecks::check_layout(const char* name, const HeadLayout& l, Index heads) const {
  require(l.heads == heads, ErrorKind::bad_shape, op, name, "'s layout has ", l.heads, " heads but q's has ",
          heads, "; all layouts need the same number, shared heads are a group");
  require(l.dim >= 1, ErrorKind::bad_shape, op, name, " has a head width of ", l.dim, "; it starts at 1");
  require(l.dim <= kMaxWidth, ErrorKind::bad_shape, op, name, " has a head width of ", l.dim,
          "; it ends at 2^31");
  require(l.group >= 1 && l.row >= 0, ErrorKind::bad_shape, op, name, "'s layout has group ", l.group,
          " and row ", l.row, "; a group starts at 1, a row at 0");
  if (l.row == 0) {
    require(heads % l.group == 0, ErrorKind::bad_shape, op, "heads (", heads, ") must be a multiple of ",
            name, "'s group (", l.group, ")");
    return;
  }
  const Checked last = Checked(l.slots()) * Checked(l.step) + Checked(l.begin) + Checked(l.dim);
  require(l.step >= 0 && last.ok, ErrorKind::bad_shape, op, name, "'s layout steps ", l.step,
          " columns from head to head", " starting at ", l.begin,
          "; a step starts at 0 and columns stay below 2^63");
}

void ArgChecks::check_mask(const AttentionProblem& p, const MaskSet& mask) const {
  const Index heads = p.heads.normal_heads();
  require(mask.count == 0 || mask.count == 1 || mask.count == heads, ErrorKind::bad_shape, op, "mask has ",
          mask.count, " per-head masks but there are ", heads, " heads; give one, or one per head");
  for (Index n = 0; n < mask.count; ++n) {
    const MaskView& view = mask.views[n];
    require(0 <= view.count && view.count <= MaskView::kMaxSteps, ErrorKind::bad_argument, op, "mask has ",
            view.count, " steps; at most ", MaskView::kMaxSteps, " are read (", MaskView::kMaxTerms,
            " terms)");
    for (int i = 0; i < view.count; ++i) {
      const MaskStep& s = view.steps[i];
      if (s.op == MaskOp::lengths)
        require(s.n == p.batch, ErrorKind::bad_shape, op, "mask lengths(...) has ", s.n,
                " lengths but batch is ", p.batch, "; give one length per sequence");
      if (s.op == MaskOp::dense)
        require((s.size[0] == 1 || s.size[0] == p.batch) && (s.size[1] == 1 || s.size[1] == heads) &&
                    (s.size[2] == 1 || s.size[2] == p.q_tokens) &&
                    (s.size[3] == 1 || s.size[3] == p.kv_tokens),
                ErrorKind::bad_shape, op, "dense mask is ", in_brackets(s.size), " but ",
                in_brackets({{p.batch, heads, p.q_tokens, p.kv_tokens}}),
                " is needed, [batch heads q_tokens kv_tokens]; any of them may be 1, which repeats");
    }
  }
}

void ArgChecks::check_view(const char* name, const AnyView& v, const TermSizes& n, const Need& need) const {
  const auto& [dtypes, sizes, axes, repeats] = need;
  const Index* s = n.size;
  switch (n.rank) {
    case 1: return check_view(name, v, {dtypes, {s[0]}, axes, repeats});
    case 2: return check_view(name, v, {dtypes, {s[0], s[1]}, axes, repeats});
    case 3: return check_view(name, v, {dtypes, {s[0], s[1], s[2]}, axes, repeats});
    default: return check_view(name, v, {dtypes, {s[0], s[1], s[2], s[3]}, axes, repeats});
  }
}

TermSizes sizes_of(const ScoreTerm& term, const AttentionProblem& p, const HeadInputs& in) {
  const auto size = [&](TermAxis axis) -> Index {
    switch (axis) {
      case TermAxis::batch: return p.batch;
      case TermAxis::heads: return p.heads.normal_heads();
      case TermAxis::v_heads: return p.heads.v.heads;
      case TermAxis::q_tokens: return p.q_tokens;
      case TermAxis::kv_tokens: return p.kv_tokens;
      case TermAxis::buckets: return in.buckets.buckets;
      case TermAxis::tensors: return batch_in_tensors(p);
      case TermAxis::q_rows: return q_rows(p);
      case TermAxis::none: break;
    }
    return 0;
  };
  TermSizes n{};
  for (const TermAxis axis : term.shape)
    if (axis != TermAxis::none) n.size[n.rank++] = size(axis);
  return n;
}

void ArgChecks::check_numbers(const AttentionProblem& p, const HeadInputs& in) const {
  const Terms& terms = p.heads.terms;
  if (in.scale.given()) {
    check_view("scale", in.scale, {kWide, {p.heads.q.heads}, "[heads] or [1]", true});
    for (Index h = 0; h < in.scale.size[0]; ++h) {
      const double scale = load_double(in.scale.data, in.scale.dtype, h * in.scale.step[0]);
      require(std::isfinite(scale), ErrorKind::bad_argument, op, "scale is ", scale, " for head ", h,
              "; give a finite number, or none for 1 / sqrt(head_dim)");
    }
  }
  require(in.softcap == 0 || is_softcap(in.softcap), ErrorKind::bad_argument, op, "softcap is ", in.softcap,
          kSoftcapWayOut);
  require((in.softcap > 0) == terms.softcap, ErrorKind::bad_argument, op, "softcap is ", in.softcap,
          " but the plan was made ", terms.softcap ? "with" : "without", " it; plan for this run");
  require(in.dropout >= 0 && in.dropout < 1, ErrorKind::bad_argument, op, "dropout is ", in.dropout,
          "; it is a probability from 0 up to but not including 1");
  require(in.dropout == 0 || terms.dropout, ErrorKind::bad_argument, op, "dropout is ", in.dropout,
          " but the plan was made without it; plan for this run");
  if (in.sequence_ids.given())
    check_view("sequence_ids", in.sequence_ids, {only(DType::i64), {p.batch}, "[batch]"});
  const RelativeBuckets& r = in.buckets;
  const Index exact = r.buckets / (r.bidirectional ? 4 : 2);
  require(!terms.relative || (exact >= 1 && r.max_distance > exact), ErrorKind::bad_argument, op,
          "relative positions have ", r.buckets, " buckets and max_distance ", r.max_distance,
          "; need at least ", r.bidirectional ? 4 : 2, " buckets and a max_distance above ", exact);
}

void ArgChecks::check_terms(const AttentionProblem& p, const HeadInputs& in) const {
  check_numbers(p, in);
  for (const ScoreTerm& t : kScoreTerms) {
    if (t.planned == nullptr || t.input == nullptr) continue;
    const char* axes = t.of_tokens && p.ragged ? "[1 tokens heads]" : t.axes;
    if (check_asked(t.name, in.*t.input, in_plan(t, p.heads), t.part))
      check_view(t.name, in.*t.input, sizes_of(t, p, in), {kAnyFloat, {}, axes, t.repeats});
  }
  check_mix_inputs(p, in);
}

void ArgChecks::check_memory(const char* name, const AnyView& v, bool written) const {
  require(v.rank <= kMaxRank, ErrorKind::bad_shape, op, name, " has rank ", v.rank, "; at most ", kMaxRank,
          " is read");
  for (int axis = 0; axis < v.rank; ++axis) {
    require(v.size[axis] >= 0, ErrorKind::bad_shape, op, name, " has size ", v.size[axis], " in axis ", axis,
            "; sizes start at 0");
    require(v.step[axis] >= 0 || v.size[axis] <= 1, ErrorKind::bad_shape, op, name, " has step ",
            v.step[axis], " in axis ", axis,
            "; steps start at 0, so copy the tensor instead of turning it round");
  }
  const Checked reach = reach_of(v);
  require(reach.ok, ErrorKind::bad_shape, op, name, " is ", v,
          " with steps that reach past 2^63 bytes; use smaller ones");
  require(reach.value == 0 || v.data != nullptr, ErrorKind::bad_argument, op, name, " is ", v,
          " at a null address; pass its data");
  require(reinterpret_cast<std::uintptr_t>(v.data) % static_cast<std::uintptr_t>(size_of(v.dtype)) == 0,
          ErrorKind::bad_argument, op, name, " is ", v.dtype, " at an address that is not a multiple of ",
          size_of(v.dtype), "; copy it to aligned memory");
  require(!written || each_element_once(v), ErrorKind::bad_argument, op, name, " is ", v,
          " with steps that put two elements in one place; give it memory of its own");
}

void ArgChecks::spread_bias(const AttentionProblem& p, AnyView& bias) {
  const Index full[] = {p.batch, p.heads.normal_heads(), p.q_tokens, p.kv_tokens};
  for (int axis = 0; axis < 4; ++axis) {
    if (bias.size[axis] == 1 && full[axis] != 1) bias.step[axis] = 0;
    bias.size[axis] = full[axis];
  }
}

void ArgChecks::check_problem(const AttentionProblem& p) const {
  const Index heads = p.heads.q.heads;
  require(is_float(p.dtype), ErrorKind::bad_dtype, op, "q, k and v are ", p.dtype,
          "; use f32, bf16, f16 or f64");
  require(p.kv_dtype() == p.dtype || p.eight_bit_kv(), ErrorKind::bad_dtype, op, "q is ", p.dtype,
          " but the plan has keys and values of ", p.kv_dtype(),
          "; give one dtype, or i8 or e4m3 with scales");
  for (const auto& [name, n] : {std::pair{"batch", p.batch},
                                {"q_tokens", p.q_tokens},
                                {"kv_tokens", p.kv_tokens},
                                {"heads", heads},
                                {"q_total", p.q_total},
                                {"kv_total", p.kv_total}})
    require(0 <= n && n <= kMaxPosition, ErrorKind::bad_shape, op, name, " is ", n,
            "; it runs from 0 to 2^62");
  check_layout("q", p.heads.q, heads);
  check_layout("k", p.heads.k, heads);
  check_layout("v", p.heads.v, p.heads.mixes() ? p.heads.v.heads : heads);
  check_mix(p);
  require(p.heads.q.dim == p.heads.k.dim, ErrorKind::bad_shape, op, "q has head_dim ", p.heads.q.dim,
          " but k has ", p.heads.k.dim, "; their products need equal widths");
  const bool plain_heads = p.heads.k.row == 0 && p.heads.v.row == 0;
  require(plain_heads || !p.eight_bit_kv(), ErrorKind::unsupported, op,
          "8-bit keys and values have a scale for each kv head; give tensors with a head axis, not rows");
  require(
      p.keys != KeyForm::packed || (plain_heads && !p.ragged), ErrorKind::unsupported, op,
      "packed keys hold one padded batch of kv heads; unpack them for ragged batches and rows, or mask with "
      "lengths(...)");
  check_pages(p);
  // Kernels multiply these in any order, also where one of them is 0.
  const Index tokens = max_of(max_of(p.q_tokens, p.kv_tokens), p.ragged ? max_of(p.q_total, p.kv_total) : 1);
  const Checked rows = Checked(max_of(max_of(p.batch, p.pages), 1)) * Checked(max_of(heads, 1)) *
                       Checked(max_of(tokens, p.page_size > 1 ? p.page_size : 1));
  const Checked widest = rows * Checked(max_of(p.heads.q.dim, p.heads.v.dim)) * Checked(8);
  require(widest.ok, ErrorKind::bad_shape, op, "[", p.batch, " ", max_of(p.q_tokens, p.kv_tokens), " ", heads,
          " ", max_of(p.heads.q.dim, p.heads.v.dim),
          "], [batch tokens heads dim], reaches past 2^63 bytes; use smaller sizes");
  require(!p.heads.mixes() || (!p.heads.terms.rows && p.heads.norm == Norm::softmax), ErrorKind::unsupported,
          op, "heads are mixed, which needs every head of a row and softmax; leave out row lists and alpha");
  const ProbeSpec& probe = p.probe;
  require(probe.top_k >= 0 && probe.classes >= 0 && probe.picked >= 0, ErrorKind::bad_argument, op,
          "probe asks for top_k ", probe.top_k, ", classes ", probe.classes, " and picked ", probe.picked,
          "; each starts at 0");
  require(probe.top_k <= kMaxWidth && probe.classes <= kMaxWidth, ErrorKind::bad_argument, op,
          "probe asks for top_k ", probe.top_k, " and classes ", probe.classes, "; both end at 2^31");
  if (probe.scores != ScoreStage::none) {
    const Checked entries = Checked(p.batch) * Checked(heads) * Checked(p.q_tokens) * Checked(p.kv_tokens);
    require(entries.ok && entries.value <= kMaxScoreEntries, ErrorKind::unsupported, op,
            "probe scores would write ", in_brackets({{p.batch, heads, p.q_tokens, p.kv_tokens}}),
            ", more than ", kMaxScoreEntries,
            " entries; ask for picked rows, or take fewer heads or tokens at a time");
  }
}

void ArgChecks::check_tensors(const AttentionProblem& p, const AttentionArgs& args) const {
  check_heads("q", args.q, p, p.heads.q);
  if (p.keys == KeyForm::packed)
    check_packed(p, args);
  else
    check_heads("k", args.k, p, p.heads.k);
  check_heads("v", args.v, p, p.heads.v);
  check_scales("k_scale", args.k_scale, p, p.heads.k);
  check_scales("v_scale", args.v_scale, p, p.heads.v);
}

void ArgChecks::check_scales(const char* name, const AnyView& v, const AttentionProblem& p,
                             const HeadLayout& layout) const {
  if (!check_asked(name, v, p.eight_bit_kv(), "8-bit keys and values")) return;
  require(v.given(), ErrorKind::bad_argument, op, name[0] == 'k' ? "k" : "v", " is ", p.kv_dtype(), " but ",
          name, " is not given; pass the f32 scales quantize_kv wrote, [batch kv_tokens kv_heads]");
  check_view(name, v,
             {only(DType::f32),
              {kv_batch(p), kv_rows(p), layout.slots()},
              p.keys == KeyForm::paged ? "[pages page_size kv_heads]" : "[batch kv_tokens kv_heads]"});
}

void ArgChecks::check_packed(const AttentionProblem& p, const AttentionArgs& a) const {
  const PackedKeys& about = a.packed;
  const KeyOrder order = cpu::key_order(p.kv_dtype());
  require(about.given(), ErrorKind::bad_argument, op,
          "the plan is for packed keys but args.packed is not given; pass the description pack_keys filled");
  check_packed_keys(op, about);
  require(about.order == order, ErrorKind::bad_argument, op, "packed keys lie ", about.order,
          " but this machine's class of ", p.kv_dtype(), " reads ", order,
          "; pack the plain keys again on this machine");
  require(about.dtype == p.kv_dtype(), ErrorKind::bad_dtype, op, "packed keys hold ", about.dtype, " but ",
          p.kv_dtype(), " is needed, the dtype of q, or i8 or e4m3 with scales");
  require(about.kv_heads == p.heads.k.slots() && about.dim == p.heads.k.dim && about.tokens == p.kv_tokens,
          ErrorKind::bad_shape, op, "packed keys have ", about.tokens, " tokens, ", about.kv_heads,
          " kv_heads and head_dim ", about.dim, " but the plan was made for ", p.kv_tokens, ", ",
          p.heads.k.slots(), " and ", p.heads.k.dim, "; plan for these keys");
  check_view("k", a.k,
             {only(p.kv_dtype()), {p.batch, about.kv_heads, about.room()}, "[batch kv_heads room]"});
  require(a.k.step[2] == 1 || about.room() <= 1, ErrorKind::bad_shape, op, "packed k has step ", a.k.step[2],
          " in its last axis; a head's room lies in one piece");
}

void ArgChecks::check_heads(const char* name, const AnyView& v, const AttentionProblem& p,
                            const HeadLayout& l) const {
  const bool of_q = &l == &p.heads.q;
  const Index batch = of_q ? batch_in_tensors(p) : kv_batch(p), rows = of_q ? q_rows(p) : kv_rows(p);
  const unsigned dtype = only(of_q ? p.dtype : p.kv_dtype());
  if (l.row > 0) return check_view(name, v, {dtype, {batch, rows, l.row}, "[batch tokens row]"});
  check_view(name, v,
             {dtype,
              {batch, rows, l.slots(), l.dim},
              of_q                       ? "[batch q_tokens heads head_dim]"
              : p.keys == KeyForm::paged ? "[pages page_size kv_heads dim]"
              : &l == &p.heads.k         ? "[batch kv_tokens kv_heads head_dim]"
                                         : "[batch kv_tokens kv_heads value_dim]"});
}

void ArgChecks::check_out(const char* name, const AnyView& v, const AttentionProblem& p) const {
  check_view(name, v,
             {only(p.dtype),
              {batch_in_tensors(p), q_rows(p), p.heads.v.heads, p.heads.v.dim},
              "[batch q_tokens heads value_dim]"});
}

void ArgChecks::check_lse(const AnyView& v, const AttentionProblem& p) const {
  if (!check_asked("lse", v, p.lse, "lse")) return;
  check_view("lse", v,
             {p.dtype == DType::f64 ? kWide : only(DType::f32),
              {batch_in_tensors(p), p.heads.normal_heads(), q_rows(p)},
              "[batch heads q_tokens]"});
}

void ArgChecks::check_inputs(const AttentionProblem& p, const AttentionArgs& a) const {
  check_terms(p, a.inputs);
  check_rows(p, a);
  check_alpha(p, a);
  check_mask(p, a.mask);
  check_gone_pages(p, a);
}

void ArgChecks::check_apart(const char* written_name, const AnyView& written, const char* name,
                            const AnyView& v) const {
  if (&v == &written || !v.given() || !written.given()) return;
  require(!may_share_bytes(written, v), ErrorKind::bad_argument, op, written_name, " overlaps ", name,
          " in memory, or interleaves with it in a way that cannot be told apart; give ", written_name,
          " memory of its own");
}

namespace {

constexpr ArgChecks kForward{"attention"};

void check_probe(const AttentionProblem& p, const ProbeOut& out, Index tensor_batch, Index q_rows,
                 Index kv_rows) {
  const Index heads = p.heads.q.heads;
  const ProbeSpec& asked = p.probe;
  const unsigned floats = p.dtype == DType::f64 ? kWide : only(DType::f32);
  const auto row_view = [&](const char* name, const AnyView& v, unsigned dtypes) {
    if (kForward.check_asked(name, v, asked.rows, "row probes") && v.given())
      kForward.check_view(
          name, v,
          {dtypes, {tensor_batch, heads, q_rows}, p.ragged ? "[1 heads tokens]" : "[batch heads q_tokens]"});
  };
  require(!asked.rows || out.any_row(), ErrorKind::bad_argument, kForward.op,
          "row probes are asked for but none of their outputs is given; pass one or more of entropy, "
          "top_weight, top_position, second_moment, mean_distance and sink_mass");
  row_view("probe entropy", out.entropy, floats);
  row_view("probe top_weight", out.top_weight, floats);
  row_view("probe second_moment", out.second_moment, floats);
  row_view("probe mean_distance", out.mean_distance, floats);
  row_view("probe sink_mass", out.sink_mass, floats);
  row_view("probe top_position", out.top_position, only(DType::i64));
  if (kForward.check_asked("probe top_keys", out.top_keys, asked.top_k > 0, "top keys"))
    kForward.check_view(
        "probe top_keys", out.top_keys,
        {only(DType::i64), {tensor_batch, heads, q_rows, asked.top_k}, "[batch heads q_tokens top_k]"});
  if (kForward.check_asked("probe top_weights", out.top_weights, asked.top_k > 0, "top keys"))
    kForward.check_view("probe top_weights", out.top_weights,
                        {floats, {tensor_batch, heads, q_rows, asked.top_k}, "[batch heads q_tokens top_k]"});
  if (kForward.check_asked("probe class_of", out.class_of, asked.classes > 0, "classes"))
    kForward.check_view("probe class_of", out.class_of,
                        {only(DType::i32), {tensor_batch, kv_rows}, "[batch kv_tokens]"});
  if (kForward.check_asked("probe class_mass", out.class_mass, asked.classes > 0, "classes"))
    kForward.check_view(
        "probe class_mass", out.class_mass,
        {floats, {tensor_batch, heads, q_rows, asked.classes}, "[batch heads q_tokens classes]"});
  if (kForward.check_asked("probe column_sums", out.column_sums, asked.columns, "column sums"))
    kForward.check_view("probe column_sums", out.column_sums,
                        {floats, {tensor_batch, heads, kv_rows}, "[batch heads kv_tokens]"});
  if (kForward.check_asked("probe scores", out.scores, asked.scores != ScoreStage::none, "a score stage"))
    kForward.check_view(
        "probe scores", out.scores,
        {floats, {p.batch, heads, p.q_tokens, p.kv_tokens}, "[batch heads q_tokens kv_tokens]"});
  if (kForward.check_asked("probe picked_weights", out.picked_weights, asked.picked > 0, "picked rows"))
    kForward.check_view("probe picked_weights", out.picked_weights,
                        {floats, {asked.picked, p.kv_tokens}, "[picked kv_tokens]"});
  if (kForward.check_asked("probe picks", out.picks, asked.picked > 0, "picked rows"))
    kForward.check_view("probe picks", out.picks, {only(DType::i64), {asked.picked, 3}, "[picked 3]"});
}

void check_picks(const AttentionProblem& p, const AttentionArgs& a) {
  const AnyView& picks = a.probe.picks;
  for (Index n = 0; n < p.probe.picked; ++n) {
    const auto at = [&](Index i) {
      return static_cast<const Index*>(picks.data)[n * picks.step[0] + i * picks.step[1]];
    };
    const Index b = at(0), h = at(1), i = at(2);
    const bool inside =
        0 <= b && b < p.batch && 0 <= h && h < p.heads.q.heads && 0 <= i && i < place_of(p, a, b).q_tokens;
    require(inside, ErrorKind::bad_argument, kForward.op, "picked row ", n, " is (", b, ", ", h, ", ", i,
            ") but there are [", p.batch, " ", p.heads.q.heads, " ", p.q_tokens,
            "] rows, [batch heads q_tokens]");
  }
}

void check_overlaps(const AttentionArgs& a) {
  Overlaps all;
  each_view(a, [&](const char* name, const AnyView& v, bool written) { all.add(name, v, written); });
  all.check(kForward);
}

}  // namespace

void check_problem(const AttentionProblem& p) { kForward.check_problem(p); }

AttentionArgs check_args(const AttentionProblem& p, const AttentionArgs& args) {
  kForward.check_places(p, args);
  kForward.check_tensors(p, args);
  kForward.check_out("out", args.out, p);
  kForward.check_lse(args.lse, p);
  each_view(args, [](const char* name, const AnyView& v, bool written) {
    if (v.given()) kForward.check_memory(name, v, written);
  });

  AttentionArgs a = args;
  each_view(a, [](const char*, AnyView& v, bool) { v = without_idle_steps(v); });
  kForward.check_sequences(p, a);
  const bool paged = p.keys == KeyForm::paged;
  // Places are read from both offsets; pages say where keys lie, whatever stands there.
  if (paged && p.ragged) a.kv_offsets = a.q_offsets;
  kForward.check_inputs(p, a);
  check_probe(p, a.probe, batch_in_tensors(p), q_rows(p), paged ? p.kv_tokens : kv_rows(p));
  check_picks(p, a);
  check_overlaps(a);
  if (p.heads.terms.bias) ArgChecks::spread_bias(p, a.inputs.bias);
  return a;
}

}  // namespace headwise
