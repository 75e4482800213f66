#include "headwise/ops/attention_checks.h"

#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "headwise/ops/view_checks.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "attention";
constexpr unsigned only(DType t) { return 1u << static_cast<unsigned>(t); }
constexpr unsigned kAnyFloat = only(DType::f32) | only(DType::bf16) | only(DType::f16) | only(DType::f64);
constexpr unsigned kWide = only(DType::f32) | only(DType::f64);
constexpr unsigned kAll[] = {only(DType::f32), only(DType::bf16), only(DType::f16), only(DType::f64),
                             only(DType::i32), only(DType::i64),  only(DType::u8)};

std::string dtype_names(unsigned allowed) {
  std::string names;
  for (unsigned t = 0; t < std::size(kAll); ++t)
    if (allowed & kAll[t])
      names += (names.empty() ? "" : " or ") + std::string(name_of(static_cast<DType>(t)));
  return names;
}
std::string in_brackets(std::span<const Index> sizes) {
  std::string s = "[";
  for (Index n : sizes) s += (s.size() > 1 ? " " : "") + std::to_string(n);
  return s + "]";
}

/// What a view must be. `axes` names the sizes in brackets.
struct Need {
  unsigned dtypes;
  std::initializer_list<Index> sizes;
  const char* axes;
  bool repeats = false;  // a size of 1 stands for any size
};
bool fits(const AnyView& v, const Need& need) {
  if (v.rank != static_cast<int>(need.sizes.size())) return false;
  const Index* size = v.size;
  for (Index n : need.sizes) {
    if (*size != n && !(need.repeats && *size == 1)) return false;
    ++size;
  }
  return true;
}
void check_view(const char* name, const AnyView& v, const Need& need) {
  const bool dtype_fits = (need.dtypes & only(v.dtype)) != 0;
  if (dtype_fits && fits(v, need)) [[likely]]
    return;
  const ErrorKind kind = dtype_fits ? ErrorKind::bad_shape : ErrorKind::bad_dtype;
  require(v.given(), ErrorKind::bad_argument, kOp, name, " is not given; pass it as ",
          dtype_names(need.dtypes), " ", in_brackets({need.sizes.begin(), need.sizes.size()}), ", ",
          need.axes);
  require(false, kind, kOp, name, " is ", v, " but ", dtype_names(need.dtypes), " ",
          in_brackets({need.sizes.begin(), need.sizes.size()}), " is needed, ", need.axes,
          need.repeats ? "; a size of 1 repeats" : "");
}
/// A view the plan knows of must come, another must not.
bool check_asked(const char* name, const AnyView& v, bool asked, const char* part) {
  require(asked || !v.given(), ErrorKind::bad_argument, kOp, name, " is given but the plan was made without ",
          part, "; plan with it or leave ", name, " empty");
  return asked;
}

void check_layout(const char* name, const HeadLayout& l, Index heads) {
  require(l.heads == heads, ErrorKind::bad_shape, kOp, name, "'s layout has ", l.heads, " heads but q's has ",
          heads, "; all layouts need the same number, shared heads are a group");
  require(l.dim >= 1, ErrorKind::bad_shape, kOp, name, " has a head width of ", l.dim, "; it starts at 1");
  require(l.dim <= kMaxWidth, ErrorKind::bad_shape, kOp, name, " has a head width of ", l.dim,
          "; it ends at 2^31");
  require(l.group >= 1 && l.row >= 0, ErrorKind::bad_shape, kOp, name, "'s layout has group ", l.group,
          " and row ", l.row, "; a group starts at 1, a row at 0");
  if (l.row == 0) {
    require(heads % l.group == 0, ErrorKind::bad_shape, kOp, "heads (", heads, ") must be a multiple of ",
            name, "'s group (", l.group, ")");
    return;
  }
  const Checked last = Checked(l.slots()) * Checked(l.step) + Checked(l.begin) + Checked(l.dim);
  require(l.step >= 0 && last.ok, ErrorKind::bad_shape, kOp, name, "'s layout steps ", l.step,
          " columns from head to head", " starting at ", l.begin,
          "; a step starts at 0 and columns stay below 2^63");
}

