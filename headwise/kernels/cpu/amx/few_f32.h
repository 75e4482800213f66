// Few query rows in three parts of bf16: the bits of the tiles of F32Operands from vectors of f32 keys and
// values, which are taken apart on the way. Included by the AMX level; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/amx/f32.h"
#include "headwise/kernels/cpu/amx/few.h"

namespace headwise::cpu {
namespace {

template <>
struct AmxFew<F32Operands> {
  static constexpr int kRows = 16, kByVectors = 2;  // more than those are weighed by tiles
  static constexpr Index kNumbers = kRows * 3 * kFewGranule;
  static constexpr Index kParts = 3, kTile = F32Operands::kTile;

  /// Numbers to be broadcast: part p of element i of row r at data[(r * 3 + p) * step + i].
  struct Parted {
    const float* data;
    Index step;
  };
  static constexpr int kProducts = Products<3>::count;
  using Chains = FewQueryRows<F32Core<Lanes, 1, 8, kFewGranule>>;

  /// n elements of vectors v_step apart, and what is fetched beside each.
  struct Elements {
    const char* x;
    Index x_step, v_step, n, at;  // at: the first one's number in b
    Fetch& fetch;
    Index lines;
  };
  /// The largest and the smallest of V vectors.
  template <int V>
  struct Bounds {
    F most[V], least[V];
  };
  /// One half of a product of tiles: n elements of V vectors against R rows.
  template <int R, int V>
  static inline __attribute__((always_inline)) void chain(const Elements& t, const Parted& b,
                                                          F (&c)[R][V][kProducts], Bounds<V>& bounds) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v)
#pragma GCC unroll 6
        for (int p = 0; p < kProducts; ++p) c[r][v][p] = Lanes::zero();
    for (Index i = 0; i < t.n; ++i) {
      t.fetch.next(t.lines);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const F y = _mm512_loadu_ps(t.x + i * t.x_step + v * t.v_step);
        bounds.most[v] = _mm512_range_ps(bounds.most[v], y, 0xb);
        bounds.least[v] = _mm512_range_ps(bounds.least[v], y, 0xa);
        const Parts own(y);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 6
          for (int p = 0; p < kProducts; ++p)
            c[r][v][p] = Lanes::fma(own.part[Products<3>::a[p]],
                                    Lanes::bcast(b.data + (r * 3 + Products<3>::b[p]) * b.step + t.at + i),
                                    c[r][v][p]);
      }
    }
  }
  /// Up to 32 elements, sums onto c.
  template <int R, int V>
  static inline __attribute__((always_inline)) void block(const Elements& t, const Parted& b, F (&c)[R][V],
                                                          Bounds<V>& bounds) {
    F first[R][V][kProducts], second[R][V][kProducts];
    const Index half = 16 * t.x_step;
    chain<R, V>({t.x, t.x_step, t.v_step, t.n < 16 ? t.n : 16, t.at, t.fetch, t.lines}, b, first, bounds);
    chain<R, V>({t.x + half, t.x_step, t.v_step, t.n - 16, t.at + 16, t.fetch, t.lines}, b, second, bounds);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v)
