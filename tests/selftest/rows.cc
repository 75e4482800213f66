// Passes over rows on this CPU level: layer norm and cross-entropy against their loops in double, AdamW, what
// follows a product.
#include <cmath>
#include <cstring>
#include <vector>

#include "headwise/kernels/cpu/isa/gemm_kernels.h"
#include "headwise/kernels/cpu/isa/isa.h"
#include "headwise/kernels/ref/activation.h"
#include "headwise/ops/norm/layer_norm.h"
#include "headwise/ops/projection/projection.h"
#include "headwise/ops/row/cross_entropy.h"
#include "tests/selftest/check.h"

namespace headwise::selftest {
namespace {

/// Every other element of [rows 2 columns]: rows no level takes in vectors.
AnyView with_gaps(Tensor& t) {
  AnyView v = t.view();
  v.size[1] /= 2, v.step[1] = 2;
  return v;
}
void copy(const InputView& from, const InputView& to) {
  for (Index i = 0; i < from.size[0]; ++i)
    for (Index j = 0; j < from.size[1]; ++j)
      static_cast<float*>(to.data)[i * to.step[0] + j * to.step[1]] =
          static_cast<const float*>(from.data)[i * from.step[0] + j * from.step[1]];
}

void norms(Index dim, const std::string& part) {
  Tensor x = random_normal({5, dim}, DType::f32, 1), dout = random_normal({5, dim}, DType::f32, 2),
         weight = random_normal({dim}, DType::f32, 3), bias = random_normal({dim}, DType::f32, 4);
  Tensor out(DType::f32, {5, dim}), dx(DType::f32, {5, dim}), dweight(DType::f32, {dim});
  Context& ctx = context("", 2);
  layer_norm({.x = x.view(), .weight = weight.view(), .bias = bias.view(), .out = out.view()}, ctx);
  layer_norm_backward({.x = x.view(),
                       .weight = weight.view(),
                       .dout = dout.view(),
                       .residual = x.view(),
                       .dx = dx.view(),
                       .dweight = dweight.view()},
                      ctx);
  Tensor wide[] = {Tensor(DType::f32, {5, 2 * dim}), Tensor(DType::f32, {5, 2 * dim}),
                   Tensor(DType::f32, {5, 2 * dim}), Tensor(DType::f32, {5, 2 * dim})};
  const AnyView x2 = with_gaps(wide[0]), dout2 = with_gaps(wide[1]), out2 = with_gaps(wide[2]),
                dx2 = with_gaps(wide[3]);
  copy(x.view(), x2), copy(dout.view(), dout2);
  Tensor dweight2(DType::f32, {dim}), packed(DType::f32, {5, dim}), dpacked(DType::f32, {5, dim});
  layer_norm({.x = x2, .weight = weight.view(), .bias = bias.view(), .out = out2}, ctx);
  layer_norm_backward({.x = x2,
                       .weight = weight.view(),
                       .dout = dout2,
                       .residual = x2,
                       .dx = dx2,
                       .dweight = dweight2.view()},
                      ctx);
  copy(out2, packed.view()), copy(dx2, dpacked.view());
  check(same_bits(out, packed) && same_bits(dx, dpacked) && same_bits(dweight, dweight2), part,
        "rows side by side and rows with gaps have other bits");
}

void losses(Index classes, const std::string& part) {
  Tensor x = random_normal({4, classes}, DType::f32, 5), dx(DType::f32, {4, classes}),
         wide(DType::f32, {4, 2 * classes}), dwide(DType::f32, {4, 2 * classes}),
         dtruth(DType::f32, {4, classes}), labels(DType::i64, {4});
  copy(x.view(), with_gaps(wide));
  Context& ctx = context("", 2);
  const CrossEntropyOptions options{.label_smoothing = 0.1};
  const double loss = cross_entropy(x.view(), labels.view(), options, dx.view(), 1, ctx).loss;
  const double truth = cross_entropy(with_gaps(wide), labels.view(), options, with_gaps(dwide), 1, ctx).loss;
  copy(with_gaps(dwide), dtruth.view());
  check(std::fabs(loss - truth) <= 2e-7 * (1 + std::fabs(truth)), part,
        text("loss ", loss, " is not ", truth));
  check_near(part, dx.view(), dtruth.view(), 4e-7);
}

void adamw(const std::string& part) {
  const Index n = 77;
  Tensor g = random_normal({n}, DType::f32, 6);
  std::vector<float> x(77, 1.0f), m(77, 0.1f), v(77, 0.2f);
  const cpu::RowKernels& rows = cpu::chosen_isa().gemm()->rows;
  const auto* slope = g.values<float>().data();
  rows.adamw({x.data(), slope, m.data(), v.data(), n, 0.99f, 0.999f, 0.1f, 0.001f, 1e-8f, 0.01f, 0.5f});
  bool same = true;
  double sum = 0;
  for (std::size_t i = 0; i < 77; ++i) {
    const float mi = 0.1f + 0.1f * (slope[i] - 0.1f), vi = 0.2f * 0.999f + 0.001f * slope[i] * slope[i];
    same = same && m[i] == mi && v[i] == vi &&
           x[i] == 1.0f * 0.99f - 0.01f * (mi / (std::sqrt(vi) / 0.5f + 1e-8f));
    sum += static_cast<double>(slope[i]) * static_cast<double>(slope[i]);
  }
  check(same, part, "a step is not the formula's");
  check(std::fabs(rows.sum_squares(slope, n) - sum) < 1e-12 * sum, part, "the sum of squares is off");
}

/// out = act(x w^T) * factor, slope = act'(x w^T).
void slopes(Activation act, const std::string& part) {
  Tensor x = random_normal({8, 12}, DType::f32, 7), w = random_normal({40, 12}, DType::f32, 8),
         factor = random_normal({8, 40}, DType::f32, 9), out(DType::f32, {8, 40}), slope(DType::f32, {8, 40});
  projection(
      {.x = x.view(), .weight = w.view(), .factor = factor.view(), .slope = slope.view(), .out = out.view()},
      act, context("", 2));
  double worst = 0;
  for (Index i = 0; i < 8; ++i)
    for (Index j = 0; j < 40; ++j) {
      double sum = 0;
      for (Index l = 0; l < 12; ++l) sum += at(x.view(), i, l) * at(w.view(), j, l);
      const double truth = ref::activate(act, sum) * at(factor.view(), i, j);
      worst = std::fmax(worst, std::fabs(at(out.view(), i, j) - truth) / (1 + std::fabs(truth)));
      worst = std::fmax(worst, std::fabs(at(slope.view(), i, j) - ref::slope_of(act, sum)));
    }
  check(worst < 1e-5, part, text("off by ", worst));
}

}  // namespace

void check_rows(const Options&) {
  for (const Index dim : {7, 8, 40, 128, 136}) {
    const std::string part = text("layer_norm ", dim);
    piece(part, [&] { norms(dim, part); });
  }
  for (const Index classes : {1, 7, 65, 300}) {
    const std::string part = text("cross_entropy ", classes);
    piece(part, [&] { losses(classes, part); });
  }
  piece("adamw", [] { adamw("adamw"); });
  for (const Activation act :
       {Activation::none, Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::sigmoid}) {
    const std::string part = text("slopes of ", name_of(act));
    piece(part, [&] { slopes(act, part); });
  }
}

}  // namespace headwise::selftest
