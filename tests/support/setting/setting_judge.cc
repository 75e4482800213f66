// Judging a setting: ref in double gives the truth; every output of the run is compared with it.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "headwise/base/context.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/ops/keys/packed_keys.h"
#include "tests/support/case.h"
#include "tests/support/levels.h"
#include "tests/support/setting/setting.h"
#include "tests/support/setting/setting_pose.h"
#include "tests/support/setting/setting_values.h"

namespace headwise::test {
namespace {

constexpr double kU32 = 0x1p-24;
// Arrays in place of vectors are too slow under a sanitizer, and touch no memory that the other levels do
// not.
Context& context_for(int threads, const std::string& kernels) {
  static std::map<std::pair<int, std::string>, std::unique_ptr<Context>> all;
  auto& c = all[{threads, kernels}];
  if (!c) c = std::make_unique<Context>(ContextOptions{.threads = threads, .kernels = kernels});
  return *c;
}

double unit_of(DType t) {
  return t == DType::bf16 ? 0x1p-8 : t == DType::f16 ? 0x1p-11 : t == DType::f32 ? 0x1p-24 : 0x1p-53;
}

/// Outputs in memory of their own, poisoned before the run.
struct Results {
  Placed out, lse;
  Tensor out_before;
  Tensor entropy, top_weight, second_moment, mean_distance, sink_mass, top_position, top_keys, top_weights,
      class_mass, column_sums, picked, scores;
};

void poison_all(Tensor& t) {
  if (t.view().count() > 0)
    std::memset(t.view().data, 0xff, static_cast<std::size_t>(t.view().count() * size_of(t.dtype())));
}

Results point_outputs(const Posed& p, AttentionArgs& a) {
  const Sizes& s = p.sizes;
  const Index b = p.tensor_batch(), h = s.heads, q = p.q_rows(), kv = p.kv_rows();
  const DType wide = s.dtype == DType::f64 ? DType::f64 : DType::f32;
  const Index value_dim = p.heads.v.heads ? p.heads.v.dim : s.value_dim;
  Results r;
  constexpr int kOrder[] = {0, 2, 1, 3};
  Placement how;
  if (p.choice[kOutLayout] == 1) how.order.assign(std::begin(kOrder), std::end(kOrder));
  if (p.choice[kOutLayout] == 2) how.inner = 2, how.gap = 3, how.first = 1;
  how.junk = p.choice[kLayout] == 5;
  Tensor plain(s.dtype, {b, q, h, value_dim});
  r.out = place(plain.view(), how);
  poison_all(r.out.memory);
  r.out_before = r.out.memory.clone();
  a.out = r.out.view;
  if (p.choice[kLse] > 0) {
    Tensor lse(wide, {b, h, q});
    Placement spread;
    if (p.choice[kLse] == 2) spread = {.order = {2, 0, 1}, .inner = 2, .gap = 1};
    r.lse = place(lse.view(), spread);
    poison_all(r.lse.memory);
    a.lse = r.lse.view;
  }
  const auto take = [](Tensor& t, AnyView& v, Tensor made) {
    t = std::move(made);
    poison_all(t);
    v = t.view();
  };
  ProbeOut& o = a.probe;
  if (p.probe.rows) {
    take(r.entropy, o.entropy, Tensor(wide, {b, h, q}));
    take(r.top_weight, o.top_weight, Tensor(wide, {b, h, q}));
    take(r.second_moment, o.second_moment, Tensor(wide, {b, h, q}));
    take(r.mean_distance, o.mean_distance, Tensor(wide, {b, h, q}));
    take(r.sink_mass, o.sink_mass, Tensor(wide, {b, h, q}));
    take(r.top_position, o.top_position, Tensor(DType::i64, {b, h, q}));
  }
  if (p.probe.top_k > 0) {
    take(r.top_keys, o.top_keys, Tensor(DType::i64, {b, h, q, p.probe.top_k}));
    take(r.top_weights, o.top_weights, Tensor(wide, {b, h, q, p.probe.top_k}));
  }
  if (p.probe.classes > 0) take(r.class_mass, o.class_mass, Tensor(wide, {b, h, q, p.probe.classes}));
  if (p.probe.columns) take(r.column_sums, o.column_sums, Tensor(wide, {b, h, kv}));
  if (p.probe.picked > 0) take(r.picked, o.picked_weights, Tensor(wide, {p.probe.picked, s.kv_tokens}));
  if (p.probe.scores != ScoreStage::none)
    take(r.scores, o.scores, Tensor(wide, {s.batch, h, s.q_tokens, s.kv_tokens}));
  return r;
}

struct TruthOf {
  Tensor out, lse, weights;  // weights: [batch heads q kv]
};
TruthOf truth_of(const Posed& p) {
  const Sizes& s = p.sizes;
  AttentionArgs a = p.truth;
  const Index value_dim = p.heads.v.heads ? p.heads.v.dim : s.value_dim;
  TruthOf t{Tensor(DType::f64, {p.tensor_batch(), p.q_rows(), s.heads, value_dim}),
            Tensor(DType::f64, {p.tensor_batch(), s.heads, p.q_rows()}),
            Tensor(DType::f64, {s.batch, s.heads, s.q_tokens, s.kv_tokens})};
  a.probe = {};
  a.out = t.out.view(), a.lse = t.lse.view(), a.probe.scores = t.weights.view();
  attention(a, context_for(2, "ref"), {.scores = ScoreStage::weights}, p.heads);
  return t;
}

/// Compares numbers one by one; the first that is off becomes the fault.
struct Judge {
  const Posed& p;
  const TruthOf& truth;
  Verdict& verdict;

