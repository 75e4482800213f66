// Few query rows against long KV at the AMX level without tiles: keys or value columns in the lanes, and
// every sum in the order in which tiles add. Included by the AMX level; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/tiles.h"
#include "headwise/kernels/cpu/tile/few_query_rows.h"

namespace headwise::cpu {
namespace {

/// A product of tiles adds to each element the first of its 16 pairs as one chain of fused multiply-adds from
/// 0, the second ones as another, then their sum. Each step rounds to nearest even; denormals are read and
/// written as 0. (Seen on 4.6 million random elements of all exponents; the tests compare again.) So vectors
/// have the bits of tiles while this lives. What it guards stands in functions of their own, since compilers
/// do not see that arithmetic depends on it.
class Flushing {
 public:
  Flushing() : before_(_mm_getcsr()) { set(before_ | 0x8040u); }
  ~Flushing() { set(before_); }
  Flushing(const Flushing&) = delete;
  Flushing& operator=(const Flushing&) = delete;

 private:
  static void set(unsigned flags) {
    asm volatile("" ::: "memory");
    _mm_setcsr(flags);
    asm volatile("" ::: "memory");
  }
  unsigned before_;
};
using Few = FewQueryRows<F32Core<Lanes, 1, 8, 128>>;
constexpr Index kFewKeys = 64;      // scored at a time
constexpr Index kFewGranule = 256;  // from row to row of scores and weights with keys in the lanes

/// Lane `row` of 16 lines of pairs, as two vectors of f32.
inline void line_pairs(const char* lines, int row, F& even, F& odd) {
  const __m512i at =
      _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                         _mm512_set1_epi32(static_cast<int>(kLine)));
  const __m512i pair = _mm512_i32gather_epi32(at, lines + row * 4, 1);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
  odd = _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
/// Calls f(Number<R>, row) for groups of 4, 2 and 1 rows; three are taken as four.
template <class Each>
inline void in_groups(int count, Each&& each) {
  for (int row = 0; row < count;) {
    const int left = count - row;
    if (left > 2)
      each(Few::Number<4>{}, row), row += 4;
    else if (left == 2)
      each(Few::Number<2>{}, row), row += 2;
    else
      each(Few::Number<1>{}, row), row += 1;
  }
}
/// o = o * shrink + sums / unit, rows of value_dim.
inline void take_rows(const float* sums, Index sums_step, int count, Index value_dim, const float* shrink,
                      float unit, float* o) {
  const F down = Lanes::set(1.0f / unit);
  for (Index r = 0; r < count; ++r)
    for (Index d = 0; d < value_dim; d += 16) {
      float* at = o + r * value_dim + d;
      const F sum = Lanes::mul(Lanes::load(sums + r * sums_step + d), down);
      Lanes::store(at, Lanes::fma(Lanes::load(at), Lanes::bcast(shrink + r), sum));
    }
}

/// How operands score and weigh few rows, see the files of each.
template <class Operands>
struct AmxFew;

template <class Operands>
struct FewQueryRowsOnAmx {
  using Own = AmxFew<Operands>;
  static constexpr int kRows = Own::kRows, kPanel = Operands::kPanel;
  static_assert(Operands::kGranule == kFewGranule);

  static void few_scores(const FewScoresTask& t, float* s) {
    alignas(64) float scores[kRows * kFewGranule];
    Own::scores(t, scores);
    const int count = t.count;
    for (Index k = t.from; k < t.to; k += 16) {
      F x[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r)
        x[r] = r < count ? Lanes::load(scores + r * kFewGranule + k) : Lanes::zero();
      Lanes::transpose(x);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) Lanes::store(s + (k + i) * kPanel, x[i]);
    }
  }
  static bool weigh_few(const Tile& t, const FewWeighTask& task) {
    alignas(64) float weights[Own::kNumbers];
    const int padded = task.count == 3 ? 4 : task.count;
    for (int r = 0; r < padded; ++r) Own::read_weights(t, r, weights);
    return Own::weigh(weights, t.from, t.to, task);
  }
  /// All steps of one granule with keys in the lanes throughout. S and the operand of weigh, a vector for
  /// every key and most of it idle, are never made: they would fill L1 while memory is waited for.
  static bool few_stripe(const Stripe& t, const FewStripeTask& task) {
    const int count = task.count;
    alignas(64) float scores[kRows * kFewGranule], weights[Own::kNumbers];
    alignas(64) float top[kPanel], tile_top[kPanel], used[kPanel], shrink[kPanel], sum[kRows];
    Own::scores(
        {t.queries, count, task.keys, task.first, t.from, t.to, task.dim, task.to_values, task.scratch},
        scores);
    const Index end = rounded(t.to, 32);
    for (int i = 0; i < kPanel; ++i) top[i] = t.top[i], tile_top[i] = kMinusInf;
    for (int r = 0; r < count; ++r) {
      float* row = scores + r * kFewGranule;
      for (Index k = t.from; t.open && k < t.to; ++k)
        if (!(t.open[k] >> r & 1u)) row[k] = kMinusInf;
      for (Index k = t.to; k < end; ++k) row[k] = kMinusInf;
      F most = Lanes::set(kMinusInf);
      for (Index k = t.from; k < end; k += 16) most = Lanes::max(Lanes::load(row + k), most);
      tile_top[r] = _mm512_reduce_max_ps(most);
    }
    Passes<2>::advance(top, tile_top, t.factor, used, shrink);
    for (int r = 0; r < count; ++r)
      sum[r] = Own::weights(scores + r * kFewGranule, t.from, end, used[r], t.factor[r], r, weights);
    if (count == 3) Own::clear_weights(3, weights);
    const FewWeighTask weigh{count,  task.values,  task.first, task.value_dim,
                             shrink, task.to_keys, task.sums,  t.o};
    if (!Own::weigh(weights, t.from, t.to, weigh)) return false;
    for (int r = 0; r < count; ++r) t.top[r] = top[r], t.sum[r] = __builtin_fmaf(t.sum[r], shrink[r], sum[r]);
    return true;
  }

  static constexpr Core joined(Core c) {
    c.few = {.rows = kRows, .scores = few_scores, .weigh = weigh_few, .stripe = few_stripe};
    return c;
  }
};

}  // namespace
}  // namespace headwise::cpu
