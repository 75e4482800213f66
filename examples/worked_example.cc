// Multi-head attention by hand: two tokens, model_dim 4, two heads of 2; every step with its shape.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

#include "headwise/headwise.h"
namespace hw = headwise;

/// Rows `first ...` of a [rows columns] view, columns `from ... from + count`.
void print(const char* name, const hw::ConstView& v, hw::Index from, hw::Index count) {
  std::printf("  %-10s [%d %d] ", name, static_cast<int>(v.size[0]), static_cast<int>(count));
  for (hw::Index r = 0; r < v.size[0]; ++r) {
    std::printf(r ? "; " : " ");
    for (hw::Index c = from; c < from + count; ++c) {
      const double x = hw::load_double(v.data, v.dtype, r * v.step[0] + c * v.step[1]);
      std::printf("%s%.6f", c > from ? " " : "", std::abs(x) < 5e-7 ? 0.0 : x);
    }
  }
  std::printf("\n");
}

/// A weight of the layer from W_1, W_2 [4 2], written row by row: x W in the text is x weight^T here.
void set(hw::ParamSet& params, const char* name, const double (&w)[2][4][2]) {
  auto* to = static_cast<double*>(params.find(name).value().data);
  for (int h = 0; h < 2; ++h)
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 2; ++j) to[(h * 2 + j) * 4 + i] = w[h][i][j];
}

constexpr double kQ[2][4][2] = {{{.1, .4}, {-.2, .3}, {1, -.5}, {.5, .2}},
                                {{-.3, .2}, {1.1, .6}, {-.4, .8}, {.7, -.1}}};
constexpr double kK[2][4][2] = {{{.2, -.4}, {.6, .2}, {-.2, .4}, {.1, .3}},
                                {{.5, .1}, {-.2, .4}, {.3, -.6}, {.2, .2}}};
constexpr double kV[2][4][2] = {{{1, 0}, {0, 1}, {1, 0}, {0, 1}}, {{0, 1}, {1, 0}, {0, -1}, {-1, 0}}};
constexpr double kO[4][4] = {{.5, -.2, 1.1, .3}, {.1, .8, -.4, .6}, {-.3, .7, .2, 1}, {.9, -.5, .3, -.8}};

int main() {
  double x[] = {1, .5, -1, 2, -.5, 1, .3, -2};
  const hw::AnyView rows = hw::AnyView::packed(x, hw::DType::f64, {2, 4});
  hw::Context ctx({.threads = 1});
  for (const bool tied : {false, true}) {
    std::printf(tied ? "W_K = W_V = W_Q\n" : "W_Q, W_K, W_V of their own\n");
    hw::ParamSet params(hw::DType::f64);
    const hw::MultiHead layer(params, "attention", "mha:heads=2,dim=2",
                              {.model_dim = 4, .bias = false, .out_bias = false});
    set(params, "attention.q.weight", kQ);
    set(params, "attention.k.weight", tied ? kQ : kK);
    set(params, "attention.v.weight", tied ? kQ : kV);
    for (int i = 0; i < 4; ++i)
      for (int j = 0; j < 4; ++j)
        static_cast<double*>(params.find("attention.out.weight").value().data)[j * 4 + i] = kO[i][j];

    hw::StepMemory memory;
    hw::Call call{.ctx = ctx, .memory = memory, .sequences = {.tokens = 2}};
    hw::Tensor weights(hw::DType::f64, {1, 2, 2, 2});
    hw::MultiHead::Saved saved;
    const hw::AnyView y =
        layer.forward({.x = rows, .sequences = call.sequences, .weights = weights.view()}, call, &saved);
    const hw::HeadCall& run = saved.run->call;
    for (hw::Index h = 0; h < 2; ++h) {
      std::printf(" head %d\n", static_cast<int>(h) + 1);
      print("Q", hw::as_rows(run.q, 4), 2 * h, 2), print("K", hw::as_rows(run.k, 4), 2 * h, 2);
      print("V", hw::as_rows(run.v, 4), 2 * h, 2);
      const auto q = hw::as_rows(run.q, 4).as<const double, 2>(),
                 k = hw::as_rows(run.k, 4).as<const double, 2>();
      double scores[4], entropy[2] = {};
      for (int i = 0; i < 4; ++i)
        scores[i] = q(i / 2, 2 * h) * k(i % 2, 2 * h) + q(i / 2, 2 * h + 1) * k(i % 2, 2 * h + 1);
      print("Q K^T", hw::AnyView::packed(scores, hw::DType::f64, {2, 2}), 0, 2);
      double* a = weights.values<double>().data() + 4 * h;
      for (int i = 0; i < 4; ++i) entropy[i / 2] -= a[i] * std::log(a[i]);
      print("weights", hw::AnyView::packed(a, hw::DType::f64, {2, 2}), 0, 2);
      print("entropy", hw::AnyView::packed(entropy, hw::DType::f64, {1, 2}), 0, 2);
      print("weights V", hw::as_rows(run.y, 4), 2 * h, 2);
    }
    print("output", y, 0, 4);
    const hw::AnyView sum = memory.take(hw::DType::f64, {2, 4});
    hw::add(rows, y, sum, ctx);
    hw::layer_norm({.x = sum, .out = sum}, ctx);
    print("norm(x+y)", sum, 0, 4);
  }
}