  bool failed() const { return !verdict.fault.empty(); }
  void near(const char* what, Index n, double got, double want, double bound) {
    if (failed()) return;
    const bool same_kind = std::isnan(want)   ? std::isnan(got)
                           : std::isinf(want) ? got == want
                                              : std::isfinite(got);
    if (same_kind && (!std::isfinite(want) || std::fabs(got - want) <= bound)) return;
    verdict.fault =
        text(what, " ", n, " is ", got, ", truth ", want, ", apart ", got - want, ", bound ", bound);
  }

  void out(const Results& r) {
    Tensor got = converted(r.out.view, DType::f64);
    const DType t = p.sizes.dtype;
    const double bound = out_bound();
    double error = 0, norm = 0;
    for (Index n = 0; n < got.view().count(); ++n) {
      const double x = got.values<double>()[static_cast<std::size_t>(n)],
                   y = truth.out.values<double>()[static_cast<std::size_t>(n)];
      near("out", n, x, y, bound + 2 * unit_of(t) * std::fabs(y));
      verdict.error = std::max(verdict.error, std::fabs(x - y));
      error += (x - y) * (x - y), norm += y * y;
    }
    // The guard of T2 needs enough numbers to average over, and logits of an ordinary size.
    const double guard = t == DType::bf16  ? 2.5e-3
                         : t == DType::f16 ? 3.2e-4
                         : t == DType::f32 ? 1e-6
                                           : 1e-14;
    if (!failed() && got.view().count() >= 2000 && p.most_logit < 16 &&
        std::sqrt(error) > guard * std::sqrt(norm))
      verdict.fault = text("out is ", std::sqrt(error / norm), " off in the 2-norm, allowed ", guard);
    untouched(r);
  }
  /// T3; weights may be rounded once to the dtype before they meet the values.
  double out_bound() const {
    const Sizes& s = p.sizes;
    if (s.dtype == DType::f64) return 1e-13 * (1 + p.most_value) * (1 + p.most_logit);
    return p.most_value * (unit_of(s.dtype) + relative_bound());
  }
  double relative_bound() const {
    const double tiles = std::max(2.0, static_cast<double>(p.sizes.kv_tokens) / 256);
    if (p.sizes.dtype == DType::f64) return 1e-12 * (1 + p.most_logit);
    return 4 * kU32 * (p.most_logit + p.most_product + std::log2(tiles) + 1 + std::sqrt(chain()) / 4);
  }
  /// Numbers in one chain of additions: a granule's keys.
  double chain() const { return static_cast<double>(min_of(p.sizes.kv_tokens, 256)); }
  /// Bytes between the elements of out hold what they held.
  void untouched(const Results& r) {
    if (const Index n = touched_outside(r.out, r.out_before); n >= 0 && !failed())
      verdict.fault = text("a byte that does not belong to out was written, element ", n, " of its memory");
  }

