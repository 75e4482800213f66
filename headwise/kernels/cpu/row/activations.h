// Activations and their slopes in f32 lanes, and what follows the sums of a product. Included by every ISA
// level after its Lanes; internal linkage throughout.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/tile/passes.h"

namespace headwise::cpu {
namespace {

constexpr float kLog2E = 1.44269504f;

/// e^-|x|
inline F exp_minus_abs(F x) {
  const F c = Lanes::set(kLog2E);
  return exp2_alike(Lanes::sub(Lanes::zero(), Lanes::abs(x)), c, Lanes::set(-140.0f));
}
/// sigmoid(x) and sigmoid(-x), both from the e^-|x| that does not overflow, so that neither is 1 minus the
/// other.
struct Sigmoids {
  F plus, minus;
};
inline Sigmoids sigmoids(F x) {
  const F e = exp_minus_abs(x), one = Lanes::set(1.0f), s = Lanes::div(one, Lanes::add(one, e));
  const F small = Lanes::mul(e, s);
  const auto below = Lanes::greater(Lanes::zero(), x);
  return {Lanes::select(below, small, s), Lanes::select(below, s, small)};
}

/// The normal distribution: Phi(x) = erfc(-x / sqrt 2) / 2 and its density. erfc(t) = e^(-t^2) p(q) / (1 +
/// 2 t), q = (t - 2) / (t + 2), with a minimax p of degree 9, 4e-8 off for t up to 10.5, where f32 ends.
struct Normal {
  F below, density;
};
inline Normal normal_at(F x) {
  constexpr float p[] = {1.2769783735f,     -0.092763997614f,  -0.16603156924f,  0.16405566037f,
                         -0.05420261994f,   -0.0080608874559f, 0.0086253546178f, 0.0013125685509f,
                         -0.0012223389931f, -0.00039610487875f};
  const F one = Lanes::set(1.0f), two = Lanes::set(2.0f);
  const F t = Lanes::min(Lanes::set(10.5f), Lanes::mul(Lanes::abs(x), Lanes::set(0.707106781f)));
  const F q = Lanes::div(Lanes::sub(t, two), Lanes::add(t, two));
  F r = Lanes::set(p[9]);
  for (int i = 8; i >= 0; --i) r = Lanes::fma(r, q, Lanes::set(p[i]));
  const F square = Lanes::mul(Lanes::mul(x, x), Lanes::set(-0.5f));
  const F e = exp2_alike(square, Lanes::set(kLog2E), Lanes::set(-140.0f));
  const F tail = Lanes::mul(Lanes::mul(Lanes::set(0.5f), e), Lanes::div(r, Lanes::fma(two, t, one)));
  const F below = Lanes::select(Lanes::greater(Lanes::zero(), x), tail, Lanes::sub(one, tail));
  return {below, Lanes::mul(e, Lanes::set(0.398942280f))};
}

/// 2 u of gelu_tanh, x (1 + tanh u) / 2 = x * sigmoid(2 u), and its slope.
inline F twice_u(F x) {
  const F x2 = Lanes::mul(x, x);
  return Lanes::mul(x, Lanes::fma(Lanes::set(0.0713548162726f), x2, Lanes::set(1.59576912161f)));
}

struct ValueSlope {
  F value, slope;
};
struct NoneForm {
  static F value(F x) { return x; }
  static ValueSlope both(F x) { return {x, Lanes::set(1.0f)}; }
};
struct ReluForm {
  static F value(F x) { return Lanes::select(Lanes::greater(Lanes::zero(), x), Lanes::zero(), x); }
  static ValueSlope both(F x) {
    return {value(x), Lanes::select(Lanes::greater(x, Lanes::zero()), Lanes::set(1.0f), Lanes::zero())};
  }
};
struct GeluForm {
  static F value(F x) { return Lanes::mul(x, normal_at(x).below); }
  static ValueSlope both(F x) {
    const Normal n = normal_at(x);
    return {Lanes::mul(x, n.below), Lanes::fma(x, n.density, n.below)};
  }
};
struct GeluTanhForm {
  static F value(F x) { return Lanes::mul(x, sigmoids(twice_u(x)).plus); }
  static ValueSlope both(F x) {
    const Sigmoids s = sigmoids(twice_u(x));
    const F du = Lanes::fma(Lanes::set(0.214064448818f), Lanes::mul(x, x), Lanes::set(1.59576912161f));
    return {Lanes::mul(x, s.plus), Lanes::fma(Lanes::mul(x, Lanes::mul(s.plus, s.minus)), du, s.plus)};
  }
};
struct SiluForm {
  static F value(F x) { return Lanes::mul(x, sigmoids(x).plus); }
  static ValueSlope both(F x) {
    const Sigmoids s = sigmoids(x);
    return {Lanes::mul(x, s.plus), Lanes::fma(x, Lanes::mul(s.plus, s.minus), s.plus)};
  }
};
struct SigmoidForm {
  static F value(F x) { return sigmoids(x).plus; }
  static ValueSlope both(F x) {
    const Sigmoids s = sigmoids(x);
    return {s.plus, Lanes::mul(s.plus, s.minus)};
  }
};

template <class Form, bool Whole>
inline __attribute__((always_inline)) void finish_lanes(const GemmRow& r, Index i, int n) {
  const auto load = [&](const float* p) { return Whole ? Lanes::load(p + i) : Lanes::load_part(p + i, n); };
  const auto store = [&](float* p, F x) {
    if constexpr (Whole)
      Lanes::store(p + i, x);
    else
      Lanes::store_part(p + i, x, n);
  };
  F x = load(r.c);
  if (r.bias) x = Lanes::add(x, load(r.bias));
  if (r.slope) {
    const ValueSlope both = Form::both(x);
    store(r.slope, both.slope);
    x = both.value;
  } else {
    x = Form::value(x);
  }
  if (r.factor) x = Lanes::mul(x, load(r.factor));
  if (r.residual) x = Lanes::add(x, load(r.residual));
  store(r.out, x);
}
template <class Form>
void finish_with(const GemmRow& r) {
  constexpr int W = Lanes::width;
  Index i = 0;
  for (; i + W <= r.columns; i += W) finish_lanes<Form, true>(r, i, W);
  if (i < r.columns) finish_lanes<Form, false>(r, i, static_cast<int>(r.columns - i));
}
template <class Form>
void slopes_with(const float* x, Index count, float* value, float* slope) {
  constexpr int W = Lanes::width;
  Index i = 0;
  for (; i + W <= count; i += W) {
    const ValueSlope r = Form::both(Lanes::load(x + i));
    Lanes::store(value + i, r.value), Lanes::store(slope + i, r.slope);
  }
  if (const int n = static_cast<int>(count - i)) {
    const ValueSlope r = Form::both(Lanes::load_part(x + i, n));
    Lanes::store_part(value + i, r.value, n), Lanes::store_part(slope + i, r.slope, n);
  }
}

inline void finish(int kind, const GemmRow& r) {
  switch (kind) {
    case 1: return finish_with<ReluForm>(r);
    case 2: return finish_with<GeluForm>(r);
    case 3: return finish_with<GeluTanhForm>(r);
    case 4: return finish_with<SiluForm>(r);
    case 5: return finish_with<SigmoidForm>(r);
    default: return finish_with<NoneForm>(r);
  }
}
inline void slopes(int kind, const float* x, Index count, float* value, float* slope) {
  switch (kind) {
    case 1: return slopes_with<ReluForm>(x, count, value, slope);
    case 2: return slopes_with<GeluForm>(x, count, value, slope);
    case 3: return slopes_with<GeluTanhForm>(x, count, value, slope);
    case 4: return slopes_with<SiluForm>(x, count, value, slope);
    case 5: return slopes_with<SigmoidForm>(x, count, value, slope);
    default: return slopes_with<NoneForm>(x, count, value, slope);
  }
}

}  // namespace
}  // namespace headwise::cpu