void check_mask(const AttentionProblem& p, const MaskSet& mask) {
  const Index heads = p.heads.q.heads;
  require(mask.count == 0 || mask.count == 1 || mask.count == heads, ErrorKind::bad_shape, kOp, "mask has ",
          mask.count, " per-head masks but there are ", heads, " heads; give one, or one per head");
  for (Index n = 0; n < mask.count; ++n) {
    const MaskView& view = mask.views[n];
    require(0 <= view.count && view.count <= MaskView::kMaxSteps, ErrorKind::bad_argument, kOp, "mask has ",
            view.count, " steps; at most ", MaskView::kMaxSteps, " are read (", MaskView::kMaxTerms,
            " terms)");
    for (int i = 0; i < view.count; ++i) {
      const MaskStep& s = view.steps[i];
      if (s.op == MaskOp::lengths)
        require(s.n == p.batch, ErrorKind::bad_shape, kOp, "mask lengths(...) has ", s.n,
                " lengths but batch is ", p.batch, "; give one length per sequence");
      if (s.op == MaskOp::dense)
        require((s.size[0] == 1 || s.size[0] == p.batch) && (s.size[1] == 1 || s.size[1] == heads) &&
                    s.size[2] == p.q_tokens && s.size[3] == p.kv_tokens,
                ErrorKind::bad_shape, kOp, "dense mask is ", in_brackets(s.size), " but ",
                in_brackets({{p.batch, heads, p.q_tokens, p.kv_tokens}}),
                " is needed, [batch heads q_tokens kv_tokens]; batch and heads may be 1");
    }
  }
}

void check_offsets(const char* name, const AnyView& v, Index batch, Index rows, Index longest) {
  check_view(name, v, {only(DType::i64), {batch + 1}, "[batch + 1]"});
  const auto at = [&](Index i) { return static_cast<const Index*>(v.data)[i * v.step[0]]; };
  require(at(0) == 0 && at(batch) == rows, ErrorKind::bad_shape, kOp, name, " run from ", at(0), " to ",
          at(batch), " but must run from 0 to ", rows, ", the rows of the tensor");
  for (Index b = 0; b < batch; ++b) {
    require(at(b) <= at(b + 1), ErrorKind::bad_shape, kOp, name, " fall from ", at(b), " to ", at(b + 1),
            " at sequence ", b, "; offsets never fall");
    require(at(b + 1) - at(b) <= longest, ErrorKind::bad_shape, kOp, name, " give sequence ", b, " ",
            at(b + 1) - at(b), " tokens but the plan was made for at most ", longest,
            "; plan for these offsets");
  }
}

void check_starts(const AttentionProblem& p, const AnyView& v) {
  if (!v.given()) return;
  check_view("q_start", v, {only(DType::i64), {p.batch}, "[batch] or [1]", true});
  for (Index b = 0; b < v.size[0]; ++b) {
    const Index start = static_cast<const Index*>(v.data)[b * v.step[0]];
    require(start == kStartEnd || (-kMaxPosition <= start && start <= kMaxPosition), ErrorKind::bad_argument,
            kOp, "q_start is ", start, " for sequence ", b, "; positions stay inside +-2^62");
  }
}

