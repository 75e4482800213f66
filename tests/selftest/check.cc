#include "tests/selftest/check.h"

#include <cmath>
#include <cstdio>

namespace headwise::selftest {
namespace {

/// Distance of `got` from `truth`: largest, and relative in the square mean; `wrong` counts NaN or inf on one
/// side alone.
struct Distance {
  double largest = 0, relative = 0, magnitude = 0;
  Index wrong = 0, where = -1;
};

Distance distance(const Tensor& got, const Tensor& truth) {
  Distance d;
  double squares = 0, truth_squares = 0;
  for (Index i = 0; i < truth.view().count(); ++i) {
    const double t = load_double(truth.view().data, truth.dtype(), i),
                 g = load_double(got.view().data, got.dtype(), i);
    if (!std::isfinite(t) || !std::isfinite(g)) {
      if (!(t == g || (std::isnan(t) && std::isnan(g)))) ++d.wrong, d.where = i;
      continue;
    }
    if (std::abs(g - t) > d.largest) d.largest = std::abs(g - t), d.where = i;
    d.magnitude = std::fmax(d.magnitude, std::abs(t));
    squares += (g - t) * (g - t);
    truth_squares += t * t;
  }
  d.relative = truth_squares > 0 ? std::sqrt(squares / truth_squares) : std::sqrt(squares);
  return d;
}

double unit(DType t) {  // one step of the last place at 1
  return t == DType::bf16 ? 0x1p-7 : t == DType::f16 ? 0x1p-10 : t == DType::f32 ? 0x1p-23 : 0x1p-52;
}
double guard(DType t) { return t == DType::bf16 ? 2.5e-3 : t == DType::f16 ? 3.2e-4 : 1e-6; }

double value(const Tensor& t, Index i) { return load_double(t.view().data, t.dtype(), i); }

}  // namespace

Tally& tally() {
  static Tally t;
  return t;
}

void check(bool ok, const std::string& part, const std::string& sentence) {
  if (ok) {
    ++tally().passed;
    return;
  }
  if (++tally().failed <= 40)
    std::printf("FAILED %s: %s\n", part.c_str(), sentence.c_str()), std::fflush(stdout);
}

void piece(const std::string& part, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& e) {
    check(false, part, text("threw: ", e.what()));
  }
}

void check_close(const std::string& part, const Inputs& in, const Outputs& got, const Outputs& truth) {
  const DType dtype = in.setup.dtype;
  const Outputs plain = plain_run(in);
  const Distance d = distance(got.out, truth.out), yard = distance(plain.out, truth.out);
  const double slack = dtype == DType::f32 ? 1.5 : 1.0, ulps = 2 * unit(dtype);
  const bool as_plain =
      d.largest <= slack * yard.largest + ulps * d.magnitude && d.relative <= slack * yard.relative + ulps;
  check(d.wrong == 0 && (as_plain || d.relative <= guard(dtype)), part,
        text(describe(in.setup), ": out is ", d.largest, " off (", d.relative, " relative), a plain run ",
             yard.largest, " (", yard.relative, "), ", d.wrong, " NaN or inf on one side, worst at element ",
             d.where));
  if (!in.setup.lse) return;
  Index worst = -1;
  for (Index i = 0; i < truth.lse.view().count(); ++i) {
    const double t = value(truth.lse, i), g = value(got.lse, i), p = value(plain.lse, i);
    const double bound =
        std::fmax(4 * 0x1p-24 * std::fmax(1.0, std::abs(t)), dtype == DType::f32 ? 1.5 * std::abs(p - t) : 0);
    // Long dots of large products: the score itself is only known to dim * u of its terms.
    const double dots = 0x1p-24 * std::sqrt(static_cast<double>(in.setup.head_dim)) * 4;
    if (!(t == g || std::abs(t - g) <= bound + dots)) worst = i;
  }
  check(worst < 0, part,
        worst < 0 ? ""
                  : text(describe(in.setup), ": lse at element ", worst, " is ", value(got.lse, worst),
                         " but the truth is ", value(truth.lse, worst)));
}

void check_near(const std::string& part, const InputView& a, const InputView& b, double tolerance) {
  Index worst = -1, n = 0;
  for (Index i = 0; i < b.size[0]; ++i)
    for (Index j = 0; j < (b.rank > 1 ? b.size[1] : 1); ++j)
      for (Index k = 0; k < (b.rank > 2 ? b.size[2] : 1); ++k)
        for (Index l = 0; l < (b.rank > 3 ? b.size[3] : 1); ++l, ++n) {
          const double x = at(a, i, j, k, l), y = at(b, i, j, k, l);
          if (!(x == y || std::abs(x - y) <= tolerance * std::fmax(1.0, std::abs(y)))) worst = n;
        }
  check(worst < 0, part, text("element ", worst, " of ", b, " is more than ", tolerance, " off"));
}

void check_probes(const std::string& part, const Inputs& in, const Outputs& got, const Outputs& truth) {
  const ProbeSpec& p = in.setup.probe;
  const std::string where = text(part, " ", describe(in.setup));
  // Weights are f32 numbers below 1; entropy and distance sum kv of them, each with a factor up to log(kv) or
  // kv.
  const double near = 2e-5, keys = static_cast<double>(in.setup.kv_tokens);
  if (p.rows) {
    check_near(where + " entropy", got.entropy.view(), truth.entropy.view(), 4 * near);
    check_near(where + " top_weight", got.top_weight.view(), truth.top_weight.view(), near);
    check_near(where + " second_moment", got.second_moment.view(), truth.second_moment.view(), near);
    check_near(where + " mean_distance", got.mean_distance.view(), truth.mean_distance.view(),
               near * std::fmax(1.0, keys / 16));
    check_near(where + " sink_mass", got.sink_mass.view(), truth.sink_mass.view(), near);
  }
  if (p.top_k > 0) check_near(where + " top_weights", got.top_weights.view(), truth.top_weights.view(), near);
  if (p.classes > 0) check_near(where + " class_mass", got.class_mass.view(), truth.class_mass.view(), near);
  if (p.columns)
    check_near(where + " column_sums", got.column_sums.view(), truth.column_sums.view(), near * 4);
  if (p.picked > 0)
    check_near(where + " picked_weights", got.picked_weights.view(), truth.picked_weights.view(), near);
  if (truth.scores.view().count() == 0) return;

  // Positions are right when they hold the weight that was promised: near ties may fall either way.
  bool positions = true, keys_right = true;
  const InputView& w = truth.scores.view();
  for (Index b = 0; b < w.size[0]; ++b)
    for (Index h = 0; h < w.size[1]; ++h)
      for (Index q = 0; q < w.size[2]; ++q) {
        const auto holds = [&](Index key, double promised) {
          if (key < 0) return promised == 0;
          return key < w.size[3] && std::abs(at(w, b, h, q, key) - promised) <= near;
        };
        if (p.rows)
          positions &= holds(static_cast<Index>(at(got.top_position.view(), b, h, q)),
                             at(truth.top_weight.view(), b, h, q));
        for (Index n = 0; n < p.top_k; ++n) {
          const auto key = static_cast<Index>(at(got.top_keys.view(), b, h, q, n));
          keys_right &= holds(key, at(truth.top_weights.view(), b, h, q, n));
          for (Index m = 0; m < n; ++m)
            keys_right &= key < 0 || key != static_cast<Index>(at(got.top_keys.view(), b, h, q, m));
        }
      }
  if (p.rows) check(positions, where, "top_position names a key that has not the largest weight");
  if (p.top_k > 0) check(keys_right, where, "top_keys names a key twice or one with another weight");
}

}  // namespace headwise::selftest
