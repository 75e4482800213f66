#include "headwise/kernels/cpu/f64/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "headwise/base/random.h"
#include "headwise/kernels/cpu/isa/isa.h"

namespace headwise::cpu::f64 {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

double at(const AnyView& x, Index i, Index j = 0, Index k = 0, Index l = 0) {
  return load_double(x.data, x.dtype, i * x.step[0] + j * x.step[1] + k * x.step[2] + l * x.step[3]);
}

/// Calls body(t, c, x) for column c of what head h reads of token row0 + t.
template <class Body>
void each_element(const AnyView& x, const HeadLayout& layout, Index batch, Index row0, Index tokens, Index h,
                  Body&& body) {
  const auto* data = static_cast<const double*>(x.data);
  for (Index t = 0; t < tokens; ++t) {
    const double* token = data + batch * x.step[0] + (row0 + t) * x.step[1];
    if (layout.row == 0) {
      const double* from = token + layout.slot(h) * x.step[2];
      for (Index c = 0; c < layout.dim; ++c) body(t, c, from[c * x.step[3]]);
      continue;
    }
    for (Index c = 0; c < layout.dim; ++c) {
      const Index column = layout.column(h) + c;
      body(t, c, 0 <= column && column < layout.row ? token[column * x.step[2]] : 0.0);
    }
  }
}

/// -inf weighs nothing: its pair is closed. Returns the highest logit, of a sink too.
double close_and_find_top(std::uint64_t* open, Index words, const double* s, double top, bool& empty) {
  Rows::each_bit(open, words, [&](Index j) {
    if (s[j] == kMinusInfinity) {
      open[j / 64] &= ~(std::uint64_t{1} << (j % 64));
      return;
    }
    empty = false;
    if (!(s[j] <= top)) top = s[j];
  });
  return top;
}

}  // namespace

const F64Core& f64_core() {
#if defined(__x86_64__)
  const std::string_view level = chosen_isa().name;
  if (level == "avx2") return kF64Avx2;
  if (level != "plain") return kF64Avx512;
#endif
  return kF64Plain;
}

void pack_turned(const AnyView& x, const HeadLayout& layout, Index batch, Index row0, Index tokens, Index h,
                 double* to) {
  const Index each = layout.dim * kKeys, tiles = Rows::tiles_of(tokens);
  if (tokens % kKeys != 0) std::fill_n(to + (tiles - 1) * each, each, 0.0);
  each_element(x, layout, batch, row0, tokens, h,
               [&](Index t, Index c, double v) { to[t / kKeys * each + c * kKeys + t % kKeys] = v; });
}

void pack_rows(const AnyView& x, const HeadLayout& layout, Index batch, Index row0, Index tokens, Index h,
               double* to) {
  const Index wide = Rows::wide(layout.dim);
  for (Index t = 0; t < tokens && wide != layout.dim; ++t)
    std::fill(to + t * wide + layout.dim, to + (t + 1) * wide, 0.0);
  each_element(x, layout, batch, row0, tokens, h, [&](Index t, Index c, double v) { to[t * wide + c] = v; });
}

double Rows::scale_of(Index head) const {
  const AnyView& scale = a.inputs.scale;
  return scale.given() ? at(scale, scale.size[0] == 1 ? 0 : head)
                       : 1.0 / std::sqrt(static_cast<double>(p.heads.q.dim));
}

void Rows::book(Arena& arena) {
  q = arena.take<double>("f64.queries", most * wide(p.heads.q.dim));
  logits = arena.take<double>("f64.logits", most * pitch());
  weights = arena.take<double>("f64.weights", most * pitch());
  scaled = arena.take<double>("f64.scaled", keeps_scaled ? most * pitch() : 0);
  open = arena.take<std::uint64_t>("f64.open", most * words());
  keep = arena.take<std::uint64_t>("f64.open", most * words());
  lse = arena.take<double>("f64.lse", most);
  empty = arena.take<double>("f64.lse", most);
}

void Rows::begin(const Block& b) {
  const Index used = ceil_div(b.at.kv_tokens, 64), last = b.at.kv_tokens % 64;
  pack_rows(a.q, p.heads.q, b.at.tensor_batch, b.at.q_row + b.first, b.rows, b.head, q);
  for (Index r = 0; r < b.rows; ++r) {
    std::uint64_t* bits = open + r * words();
    std::fill_n(bits, words(), std::uint64_t{0});
    const Index position = b.at.q_start + b.first + r;
    if (!a.mask.given())
      std::fill_n(bits, used, ~std::uint64_t{0});
    else
      for (Index w = 0; w < used; w += 4)
        a.mask.of(b.head).row_bits(position, 64 * w, static_cast<int>(min_of(4, used - w)), bits + w,
                                   {b.at.sequence, b.head, b.at.q_start});
    if (last > 0) bits[used - 1] &= (std::uint64_t{1} << last) - 1;
  }
}