void check_terms(const AttentionProblem& p, const HeadInputs& in, Index tensor_batch, Index q_rows) {
  const Terms& terms = p.heads.terms;
  const Index heads = p.heads.q.heads;
  if (in.scale.given()) {
    check_view("scale", in.scale, {kWide, {heads}, "[heads] or [1]", true});
    for (Index h = 0; h < in.scale.size[0]; ++h) {
      const double scale = load_double(in.scale.data, in.scale.dtype, h * in.scale.step[0]);
      require(std::isfinite(scale), ErrorKind::bad_argument, kOp, "scale is ", scale, " for head ", h,
              "; give a finite number, or none for 1 / sqrt(head_dim)");
    }
  }
  require(std::isfinite(in.softcap) && in.softcap >= 0, ErrorKind::bad_argument, kOp, "softcap is ",
          in.softcap, "; give a finite number above 0, or 0 for none");
  require((in.softcap > 0) == terms.softcap, ErrorKind::bad_argument, kOp, "softcap is ", in.softcap,
          " but the plan was made ", terms.softcap ? "with" : "without", " it; plan for this run");
  require(in.dropout >= 0 && in.dropout < 1, ErrorKind::bad_argument, kOp, "dropout is ", in.dropout,
          "; it is a probability from 0 up to but not including 1");
  require(in.dropout == 0 || terms.dropout, ErrorKind::bad_argument, kOp, "dropout is ", in.dropout,
          " but the plan was made without it; plan for this run");
  if (in.sequence_ids.given())
    check_view("sequence_ids", in.sequence_ids, {only(DType::i64), {p.batch}, "[batch]"});
  if (check_asked("alibi slopes", in.slopes, terms.alibi, "ALiBi"))
    check_view("alibi slopes", in.slopes, {kAnyFloat, {heads}, "[heads]"});
  if (check_asked("bias", in.bias, terms.bias, "a bias"))
    check_view(
        "bias", in.bias,
        {kAnyFloat, {p.batch, heads, p.q_tokens, p.kv_tokens}, "[batch heads q_tokens kv_tokens]", true});
  if (check_asked("relative table", in.relative, terms.relative, "relative positions")) {
    const RelativeBuckets& r = in.buckets;
    const Index exact = r.buckets / (r.bidirectional ? 4 : 2);
    require(exact >= 1 && r.max_distance > exact, ErrorKind::bad_argument, kOp, "relative positions have ",
            r.buckets, " buckets and max_distance ", r.max_distance, "; need at least ",
            r.bidirectional ? 4 : 2, " buckets and a max_distance above ", exact);
    check_view("relative table", in.relative, {kAnyFloat, {r.buckets, heads}, "[buckets heads]"});
  }
  if (check_asked("sinks", in.sinks, terms.sinks, "sinks"))
    check_view("sinks", in.sinks, {kAnyFloat, {heads}, "[heads]"});
  if (check_asked("gate", in.gate, terms.gate, "a gate"))
    check_view(
        "gate", in.gate,
        {kAnyFloat, {tensor_batch, q_rows, heads}, p.ragged ? "[1 tokens heads]" : "[batch q_tokens heads]"});
}

