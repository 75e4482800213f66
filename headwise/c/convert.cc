#include "headwise/c/convert.h"

#include "headwise/c/term_fields.h"

namespace headwise::c {
namespace {

HeadLayout layout_from(const hw_head_layout& l) {
  return {l.heads, l.dim, l.group == 0 ? 1 : l.group, l.step, l.begin, l.row};
}
hw_head_layout layout_to(const HeadLayout& l) { return {l.heads, l.dim, l.group, l.step, l.begin, l.row}; }

/// By HW_KV_*; none: q's.
constexpr std::optional<DType> kKvTypes[] = {{}, DType::i8, DType::e4m3};

ProbeOut probe_views(const hw_probe_tensors* given, const char* entry) {
  ProbeOut o;
  if (given == nullptr) return o;
  const hw_probe_tensors t = sized_copy(given, entry, "probe");
  o.entropy = view_anywhere(t.entropy, entry, "entropy");
  o.top_weight = view_anywhere(t.top_weight, entry, "top_weight");
  o.second_moment = view_anywhere(t.second_moment, entry, "second_moment");
  o.mean_distance = view_anywhere(t.mean_distance, entry, "mean_distance");
  o.sink_mass = view_anywhere(t.sink_mass, entry, "sink_mass");
  o.top_position = view_anywhere(t.top_position, entry, "top_position");
  o.top_keys = view_anywhere(t.top_keys, entry, "top_keys");
  o.top_weights = view_anywhere(t.top_weights, entry, "top_weights");
  o.class_of = view_anywhere(t.class_of, entry, "class_of");
  o.class_mass = view_anywhere(t.class_mass, entry, "class_mass");
  o.column_sums = view_anywhere(t.column_sums, entry, "column_sums");
  o.picks = view_anywhere(t.picks, entry, "picks");
  o.picked_weights = view_anywhere(t.picked_weights, entry, "picked_weights");
  o.scores = view_anywhere(t.scores, entry, "scores");
  return o;
}

HeadInputs inputs_from(const hw_attention_args& a, const char* entry) {
  HeadInputs in;
  each_term([&](const ScoreTerm& t, const TermField& f) {
    if (t.number != nullptr)
      in.*t.number = a.*f.number;
    else
      in.*t.input = view_anywhere(a.*f.input, entry, t.word);
  });
  in.buckets = {in.relative.given() ? in.relative.size[0] : 0, a.relative_max_distance,
                a.relative_bidirectional != 0};
  in.seed = a.seed;
  in.sequence_ids = view_anywhere(a.sequence_ids, entry, "sequence_ids");
  in.rows = {view_anywhere(a.row_offsets, entry, "row_offsets"),
             view_anywhere(a.row_index, entry, "row_index")};
  return in;
}

}  // namespace

HeadSpec heads_from(const hw_attention_problem& p, const char* entry) {
  HeadSpec s;
  const bool q = p.q_layout.heads != 0, k = p.k_layout.heads != 0, v = p.v_layout.heads != 0;
  require(q == k && k == v, ErrorKind::bad_argument, entry, "q_layout, k_layout and v_layout have ",
          p.q_layout.heads, ", ", p.k_layout.heads, " and ", p.v_layout.heads,
          " heads; give all three or leave all three at 0");
  if (q) {
    const auto agrees = [](Index given, Index layout) { return given == 0 || given == layout; };
    require(agrees(p.heads, p.q_layout.heads) && agrees(p.head_dim, p.q_layout.dim) &&
                agrees(p.value_dim, p.v_layout.dim),
            ErrorKind::bad_shape, entry, "heads ", p.heads, ", head_dim ", p.head_dim, ", value_dim ",
            p.value_dim, " differ from the layouts' ", p.q_layout.heads, ", ", p.q_layout.dim, ", ",
            p.v_layout.dim, "; leave the first three at 0 when layouts are given");
    s.q = layout_from(p.q_layout), s.k = layout_from(p.k_layout), s.v = layout_from(p.v_layout);
    return s;
  }
  const Index kv_heads = p.kv_heads == 0 ? p.heads : p.kv_heads,
              value_dim = p.value_dim == 0 ? p.head_dim : p.value_dim;
  require(p.heads >= 0 && kv_heads >= 0 && (kv_heads == 0 || p.heads % kv_heads == 0), ErrorKind::bad_shape,
          entry, "heads (", p.heads, ") must be a multiple of kv_heads (", kv_heads, ")");
  s.q = HeadLayout::split(p.heads, p.head_dim);
  s.k = HeadLayout::grouped(p.heads, kv_heads, p.head_dim);
  s.v = HeadLayout::grouped(p.heads, kv_heads, value_dim);
  return s;
}

HeadSpec heads_to_keep(hw_attention_problem& p, const char* entry) {
  if (p.q_layout.heads == 0 && p.k_layout.heads == 0 && p.v_layout.heads == 0) return {};
  p.heads = p.head_dim = p.value_dim = 0;
  return heads_from(p, entry);
}

ProbeSpec probe_from(const hw_attention_problem& p, const char* entry) {
  constexpr std::uint32_t known = HW_PROBE_ROWS | HW_PROBE_COLUMNS;
  require((p.probe & ~known) == 0, ErrorKind::bad_argument, entry, "probe is ", p.probe,
          "; join HW_PROBE_* by |");
  require(p.probe_scores >= HW_SCORES_NONE && p.probe_scores <= HW_SCORES_WEIGHTS, ErrorKind::bad_argument,
          entry, "probe_scores is ", p.probe_scores, "; give one of HW_SCORES_*");
  ProbeSpec s;
  s.rows = (p.probe & HW_PROBE_ROWS) != 0;
  s.columns = (p.probe & HW_PROBE_COLUMNS) != 0;
  s.top_k = p.probe_top_k, s.classes = p.probe_classes, s.picked = p.probe_picked;
  s.scores = static_cast<ScoreStage>(p.probe_scores - 1);
  return s;
}

void fill(hw_attention_problem& p, const ProbeSpec& s) {
  p.probe = 0;
  if (s.rows) p.probe |= HW_PROBE_ROWS;
  if (s.columns) p.probe |= HW_PROBE_COLUMNS;
  p.probe_top_k = s.top_k, p.probe_classes = s.classes, p.probe_picked = s.picked;
  p.probe_scores = static_cast<int32_t>(s.scores) + 1;
}

AttentionProblem problem_from(const hw_attention_problem& p, const char* entry) {
  AttentionProblem r;
  r.heads = heads_from(p, entry);
  std::uint32_t unknown = p.terms;
  each_term_bit([&](std::uint32_t bit, bool Terms::*flag) {
    r.heads.terms.*flag = (p.terms & bit) != 0;
    unknown &= ~bit;
  });
  require(unknown == 0, ErrorKind::bad_argument, entry, "terms is ", p.terms, "; join HW_TERM_* by |");
  require(p.reserved == 0, ErrorKind::bad_argument, entry, "reserved is ", p.reserved, "; leave it at 0");
  require(p.norm == HW_NORM_SOFTMAX || p.norm == HW_NORM_ENTMAX, ErrorKind::bad_argument, entry, "norm is ",
          p.norm, "; give one of HW_NORM_*");
  for (const int32_t mix : {p.mix_before, p.mix_after})
    require(mix >= HW_MIX_NONE && mix <= HW_MIX_DYNAMIC, ErrorKind::bad_argument, entry, "a mix is ", mix,
            "; give one of HW_MIX_*");
  require(p.reserved_heads == 0, ErrorKind::bad_argument, entry, "reserved_heads is ", p.reserved_heads,
          "; leave it at 0");
  r.heads.norm = static_cast<Norm>(p.norm);
  r.heads.before = static_cast<Mix>(p.mix_before), r.heads.after = static_cast<Mix>(p.mix_after);
  r.heads.mix_rank = p.mix_rank, r.heads.heads = p.normal_heads;
  r.dtype = dtype_from(p.dtype, entry, "problem");
  r.batch = p.batch, r.q_tokens = p.q_tokens, r.kv_tokens = p.kv_tokens;
  r.ragged = p.ragged != 0;
  r.q_total = p.q_total, r.kv_total = p.kv_total;
  r.lse = p.lse != 0;
  r.probe = probe_from(p, entry);
  require(p.kv_type >= HW_KV_OWN && p.kv_type <= HW_KV_E4M3, ErrorKind::bad_argument, entry, "kv_type is ",
          p.kv_type, "; give one of HW_KV_*");
  r.kv = kKvTypes[p.kv_type];
  r.keys = p.packed_keys != 0 ? KeyForm::packed : p.page_size != 0 ? KeyForm::paged : KeyForm::plain;
  r.pages = p.pages, r.page_size = p.page_size;
  if (p.device.device_type != 0) r.device = device_from(p.device, entry, "problem");
  static_assert(sizeof r.run <= sizeof p.run, "what a plan keeps of a run has a place in the C struct");
  std::memcpy(&r.run, p.run, sizeof r.run);
  return r;
}

void fill(hw_attention_problem& p, const AttentionProblem& r) {
  p.dtype = dtype_to(r.dtype);
  p.batch = r.batch, p.q_tokens = r.q_tokens, p.kv_tokens = r.kv_tokens;
  p.heads = r.heads.q.heads;
  p.kv_heads = r.heads.k.slots();
  p.head_dim = r.heads.q.dim, p.value_dim = r.heads.v.dim;
  p.terms = 0;
  each_term_bit([&](std::uint32_t bit, bool Terms::*flag) {
    if (r.heads.terms.*flag) p.terms |= bit;
  });
  p.norm = static_cast<int32_t>(r.heads.norm);
  p.mix_before = static_cast<int32_t>(r.heads.before), p.mix_after = static_cast<int32_t>(r.heads.after);
  p.mix_rank = r.heads.mix_rank, p.normal_heads = r.heads.heads, p.reserved_heads = 0;
  p.lse = r.lse ? 1 : 0;
  p.ragged = r.ragged ? 1 : 0;
  p.q_total = r.q_total, p.kv_total = r.kv_total;
  p.kv_type = HW_KV_OWN;
  for (int32_t type = HW_KV_INT8; type <= HW_KV_E4M3; ++type)
    if (r.kv_dtype() == kKvTypes[type]) p.kv_type = type;
  p.packed_keys = r.keys == KeyForm::packed ? 1 : 0;
  p.pages = r.pages, p.page_size = r.page_size;
  p.device = r.device.is_cpu() ? hw_device{HW_DEVICE_CPU, 0} : hw_device{HW_DEVICE_CUDA, r.device.index};
  std::memset(p.run, 0, sizeof p.run);
  std::memcpy(p.run, &r.run, sizeof r.run);
  p.q_layout = layout_to(r.heads.q), p.k_layout = layout_to(r.heads.k), p.v_layout = layout_to(r.heads.v);
}

AttentionArgs args_from(const hw_attention_args* given, const char* entry) {
  const hw_attention_args a = sized_copy(given, entry, "args");
  const auto view = [&](const hw_tensor* t, const char* what) { return view_anywhere(t, entry, what); };
  AttentionArgs r;
  r.q = view(a.q, "q"), r.k = view(a.k, "k"), r.v = view(a.v, "v");
  r.out = view(a.out, "out"), r.lse = view(a.lse, "lse");
  r.inputs = inputs_from(a, entry);
  if (a.mask != nullptr) r.mask = a.mask->mask.set();
  r.q_start = view(a.q_start, "q_start");
  r.q_offsets = view(a.q_offsets, "q_offsets"), r.kv_offsets = view(a.kv_offsets, "kv_offsets");
  r.probe = probe_views(a.probe, entry);
  r.k_scale = view(a.k_scale, "k_scale"), r.v_scale = view(a.v_scale, "v_scale");
  r.page_table = {view(a.page_table, "page_table"), view(a.page_lengths, "page_lengths")};
  if (a.packed != nullptr) r.packed = packed_from(a.packed, entry);
  return r;
}

}  // namespace headwise::c
