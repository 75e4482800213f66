#include "headwise/view/deep/head_rows.h"

#include "headwise/base/context.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace headwise {
namespace {

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();
constexpr float kClosed = -std::numeric_limits<float>::infinity();
constexpr Index kSquare = 64;  // pairs are closed by squares of a strip

/// Cephes' polynomial over half a step of 2; loops over it become vectors.
inline float exp_of(float x) {
  const bool some = x > -80.0f;
  x = some ? x : -80.0f;
  x = x < 80.0f ? x : 80.0f;
  constexpr float kMagic = 12582912.0f;  // adding it rounds to whole numbers
  const float n = (x * 1.44269504f + kMagic) - kMagic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const float scaled =
      std::bit_cast<float>(std::bit_cast<std::int32_t>(p) + (static_cast<std::int32_t>(n) << 23));
  return some ? scaled : 0.0f;
}

}  // namespace

float weight_exp(float x) { return exp_of(x); }

Index WeightStrip::open(const QkSource& s, Index q0, Index q1, Index k0, Index k1) const {
  const Index at = s.terms.q_start;
  const TileKind kind = s.terms.mask.tile(q0 + at, q1 + at, k0, k1);
  if (kind != TileKind::mixed) return kind == TileKind::full ? (q1 - q0) * (k1 - k0) : 0;
  Index n = 0;
  for (Index i = q0; i < q1; ++i)
    for (Index j = k0; j < k1; ++j) n += s.terms.mask.may_attend(i + at, j) ? 1 : 0;
  return n;
}

HeadRows::Worker::Worker(Index head_dim)
    : ctx_({.threads = 1}),
      queries_(static_cast<std::size_t>(kRows * head_dim)),
      scores_(static_cast<std::size_t>(kRows * kKeys)) {}

HeadRows::HeadRows(const QkSource& source, Index layer, Index head)
    : source_(source), layer_(layer), head_(head), lse_(static_cast<std::size_t>(source.q_tokens)) {
  for (std::atomic<float>& x : lse_) x = kUnknown;
  const QkLayer& l = source.layers[static_cast<std::size_t>(layer)];
  const auto dim = static_cast<std::size_t>(source.head_dim);
  std::vector<float> rows(static_cast<std::size_t>(kKeys) * dim);
  Context ctx({.threads = 1});
  for (Index at = 0; at < source.kv_tokens; at += kKeys) {
    const Index n = std::min(kKeys, source.kv_tokens - at),
                first = source.kv_head(head) * source.kv_tokens + at;
    for (Index j = 0; j < n; ++j)
      read_vector(l.k, first + j, std::span(rows).subspan(static_cast<std::size_t>(j) * dim, dim));
    keys_.push_back(
        pack_matrix(View<float, 2>::packed(rows.data(), {n, source.head_dim}), DType::f32, ctx, false));
  }
  if (!l.lse) return;
  for (Index i = 0; i < source.q_tokens; ++i) {
    const float x = l.lse->number(head * source.q_tokens + i);
    lse_[static_cast<std::size_t>(i)] = std::isfinite(x) ? x : kClosed;
  }
}

/// Logits of rows x one chunk of keys into the worker; false: no pair is open.
bool HeadRows::scores_of(const RowSet& rows, Index keys, Worker& w) const {
  const QkSource& s = source_;
  const Index n = std::min(kKeys, s.kv_tokens - keys), at = s.terms.q_start;
  const TileKind kind = s.terms.mask.tile(rows.first + at, rows.end() + at, keys, keys + n);
  if (kind == TileKind::empty) return false;
  const auto dim = static_cast<std::size_t>(s.head_dim);
  const FileArray& q = s.layers[static_cast<std::size_t>(layer_)].q;
  for (Index i = 0; i < rows.count; ++i)
    read_vector(q, head_ * s.q_tokens + rows.at(i),
                std::span(w.queries_).subspan(static_cast<std::size_t>(i) * dim, dim));
  const GemmProblem problem{.m = rows.count, .n = n, .k = s.head_dim, .packed = true};
  if (!w.plan_ || w.plan_->problem() != problem) w.plan_.emplace(problem, w.ctx_);
  w.plan_->run({.x = View<float, 2>::packed(w.queries_.data(), {rows.count, s.head_dim}),
                .out = View<float, 2>::packed(w.scores_.data(), {rows.count, n}),
                .packed = &keys_[static_cast<std::size_t>(keys / kKeys)]},
               w.ctx_);
  const std::span<float> scores(w.scores_.data(), static_cast<std::size_t>(rows.count * n));
  const float scale = s.terms.scale, cap = s.terms.softcap;
  for (float& x : scores) x *= scale;
  if (cap > 0)
    for (float& x : scores) x = cap * std::tanh(x / cap);
  if (kind == TileKind::mixed) close_pairs(rows, keys, scores);
  return true;
}

