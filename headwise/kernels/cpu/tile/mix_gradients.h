// Gradients of a mix: of its matrix, of queries' and of keys' coefficients, and the passes around them.
// Included by every ISA level after its Lanes; internal linkage.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/tile/passes.h"

namespace headwise::cpu {
namespace {

/// NV vectors of queries a panel.
template <int NV>
struct MixGradients {
  static constexpr int W = Lanes::width, kPanel = NV * W;
  static constexpr int kKeys = Lanes::width == 8 ? 2 : 4;  // as in the mix itself

  static constexpr Index kTiles = 16;
  static Index first_in(const MixSlopes& t, Index tile) { return tile / ((t.outs + 3) / 4) * 4; }
  static Index first_out(const MixSlopes& t, Index tile) { return tile % ((t.outs + 3) / 4) * 4; }
  static void add_matrix(const MixSlopes& t, Index tile, Index from, Index to, bool begins, float* sums) {
    F c[4][4];
    const float *x[4], *y[4];
    for (int i = 0; i < 4; ++i) {  // past the last head the last one stands in
      const Index m = first_in(t, tile) + i, h = first_out(t, tile) + i;
      x[i] = t.x + (m < t.ins ? m : t.ins - 1) * t.x_step;
      y[i] = t.dy + (h < t.outs ? h : t.outs - 1) * t.dy_step;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) c[i][j] = begins ? Lanes::zero() : Lanes::load(sums + (4 * i + j) * W);
    for (Index at = from * kPanel; at < to * kPanel; at += W) {
      F a[4], b[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) a[i] = Lanes::load(x[i] + at), b[i] = Lanes::load(y[i] + at);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) c[i][j] = Lanes::fma(a[i], b[j], c[i][j]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) Lanes::store(sums + (4 * i + j) * W, c[i][j]);
  }
  static void add_sums(const MixSlopes& t, Index tile, const float* sums) {
    for (Index i = 0; i < 16; ++i) {
      const Index m = first_in(t, tile) + i / 4, h = first_out(t, tile) + i % 4;
      if (m >= t.ins || h >= t.outs) continue;
      float sum = 0;
      for (int n = 0; n < W; ++n) sum += sums[i * W + n];
      t.dmatrix[m * t.outs + h] += static_cast<double>(sum);
    }
  }
  /// dM[m h] += x_m dy_h over pairs: 4 x 4 heads at a time, lanes added last, in order. Some keys at a time
  /// stay in L1 for all heads; their sums wait in `sums`.
  static void of_matrix(const MixSlopes& t) {
    constexpr Index kNear = 4;
    const Index tiles = (t.ins + 3) / 4 * ((t.outs + 3) / 4);
    for (Index tile0 = 0; tile0 < tiles; tile0 += kTiles) {
      alignas(64) float sums[kTiles][16 * W];
      for (Index k = t.from; k < t.to; k += kNear)
        for (Index tile = tile0; tile < tiles && tile < tile0 + kTiles; ++tile)
          add_matrix(t, tile, k, k + kNear < t.to ? k + kNear : t.to, k == t.from, sums[tile - tile0]);
      for (Index tile = tile0; tile < tiles && tile < tile0 + kTiles; ++tile)
        add_sums(t, tile, sums[tile - tile0]);
    }
  }
  /// Of the queries in vector j, over keys k .. k + Keys: a = sum_m w1 x, da = sum_h w2 dy, then
  /// dw2_h += a dy_h, dw1_m += da x_m, dgate_h += x_h dy_h.
  template <int Keys>
  static void of_queries(const MixSlopes& t, Index k, int j) {
    const Index heads = t.ins, rank = t.rank;
    const float *x = t.x + k * kPanel + j * W, *y = t.dy + k * kPanel + j * W, *q = t.query + j * W;
    float* to = t.dquery + j * W;
    const auto add = [&](Index row, F sum) {
      float* at = to + row * kPanel;
      Lanes::store(at, Lanes::add(Lanes::load(at), sum));
    };
    for (Index h = 0; h < heads; ++h) {
      F sum = Lanes::zero();
#pragma GCC unroll 4
      for (int i = 0; i < Keys; ++i)
        sum = Lanes::fma(Lanes::load(x + h * t.x_step + i * kPanel),
                         Lanes::load(y + h * t.dy_step + i * kPanel), sum);
      add(2 * rank * heads + h, sum);
    }
    for (Index r = 0; r < rank; ++r) {
      F a[Keys], da[Keys];
      for (int i = 0; i < Keys; ++i) a[i] = da[i] = Lanes::zero();
      for (Index h = 0; h < heads; ++h) {
        const F w1 = Lanes::load(q + (r * heads + h) * kPanel),
                w2 = Lanes::load(q + ((rank + r) * heads + h) * kPanel);
#pragma GCC unroll 4
        for (int i = 0; i < Keys; ++i) {
          a[i] = Lanes::fma(w1, Lanes::load(x + h * t.x_step + i * kPanel), a[i]);
          da[i] = Lanes::fma(w2, Lanes::load(y + h * t.dy_step + i * kPanel), da[i]);
        }
      }
      for (Index h = 0; h < heads; ++h) {
        F d1 = Lanes::zero(), d2 = Lanes::zero();
#pragma GCC unroll 4
        for (int i = 0; i < Keys; ++i) {
          d1 = Lanes::fma(da[i], Lanes::load(x + h * t.x_step + i * kPanel), d1);
          d2 = Lanes::fma(a[i], Lanes::load(y + h * t.dy_step + i * kPanel), d2);
        }
        add(r * heads + h, d1);
        add((rank + r) * heads + h, d2);
      }
    }
  }