  void lse(const Results& r) {
    if (p.choice[kLse] == 0) return;
    Tensor got = converted(r.lse.view, DType::f64);
    for (Index n = 0; n < got.view().count(); ++n) {
      const double y = truth.lse.values<double>()[static_cast<std::size_t>(n)];
      const double bound = p.sizes.dtype == DType::f64
                               ? 1e-12 * (1 + std::fabs(y) + p.most_product)
                               : kU32 * (4 * std::max(1.0, std::fabs(y)) + p.most_product + chain() / 8);
      near("lse", n, got.values<double>()[static_cast<std::size_t>(n)], y, bound);
    }
  }

  /// Calls visit(row, b, h, i, weights): row counts [tensor_batch heads q_rows].
  template <class Visit>
  void each_row(Visit&& visit) {
    const Sizes& s = p.sizes;
    Index q0 = 0;
    for (Index b = 0; b < s.batch; ++b) {
      const Index tokens = p.q_lengths[static_cast<std::size_t>(b)];
      for (Index h = 0; h < s.heads; ++h)
        for (Index i = 0; i < tokens; ++i) {
          const Index row = p.sizes_ragged ? h * p.q_rows() + q0 + i : (b * s.heads + h) * s.q_tokens + i;
          visit(row, b, h, i,
                truth.weights.values<double>().data() + ((b * s.heads + h) * s.q_tokens + i) * s.kv_tokens);
        }
      q0 += p.sizes_ragged ? tokens : 0;
    }
  }
  Index start_of(Index b) const {
    const InputView& v = p.args.q_start;
    if (!v.given()) return 0;
    const Index start = static_cast<const Index*>(v.data)[v.size[0] == 1 ? 0 : b];
    return start != kStartEnd
               ? start
               : p.kv_lengths[static_cast<std::size_t>(b)] - p.q_lengths[static_cast<std::size_t>(b)];
  }
  static double value(const Tensor& t, Index n) { return load_double(t.view().data, t.dtype(), n); }

