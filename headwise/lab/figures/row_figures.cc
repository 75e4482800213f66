#include "headwise/lab/figures/row_figures.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "headwise/lab/figures/entropy_term.h"

namespace headwise {
namespace {

constexpr Index kLanes = kRowLanes;
constexpr Index kMostSorted = 64;  // keys of a row that a network of comparisons sorts
constexpr double kShare = 0.9;

/// to[lane] = sum of f(key)[lane].
template <class Keys>
void sum_keys(const Keys& keys, const float* tile, float* to) {
  float sum[kLanes] = {};
  for (const Index j : keys)
    for (Index l = 0; l < kLanes; ++l) sum[l] += tile[j * kLanes + l];
  std::copy_n(sum, kLanes, to);
}

/// The largest weight of some keys in every lane, and the first key that has it.
void find_top(const std::vector<Index>& keys, const float* tile, float* top, std::int32_t* argmax) {
  float most[kLanes];
  std::int32_t place[kLanes];
  std::fill_n(most, kLanes, -1.0f), std::fill_n(place, kLanes, -1);
  for (const Index j : keys) {
    const auto key = static_cast<std::int32_t>(j);
    for (Index l = 0; l < kLanes; ++l) {
      const float w = tile[j * kLanes + l];
      place[l] = w > most[l] ? key : place[l];
      most[l] = w > most[l] ? w : most[l];
    }
  }
  std::copy_n(most, kLanes, top);
  if (argmax) std::copy_n(place, kLanes, argmax);
}

/// Four lanes, which compilers leave one by one if loops spell them.
typedef float FourLanes __attribute__((vector_size(16)));
constexpr Index kFours = kLanes / 4;

/// Puts all lanes in order, the largest first: Batcher's merge exchange (Knuth 5.2.2, algorithm M), whose
/// comparisons do not depend on the weights.
void sort_lanes(float* tile, Index keys) {
  const auto exchange = [tile](Index a, Index b) {
    FourLanes p[kFours], q[kFours];
    std::memcpy(p, tile + a * kLanes, sizeof p), std::memcpy(q, tile + b * kLanes, sizeof q);
    for (Index f = 0; f < kFours; ++f) {
      const FourLanes larger = p[f] < q[f] ? q[f] : p[f], smaller = p[f] < q[f] ? p[f] : q[f];
      p[f] = larger, q[f] = smaller;
    }
    std::memcpy(tile + a * kLanes, p, sizeof p), std::memcpy(tile + b * kLanes, q, sizeof q);
  };
  const Index half = static_cast<Index>(std::bit_ceil(static_cast<std::uint64_t>(keys))) / 2;
  for (Index p = half; p > 0; p /= 2)
    for (Index q = half, r = 0, d = p;; d = q - p, q /= 2, r = p) {
      for (Index i = 0; i + d < keys; ++i)
        if ((i & p) == r) exchange(i, i + d);
      if (q == p) break;
    }
}

/// How many of the largest weights take `share` of a row, which is put in another order: halves in which the
/// answer cannot lie are left unsorted.
Index keys_for(float* first, float* end, double share) {
  constexpr std::ptrdiff_t kFew = 12;
  Index keys = 0;
  while (end - first > kFew) {
    const float a = *first, b = first[(end - first) / 2], c = end[-1];
    const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    float* const middle = std::partition(first, end, [pivot](float w) { return w > pivot; });
    double sum = 0;
    for (const float* w = first; w < middle; ++w) sum += static_cast<double>(*w);
    if (sum >= share) {
      end = middle;
      continue;
    }
    keys += middle - first, share -= sum, first = middle;
    // Weights like the pivot come next: they are taken without looking at the rest.
    float* const others = std::partition(first, end, [pivot](float w) { return w == pivot; });
    for (; first < others && share > 0; ++first) share -= static_cast<double>(pivot), ++keys;
    if (share <= 0) return keys;
  }
  std::sort(first, end, std::greater<>());
  for (; first < end && share > 0; ++first) share -= static_cast<double>(*first), ++keys;
  return keys;
}

}  // namespace

RowFigures::RowFigures(const MapOfText& m)
    : map_(m),
      rows_(m.rows()),
      keys_(m.wide()),
      tile_(static_cast<std::size_t>(keys_ * kLanes)),
      room_(tile_.size()) {
  others_.reserve(static_cast<std::size_t>(keys_));
  for (Index j = 0; j < keys_; ++j) {
    const SurveyToken& t = m.key_tokens()[static_cast<std::size_t>(j)];
    if (t.cls) cls_.push_back(j);
    if (t.punctuation) punctuation_.push_back(j);
    if (t.cls || t.sep || (j == 0 && m.causal)) special_.push_back(j);
    (t.sep ? sep_ : others_).push_back(j);
  }
  if (m.value_norm) norm_.assign(m.value_norm->begin(), m.value_norm->end());
}

void RowFigures::look(Index first) {
  load(first);
  add_masses(first);
  find_top(others_, tile_.data(), top, argmax);
  find_top(sep_, tile_.data(), sep_top, nullptr);
  count_keys();
}

void RowFigures::load(Index first) {
  for (Index l = 0; l < kLanes; ++l) {
    const float* row = map_.weights + (first + l) * keys_;
    for (Index j = 0; j < keys_; ++j)
      tile_[static_cast<std::size_t>(j * kLanes + l)] = first + l < rows_ ? row[j] : 0.0f;
  }
}

void RowFigures::add_masses(Index first) {
  const float* const tile = tile_.data();
  sum_keys(cls_, tile, cls), sum_keys(sep_, tile, sep), sum_keys(punctuation_, tile, punctuation);
  float* const term = room_.data();
  for (Index e = 0; e < keys_ * kLanes; ++e) term[e] = entropy_term(tile[e]);
  float sum[kLanes] = {}, far[kLanes] = {};
  for (Index j = 0; j < keys_; ++j)
    for (Index l = 0; l < kLanes; ++l) {
      sum[l] += term[j * kLanes + l];
      far[l] += tile[j * kLanes + l] * std::abs(static_cast<float>(static_cast<int>(first + l - j)));
    }
  std::copy_n(sum, kLanes, entropy), std::copy_n(far, kLanes, distance);
  if (norm_.empty()) return;
  for (Index j = 0; j < keys_; ++j)
    for (Index l = 0; l < kLanes; ++l)
      term[j * kLanes + l] = tile[j * kLanes + l] * norm_[static_cast<std::size_t>(j)];
  sum_keys(special_, term, special);
  std::fill_n(sum, kLanes, 0.0f);
  for (Index j = 0; j < keys_; ++j)
    for (Index l = 0; l < kLanes; ++l) sum[l] += term[j * kLanes + l];
  std::copy_n(sum, kLanes, valued);
}

void RowFigures::count_keys() {
  float total[kLanes] = {};
  for (Index j = 0; j < keys_; ++j)
    for (Index l = 0; l < kLanes; ++l) total[l] += tile_[static_cast<std::size_t>(j * kLanes + l)];
  if (keys_ > kMostSorted) {
    for (Index l = 0; l < kLanes; ++l) {
      for (Index j = 0; j < keys_; ++j)
        room_[static_cast<std::size_t>(j)] = tile_[static_cast<std::size_t>(j * kLanes + l)];
      sparsity[l] = static_cast<float>(
          keys_for(room_.data(), room_.data() + keys_, kShare * static_cast<double>(total[l])));
    }
    return;
  }
  sort_lanes(tile_.data(), keys_);
  float taken[kLanes] = {}, keys[kLanes] = {};
  for (Index j = 0; j < keys_; ++j)
    for (Index l = 0; l < kLanes; ++l) {
      keys[l] += taken[l] < static_cast<float>(kShare) * total[l] ? 1.0f : 0.0f;
      taken[l] += tile_[static_cast<std::size_t>(j * kLanes + l)];
    }
  std::copy_n(keys, kLanes, sparsity);
}

}  // namespace headwise