  /// to[h] += over vectors, then lanes, a[j] * tile_h, W heads at a time.
  static void add_heads(const F (&a)[NV], const float* tile, Index step, Index heads, float* to) {
    for (Index h0 = 0; h0 < heads; h0 += W) {
      const int n = heads - h0 < W ? static_cast<int>(heads - h0) : W;
      F t[W];
      for (int i = 0; i < W; ++i) {
        t[i] = Lanes::zero();
        if (i < n)
#pragma GCC unroll 4
          for (int j = 0; j < NV; ++j)
            t[i] = Lanes::fma(a[j], Lanes::load(tile + (h0 + i) * step + j * W), t[i]);
      }
      add_lanes(t, n, to + h0);
    }
  }
  static void add_lanes(F (&t)[W], int n, float* to) {
    Lanes::transpose(t);
    F sum = t[0];
    for (int i = 1; i < W; ++i) sum = Lanes::add(sum, t[i]);
    if (n == W)
      Lanes::store(to, Lanes::add(Lanes::load(to), sum));
    else
      Lanes::store_part(to, Lanes::add(Lanes::load_part(to, n), sum), n);
  }
  /// Of key k, over the panel's queries; the same formulas.
  static void of_key(const MixSlopes& t, Index k) {
    const Index heads = t.ins, rank = t.rank;
    const float *x = t.x + k * kPanel, *y = t.dy + k * kPanel, *key = t.key + k * t.key_step;
    float* to = t.dkey + k * t.key_step;
    for (Index h0 = 0; h0 < heads; h0 += W) {
      const int n = heads - h0 < W ? static_cast<int>(heads - h0) : W;
      F sum[W];
      for (int i = 0; i < W; ++i) {
        sum[i] = Lanes::zero();
        if (i < n)
#pragma GCC unroll 4
          for (int j = 0; j < NV; ++j)
            sum[i] = Lanes::fma(Lanes::load(x + (h0 + i) * t.x_step + j * W),
                                Lanes::load(y + (h0 + i) * t.dy_step + j * W), sum[i]);
      }
      add_lanes(sum, n, to + 2 * rank * heads + h0);
    }
    for (Index r = 0; r < rank; ++r) {
      F b[NV], db[NV];
      for (int j = 0; j < NV; ++j) b[j] = db[j] = Lanes::zero();
      for (Index h = 0; h < heads; ++h) {
        const F w1 = Lanes::bcast(key + r * heads + h), w2 = Lanes::bcast(key + (rank + r) * heads + h);
#pragma GCC unroll 4
        for (int j = 0; j < NV; ++j) {
          b[j] = Lanes::fma(w1, Lanes::load(x + h * t.x_step + j * W), b[j]);
          db[j] = Lanes::fma(w2, Lanes::load(y + h * t.dy_step + j * W), db[j]);
        }
      }
      add_heads(db, x, t.x_step, heads, to + r * heads);
      add_heads(b, y, t.dy_step, heads, to + (rank + r) * heads);
    }
  }

  static void slopes(const MixSlopes& t) {
    if (t.dmatrix) of_matrix(t);
    if (t.dquery) {
      Index k = t.from;
      for (; k + kKeys <= t.to; k += kKeys)
        for (int j = 0; j < NV; ++j) of_queries<kKeys>(t, k, j);
      for (; k < t.to; ++k)
        for (int j = 0; j < NV; ++j) of_queries<1>(t, k, j);
    }
    if (t.dkey)
      for (Index k = t.from; k < t.to; ++k) of_key(t, k);
  }

  static void add_dots(const float* a, const float* b, Index from, Index to, float* sum) {
    for (int j = 0; j < NV; ++j) {
      F total = Lanes::load(sum + j * W);
      for (Index k = from; k < to; ++k)
        total = Lanes::fma(Lanes::load(a + k * kPanel + j * W), Lanes::load(b + k * kPanel + j * W), total);
      Lanes::store(sum + j * W, total);
    }
  }
  static void logit_slopes(const float* p, const float* dp, Index from, Index to, const float* delta,
                           float* dl) {
    for (Index k = from; k < to; ++k)
      for (int j = 0; j < NV; ++j) {
        const Index at = k * kPanel + j * W;
        const F w = Lanes::load(p + at);
        const F d = Lanes::mul(w, Lanes::sub(Lanes::load(dp + at), Lanes::load(delta + j * W)));
        const auto weighs = Lanes::greater(w, Lanes::zero());
        Lanes::store(dl + at, Lanes::select(weighs, d, Lanes::select(Lanes::is_nan(w), w, Lanes::zero())));
      }
  }
  static void close(float* s, Index from, Index to, const std::uint64_t* open) {
    for (Index k = from; k < to; ++k)
      for (int j = 0; j < NV; ++j) {
        float* at = s + k * kPanel + j * W;
        Lanes::store(at, Lanes::select(Lanes::bits(open[k] >> (j * W)), Lanes::load(at), Lanes::zero()));
      }
  }

  static constexpr GradientPasses joined(GradientPasses g) {
    g.mix_slopes = slopes, g.add_dots = add_dots, g.logit_slopes = logit_slopes, g.close = close;
    return g;
  }
};

}  // namespace
}  // namespace headwise::cpu