  void row_probes(const Results& r) {
    // A weight is off by this much of itself; a sum of them by this much of the sum.
    const double rel = 2 * relative_bound() + 8 * kU32 + kU32 * lse_size();
    each_row([&](Index row, Index b, Index h, Index i, const double* w) {
      const Index keys = p.kv_lengths[static_cast<std::size_t>(b)], q = start_of(b) + i;
      double sum = 0, entropy = 0, square = 0, distance = 0, top = 0;
      for (Index k = 0; k < keys; ++k) {
        sum += w[k];
        if (w[k] > 0) entropy -= w[k] * std::log(w[k]);
        square += w[k] * w[k];
        distance += w[k] * std::fabs(static_cast<double>(q - k));
        top = std::max(top, w[k]);
      }
      const double sink = sink_mass(row, h);
      if (sink > 0) entropy -= sink * std::log(sink);
      if (p.probe.rows) {
        near("entropy", row, value(r.entropy, row), entropy, rel * (4 + entropy) + rel * 20 * sum);
        near("top_weight", row, value(r.top_weight, row), top, rel * top + 1e-37);
        near("second_moment", row, value(r.second_moment, row), square, rel * square * 2 + 1e-37);
        near("mean_distance", row, value(r.mean_distance, row), distance, rel * distance * 2 + 1e-37);
        near("sink_mass", row, value(r.sink_mass, row), sink, rel * sink + 1e-37);
        const Index at = r.top_position.values<std::int64_t>()[static_cast<std::size_t>(row)];
        key("top_position", row, at, w, keys, top, rel);
      }
      if (p.probe.top_k > 0) top_keys(r, row, w, keys, rel);
      for (Index c = 0; c < p.probe.classes; ++c) {
        double mass = 0;
        const Index kv0 = p.sizes_ragged ? kv_offset(b) : 0;
        const InputView& of = p.args.probe.class_of;
        for (Index k = 0; k < keys; ++k)
          if (static_cast<const std::int32_t*>(
                  of.data)[(p.sizes_ragged ? 0 : b * p.sizes.kv_tokens) + kv0 + k] == c)
            mass += w[k];
        near("class_mass", row, value(r.class_mass, row * p.probe.classes + c), mass, rel * mass * 2 + 1e-37);
      }
    });
  }
  Index kv_offset(Index b) const {
    Index n = 0;
    for (Index i = 0; i < b; ++i) n += p.kv_lengths[static_cast<std::size_t>(i)];
    return n;
  }
  double lse_size() const {
    double most = 1;
    for (double x : truth.lse.values<double>())
      if (std::isfinite(x)) most = std::max(most, std::fabs(x));
    return most;
  }
  double sink_mass(Index row, Index h) const {
    const InputView& v = p.args.inputs.sinks;
    if (!v.given()) return 0;
    const double sink = load_double(v.data, v.dtype, h),
                 lse = truth.lse.values<double>()[static_cast<std::size_t>(row)];
    // an lse of -inf: the row is not listed
    return std::isinf(sink) || std::isinf(lse) ? 0 : std::exp(sink - lse);
  }
  /// `at` must be as heavy as the truth's, or none where there is none.
  void key(const char* what, Index row, Index at, const double* w, Index keys, double weight, double rel) {
    if (failed()) return;
    if (weight == 0) return;  // no open key, or weights below what a double holds: ties
    if (at < 0 || at >= keys || std::fabs(w[at] - weight) > 2 * rel * weight)
      verdict.fault = text(what, " of row ", row, " is ", at, " whose weight is ",
                           at >= 0 && at < keys ? w[at] : -1.0, ", truth ", weight);
  }
  void top_keys(const Results& r, Index row, const double* w, Index keys, double rel) {
    std::vector<double> sorted(w, w + keys);
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    std::vector<Index> seen;
    for (Index j = 0; j < p.probe.top_k && !failed(); ++j) {
      const Index at = r.top_keys.values<std::int64_t>()[static_cast<std::size_t>(row * p.probe.top_k + j)];
      const double weight = j < keys ? sorted[static_cast<std::size_t>(j)] : 0;
      near("top_weights", row * p.probe.top_k + j, value(r.top_weights, row * p.probe.top_k + j), weight,
           rel * weight + 1e-37);
      key("top_keys", row, at, w, keys, weight, rel);
      if (at < 0) continue;
      if (std::find(seen.begin(), seen.end(), at) != seen.end())
        verdict.fault = text("top_keys of row ", row, " names key ", at, " twice");
      seen.push_back(at);
    }
  }