void HeadRows::close_pairs(const RowSet& rows, Index keys, std::span<float> scores) const {
  const Index n = static_cast<Index>(scores.size()) / rows.count, q0 = source_.terms.q_start;
  const Mask& mask = source_.terms.mask;
  for (Index at = 0; at < n; at += kSquare) {
    const Index end = std::min(n, at + kSquare);
    const TileKind kind = mask.tile(q0 + rows.first, q0 + rows.end(), keys + at, keys + end);
    if (kind == TileKind::full) continue;
    for (Index i = 0; i < rows.count; ++i)
      for (Index j = at; j < end; ++j)
        if (kind == TileKind::empty || !mask.may_attend(q0 + rows.at(i), keys + j))
          scores[static_cast<std::size_t>(i * n + j)] = kClosed;
  }
}

Index HeadRows::rows_without_lse(const RowSet& rows) const {
  Index n = 0;
  for (Index i = 0; i < rows.count; ++i) n += std::isnan(lse(rows.at(i))) ? 1 : 0;
  return n;
}

void HeadRows::fill_lse(const RowSet& rows, Worker& w) {
  for (Index i = 0; i < rows.count; i += kRows) {
    const RowSet some{rows.at(i), std::min(kRows, rows.count - i), rows.step};
    if (rows_without_lse(some) > 0) fill_some(some, w);
  }
}

/// Online over the chunks: the largest logit so far, and the sum of exponentials below it.
void HeadRows::fill_some(const RowSet& rows, Worker& w) {
  std::vector<float> most(static_cast<std::size_t>(rows.count), kClosed);
  std::vector<double> sum(static_cast<std::size_t>(rows.count), 0.0);
  for (Index keys = 0; keys < source_.kv_tokens; keys += kKeys) {
    if (!scores_of(rows, keys, w)) continue;
    const Index width = std::min(kKeys, source_.kv_tokens - keys);
    for (Index i = 0; i < rows.count; ++i) {
      const float* s = w.scores_.data() + i * width;
      float& m = most[static_cast<std::size_t>(i)];
      float top = m;
      for (Index j = 0; j < width; ++j) top = s[j] > top ? s[j] : top;
      if (top == kClosed) continue;
      double& total = sum[static_cast<std::size_t>(i)];
      if (top > m) total *= m == kClosed ? 0 : std::exp(static_cast<double>(m) - static_cast<double>(top));
      m = top;
      float lanes[16] = {};
      Index j = 0;
      for (; j + 16 <= width; j += 16)
        for (Index lane = 0; lane < 16; ++lane) lanes[lane] += exp_of(s[j + lane] - top);
      for (; j < width; ++j) lanes[0] += exp_of(s[j] - top);
      for (const float lane : lanes) total += static_cast<double>(lane);
    }
  }
  for (Index i = 0; i < rows.count; ++i) {
    const double l = sum[static_cast<std::size_t>(i)],
                 m = static_cast<double>(most[static_cast<std::size_t>(i)]);
    lse_[static_cast<std::size_t>(rows.at(i))] =
        l > 0 && std::isfinite(m) ? static_cast<float>(m + std::log(l)) : kClosed;
  }
}

WeightStrip HeadRows::strip_of(const RowSet& rows, Index keys, Worker& w) const {
  if (!scores_of(rows, keys, w)) return {};
  const Index n = std::min(kKeys, source_.kv_tokens - keys);
  for (Index i = 0; i < rows.count; ++i) {
    float* s = w.scores_.data() + i * n;
    const float base = lse(rows.at(i));
    if (!std::isfinite(base))  // no open key, or nothing that can be computed with
      std::fill(s, s + n, 0.0f);
    else
      for (Index j = 0; j < n; ++j) s[j] = exp_of(s[j] - base);
  }
  return {.rows = rows, .begin = keys, .end = keys + n, .weights = w.scores_.data()};
}

}  // namespace headwise