void Rows::dot_tile(const Block& b, const F64Dots& task, Index number) const {
  Index first = 0, end = b.rows;
  while (first < end && !sees(first, number)) ++first;
  while (end > first && !sees(end - 1, number)) --end;
  F64Dots t = task;
  t.x += first * t.x_step, t.sums += first * t.sums_step, t.rows = end - first;
  core.dots(t);
}

void Rows::score_tile(const Block& b, const double* tile, Index number, double* to) const {
  const double scale = scale_of(b.head);
  const Index dim = p.heads.q.dim;
  double* at_tile = to + number * kKeys;
  dot_tile(b,
           {.x = q,
            .x_step = wide(dim),
            .rows = b.rows,
            .dim = dim,
            .tile = tile,
            .sums = at_tile,
            .sums_step = pitch()},
           number);
  for (Index r = 0; r < b.rows; ++r) {
    double* s = at_tile + r * pitch();
    for (Index j = 0; sees(r, number) && j < kKeys; ++j) s[j] = scale * s[j];
  }
}

void Rows::finish(const Block& b) {
  const HeadInputs& in = a.inputs;
  const Terms& terms = p.heads.terms;
  const Index h = b.head, n = words();
  const double slope = terms.alibi ? at(in.slopes, h) : 0, sink = terms.sinks ? at(in.sinks, h) : 0;
  for (Index r = 0; r < b.rows; ++r) {
    const Index i = b.first + r, position = b.at.q_start + i;
    double *s = logits + r * pitch(), *w = weights + r * pitch();
    std::uint64_t *bits = open + r * n, *kept = keep + r * n;
    if (keeps_scaled) std::copy_n(s, b.at.kv_tokens, scaled + r * pitch());
    if (terms.softcap) each_bit(bits, n, [&](Index j) { s[j] = in.softcap * std::tanh(s[j] / in.softcap); });
    if (terms.bias) each_bit(bits, n, [&](Index j) { s[j] += at(in.bias, b.at.sequence, h, i, j); });
    if (terms.alibi) each_bit(bits, n, [&](Index j) { s[j] += alibi_term(slope, position, j); });
    if (terms.relative)
      each_bit(bits, n, [&](Index j) { s[j] += at(in.relative, in.buckets.bucket(position, j), h); });
    bool none = true;
    const double top = close_and_find_top(bits, n, s, terms.sinks ? sink : kMinusInfinity, none);
    empty[r] = none ? 1 : 0;
    double sum = terms.sinks && top > kMinusInfinity ? std::exp(sink - top) : 0;
    each_bit(bits, n, [&](Index j) { sum += w[j] = std::exp(s[j] - top); });
    lse[r] = top > kMinusInfinity || top != top ? top + std::log(sum) : kMinusInfinity;
    each_bit(bits, n, [&](Index j) { w[j] /= sum; });
    std::copy_n(bits, n, kept);
    if (!terms.dropout || in.dropout == 0) continue;
    const DropoutRule rule = DropoutRule::of(in.dropout, in.seed);
    const Index id =
        in.sequence_ids.given()
            ? static_cast<const Index*>(in.sequence_ids.data)[b.at.sequence * in.sequence_ids.step[0]]
            : b.at.sequence;
    each_bit(bits, n, [&](Index j) {
      if (!rule.keep(id, h, position, j)) kept[j / 64] &= ~(std::uint64_t{1} << (j % 64));
    });
  }
}

std::string refuse_both(const AttentionProblem& p) {
  if (p.dtype != DType::f64) return text("dtype is ", p.dtype, ": this kernel computes in f64");
  if (p.heads.mixes()) return kHeadsAreMixed;
  if (p.heads.norm == Norm::entmax) return "weights are entmax: ref sorts them";
  if (p.keys != KeyForm::plain || p.eight_bit_kv()) return "keys are not plain f64: ref reads them";
  if (p.probe.any()) return "probes in f64 are gathered by ref";
  if (p.heads.terms.rows) return "heads list their rows: ref looks them up";
  return {};
}

}  // namespace headwise::cpu::f64