  void second_look(const Results& r) {
    const Sizes& s = p.sizes;
    const double rel = 2 * relative_bound() + 8 * kU32 + 2 * kU32 * lse_size();
    for (Index b = 0; p.probe.columns && b < s.batch; ++b)
      for (Index h = 0; h < s.heads; ++h)
        for (Index k = 0; k < p.kv_lengths[static_cast<std::size_t>(b)]; ++k) {
          double sum = 0;
          for (Index i = 0; i < p.q_lengths[static_cast<std::size_t>(b)]; ++i)
            sum += truth.weights.values<double>()[static_cast<std::size_t>(
                ((b * s.heads + h) * s.q_tokens + i) * s.kv_tokens + k)];
          const Index at =
              p.sizes_ragged ? h * p.kv_rows() + kv_offset(b) + k : (b * s.heads + h) * s.kv_tokens + k;
          near("column_sums", at, value(r.column_sums, at), sum, rel * sum * 2 + 1e-36);
        }
    for (Index n = 0; n < p.probe.picked; ++n) {
      const Index* pick = static_cast<const Index*>(p.args.probe.picks.data) + n * 3;
      for (Index k = 0; k < s.kv_tokens; ++k) {
        const double w = truth.weights.values<double>()[static_cast<std::size_t>(
            ((pick[0] * s.heads + pick[1]) * s.q_tokens + pick[2]) * s.kv_tokens + k)];
        near("picked_weights", n * s.kv_tokens + k, value(r.picked, n * s.kv_tokens + k), w, rel * w + 1e-37);
      }
    }
    if (p.probe.scores != ScoreStage::none)
      for (Index n = 0; n < truth.weights.view().count(); ++n)
        near("scores", n, value(r.scores, n), value(truth.weights, n),
             s.dtype == DType::f64 ? 1e-14 : 2 * kU32);
  }
};

/// The kernel list of a choice, and whether the plan must refuse it.
std::string kernels_of(const Choice& c) {
  constexpr const char* kLists[] = {"", "cpu/online,ref", "cpu/online"};
  return kLists[c[kKernels]];
}
bool must_refuse(const Posed& p) {
  const KeysValues& form = keys_values(p.choice);
  const bool rows = p.heads.k.row > 0;
  if (form.page > 0 && (rows || (p.sizes_ragged && (p.probe.columns || p.probe.classes > 0)))) return true;
  if ((form.packed && (rows || p.sizes_ragged)) || (form.quantized() && rows)) return true;
  if (form.packed && !form.quantized() && p.sizes.dtype == DType::f64) return true;
  return p.choice[kKernels] == 2 && (p.sizes.dtype == DType::f64 || p.probe.scores != ScoreStage::none ||
                                     (p.choice[kRows] > 0 && p.probe.any()));
}
/// Packed as the level that is forced now reads them.
Tensor pack_keys_of(AttentionArgs& a, Context& ctx) {
  const bool has_heads = a.k.rank == 4;
  const Index kv_heads = has_heads ? a.k.size[2] : 1, dim = a.k.size[a.k.rank - 1];
  PackedKeys about = packed_keys(a.k.dtype, kv_heads, dim, a.k.size[1] + 5);
  Tensor buffer(a.k.dtype, {a.k.size[0], kv_heads, about.room()});
  pack_keys(a.k, buffer.view(), about, ctx);
  a.k = buffer.view(), a.packed = about;
  return buffer;
}

void judge_once(const Posed& p, const TruthOf& truth, Verdict& v) {
  AttentionArgs a = p.args;
  const Results r = point_outputs(p, a);
  Context& ctx = context_for(static_cast<int>(number_of(p.choice, kThreads)), kernels_of(p.choice));
  Tensor packed;
  try {
    if (keys_values(p.choice).packed) packed = pack_keys_of(a, ctx);
    attention(a, ctx, p.probe, p.heads);
  } catch (const Error& e) {
    v.refused = true;
    if (!must_refuse(p)) v.fault = text("refused: ", e.what());
    return;
  }
  if (must_refuse(p)) {
    v.fault = "a strict list ran what its kernel cannot";
    return;
  }
  Judge judge{p, truth, v};
  judge.out(r);
  judge.lse(r);
  judge.row_probes(r);
  judge.second_look(r);
}

}  // namespace

Verdict judge(const Choice& c, const SettingOptions& options) {
  Verdict v;
  Posed p;
  pose(c, options, p);
  const TruthOf truth = truth_of(p);
  if (!options.every_isa) {
    judge_once(p, truth, v);
    return v;
  }
  for (const cpu::IsaLevel& level : run_levels()) {
    cpu::force_isa(&level);
    judge_once(p, truth, v);
    cpu::force_isa(nullptr);
    if (!v.fault.empty()) {
      v.fault = text(level.name, ": ", v.fault);
      break;
    }
  }
  return v;
}

}  // namespace headwise::test