void check_probe(const AttentionProblem& p, const ProbeOut& out, Index tensor_batch, Index q_rows,
                 Index kv_rows) {
  const Index heads = p.heads.q.heads;
  const ProbeSpec& asked = p.probe;
  const unsigned floats = p.dtype == DType::f64 ? kWide : only(DType::f32);
  const auto row_view = [&](const char* name, const AnyView& v, unsigned dtypes) {
    if (check_asked(name, v, asked.rows, "row probes"))
      check_view(
          name, v,
          {dtypes, {tensor_batch, heads, q_rows}, p.ragged ? "[1 heads tokens]" : "[batch heads q_tokens]"});
  };
  row_view("probe entropy", out.entropy, floats);
  row_view("probe top_weight", out.top_weight, floats);
  row_view("probe second_moment", out.second_moment, floats);
  row_view("probe mean_distance", out.mean_distance, floats);
  row_view("probe sink_mass", out.sink_mass, floats);
  row_view("probe top_position", out.top_position, only(DType::i64));
  if (check_asked("probe top_keys", out.top_keys, asked.top_k > 0, "top keys"))
    check_view(
        "probe top_keys", out.top_keys,
        {only(DType::i64), {tensor_batch, heads, q_rows, asked.top_k}, "[batch heads q_tokens top_k]"});
  if (check_asked("probe top_weights", out.top_weights, asked.top_k > 0, "top keys"))
    check_view("probe top_weights", out.top_weights,
               {floats, {tensor_batch, heads, q_rows, asked.top_k}, "[batch heads q_tokens top_k]"});
  if (check_asked("probe class_of", out.class_of, asked.classes > 0, "classes"))
    check_view("probe class_of", out.class_of,
               {only(DType::i32), {tensor_batch, kv_rows}, "[batch kv_tokens]"});
  if (check_asked("probe class_mass", out.class_mass, asked.classes > 0, "classes"))
    check_view("probe class_mass", out.class_mass,
               {floats, {tensor_batch, heads, q_rows, asked.classes}, "[batch heads q_tokens classes]"});
  if (check_asked("probe column_sums", out.column_sums, asked.columns, "column sums"))
    check_view("probe column_sums", out.column_sums,
               {floats, {tensor_batch, heads, kv_rows}, "[batch heads kv_tokens]"});
  if (check_asked("probe scores", out.scores, asked.scores != ScoreStage::none, "a score stage"))
    check_view("probe scores", out.scores,
               {floats, {p.batch, heads, p.q_tokens, p.kv_tokens}, "[batch heads q_tokens kv_tokens]"});
  if (check_asked("probe picked_weights", out.picked_weights, asked.picked > 0, "picked rows"))
    check_view("probe picked_weights", out.picked_weights,
               {floats, {asked.picked, p.kv_tokens}, "[picked kv_tokens]"});
  if (check_asked("probe picks", out.picks, asked.picked > 0, "picked rows"))
    check_view("probe picks", out.picks, {only(DType::i64), {asked.picked, 3}, "[picked 3]"});
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
    require(inside, ErrorKind::bad_argument, kOp, "picked row ", n, " is (", b, ", ", h, ", ", i,
            ") but there are [", p.batch, " ", p.heads.q.heads, " ", p.q_tokens,
            "] rows, [batch heads q_tokens]");
  }
}

/// Every view of a run with its name; written ones last. `visit(name, view, written)`.
template <class Args, class F>
void each_view(Args& a, F&& visit) {
  visit("q", a.q, false), visit("k", a.k, false), visit("v", a.v, false);
  visit("scale", a.inputs.scale, false), visit("alibi slopes", a.inputs.slopes, false);
  visit("bias", a.inputs.bias, false), visit("relative table", a.inputs.relative, false);
  visit("sinks", a.inputs.sinks, false), visit("gate", a.inputs.gate, false);
  visit("sequence_ids", a.inputs.sequence_ids, false), visit("q_start", a.q_start, false);
  visit("q_offsets", a.q_offsets, false), visit("kv_offsets", a.kv_offsets, false);
  visit("probe class_of", a.probe.class_of, false), visit("probe picks", a.probe.picks, false);
  visit("out", a.out, true), visit("lse", a.lse, true);
  visit("probe entropy", a.probe.entropy, true), visit("probe top_weight", a.probe.top_weight, true);
  visit("probe second_moment", a.probe.second_moment, true),
      visit("probe mean_distance", a.probe.mean_distance, true);
  visit("probe sink_mass", a.probe.sink_mass, true), visit("probe top_position", a.probe.top_position, true);
  visit("probe top_keys", a.probe.top_keys, true), visit("probe top_weights", a.probe.top_weights, true);
  visit("probe class_mass", a.probe.class_mass, true), visit("probe column_sums", a.probe.column_sums, true);
  visit("probe picked_weights", a.probe.picked_weights, true), visit("probe scores", a.probe.scores, true);
}

