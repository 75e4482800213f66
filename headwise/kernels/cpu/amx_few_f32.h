// Few query rows in three parts of bf16: the bits of the tiles of F32Operands from vectors of f32 keys and
// values, which are taken apart on the way. Included by the AMX level; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx_f32.h"
#include "headwise/kernels/cpu/amx_few.h"

namespace headwise::cpu {
namespace {

template <>
struct AmxFew<F32Operands> {
  static constexpr int kRows = 4;
  static constexpr Index kParts = 3, kTile = F32Operands::kTile;

  /// Numbers to be broadcast: part p of element i of row r at data[(r * 3 + p) * step + i].
  struct Parted {
    const float* data;
    Index step;
  };
  static constexpr int kProducts = Products<3>::count;

  /// One half of a product of tiles: n elements of V vectors against R rows.
  template <int R, int V>
  static inline __attribute__((always_inline)) void chain(const char* x, Index x_step, Index v_step, Index n,
                                                          const Parted& b, Index at, Few::Fetch& fetch,
                                                          Index lines, F (&c)[R][V][kProducts], F (&most)[V],
                                                          F (&least)[V]) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v)
#pragma GCC unroll 6
        for (int p = 0; p < kProducts; ++p) c[r][v][p] = Lanes::zero();
    for (Index i = 0; i < n; ++i) {
      fetch.next(lines);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const F y = _mm512_loadu_ps(x + i * x_step + v * v_step);
        most[v] = _mm512_range_ps(most[v], y, 0xb);
        least[v] = _mm512_range_ps(least[v], y, 0xa);
        const Parts own(y);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 6
          for (int p = 0; p < kProducts; ++p)
            c[r][v][p] =
                Lanes::fma(own.part[Products<3>::a[p]],
                           Lanes::bcast(b.data + (r * 3 + Products<3>::b[p]) * b.step + at + i), c[r][v][p]);
      }
    }
  }
  /// Up to 32 elements, sums onto c.
  template <int R, int V>
  static inline __attribute__((always_inline)) void block(const char* x, Index x_step, Index v_step, Index n,
                                                          const Parted& b, Index at, Few::Fetch& fetch,
                                                          Index lines, F (&c)[R][V], F (&most)[V],
                                                          F (&least)[V]) {
    F first[R][V][kProducts], second[R][V][kProducts];
    chain<R, V>(x, x_step, v_step, n < 16 ? n : 16, b, at, fetch, lines, first, most, least);
    chain<R, V>(x + 16 * x_step, x_step, v_step, n - 16, b, at + 16, fetch, lines, second, most, least);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v)
