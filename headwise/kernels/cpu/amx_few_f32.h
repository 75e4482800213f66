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
  static constexpr Index kNumbers = kRows * 3 * kFewGranule;
  static constexpr Index kParts = 3, kTile = F32Operands::kTile;

  /// Numbers to be broadcast: part p of element i of row r at data[(r * 3 + p) * step + i].
  struct Parted {
    const float* data;
    Index step;
  };
  static constexpr int kProducts = Products<3>::count;
  /// What is read some 100 ns later is asked for beside the products: a walk over rows of the next granule,
  /// as the f32 core has it, costs more steps here than memory gives back (KV 32,768 packed: 13.9
  /// against 15.5 ms).
  static constexpr Index kKeysAhead = 1024;

  /// One half of a product of tiles: n elements of V vectors against R rows.
  template <int R, int V>
  static inline __attribute__((always_inline)) void chain(const char* x, Index x_step, Index v_step, Index n,
                                                          const Parted& b, Index at, Index near,
                                                          F (&c)[R][V][kProducts], F (&most)[V],
                                                          F (&least)[V]) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v)
#pragma GCC unroll 6
        for (int p = 0; p < kProducts; ++p) c[r][v][p] = Lanes::zero();
    for (Index i = 0; i < n; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        const F y = _mm512_loadu_ps(x + i * x_step + v * v_step);
        _mm_prefetch(x + i * x_step + v * v_step + near, _MM_HINT_T0);
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
                                                          const Parted& b, Index at, Index near, F (&c)[R][V],
                                                          F (&most)[V], F (&least)[V]) {
    F first[R][V][kProducts], second[R][V][kProducts];
    chain<R, V>(x, x_step, v_step, n < 16 ? n : 16, b, at, near, first, most, least);
    chain<R, V>(x + 16 * x_step, x_step, v_step, n - 16, b, at + 16, near, second, most, least);
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
                                         float* sums, float* most, float* least) {
    F c[R][V], high[V], low[V];
    for (int v = 0; v < V; ++v) high[v] = Lanes::zero(), low[v] = Lanes::set(__builtin_inff());
    for (auto& row : c)
      for (F& x : row) x = Lanes::zero();
    for (Index d = 0; d < dim; d += 32)
      block<R, V>(reinterpret_cast<const char*>(keys + d * 16), 64, step * 4, dim - d < 32 ? dim - d : 32, q,
                  d, kKeysAhead, c, high, low);
    for (int v = 0; v < V; ++v) {
      for (int r = 0; r < R; ++r) Lanes::store(sums + r * kFewGranule + v * 16, c[r][v]);
      Lanes::store(most + v * 16, high[v]), Lanes::store(least + v * 16, low[v]);
    }
  }
  static void block_products(const Parted& q, int count, const float* keys, Index step, Index blocks,
                             Index dim, float* sums, float* most, float* least) {
    const Flushing on;
    in_groups(count, [&](auto taken, int row) {
      constexpr int R = decltype(taken)::value, V = R == 1 ? 2 : 1;
      const Parted own{q.data + row * 3 * q.step, q.step};
      Index b = 0;
      for (; b + V <= blocks; b += V)
        products<R, V>(own, keys + b * step, step, dim, sums + row * kFewGranule + b * 16, most + b * 16,
                       least + b * 16);
      for (; b < blocks; ++b)
        products<R, 1>(own, keys + b * step, step, dim, sums + row * kFewGranule + b * 16, most + b * 16,
                       least + b * 16);
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
      block_products(q, count, spare, 0, 1, dim, sums, high, low);
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
      _mm512_mask_storeu_ps(sums + r * kFewGranule, all ? 0xffffu : unusual, sum);
    }
  }

  /// Rows of `out`: scores of keys [from, to), something up to a whole 16 of them.
  static void scores(const void* queries, int count, const Rows& rows, Index first, Index from, Index to,
                     Index dim, void* scratch, float* out) {
    const Index tiles = rounded(dim, 32) / 32, wide = tiles * 32;
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
    alignas(64) float most[kFewKeys], least[kFewKeys];
    for (Index k = from; k < to; k += kFewKeys) {
      const Index n = to - k < kFewKeys ? to - k : kFewKeys, blocks = (n + 15) / 16;
      const float* keys = gathered;
      Index step = wide * 16;
      if (rows.block > 0) {
        keys = static_cast<const float*>(rows.data) + (first + k) / 16 * rows.block, step = rows.block;
      } else {
        for (Index b = 0; b < blocks; ++b) {
          const Index left = n - b * 16, key = first + k + b * 16;
          const Ahead next{static_cast<const float*>(rows.data) + (key + 16) * rows.row_step,
                           rows.row_step * 4, dim * 4, 16};
          Fetch fetch(next);
          Few::gather_block<RowType::f32>(rows, key, left < 16 ? left : 16, dim, fetch, lines_of(next),
                                          gathered + b * step);
        }
      }
      float* sums = out + k;
      block_products(q, count, keys, step, blocks, dim, sums, most, least);
      for (Index b = 0; b < blocks; ++b) {
        const F high = Lanes::load(most + b * 16);
        const __mmask16 inside = _mm512_cmp_ps_mask(high, Lanes::set(0x1p-40f), _CMP_GE_OQ) &
                                 _mm512_cmp_ps_mask(high, Lanes::set(0x1p50f), _CMP_LT_OQ) &
                                 Lanes::greater(Lanes::load(least + b * 16), Lanes::zero());
        __mmask16 numbers_only = 0xffff;
        for (int r = 0; r < count; ++r)
          numbers_only = static_cast<__mmask16>(numbers_only &
                                                ~Lanes::is_nan(Lanes::load(sums + r * kFewGranule + b * 16)));
        if ((inside & numbers_only) != 0xffff || unusual)
          mend(q, count, unusual, keys + b * step, dim, spare, sums + b * 16);
      }
    }
  }

  /// One block of keys onto sums; false when some value may be one that pack_values takes out.
  template <int R, int V>
  [[gnu::noinline]] static bool weigh_block(const Parted& weights, const float* values, Index row_step,
                                            Index at, Index n, Index columns, float* sums, Index sums_step) {
    F high[V], low[V];
    for (int v = 0; v < V; ++v) high[v] = Lanes::zero(), low[v] = Lanes::set(__builtin_inff());
    for (Index d = 0; d < columns; d += V * 16) {
      // The next columns of this row, or the first ones of the row of the next block.
      const Index near = d + V * 16 < columns ? V * 64 : 32 * row_step * 4 - d * 4;
      F c[R][V];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < V; ++v) c[r][v] = Lanes::load(sums + r * sums_step + d + v * 16);
      block<R, V>(reinterpret_cast<const char*>(values + at * row_step + d), row_step * 4, 64, n, weights, at,
                  near, c, high, low);
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
  static bool weigh(const float* numbers, Index from, Index to, int count, const Rows& rows, Index first,
                    Index value_dim, const float* shrink, float* sums, float* o) {
    const int padded = count == 3 ? 4 : count;
    for (Index i = 0; i < padded * value_dim; i += 16) Lanes::store(sums + i, Lanes::zero());
    const auto* values = static_cast<const float*>(rows.data) + first * rows.row_step;
    bool usual = true;
    {
      const Flushing on;
      for (Index k = from; k < to; k += 32)
        in_groups(count, [&](auto taken, int row) {
          constexpr int R = decltype(taken)::value, V = R == 1 ? 2 : 1;
          const Parted weights{numbers + row * 3 * kFewGranule, kFewGranule};
          const Index n = to - k < 32 ? to - k : 32, whole = value_dim / (V * 16) * (V * 16);
          float* own = sums + row * value_dim;
          usual &= weigh_block<R, V>(weights, values, rows.row_step, k, n, whole, own, value_dim);
          if (whole < value_dim)
            usual &= weigh_block<R, 1>(weights, values + whole, rows.row_step, k, n, value_dim - whole,
                                       own + whole, value_dim);
        });
    }
    if (!usual && !all_usual(values, rows.row_step, from, to, value_dim)) return false;
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
