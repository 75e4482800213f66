// Mixing the heads of a tile: y_h = sum_m M[m h] x_m for every pair, queries in the lanes, heads the inner
// dimension. Included by every ISA level after its Lanes; internal linkage.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/tile/passes.h"

namespace headwise::cpu {
namespace {

/// NV vectors of queries a panel. L is Lanes.
template <class L, int NV>
struct MixPasses {
  static constexpr int W = Lanes::width, kPanel = NV * W;
  static constexpr int kRows = NV >= 3 ? 4 : 8;            // heads of y a tile of the given matrix
  static constexpr int kKeys = Lanes::width == 8 ? 2 : 4;  // AVX2 has 16 registers, the others 32

  /// One chain over the heads of x, ascending, from 0.
  static void given(const MixTile& t) {
    for (Index k = t.from; k < t.to; ++k)
      for (Index g = 0; g < t.outs; g += kRows) {
        F c[kRows][NV];
#pragma GCC unroll 16
        for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
          for (int j = 0; j < NV; ++j) c[i][j] = Lanes::zero();
        const float *a = t.matrix + g * t.ins, *b = t.x + k * kPanel;
        const Index line = kPanel + g / kRows % NV * W;  // of the next key
        for (Index m = 0; m < t.ins; ++m, a += kRows, b += t.x_step) {
          if constexpr (Lanes::prefetches) __builtin_prefetch(b + line);
          F x[NV];
#pragma GCC unroll 4
          for (int j = 0; j < NV; ++j) x[j] = Lanes::load(b + j * W);
          if constexpr (L::multiplies_by_lane) {
            L::template add_products<kRows, NV>(a, x, c);
          } else {
#pragma GCC unroll 16
            for (int i = 0; i < kRows; ++i) {
              const F w = Lanes::bcast(a + i);
#pragma GCC unroll 4
              for (int j = 0; j < NV; ++j) c[i][j] = Lanes::fma(w, x[j], c[i][j]);
            }
          }
        }
        const int rows = t.outs - g < kRows ? static_cast<int>(t.outs - g) : kRows;
        float* y = t.y + g * t.y_step + k * kPanel;
        if (rows == kRows) {
#pragma GCC unroll 16
          for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
            for (int j = 0; j < NV; ++j) Lanes::store(y + i * t.y_step + j * W, c[i][j]);
        } else {
          for (int i = 0; i < rows; ++i)
            for (int j = 0; j < NV; ++j) Lanes::store(y + i * t.y_step + j * W, c[i][j]);
        }
      }
  }

  /// Keys k .. k + Keys of vector j, two ranks at a time. A query's coefficients are loaded once for all
  /// keys.
  template <int Keys>
  static inline __attribute__((always_inline)) void own_keys(const MixTile& t, Index k, int j) {
    const Index heads = t.ins;
    const float* x = t.x + k * kPanel + j * W;
    float* y = t.y + k * kPanel + j * W;
    const float *q = t.query + j * W, *key = t.key + k * t.key_step;
    // x (1 + q_gate + k_gate), and what `given` left
    const auto begin = [&](Index h, F gate, int i) __attribute__((always_inline)) {
      const F at = Lanes::load(x + h * t.x_step + i * kPanel);
      const F sum =
          t.matrix ? Lanes::fma(at, gate, Lanes::load(y + h * t.y_step + i * kPanel)) : Lanes::mul(at, gate);
      return Lanes::fma(at, Lanes::bcast(key + i * t.key_step + 2 * t.rank * heads + h), sum);
    };
    const auto gate_of = [&](Index h) __attribute__((always_inline)) {
      return Lanes::load(q + (2 * t.rank * heads + h) * kPanel);
    };
    if (t.rank == 0)
      for (Index h = 0; h < heads; ++h) {
        const F gate = gate_of(h);
#pragma GCC unroll 4
        for (int i = 0; i < Keys; ++i) Lanes::store(y + h * t.y_step + i * kPanel, begin(h, gate, i));
      }
    for (Index r = 0; r < t.rank; r += 2) {
      F a[2][Keys], b[2][Keys];
#pragma GCC unroll 4
      for (int i = 0; i < Keys; ++i) a[0][i] = a[1][i] = b[0][i] = b[1][i] = Lanes::zero();
      for (Index m = 0; m < heads; ++m) {
        const Index row = (t.first + r) * heads + m;
        const F q0 = Lanes::load(q + row * kPanel), q1 = Lanes::load(q + (row + heads) * kPanel);
#pragma GCC unroll 4
        for (int i = 0; i < Keys; ++i) {
          const F at = Lanes::load(x + m * t.x_step + i * kPanel);
          const float* own = key + i * t.key_step + row;
          a[0][i] = Lanes::fma(q0, at, a[0][i]);
          a[1][i] = Lanes::fma(q1, at, a[1][i]);
          b[0][i] = Lanes::fma(Lanes::bcast(own), at, b[0][i]);
          b[1][i] = Lanes::fma(Lanes::bcast(own + heads), at, b[1][i]);
        }
      }
      for (Index h = 0; h < heads; ++h) {
        const Index row = (t.second + r) * heads + h;
        const F q0 = Lanes::load(q + row * kPanel), q1 = Lanes::load(q + (row + heads) * kPanel);
        const F gate = gate_of(h);
#pragma GCC unroll 4
        for (int i = 0; i < Keys; ++i) {
          float* to = y + h * t.y_step + i * kPanel;
          const float* own = key + i * t.key_step + row;
          F sum = Lanes::fma(q0, a[0][i], r == 0 ? begin(h, gate, i) : Lanes::load(to));
          sum = Lanes::fma(q1, a[1][i], sum);
          sum = Lanes::fma(Lanes::bcast(own), b[0][i], sum);
          Lanes::store(to, Lanes::fma(Lanes::bcast(own + heads), b[1][i], sum));
        }
      }
    }
  }
  static void mix(const MixTile& t) {
    if (t.matrix) given(t);
    if (!t.query) return;
    Index k = t.from;
    for (; k + kKeys <= t.to; k += kKeys)
      for (int j = 0; j < NV; ++j) own_keys<kKeys>(t, k, j);
    for (; k < t.to; ++k)
      for (int j = 0; j < NV; ++j) own_keys<1>(t, k, j);
  }

  static constexpr ScorePasses joined(ScorePasses passes) {
    passes.mix_rows = kRows, passes.mix = mix;
    return passes;
  }
};

}  // namespace
}  // namespace headwise::cpu