#pragma GCC unroll 6
        for (int p = 0; p < kProducts; ++p)
          c[r][v] = Lanes::add(c[r][v], Lanes::add(first[r][v][p], second[r][v][p]));
  }

  /// R rows x V blocks [dim][16] of keys; most, least: magnitudes of each key, denormals as 0.
  template <int R, int V>
  [[gnu::noinline]] static void products(const Parted& q, const float* keys, Index step, Index dim,
                                         Few::Fetch& fetch, Index lines, float* sums, float* most,
                                         float* least) {
    F c[R][V], high[V], low[V];
    for (int v = 0; v < V; ++v) high[v] = Lanes::zero(), low[v] = Lanes::set(__builtin_inff());
    for (auto& row : c)
      for (F& x : row) x = Lanes::zero();
    for (Index d = 0; d < dim; d += 32)
      block<R, V>(reinterpret_cast<const char*>(keys + d * 16), 64, step * 4, dim - d < 32 ? dim - d : 32, q,
                  d, fetch, lines, c, high, low);
    for (int v = 0; v < V; ++v) {
      for (int r = 0; r < R; ++r) Lanes::store(sums + r * kFewKeys + v * 16, c[r][v]);
      Lanes::store(most + v * 16, high[v]), Lanes::store(least + v * 16, low[v]);
    }
  }
  static void block_products(const Parted& q, int count, const float* keys, Index step, Index blocks,
                             Index dim, Few::Fetch& fetch, Index lines, float* sums, float* most,
                             float* least) {
    const Flushing on;
    in_groups(count, [&](auto taken, int row) {
      constexpr int R = decltype(taken)::value, V = R == 1 ? 2 : 1;
      const Parted own{q.data + row * 3 * q.step, q.step};
      const Index each = row == 0 ? (V * 16 * lines + dim - 1) / dim : 0;
      Index b = 0;
      for (; b + V <= blocks; b += V)
        products<R, V>(own, keys + b * step, step, dim, fetch, each, sums + row * kFewKeys + b * 16,
                       most + b * 16, least + b * 16);
      for (; b < blocks; ++b)
        products<R, 1>(own, keys + b * step, step, dim, fetch, each, sums + row * kFewKeys + b * 16,
                       most + b * 16, least + b * 16);
    });
  }

  /// Sixteen keys that are perhaps not all ordinary, or some row of queries is not: as pack_keys and
  /// mend_scores have it. A denormal counts as the bf16 nearest to it, which is 0 unless it is 2^-126.
  static void mend(const Parted& q, int count, std::uint32_t unusual_rows, const float* keys, Index dim,
                   float* spare, float* sums) {
    const __m512i smallest = power(-126), zero = _mm512_setzero_si512();
    __m512i most = zero;
    __mmask16 denormal = 0;
    for (Index d = 0; d < dim; ++d) {
      const __m512i m = magnitude(Lanes::load(keys + d * 16));
      most = _mm512_max_epu32(most, m);
      denormal = static_cast<__mmask16>(
          denormal | (_mm512_cmplt_epu32_mask(m, smallest) & _mm512_test_epi32_mask(m, m)));
    }
    if (denormal) {
      for (Index d = 0; d < dim; ++d) {
        const F x = Lanes::load(keys + d * 16), near = Parts(x).part[0];
        const __mmask16 small = _mm512_cmplt_epu32_mask(magnitude(x), smallest),
                        none = _mm512_cmplt_epu32_mask(magnitude(near), smallest);
        Lanes::store(spare + d * 16, Lanes::select(small, Lanes::select(none, Lanes::zero(), near), x));
      }
      float high[16], low[16];
      Few::Fetch fetch(Ahead{}, 0);
      block_products(q, count, spare, 0, 1, dim, fetch, 0, sums, high, low);
    }
    const __mmask16 unusual = F32Operands::unusual_lanes(most) & _mm512_cmpneq_epu32_mask(most, zero);
    for (int r = 0; r < count; ++r) {
      const bool all = unusual_rows >> r & 1u;
      if (!all && unusual == 0) continue;
      F sum = Lanes::zero();
      for (Index d = 0; d < dim; ++d) {
        const float* x = q.data + r * 3 * q.step + d;
        sum = Lanes::fma(Lanes::load(keys + d * 16), Lanes::set(x[0] + x[q.step] + x[2 * q.step]), sum);
      }
      if (dim % 32 != 0) sum = Lanes::add(sum, Lanes::zero());  // as columns that do not exist do
      _mm512_mask_storeu_ps(sums + r * kFewKeys, all ? 0xffffu : unusual, sum);
    }
  }

  static void few_scores(const void* queries, int count, const Rows& rows, Index first, Index from, Index to,
                         Index dim, const Ahead& ahead, void* scratch, float* s) {
    const Index tiles = rounded(dim, 32) / 32, wide = tiles * 32, lines = Few::lines_of(ahead);
    const auto* packed = static_cast<const char*>(queries);
    auto* numbers = static_cast<float*>(scratch);
    float *gathered = numbers + kRows * 3 * wide, *spare = gathered + kFewKeys * wide;
    const auto unusual = *reinterpret_cast<const std::uint32_t*>(packed + tiles * 2 * kTile);
    const int padded = count == 3 ? 4 : count;
    for (int r = 0; r < padded; ++r)
      for (Index p = 0; p < 3; ++p)
        for (Index c = 0; c < tiles; ++c) {
          float* to_row = numbers + (r * 3 + p) * wide + c * 32;
          F even = Lanes::zero(), odd = even;
          const char* line = packed + c * 2 * kTile + p * 2 * kTileBytes;
          if (!(unusual >> r & 1u)) {
            line_pairs(line, r, even, odd);
          } else if (p == 0) {
            for (int i = 0; i < 16; ++i) {
              const auto* x = reinterpret_cast<const float*>(line + i * kLine) + r;
              to_row[i] = x[0], to_row[16 + i] = x[2 * kTileBytes / 4];
            }
            continue;
          }
          Lanes::store(to_row, even), Lanes::store(to_row + 16, odd);
        }
    const Parted q{numbers, wide};
    alignas(64) float sums[kRows * kFewKeys], most[kFewKeys], least[kFewKeys];
    for (Index k = from; k < to; k += kFewKeys) {
      const Index n = to - k < kFewKeys ? to - k : kFewKeys, blocks = (n + 15) / 16;
      Few::Fetch fetch(ahead, k);
      const float* keys = gathered;
      Index step = wide * 16, fetched = 0;
      if (rows.block > 0) {
        keys = static_cast<const float*>(rows.data) + (first + k) / 16 * rows.block, step = rows.block;
        fetched = lines;
      } else {
        for (Index b = 0; b < blocks; ++b) {
          const Index left = n - b * 16;
          Few::gather_block<RowType::f32>(rows, first + k + b * 16, left < 16 ? left : 16, dim, fetch, lines,
                                          gathered + b * step);
        }
      }
      block_products(q, count, keys, step, blocks, dim, fetch, fetched, sums, most, least);
      for (Index b = 0; b < blocks; ++b) {
        const F high = Lanes::load(most + b * 16);
        const __mmask16 inside = _mm512_cmp_ps_mask(high, Lanes::set(0x1p-40f), _CMP_GE_OQ) &
                                 _mm512_cmp_ps_mask(high, Lanes::set(0x1p50f), _CMP_LT_OQ) &
                                 Lanes::greater(Lanes::load(least + b * 16), Lanes::zero());
        __mmask16 numbers_only = 0xffff;
        for (int r = 0; r < count; ++r)
          numbers_only = static_cast<__mmask16>(numbers_only &
                                                ~Lanes::is_nan(Lanes::load(sums + r * kFewKeys + b * 16)));
        if ((inside & numbers_only) != 0xffff || unusual)
          mend(q, count, unusual, keys + b * step, dim, spare, sums + b * 16);
      }
      store_scores(sums, count, blocks * 16, s + k * 32);
    }
  }

  /// One block of keys onto sums; false when some value may be one that pack_values takes out.
  template <int R, int V>
  [[gnu::noinline]] static bool weigh_block(const Parted& weights, const float* values, Index row_step,
                                            Index at, Index n, Index columns, Few::Fetch& fetch, Index lines,
                                            float* sums, Index sums_step) {
    F high[V], low[V];
    for (int v = 0; v < V; ++v) high[v] = Lanes::zero(), low[v] = Lanes::set(__builtin_inff());
    for (Index d = 0; d < columns; d += V * 16) {
      F c[R][V];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) c[r][v] = Lanes::load(sums + r * sums_step + d + v * 16);
      block<R, V>(reinterpret_cast<const char*>(values + at * row_step + d), row_step * 4, 64, n, weights, at,
                  fetch, lines, c, high, low);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) Lanes::store(sums + r * sums_step + d + v * 16, c[r][v]);
    }
    bool usual = true;
    for (int v = 0; v < V; ++v) {
      const __mmask16 inside = _mm512_cmp_ps_mask(high[v], Lanes::set(F32Operands::kValueHigh), _CMP_LT_OQ) &
                               _mm512_cmp_ps_mask(low[v], Lanes::set(F32Operands::kValueLow), _CMP_GE_OQ);
      usual = usual && inside == 0xffff;
    }
    return usual;
  }
  /// Whether pack_values would leave all as they are.
  static bool all_usual(const float* values, Index row_step, Index from, Index to, Index value_dim) {
    for (Index k = from; k < to; ++k)
      for (Index d = 0; d < value_dim; d += 16) {
        const __m512i m = magnitude(Lanes::load(values + k * row_step + d));
        const __mmask16 inside =
            _mm512_cmpge_epu32_mask(m, power(-100)) & _mm512_cmplt_epu32_mask(m, power(70));
        if (static_cast<__mmask16>(inside | _mm512_testn_epi32_mask(m, m)) != 0xffff) return false;
      }
    return true;
  }
  static bool weigh_few(const Tile& t, int count, const Rows& rows, Index first, Index value_dim,
                        const float* shrink, const Ahead& ahead, float* sums, float* o) {
    constexpr Index kKeys = F32Operands::kGranule;
    alignas(64) float numbers[kRows * 3 * kKeys];
    const int padded = count == 3 ? 4 : count;
    for (int r = 0; r < padded; ++r)
      for (Index p = 0; p < 3; ++p)
        for (Index k = t.from; k < t.to; k += 32) {
          F even, odd;
          line_pairs(static_cast<const char*>(t.p) + k / 32 * 2 * kTile + p * 2 * kTileBytes, r, even, odd);
          Lanes::store(numbers + (r * 3 + p) * kKeys + k, even);
          Lanes::store(numbers + (r * 3 + p) * kKeys + k + 16, odd);
        }
    for (Index i = 0; i < padded * value_dim; i += 16) Lanes::store(sums + i, Lanes::zero());
    const auto* values = static_cast<const float*>(rows.data) + first * rows.row_step;
    const Index lines = Few::lines_of(ahead);
    bool usual = true;
    {
      const Flushing on;
      Few::Fetch fetch(ahead, t.from);
      for (Index k = t.from; k < t.to; k += 32)
        in_groups(count, [&](auto taken, int row) {
          constexpr int R = decltype(taken)::value, V = R == 1 ? 2 : 1;
          const Parted weights{numbers + row * 3 * kKeys, kKeys};
          const Index n = t.to - k < 32 ? t.to - k : 32, whole = value_dim / (V * 16) * (V * 16);
          const Index each = row == 0 ? (V * 16 * lines + value_dim - 1) / value_dim : 0;
          float* to = sums + row * value_dim;
          usual &= weigh_block<R, V>(weights, values, rows.row_step, k, n, whole, fetch, each, to, value_dim);
          if (whole < value_dim)
            usual &= weigh_block<R, 1>(weights, values + whole, rows.row_step, k, n, value_dim - whole, fetch,
                                       each, to + whole, value_dim);
        });
    }
    if (!usual && !all_usual(values, rows.row_step, t.from, t.to, value_dim)) return false;
    F unusual = Lanes::zero();  // x * 0 is NaN for what is not finite
    for (Index i = 0; i < count * value_dim; i += 16)
      unusual = Lanes::fma(Lanes::load(sums + i), Lanes::zero(), unusual);
    if (Lanes::any(Lanes::is_nan(unusual))) return false;
    take_rows(sums, value_dim, count, value_dim, shrink, F32Operands::kWeightUnit, o);
    return true;
  }
};

}  // namespace
}  // namespace headwise::cpu
