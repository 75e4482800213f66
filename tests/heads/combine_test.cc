// Heads over heads: gated lies over every head of the list, forward, backward, and refused in words where it
// cannot.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/base/sentence.h"
#include "tests/heads/differences.h"

namespace headwise::test {
namespace {

TEST(Combine, GatedLiesOverEveryHead) {
  Context ctx({.threads = 1, .kernels = "ref"});
  AllHeads::each([&]<class H>(Type<H>) {
    ParamSet params;
    const AnyHead below = make_head(samples<H>().front(), params, kSmallPlace);
    if (below.widths().out == 0) return;
    std::vector<std::string> gates = {"+gated:act=silu,bias=true", "+gated:source=heads"};
    if (!below.spec().terms.gate) gates.push_back("+gated:grain=head");
    for (const std::string& gate : gates)
      for (const HeadSetting& s : head_settings(false)) expect_gradients(samples<H>().front() + gate, s, ctx);
  });
}

TEST(Combine, LinearGatesOfOneChangeNothing) {
  Context ctx({.threads = 1, .kernels = ""});
  const HeadSetting s{.name = "causal", .mask = Mask::causal()};
  Tensor x = random_normal({2, 5, 6}, DType::f64, 3);
  AllHeads::each([&]<class H>(Type<H>) {
    const std::string sample = samples<H>().front();
    SCOPED_TRACE(sample);
    Layer below(sample, DType::f64, kSmallPlace),
        gated(sample + "+gated:act=linear,bias=true", DType::f64, kSmallPlace);
    disturb(below.params(), 0.3);
    copy_values(below.params(), gated.params());
    for (Index i = 0; i < gated.params().find("head.over1.gate").value().count(); ++i)
      static_cast<double*>(gated.params().find("head.over1.gate").value().data)[i] = 0;
    for (Index i = 0; i < gated.params().find("head.over1.gate_bias").value().count(); ++i)
      static_cast<double*>(gated.params().find("head.over1.gate_bias").value().data)[i] = 1;
    EXPECT_EQ(distance_of(below.forward(s, x.view(), x.view(), ctx).view(),
                          gated.forward(s, x.view(), x.view(), ctx).view())
                  .largest,
              0);
  });
}

/// Routed heads share keys and values, and see a window: with and without skipping.
TEST(Combine, MohOverGroupsUnderAWindow) {
  Context ctx({.threads = 1, .kernels = "ref"});
  const HeadSetting window{.name = "window", .mask = Mask::causal() & Mask::window(2, 0)};
  for (const char* skip : {"true", "false"})
    expect_gradients(text("moh:heads=4,shared=1,k=2,kv_heads=2,dim=3,skip=", skip), window, ctx);
}

TEST(Combine, EntmaxOverGroupsUnderACausalMask) {
  Context ctx({.threads = 1, .kernels = "ref"});
  const HeadSetting causal{.name = "causal", .mask = Mask::causal()};
  for (const char* learned : {"true", "false"})
    expect_gradients(text("entmax:heads=4,kv_heads=2,dim=3,alpha=1.5,learned=", learned), causal, ctx);
}

TEST(Combine, WhatCannotLieOverAnotherIsRefused) {
  const auto sentence = [](std::string_view head) {
    return sentence_of(ErrorKind::unsupported, [&] {
      ParamSet params;
      make_head(head, params, kSmallPlace).spec();
    });
  };
  EXPECT_EQ(sentence("gated:heads=2+mha:heads=2"),
            "mha: lies over no other head; name it first, before the +");
  EXPECT_EQ(sentence("gated:heads=2,grain=head+gated:grain=head"),
            "gated: lies over a head that fills gate itself; leave one of them out");
  EXPECT_EQ(sentence("mha:heads=2+gated+gated+gated"),
            "gated: lies over 3 heads already; at most 3 are joined");
  EXPECT_EQ(
      sentence("gated:heads=2,source=heads,grain=head"),
      "gated: source=heads gates columns of the layer's output, which belong to no head; use grain=element");
  EXPECT_EQ(sentence("gated:heads=2,source=heads+gated"),
            "gated: the head below gives the layer's output itself; put gated before it");
}

}  // namespace
}  // namespace headwise::test
