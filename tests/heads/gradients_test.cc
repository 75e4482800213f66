// Gradients of every parameter of every head of the list, in f64 by central differences, and f32 against f64.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>

#include "tests/heads/differences.h"

namespace headwise::test {
namespace {

TEST(HeadGradients, EveryParameterOfEveryHeadMatchesDifferences) {
  Context ctx({.threads = 1, .kernels = "ref"});
  AllHeads::each([&]<class H>(Type<H>) {
    for (const std::string& sample : samples<H>())
      for (const HeadSetting& s : head_settings(sample == samples<H>().front()))
        expect_gradients(sample, s, ctx);
  });
}

/// y, dx and all gradients of parameters in a row.
std::vector<Tensor> all_of(Layer& layer, const HeadSetting& s, const HeadRows& r, Context& ctx) {
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
      for (const HeadSetting& s : head_settings(sample == samples<H>().front())) {
        SCOPED_TRACE(text(sample, " ", s.name));
        Layer layer(sample, DType::f32, kSmallPlace), plain(sample, DType::f32, kSmallPlace),
            wide(sample, DType::f64, kSmallPlace);
        disturb(layer.params(), 0.3);
        copy_values(layer.params(), plain.params()), copy_values(layer.params(), wide.params());
        const HeadRows r = rows_for(s, DType::f32);
        const HeadRows w = {converted(r.x.view(), DType::f64), converted(r.x_kv.view(), DType::f64),
                            converted(r.dy.view(), DType::f64)};
        const std::vector<Tensor> got = all_of(layer, s, r, cpu), yard = all_of(plain, s, r, ref),
                                  truth = all_of(wide, s, w, ref);
        for (std::size_t i = 0; i < truth.size(); ++i) {
          const Distance d = distance_of(got[i].view(), truth[i].view());
          // ref sums in double, so what f32 sums leave comes beside: 2^-18 of the largest number. dcmha
          // divides coefficients by their root mean square over heads, and where that is small its gradients
          // have twice as much (5.9e-6 at most in these samples).
          const double bound =
              distance_of(yard[i].view(), truth[i].view()).largest +
              (H::name == "dcmha" ? 0x1p-17 : 0x1p-18) * std::max(1.0, largest_of(truth[i].view()));
          EXPECT_EQ(d.mismatched, 0) << "tensor " << i;
          EXPECT_LE(d.largest, bound) << "tensor " << i;
        }
      }
  });
}

TEST(HeadGradients, BitsDependOnNoThreadCount) {
  Context one({.threads = 1, .kernels = ""}), three({.threads = 3, .kernels = ""});
  AllHeads::each([&]<class H>(Type<H>) {
    for (const std::string& sample : samples<H>())
      for (const HeadSetting& s : head_settings(false)) {
        SCOPED_TRACE(text(sample, " ", s.name));
        Layer a(sample, DType::f32, kSmallPlace), b(sample, DType::f32, kSmallPlace);
        disturb(a.params(), 0.3), disturb(b.params(), 0.3);
        const HeadRows r = rows_for(s, DType::f32);
        const std::vector<Tensor> got = all_of(a, s, r, one), again = all_of(b, s, r, three);
        for (std::size_t i = 0; i < got.size(); ++i)
          EXPECT_EQ(std::memcmp(got[i].view().data, again[i].view().data,
                                static_cast<std::size_t>(got[i].view().count() * size_of(DType::f32))),
                    0)
              << "tensor " << i;
      }
  });
}

}  // namespace
}  // namespace headwise::test
