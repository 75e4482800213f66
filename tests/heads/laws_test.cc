// The shared law: every head of the list, at the setting it names, is multi-head attention, forward and back.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "headwise/heads/mha.h"

#include "headwise/base/context.h"
#include "tests/heads/samples.h"
#include "tests/support/close.h"

namespace headwise::test {
namespace {

struct Size {
  Index heads, dim, tokens;
};
constexpr Size kSizes[] = {{4, 20, 37}, {1, 1, 1}, {3, 65, 33}, {8, 64, 16}};
constexpr Index kModel = 24;

/// MHA's rows of a projection into the head's: the same rows, or every r-th block where it has r times as
/// many (MHA's head h is then the head's h * r).
void spread(const InputView& from, const InputView& to, Index dim) {
  const Index ratio = to.size[0] / from.size[0], columns = from.size[1];
  ASSERT_EQ(to.size[0], from.size[0] * ratio) << "a projection must have a multiple of MHA's rows";
  for (Index row = 0; row < from.size[0]; ++row)
    for (Index c = 0; c < columns; ++c)
      store_double(to.data, to.dtype, (row / dim * ratio * dim + row % dim) * columns + c,
                   load_double(from.data, from.dtype, row * columns + c));
}

struct Result {
  Tensor y, dx;
};
Result run(Layer& layer, const HeadSetting& s, const Tensor& x, const Tensor& dy, Context& ctx) {
  Result r;
  r.y = layer.forward(s, x.view(), x.view(), ctx);
  layer.backward(dy.view(), ctx);
  r.dx = std::move(layer.dx);
  return r;
}

/// The head's layer in `dtype`, with MHA's weights, from rows `x`.
template <Head H>
Result at_mha(const Size& n, Layer& mha, const HeadSetting& s, const Tensor& x, const Tensor& dy,
              Context& ctx) {
  Layer layer(config_text<H>(H::as_mha(n.heads, n.dim)), x.dtype(), {0, 4, kModel});
  for (const char* w : {"w_q", "w_k", "w_v", "w_o"})
    spread(mha.params().find(w).value(), layer.params().find(w).value(), n.dim);
  layer.head().become_mha();
  return run(layer, s, x, dy, ctx);
}

TEST(Laws, EveryHeadReducesToMha) {
  Context ctx({.threads = 2, .kernels = ""});
  for (const Size& n : kSizes) {
    const HeadSetting s{
        .name = "causal", .q_tokens = n.tokens, .kv_tokens = n.tokens, .mask = Mask::causal()};
    Tensor x = random_normal({s.batch, n.tokens, kModel}, DType::f32, 5),
           dy = random_normal({s.batch, n.tokens, kModel}, DType::f32, 6);
    Tensor wide_x = converted(x.view(), DType::f64), wide_dy = converted(dy.view(), DType::f64);
    Layer mha(config_text<Mha>({n.heads, n.dim}), DType::f32, {0, 4, kModel});
    Layer wide_mha(config_text<Mha>({n.heads, n.dim}), DType::f64, {0, 4, kModel});
    copy_values(mha.params(), wide_mha.params());
    const Result truth = run(wide_mha, s, wide_x, wide_dy, ctx), plain = run(mha, s, x, dy, ctx);
    const double y_yard = distance_of(plain.y.view(), truth.y.view()).relative,
                 dx_yard = distance_of(plain.dx.view(), truth.dx.view()).relative;
    AllHeads::each([&]<class H>(Type<H>) {
      SCOPED_TRACE(text(H::name, " heads ", n.heads, " dim ", n.dim, " tokens ", n.tokens));
      const Result wide = at_mha<H>(n, wide_mha, s, wide_x, wide_dy, ctx);
      EXPECT_LE(distance_of(wide.y.view(), truth.y.view()).relative, 1e-13);
      EXPECT_LE(distance_of(wide.dx.view(), truth.dx.view()).relative, 1e-12);
      const Result narrow = at_mha<H>(n, mha, s, x, dy, ctx);
      EXPECT_LE(distance_of(narrow.y.view(), truth.y.view()).relative, 1.5 * y_yard + 0x1p-22);
      EXPECT_LE(distance_of(narrow.dx.view(), truth.dx.view()).relative, 1.5 * dx_yard + 0x1p-22);
    });
  }
}

TEST(Laws, SettingsReadBackAsTheyPrint) {
  AllHeads::each([&]<class H>(Type<H>) {
    for (const std::string& sample : samples<H>()) {
      ParamSet params, again;
      const std::string printed = make_head(sample, params, {1, 4, 12}).settings();
      EXPECT_EQ(make_head(printed, again, {3, 9, 12}).settings(), printed);
      EXPECT_EQ(params.count(), again.count());
    }
  });
}

}  // namespace
}  // namespace headwise::test
