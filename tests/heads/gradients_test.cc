// Gradients of every parameter of every head of the list, in f64 by central differences, and f32 against f64.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <functional>

#include "tests/heads/samples.h"
#include "tests/support/close.h"

namespace headwise::test {
namespace {

constexpr Place kPlace{1, 4, 6};
constexpr double kStep = 1e-5;

struct Rows {
  Tensor x, x_kv, dy;
};
Rows rows_for(const HeadSetting& s, DType dtype) {
  return {random_normal({s.outer(), s.q_rows(), kPlace.model_dim}, dtype, 21),
          random_normal({s.outer(), s.kv_rows(), kPlace.model_dim}, dtype, 22),
          random_normal({s.outer(), s.q_rows(), kPlace.model_dim}, dtype, 23)};
}

double loss_of(Layer& layer, const HeadSetting& s, const Rows& r, Context& ctx) {
  const Tensor y = layer.forward(s, r.x.view(), r.x_kv.view(), ctx);
  double sum = layer.call().loss;
  for (std::size_t i = 0; i < y.values<double>().size(); ++i)
    sum += y.values<double>()[i] * r.dy.values<double>()[i];
  return sum;
}

/// At most `most` elements of n, spread over all.
std::vector<Index> some_of(Index n, Index most) {
  std::vector<Index> all;
  for (Index i = 0; i < min_of(n, most); ++i) all.push_back(n <= most ? i : i * (n - 1) / (most - 1));
  return all;
}

void check(const char* name, const AnyView& value, const AnyView& grad, const std::function<double()>& loss) {
  for (const Index i : some_of(value.count(), 7)) {
    double& at = static_cast<double*>(value.data)[i];
    const double kept = at, got = static_cast<double*>(grad.data)[i];
    at = kept + kStep;
    const double above = loss();
    at = kept - kStep;
    const double below = loss();
    at = kept;
    EXPECT_NEAR(got, (above - below) / (2 * kStep), 1e-8 * std::max(1.0, std::fabs(got)))
        << name << " element " << i;
  }
}

TEST(HeadGradients, EveryParameterOfEveryHeadMatchesDifferences) {
  Context ctx({.threads = 1, .kernels = "ref"});
  AllHeads::each([&]<class H>(Type<H>) {
    for (const std::string& sample : samples<H>())
      for (const HeadSetting& s : head_settings()) {
        SCOPED_TRACE(text(sample, " ", s.name));
        Layer layer(sample, DType::f64, kPlace);
        disturb(layer.params(), 0.3);
        const Rows r = rows_for(s, DType::f64);
        const auto loss = [&] { return loss_of(layer, s, r, ctx); };
        loss();
        layer.backward(r.dy.view(), ctx);
        const Tensor dx = std::move(layer.dx), dx_kv = std::move(layer.dx_kv);
        for (Param& p : layer.params().all()) check(p.name.c_str(), p.value, p.grad, loss);
        check("x", r.x.view(), dx.view(), loss);
        if (s.cross) check("x_kv", r.x_kv.view(), dx_kv.view(), loss);
        if (testing::Test::HasFailure()) return;
      }
  });
}

/// y, dx and all gradients of parameters in a row.
std::vector<Tensor> all_of(Layer& layer, const HeadSetting& s, const Rows& r, Context& ctx) {
  std::vector<Tensor> all;
  all.push_back(layer.forward(s, r.x.view(), r.x_kv.view(), ctx));
  layer.backward(r.dy.view(), ctx);
  all.push_back(std::move(layer.dx));
  if (s.cross) all.push_back(std::move(layer.dx_kv));
  for (const Param& p : layer.params().all()) all.push_back(converted(p.grad, p.grad.dtype));
  return all;
}

TEST(HeadGradients, SinglePrecisionIsAsCloseAsItsReference) {
  Context cpu({.threads = 2, .kernels = ""}), ref({.threads = 2, .kernels = "ref"});
  AllHeads::each([&]<class H>(Type<H>) {
    for (const std::string& sample : samples<H>())
      for (const HeadSetting& s : head_settings()) {
        SCOPED_TRACE(text(sample, " ", s.name));
        Layer layer(sample, DType::f32, kPlace), plain(sample, DType::f32, kPlace),
            wide(sample, DType::f64, kPlace);
        disturb(layer.params(), 0.3);
        copy_values(layer.params(), plain.params()), copy_values(layer.params(), wide.params());
        const Rows r = rows_for(s, DType::f32);
        const Rows w = {converted(r.x.view(), DType::f64), converted(r.x_kv.view(), DType::f64),
                        converted(r.dy.view(), DType::f64)};
        const std::vector<Tensor> got = all_of(layer, s, r, cpu), yard = all_of(plain, s, r, ref),
                                  truth = all_of(wide, s, w, ref);
        for (std::size_t i = 0; i < truth.size(); ++i) {
          const Distance d = distance_of(got[i].view(), truth[i].view());
          const double bound = 4 * distance_of(yard[i].view(), truth[i].view()).largest +
                               0x1p-20 * std::max(1.0, largest_of(truth[i].view()));
          EXPECT_EQ(d.mismatched, 0) << "tensor " << i;
          EXPECT_LE(d.largest, bound) << "tensor " << i;
        }
      }
  });
}

}  // namespace
}  // namespace headwise::test