/// Memory of one view: sizes, steps, address.
void check_memory(const char* name, const AnyView& v, bool written) {
  require(v.rank <= kMaxRank, ErrorKind::bad_shape, kOp, name, " has rank ", v.rank, "; at most ", kMaxRank,
          " is read");
  for (int axis = 0; axis < v.rank; ++axis) {
    require(v.size[axis] >= 0, ErrorKind::bad_shape, kOp, name, " has size ", v.size[axis], " in axis ", axis,
            "; sizes start at 0");
    require(v.step[axis] >= 0 || v.size[axis] <= 1, ErrorKind::bad_shape, kOp, name, " has step ",
            v.step[axis], " in axis ", axis,
            "; steps start at 0, so copy the tensor instead of turning it round");
  }
  const Checked reach = reach_of(v);
  require(reach.ok, ErrorKind::bad_shape, kOp, name, " is ", v,
          " with steps that reach past 2^63 bytes; use smaller ones");
  require(reach.value == 0 || v.data != nullptr, ErrorKind::bad_argument, kOp, name, " is ", v,
          " at a null address; pass its data");
  require(reinterpret_cast<std::uintptr_t>(v.data) % static_cast<std::uintptr_t>(size_of(v.dtype)) == 0,
          ErrorKind::bad_argument, kOp, name, " is ", v.dtype, " at an address that is not a multiple of ",
          size_of(v.dtype), "; copy it to aligned memory");
  require(!written || each_element_once(v), ErrorKind::bad_argument, kOp, name, " is ", v,
          " with steps that put two elements in one place; give it memory of its own");
}

void check_overlaps(const AttentionArgs& a) {
  each_view(a, [&](const char* written_name, const AnyView& written, bool is_written) {
    if (!is_written || !written.given()) return;
    each_view(a, [&](const char* name, const AnyView& v, bool) {
      if (&v == &written || !v.given()) return;
      require(!may_share_bytes(written, v), ErrorKind::bad_argument, kOp, written_name, " overlaps ", name,
              " in memory, or interleaves with it in a way that cannot be told apart; give ", written_name,
              " memory of its own");
    });
  });
}

/// Kernels index the bias by all four axes: a repeated axis gets its full size.
void spread_bias(const AttentionProblem& p, AnyView& bias) {
  const Index full[] = {p.batch, p.heads.q.heads, p.q_tokens, p.kv_tokens};
  for (int axis = 0; axis < 4; ++axis) {
    if (bias.size[axis] == 1 && full[axis] != 1) bias.step[axis] = 0;
    bias.size[axis] = full[axis];
  }
}

}  // namespace

void check_problem(const AttentionProblem& p) {
  const Index heads = p.heads.q.heads;
  require(is_float(p.dtype), ErrorKind::bad_dtype, kOp, "q, k and v are ", p.dtype,
          "; use f32, bf16, f16 or f64");
  for (const auto& [name, n] : {std::pair{"batch", p.batch},
                                {"q_tokens", p.q_tokens},
                                {"kv_tokens", p.kv_tokens},
                                {"heads", heads},
                                {"q_total", p.q_total},
                                {"kv_total", p.kv_total}})
    require(0 <= n && n <= kMaxPosition, ErrorKind::bad_shape, kOp, name, " is ", n,
            "; it runs from 0 to 2^62");
  check_layout("q", p.heads.q, heads);
  check_layout("k", p.heads.k, heads);
  check_layout("v", p.heads.v, heads);
  require(p.heads.q.dim == p.heads.k.dim, ErrorKind::bad_shape, kOp, "q has head_dim ", p.heads.q.dim,
          " but k has ", p.heads.k.dim, "; their products need equal widths");
  // Kernels multiply these in any order, also where one of them is 0.
  const Index tokens = max_of(max_of(p.q_tokens, p.kv_tokens), p.ragged ? max_of(p.q_total, p.kv_total) : 1);
  const Checked rows = Checked(max_of(p.batch, 1)) * Checked(max_of(heads, 1)) * Checked(max_of(tokens, 1));
  const Checked widest = rows * Checked(max_of(p.heads.q.dim, p.heads.v.dim)) * Checked(8);
  require(widest.ok, ErrorKind::bad_shape, kOp, "[", p.batch, " ", max_of(p.q_tokens, p.kv_tokens), " ",
          heads, " ", max_of(p.heads.q.dim, p.heads.v.dim),
          "], [batch tokens heads dim], reaches past 2^63 bytes; use smaller sizes");
  const ProbeSpec& probe = p.probe;
  require(probe.top_k >= 0 && probe.classes >= 0 && probe.picked >= 0, ErrorKind::bad_argument, kOp,
          "probe asks for top_k ", probe.top_k, ", classes ", probe.classes, " and picked ", probe.picked,
          "; each starts at 0");
  require(probe.top_k <= kMaxWidth && probe.classes <= kMaxWidth, ErrorKind::bad_argument, kOp,
          "probe asks for top_k ", probe.top_k, " and classes ", probe.classes, "; both end at 2^31");
  if (probe.scores != ScoreStage::none) {
    const Checked entries = Checked(p.batch) * Checked(heads) * Checked(p.q_tokens) * Checked(p.kv_tokens);
    require(entries.ok && entries.value <= kMaxScoreEntries, ErrorKind::unsupported, kOp,
            "probe scores would write ", in_brackets({{p.batch, heads, p.q_tokens, p.kv_tokens}}),
            ", more than ", kMaxScoreEntries,
            " entries; ask for picked rows, or take fewer heads or tokens at a time");
  }
}