#pragma GCC unroll 6
        for (int p = 0; p < kProducts; ++p)
          c[r][v] = Lanes::add(c[r][v], Lanes::add(first[r][v][p], second[r][v][p]));
  }

  /// Rows of `out`: scores of keys [from, to), something up to a whole 16 of them.
  static void scores(const FewScoresTask& t, float* out) {
    const auto* panel = static_cast<const float*>(t.queries);
    float *q = static_cast<float*>(t.scratch), *room = q + t.dim * 16;
    for (Index d = 0; d < t.dim; ++d) Lanes::store(q + d * 16, Lanes::load(panel + d * F32Operands::kPanel));
    Chains::scores_of<RowType::f32>({q, t.count, t.keys, t.first, t.from, t.to, t.dim, t.ahead, room}, out);
  }

  /// Values at .. at + n and where their sums go.
  struct ValueBlock {
    const float* values;
    Index row_step, at, n, columns;
    float* sums;
    Index sums_step;
  };
  /// One block of keys onto sums; false when some value may be one that pack_values takes out.
  template <int R, int V>
  [[gnu::noinline]] static bool weigh_block(const Parted& weights, const ValueBlock& t, Fetch& fetch,
                                            Index lines) {
    const Index row_step = t.row_step, at = t.at, n = t.n, sums_step = t.sums_step;
    float* sums = t.sums;
    Bounds<V> bounds;
    for (int v = 0; v < V; ++v)
      bounds.most[v] = Lanes::zero(), bounds.least[v] = Lanes::set(__builtin_inff());
    for (Index d = 0; d < t.columns; d += V * 16) {
      F c[R][V];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) c[r][v] = Lanes::load(sums + r * sums_step + d + v * 16);
      const auto* x = reinterpret_cast<const char*>(t.values + at * row_step + d);
      block<R, V>({x, row_step * 4, 64, n, at, fetch, lines}, weights, c, bounds);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) Lanes::store(sums + r * sums_step + d + v * 16, c[r][v]);
    }
    bool usual = true;
    for (int v = 0; v < V; ++v) usual = usual && usual_between(bounds.least[v], bounds.most[v]);
    return usual;
  }
  /// Values outside these bounds are not multiplied by tiles.
  static bool usual_between(F low, F high) {
    return (_mm512_cmp_ps_mask(high, Lanes::set(F32Operands::kValueHigh), _CMP_LT_OQ) &
            _mm512_cmp_ps_mask(low, Lanes::set(F32Operands::kValueLow), _CMP_GE_OQ)) == 0xffff;
  }
  /// The same for more rows: weights are A, values lie as B wants them once two rows are joined in pairs.
  /// Products of the same pairs in the same order, so the bits are those of weigh. Sums: rows of value_dim.
  [[gnu::noinline]] static bool weigh_tiles(const float* numbers, Index from, Index to, const float* values,
                                            const FewWeighTask& t) {
    const int count = t.count;
    const Index row_step = t.values.row_step, value_dim = t.value_dim;
    float* sums = t.sums;
    alignas(64) char weights[kFewGranule / 32][3][kTileBytes], parts[2][3][kTileBytes];
    const __m512i upper = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
    for (Index k = from; k < to; k += 32)
      for (int r = 0; r < count; ++r)
        for (Index p = 0; p < 3; ++p) {
          const float* x = numbers + (r * 3 + p) * kFewGranule + k;
          const __m512i even = _mm512_srli_epi32(_mm512_castps_si512(Lanes::load(x)), 16),
                        odd = _mm512_and_si512(_mm512_castps_si512(Lanes::load(x + 16)), upper);
          _mm512_store_si512(weights[k / 32][p] + r * 64, _mm512_or_si512(even, odd));
        }
    F high = Lanes::zero(), low = Lanes::set(__builtin_inff());
    Fetch fetch(t.ahead);
    const Index lines =
        (lines_of(t.ahead) * 32 + value_dim - 1) / value_dim;  // beside two rows of 16 columns
    tiles_of_rows(count, 5);
    for (Index d = 0; d < value_dim; d += 32) {  // two sums in turn: one alone would wait for itself
      const bool both = d + 16 < value_dim;
      tile_zero<0>(), tile_zero<1>();
      for (Index k = from; k < to; k += 32) {
        const auto split = [&](const float* at, char* out) {
          const Index n = to - k;
          for (Index i = 0; i < 16; ++i) {
            fetch.next(lines);
            const F even = i < n ? Lanes::load(at + i * row_step) : Lanes::zero(),
                    odd = i + 16 < n ? Lanes::load(at + (i + 16) * row_step) : Lanes::zero();
            high = _mm512_range_ps(_mm512_range_ps(high, even, 0xb), odd, 0xb);
            low = _mm512_range_ps(_mm512_range_ps(low, i < n ? even : low, 0xa), i + 16 < n ? odd : low, 0xa);
            store_parts(even, odd, out + i * 64, kTileBytes);
          }
        };
        const float* at = values + k * row_step + d;
        tile_load<2>(weights[k / 32][0], 64), tile_load<3>(weights[k / 32][1], 64),
            tile_load<4>(weights[k / 32][2], 64);
        split(at, parts[0][0]);
        multiply_parts<0>(parts[0][0]);
        if (!both) continue;
        split(at + 16, parts[1][0]);
        multiply_parts<1>(parts[1][0]);
      }
      tile_store<0>(sums + d, value_dim * 4);
      if (both) tile_store<1>(sums + d + 16, value_dim * 4);
    }
    tiles_on();
    return usual_between(low, high);
  }
  /// All of Products<3> onto tile C, of weights in tiles 2 to 4 and the parts of values.
  template <int C>
  static inline __attribute__((always_inline)) void multiply_parts(const char* values) {
    tile_load<5>(values, 64), tile_load<6>(values + kTileBytes, 64),
        tile_load<7>(values + 2 * kTileBytes, 64);
    multiply_part<C, 0>();
  }
  template <int C, int N>
  static inline __attribute__((always_inline)) void multiply_part() {
    tile_multiply<C, 2 + Products<3>::b[N], 5 + Products<3>::a[N]>();
    if constexpr (N + 1 < kProducts) multiply_part<C, N + 1>();
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
  /// Row r of the operand of a tile.
  static void read_weights(const Tile& t, int r, float* weights) {
    for (Index p = 0; p < 3; ++p)
      for (Index k = t.from; k < t.to; k += 32) {
        F even, odd;
        line_pairs(static_cast<const char*>(t.p) + k / 32 * 2 * kTile + p * 2 * kTileBytes, r, even, odd);
        Lanes::store(weights + (r * 3 + p) * kFewGranule + k, even);
        Lanes::store(weights + (r * 3 + p) * kFewGranule + k + 16, odd);
      }
  }
  static void clear_weights(int r, float* weights) {
    for (Index k = 0; k < 3 * kFewGranule; k += 16)
      Lanes::store(weights + r * 3 * kFewGranule + k, Lanes::zero());
  }
  /// Row r of weights from its scores, and their sum in the order of Exponent.
  static float weights(const float* scores, Index from, Index end, float top, float factor, int r,
                       float* weights) {
    const F t = Lanes::set(top), c = Lanes::set(factor);
    float* own = weights + r * 3 * kFewGranule;
    for (Index k = from; k < end; k += 16) {
      const Parts p(F32Operands::weight_of(Lanes::sub(Lanes::load(scores + k), t), c));
      for (Index i = 0; i < 3; ++i) Lanes::store(own + i * kFewGranule + k, p.part[i]);
    }
    alignas(64) float chains[3][16];  // of the first and the second keys of the pairs of eight blocks
    for (Index i = 0; i < 3; ++i) {
      F x[16], chain = Lanes::zero();
#pragma GCC unroll 16
      for (Index g = 0; g < 16; ++g)
        x[g] = g * 16 >= from && g * 16 < end ? Lanes::load(own + i * kFewGranule + g * 16) : Lanes::zero();
      Lanes::transpose(x);
#pragma GCC unroll 16
      for (const F y : x) chain = Lanes::add(chain, y);
      Lanes::store(chains[i], chain);
    }
    constexpr int order[] = {1, 2, 0};
    float sum = 0;
    for (Index b = from / 16; b < end / 16; b += 2)
      for (const int i : order) sum += chains[i][b] + chains[i][b + 1];
    return sum * (1.0f / F32Operands::kWeightUnit);
  }
  static bool weigh(const float* numbers, Index from, Index to, const FewWeighTask& t) {
    const int count = t.count;
    const Rows& rows = t.values;
    const Index value_dim = t.value_dim;
    float* sums = t.sums;
    const auto* values = static_cast<const float*>(rows.data) + t.first * rows.row_step;
    bool usual = true;
    if (count > kByVectors) {
      usual = weigh_tiles(numbers, from, to, values, t);
    } else {
      for (Index i = 0; i < count * value_dim; i += 16) Lanes::store(sums + i, Lanes::zero());
      const Flushing on;
      Fetch fetch(t.ahead);
      for (Index k = from; k < to; k += 32)
        in_groups(count, [&](auto taken, int row) {
          constexpr int R = decltype(taken)::value, V = R == 1 ? 2 : 1;
          const Parted weights{numbers + row * 3 * kFewGranule, kFewGranule};
          const Index n = to - k < 32 ? to - k : 32, whole = value_dim / (V * 16) * (V * 16);
          // Lines beside one element of V vectors: a row of the next keys for each row of values.
          const Index lines = row == 0 ? (lines_of(t.ahead) * V * 16 + value_dim - 1) / value_dim : 0;
          float* own = sums + row * value_dim;
          usual &=
              weigh_block<R, V>(weights, {values, rows.row_step, k, n, whole, own, value_dim}, fetch, lines);
          if (whole < value_dim)
            usual &= weigh_block<R, 1>(
                weights, {values + whole, rows.row_step, k, n, value_dim - whole, own + whole, value_dim},
                fetch, lines);
        });
    }
    if (!usual && !all_usual(values, rows.row_step, from, to, value_dim)) return false;
    F unusual = Lanes::zero();  // x * 0 is NaN for what is not finite
    for (Index i = 0; i < count * value_dim; i += 16)
      unusual = Lanes::fma(Lanes::load(sums + i), Lanes::zero(), unusual);
    if (Lanes::any(Lanes::is_nan(unusual))) return false;
    take_rows(sums, value_dim, count, value_dim, t.shrink, F32Operands::kWeightUnit, t.o);
    return true;
  }
};

}  // namespace
}  // namespace headwise::cpu
