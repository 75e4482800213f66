#include "tests/selftest/setup.h"

#include <map>
#include <utility>
#include <vector>

namespace headwise::selftest {
namespace {

constexpr Index kRim = 2;  // of overlapped heads
constexpr Index kBuckets = 8, kMaxDistance = 20;

/// Copies packed [b t s d] into memory of the asked layout; `store` owns it.
AnyView lay_out(const Tensor& packed, Layout layout, Tensor& store) {
  const InputView& p = packed.view();
  const Index b = p.size[0], t = p.size[1], s = p.size[2], d = p.size[3];
  AnyView v = p;
  switch (layout) {
    case Layout::bshd:
      store = packed.clone();
      v.data = store.view().data;
      return v;
    case Layout::bhsd:
      store = Tensor(p.dtype, {b, s, t, d});
      v.step[0] = s * t * d, v.step[1] = d, v.step[2] = t * d, v.step[3] = 1;
      break;
    case Layout::packed:  // the middle third of a row that holds q, k and v
      store = Tensor(p.dtype, {b, t, 3, s * d});
      v.step[0] = t * 3 * s * d, v.step[1] = 3 * s * d, v.step[2] = d, v.step[3] = 1;
      break;
    case Layout::spread:
      store = Tensor(p.dtype, {b, t, s, 2 * d + 1});
      v.step[0] = t * s * (2 * d + 1), v.step[1] = s * (2 * d + 1), v.step[2] = 2 * d + 1, v.step[3] = 2;
      break;
  }
  // What lies between the tensor's elements must not matter: it is NaN.
  for (Index i = 0; i < store.view().count(); ++i)
    store_double(store.view().data, p.dtype, i, std::numeric_limits<double>::quiet_NaN());
  const Index skip = layout == Layout::packed ? s * d : layout == Layout::spread ? 1 : 0;
  if (store.view().count() > 0) v.data = static_cast<std::byte*>(store.view().data) + skip * size_of(p.dtype);
  for (Index i = 0; i < b; ++i)
    for (Index j = 0; j < t; ++j)
      for (Index k = 0; k < s; ++k)
        for (Index l = 0; l < d; ++l) put(v, at(p, i, j, k, l), i, j, k, l);
  return v;
}

Mask make_mask(const Setup& s) {
  if (s.mask == "dense") {
    Tensor chance = random_normal({s.batch, s.heads, s.q_tokens, s.kv_tokens}, DType::f32, s.seed + 90);
    Tensor open(DType::u8, {s.batch, s.heads, s.q_tokens, s.kv_tokens});
    for (Index i = 0; i < open.view().count(); ++i)
      static_cast<std::uint8_t*>(open.view().data)[i] =
          chance.values<float>()[static_cast<std::size_t>(i)] > 0.2f;
    return Mask::dense(open.view());
  }
  if (s.mask == "per head") {
    std::vector<Mask> masks;
    for (Index h = 0; h < s.heads; ++h)
      masks.push_back(h % 3 == 0 ? Mask::causal() : h % 3 == 1 ? Mask::window(5, 3) : Mask::all());
    return Mask::per_head(masks);
  }
  return parse_mask(s.mask);
}

Tensor offsets(Index batch, Index longest, Index phase) {
  Tensor t(DType::i64, {batch + 1});
  const auto at = t.values<Index>();
  for (Index b = 0; b < batch; ++b) {
    // The longest sequence is there, and an empty one where there are three or more.
    const Index n = b == 0                            ? longest
                    : b == 1 + phase % 2 && batch > 2 ? 0
                                                      : (longest * (b + 1 + phase)) % (longest + 1);
    at[static_cast<std::size_t>(b + 1)] = at[static_cast<std::size_t>(b)] + n;
  }
  return t;
}
Index last(const Tensor& offsets) { return offsets.values<Index>().back(); }

void make_terms(Inputs& in) {
  const Setup& s = in.setup;
  const Index rows = s.ragged ? last(in.q_offsets) : s.q_tokens, tensor_batch = s.ragged ? 1 : s.batch;
  if (s.head_scales) {
    in.scale = Tensor(DType::f32, {s.heads});
    for (Index h = 0; h < s.heads; ++h) put(in.scale.view(), 0.1 + 0.05 * static_cast<double>(h), h);
  }
  if (s.terms.alibi) {
    in.slopes = Tensor(DType::f32, {s.heads});
    for (Index h = 0; h < s.heads; ++h) put(in.slopes.view(), 0.5 / static_cast<double>(h + 1), h);
  }
  if (s.terms.bias)
    in.bias = random_normal({s.batch, s.heads, s.q_tokens, s.kv_tokens}, DType::f32, s.seed + 10);
  if (s.terms.relative) {
    in.relative = random_normal({kBuckets, s.heads}, DType::f32, s.seed + 11);
    in.buckets = {kBuckets, kMaxDistance, s.seed % 2 == 0};
  }
  if (s.terms.sinks) in.sinks = random_normal({s.heads}, DType::f32, s.seed + 12);
  if (s.terms.gate) in.gate = random_normal({tensor_batch, rows, s.heads}, DType::f32, s.seed + 13);
  if (s.q_start != 0) {
    in.q_start = Tensor(DType::i64, {1});
    in.q_start.values<Index>()[0] = s.q_start;
  }
}

void make_probes(Inputs& in) {
  const Setup& s = in.setup;
  const Index keys = s.ragged ? last(in.kv_offsets) : s.kv_tokens, tensor_batch = s.ragged ? 1 : s.batch;
  if (s.probe.classes > 0) {
    in.class_of = Tensor(DType::i32, {tensor_batch, keys});
    Index i = 0;
    for (auto& c : in.class_of.values<std::int32_t>())
      c = static_cast<std::int32_t>(i++ * 7 % (s.probe.classes + 1));  // the last one is no class
  }
  if (s.probe.picked > 0) {
    in.picks = Tensor(DType::i64, {s.probe.picked, 3});
    for (Index n = 0; n < s.probe.picked; ++n) {
      put(in.picks.view(), static_cast<double>(n % s.batch), n, 0);
      put(in.picks.view(), static_cast<double>(n * 3 % s.heads), n, 1);
      put(in.picks.view(), static_cast<double>(n * 5 % s.q_tokens), n, 2);
    }
  }
}

Tensor as_double(const InputView& v) {
  Tensor t(DType::f64, {v.size[0], v.size[1], v.size[2], v.rank > 3 ? v.size[3] : 1});
  for (Index i = 0; i < v.size[0]; ++i)
    for (Index j = 0; j < v.size[1]; ++j)
      for (Index k = 0; k < v.size[2]; ++k)
        for (Index l = 0; l < (v.rank > 3 ? v.size[3] : 1); ++l) put(t.view(), at(v, i, j, k, l), i, j, k, l);
  return t;
}
InputView shaped_as(const Tensor& t, const InputView& like) {
  InputView v = t.view();
  if (like.rank == 3) v.rank = 3;  // the fourth axis has one element
  return v;
}

}  // namespace

std::string describe(const Setup& s) {
  const auto flag = [](bool on, const char* name) { return on ? text(" ", name) : std::string(); };
  constexpr const char* layouts[] = {"bshd", "bhsd", "packed", "spread"};
  constexpr const char* kinds[] = {"plain", "overlapped", "shared_key"};
  return text(s.dtype, " batch ", s.batch, " q ", s.q_tokens, " kv ", s.kv_tokens, " heads ", s.heads, "/",
              s.kv_heads, " dim ", s.head_dim, "/", s.value_dim, " mask ", s.mask,
              flag(s.terms.softcap, "softcap"), flag(s.terms.bias, "bias"), flag(s.terms.alibi, "alibi"),
              flag(s.terms.relative, "relative"), flag(s.terms.sinks, "sinks"),
              flag(s.terms.dropout, "dropout"), flag(s.terms.gate, "gate"),
              flag(s.head_scales, "head_scales"), flag(s.ragged, "ragged"), flag(s.probe.any(), "probes"),
              " ", layouts[static_cast<int>(s.layout)], " ", kinds[static_cast<int>(s.kind)], " q_start ",
              s.q_start, " seed ", s.seed);
}

Inputs make_inputs(const Setup& s) {
  Inputs in;
  in.setup = s;
  Index b = s.batch, rows = s.q_tokens, keys = s.kv_tokens;
  if (s.ragged) {
    in.q_offsets = offsets(s.batch, s.q_tokens, 0);
    in.kv_offsets = offsets(s.batch, s.kv_tokens, 1);
    b = 1, rows = last(in.q_offsets), keys = last(in.kv_offsets);
  }
  if (s.kind == HeadKind::overlapped) {
    in.heads.q = in.heads.k = HeadLayout::overlapped(s.heads, s.head_dim, kRim);
    in.heads.v = HeadLayout::overlapped(s.heads, s.value_dim, kRim);
    in.q_store = random_normal({b, rows, s.heads * s.head_dim}, s.dtype, s.seed);
    in.k_store = random_normal({b, keys, s.heads * s.head_dim}, s.dtype, s.seed + 1);
    in.v_store = random_normal({b, keys, s.heads * s.value_dim}, s.dtype, s.seed + 2);
    in.q = in.q_store.view(), in.k = in.k_store.view(), in.v = in.v_store.view();
  } else {
    const Index k_heads = s.kind == HeadKind::shared_key ? 1 : s.kv_heads;
    in.q = lay_out(random_normal({b, rows, s.heads, s.head_dim}, s.dtype, s.seed), s.layout, in.q_store);
    in.k = lay_out(random_normal({b, keys, k_heads, s.head_dim}, s.dtype, s.seed + 1), s.layout, in.k_store);
    in.v =
        lay_out(random_normal({b, keys, s.kv_heads, s.value_dim}, s.dtype, s.seed + 2), s.layout, in.v_store);
  }
  make_terms(in);
  make_probes(in);
  in.mask = make_mask(s);
  return in;
}

Inputs in_double(const Inputs& in) {
  Inputs r = make_inputs(in.setup);
  r.q_store = as_double(in.q), r.k_store = as_double(in.k), r.v_store = as_double(in.v);
  r.q = shaped_as(r.q_store, in.q), r.k = shaped_as(r.k_store, in.k), r.v = shaped_as(r.v_store, in.v);
  return r;
}

AttentionArgs Inputs::args() const {
  AttentionArgs a;
  a.q = q, a.k = k, a.v = v;
  a.inputs = {.scale = scale.view(),
              .softcap = setup.terms.softcap ? 2.5 : 0,
              .slopes = slopes.view(),
              .bias = bias.view(),
              .relative = relative.view(),
              .buckets = buckets,
              .sinks = sinks.view(),
              .gate = gate.view(),
              .dropout = setup.terms.dropout ? 0.25 : 0,
              .seed = 1234,
              .sequence_ids = {}};
  a.mask = mask.set();
  a.q_start = q_start.view();
  a.q_offsets = q_offsets.view(), a.kv_offsets = kv_offsets.view();
  a.probe.class_of = class_of.view();
  a.probe.picks = picks.view();
  return a;
}

AttentionProblem Inputs::problem() const {
  AttentionProblem p = problem_of(args(), setup.probe, heads);
  p.lse = setup.lse;
  return p;
}

Context& context(const std::string& kernels, int threads) {
  static std::map<std::pair<std::string, int>, Context> kept;
  return kept.try_emplace({kernels, threads}, ContextOptions{threads, kernels}).first->second;
}

Outputs run(const Inputs& in, const std::string& kernels, int threads) {
  const AttentionProblem p = in.problem();
  const Index b = p.ragged ? 1 : p.batch, h = p.heads.q.heads, q = p.ragged ? p.q_total : p.q_tokens;
  const Index kv = p.ragged ? p.kv_total : p.kv_tokens;
  AttentionArgs a = in.args();
  Outputs o;
  const auto out = [](Tensor& t, AnyView& view, DType dtype, std::initializer_list<Index> sizes) {
    t = Tensor(dtype, sizes);
    for (Index i = 0; i < t.view().count(); ++i)
      store_double(t.view().data, dtype, i, 77);  // what a run must overwrite
    view = t.view();
  };
  out(o.out, a.out, p.dtype, {b, q, h, p.heads.v.dim});
  if (p.lse) out(o.lse, a.lse, p.dtype == DType::f64 ? DType::f64 : DType::f32, {b, h, q});
  if (p.probe.rows) {
    out(o.entropy, a.probe.entropy, DType::f32, {b, h, q});
    out(o.top_weight, a.probe.top_weight, DType::f32, {b, h, q});
    out(o.second_moment, a.probe.second_moment, DType::f32, {b, h, q});
    out(o.mean_distance, a.probe.mean_distance, DType::f32, {b, h, q});
    out(o.sink_mass, a.probe.sink_mass, DType::f32, {b, h, q});
    out(o.top_position, a.probe.top_position, DType::i64, {b, h, q});
  }
  if (p.probe.top_k > 0) {
    out(o.top_keys, a.probe.top_keys, DType::i64, {b, h, q, p.probe.top_k});
    out(o.top_weights, a.probe.top_weights, DType::f32, {b, h, q, p.probe.top_k});
  }
  if (p.probe.classes > 0) out(o.class_mass, a.probe.class_mass, DType::f32, {b, h, q, p.probe.classes});
  if (p.probe.columns) out(o.column_sums, a.probe.column_sums, DType::f32, {b, h, kv});
  if (p.probe.picked > 0)
    out(o.picked_weights, a.probe.picked_weights, DType::f32, {p.probe.picked, p.kv_tokens});
  if (p.probe.scores != ScoreStage::none) out(o.scores, a.probe.scores, DType::f32, {b, h, q, p.kv_tokens});
  Context& ctx = context(kernels, threads);
  AttentionPlan(p, ctx).run(a, ctx);
  return o;
}

}  // namespace headwise::selftest