AttentionArgs check_args(const AttentionProblem& p, const AttentionArgs& args) {
  const Index heads = p.heads.q.heads, tensor_batch = p.ragged ? 1 : p.batch;
  const Index q_rows = p.ragged ? p.q_total : p.q_tokens, kv_rows = p.ragged ? p.kv_total : p.kv_tokens;
  const auto check_heads = [&](const char* name, const AnyView& v, const HeadLayout& l, Index rows,
                               const char* axes) {
    if (l.row > 0)
      check_view(name, v, {only(p.dtype), {tensor_batch, rows, l.row}, "[batch tokens row]"});
    else
      check_view(name, v, {only(p.dtype), {tensor_batch, rows, l.slots(), l.dim}, axes});
  };
  check_heads("q", args.q, p.heads.q, q_rows, "[batch q_tokens heads head_dim]");
  check_heads("k", args.k, p.heads.k, kv_rows, "[batch kv_tokens kv_heads head_dim]");
  check_heads("v", args.v, p.heads.v, kv_rows, "[batch kv_tokens kv_heads value_dim]");
  check_view(
      "out", args.out,
      {only(p.dtype), {tensor_batch, q_rows, heads, p.heads.v.dim}, "[batch q_tokens heads value_dim]"});
  if (check_asked("lse", args.lse, p.lse, "lse"))
    check_view("lse", args.lse,
               {p.dtype == DType::f64 ? kWide : only(DType::f32),
                {tensor_batch, heads, q_rows},
                "[batch heads q_tokens]"});
  each_view(args, [](const char* name, const AnyView& v, bool written) {
    if (v.given()) check_memory(name, v, written);
  });

  AttentionArgs a = args;
  each_view(a, [](const char*, AnyView& v, bool) { v = without_idle_steps(v); });
  if (p.ragged) {
    check_offsets("q_offsets", a.q_offsets, p.batch, p.q_total, p.q_tokens);
    check_offsets("kv_offsets", a.kv_offsets, p.batch, p.kv_total, p.kv_tokens);
  } else {
    require(!a.q_offsets.given() && !a.kv_offsets.given(), ErrorKind::bad_argument, kOp,
            "offsets are given but the plan is for a padded batch; plan a ragged one");
  }
  check_starts(p, a.q_start);
  check_terms(p, a.inputs, tensor_batch, q_rows);
  check_mask(p, a.mask);
  check_probe(p, a.probe, tensor_batch, q_rows, kv_rows);
  check_picks(p, a);
  check_overlaps(a);
  if (p.heads.terms.bias) spread_bias(p, a.inputs.bias);
  return a;
}

}  // namespace headwise
