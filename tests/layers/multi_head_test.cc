// MultiHead over every head of the list: gradients, cached memory, no copies, bits, weights, refusals.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/layers/multi_head/multi_head.h"

#include "headwise/masks/mask.h"
#include "headwise/ops/projection/projection.h"
#include "tests/heads/samples.h"
#include "tests/layers/check.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

struct Setting {
  std::string heads = "mha:heads=2,dim=3";
  MultiHeadOptions options = {.model_dim = 5};
  bool cross = false, apart = false, ragged = false,
       training = false;  // apart: values from other rows than keys
  Mask mask = {};
};

void check_gradients(const Setting& s) {
  Bench bench;
  ParamSet params(DType::f64, 1);
  const MultiHead layer(params, "attention", s.heads, s.options);
  Tensor q_offsets = longs({0, 3, 3, 6}), kv_offsets = longs({0, 2, 4, 8});
  const Sequences q = s.ragged ? Sequences{.offsets = q_offsets.view()} : Sequences{.batch = 2, .tokens = 3};
  const Sequences kv = !s.cross   ? q
                       : s.ragged ? Sequences{.offsets = kv_offsets.view()}
                                  : Sequences{.batch = 2, .tokens = 4};
  Tensor x = random_normal({6, s.options.model_dim}, DType::f64, 2),
         keys = random_normal({8, layer.options().key_model_dim}, DType::f64, 3),
         values = random_normal({8, layer.options().value_model_dim}, DType::f64, 4);
  MultiHead::Saved saved;
  GradientCase c{.name = s.heads + (s.cross ? " cross" : "") + (s.ragged ? " ragged" : ""),
                 .params = params,
                 .inputs = {x.view()},
                 .call = {},
                 .forward = {},
                 .backward = {}};
  if (s.cross) c.inputs.push_back(keys.view());
  if (s.apart) c.inputs.push_back(values.view());
  c.call = [&] {
    Call call = bench.call(q, s.training);
    call.loss_weight = 0.7;
    return call;
  };
  c.forward = [&](Call& call, bool keep) {
    MultiHeadArgs a{.x = x.view(), .sequences = q, .mask = s.mask.set()};
    if (s.cross) a.keys = keys.view(), a.kv_sequences = kv;
    if (s.apart) a.values = values.view();
    return layer.forward(a, call, keep ? &saved : nullptr);
  };
  c.backward = [&](const InputView& dy, Call& call) {
    const MultiHeadGrads g = layer.backward(dy, call, saved);
    std::vector<AnyView> all = {g.dx};
    if (s.cross) all.push_back(g.dkeys);
    if (s.apart) all.push_back(g.dvalues);
    return all;
  };
  expect_gradients(c);
}

TEST(MultiHead, EveryHeadHasItsGradientsWithoutALineOfItsOwn) {
  AllHeads::each([]<Head H>(Type<H>) {
    for (const std::string& head : samples<H>()) {
      check_gradients({.heads = head, .mask = Mask::causal()});
      check_gradients({.heads = head, .cross = true});
    }
  });
}

TEST(MultiHead, OptionsHaveTheirGradients) {
  MultiHeadOptions o{.model_dim = 5};
  check_gradients({.options = o, .ragged = true});
  check_gradients({.options = o, .cross = true, .ragged = true});
  o.bias = false;
  check_gradients({.options = o});
  o.out_bias = false, o.key_model_dim = 4, o.value_model_dim = 7;
  check_gradients({.options = o, .cross = true, .apart = true});
  o = {.model_dim = 5, .alibi = true};
  check_gradients({.options = o, .mask = Mask::causal()});
  o = {.model_dim = 5, .rope = RopeOptions{}};
  check_gradients(
      {.heads = "gqa:heads=4,kv_heads=2,dim=4", .options = o, .ragged = true, .mask = Mask::causal()});
  check_gradients({.heads = "mha:heads=2,dim=4", .options = o});
  o = {.model_dim = 5, .dropout = 0.3};
  check_gradients({.options = o, .training = true});
}

struct Plain {
  explicit Plain(int threads = 2, std::string_view heads = "gqa:heads=4,kv_heads=2,dim=8")
      : bench(threads), params(DType::f32, 1), layer(params, "attention", heads, {.model_dim = 24}) {
    params.make_grads();
  }
  Bench bench;
  ParamSet params;
  MultiHead layer;
  Tensor x = random_normal({14, 24}, DType::f32, 2), source = random_normal({10, 24}, DType::f32, 3);
  Sequences own{.batch = 2, .tokens = 7}, other{.batch = 2, .tokens = 5};
};

TEST(MultiHead, CachedMemoryGivesTheBitsOfCrossAttention) {
  Plain p;
  Call call = p.bench.call(p.own);
  const AnyView fresh = p.layer.forward(
      {.x = p.x.view(), .keys = p.source.view(), .sequences = p.own, .kv_sequences = p.other}, call, nullptr);
  const KvMemory memory = p.layer.remember(p.source.view(), p.other, call);
  const AnyView cached =
      p.layer.forward({.x = p.x.view(), .memory = &memory, .sequences = p.own}, call, nullptr);
  EXPECT_TRUE(same_bits(fresh, cached));
  MultiHead::Saved saved;
  EXPECT_EQ(error_of([&] {
              p.layer.forward({.x = p.x.view(), .memory = &memory, .sequences = p.own}, call, &saved);
            }),
            "multi_head: a memory projected before has no gradient; give its rows as keys where a backward "
            "follows");
}

TEST(MultiHead, NoCopyStandsBetweenHeadsAndWo) {
  Plain p;
  Call call = p.bench.call(p.own);
  const Index before = p.bench.memory.pieces();
  MultiHead::Saved saved;
  p.layer.forward(p.x.view(), call, &saved);
  // q (its own, being wider than k and v), k and v, attention's out and lse as one, and y: nothing is merged,
  // split or transposed in memory of its own.
  EXPECT_EQ(p.bench.memory.pieces() - before, 4);
  // W_O read attention's out where it was written, head by head.
  const AnyView out = saved.run->call.run.forward.out;
  EXPECT_EQ(saved.out.x.data, out.data);
  EXPECT_EQ(out.size[2], 4);
  EXPECT_EQ(out.step[2], 8);
  EXPECT_EQ(saved.out.x.step[0], 32);
}

TEST(MultiHead, OneMatrixAndSmallOnesHaveTheSameBits) {
  Plain p;
  Call call = p.bench.call(p.own);
  MultiHead::Saved saved;
  p.layer.forward(p.x.view(), call, &saved);
  const AnyView q = as_rows(saved.run->call.q, 32);
  for (Index h = 0; h < 4; ++h) {
    Tensor alone(DType::f32, {14, 8});
    projection({.x = p.x.view(),
                .weight = slice(p.layer.part(0).weight().value(), 0, h * 8, h * 8 + 8),
                .bias = slice(p.layer.part(0).bias().value(), 0, h * 8, h * 8 + 8),
                .out = alone.view()},
               Activation::none, p.bench.ctx);
    for (Index t = 0; t < 14; ++t)
      for (Index c = 0; c < 8; ++c)
        ASSERT_EQ(value(alone.view(), t * 8 + c), value(q, t * 32 + h * 8 + c)) << h << t << c;
  }
}

TEST(MultiHead, SameBitsForThreads) {
  AllHeads::each([]<Head H>(Type<H>) {
    for (const std::string& head : samples<H>()) {
      std::vector<Tensor> first;
      for (const int threads : {1, 3}) {
        Plain p(threads, head);
        Call call = p.bench.call(p.own, true);
        MultiHead::Saved saved;
        const AnyView y = p.layer.forward(p.x.view(), call, &saved);
        const AnyView dx = p.layer.backward(p.x.view(), call, saved).dx;
        std::size_t at = 0;
        const auto compare = [&](const InputView& v) {
          if (threads == 1) {
            first.emplace_back(v.dtype, std::initializer_list<Index>{v.count()});
            std::memcpy(first.back().view().data, v.data,
                        static_cast<std::size_t>(v.count() * size_of(v.dtype)));
          } else {
            EXPECT_TRUE(same_bits(first[at++].view(), v)) << head << " " << at;
          }
        };
        compare(y), compare(dx);
        for (const Param& param : p.params.all()) compare(param.grad);
      }
    }
  });
}

TEST(MultiHead, WeightsComeForEveryHead) {
  Plain p;
  Call call = p.bench.call(p.own);
  Tensor weights(DType::f32, {2, 4, 7, 5});
  const AnyView with = p.layer.forward({.x = p.x.view(),
                                        .keys = p.source.view(),
                                        .sequences = p.own,
                                        .kv_sequences = p.other,
                                        .weights = weights.view()},
                                       call, nullptr);
  const AnyView without = p.layer.forward(
      {.x = p.x.view(), .keys = p.source.view(), .sequences = p.own, .kv_sequences = p.other}, call, nullptr);
  for (Index row = 0; row < 2 * 4 * 7; ++row) {
    double sum = 0;
    for (Index k = 0; k < 5; ++k) sum += value(weights.view(), row * 5 + k);
    EXPECT_NEAR(sum, 1, 1e-6);
  }
  for (Index i = 0; i < with.count(); ++i) EXPECT_NEAR(value(with, i), value(without, i), 1e-5);
}

TEST(MultiHead, AStepPlansAndRunsWithoutAllocating) {
  Plain p;
  MultiHead::Saved saved;
  const auto step = [&] {
    Call call = p.bench.call(p.own);
    p.layer.forward(p.x.view(), call, &saved);
    p.layer.backward(p.x.view(), call, saved);
  };
  step();
  step();
  const std::uint64_t before = allocations();
  for (int n = 0; n < 5; ++n) step();
  EXPECT_EQ(allocations(), before);
}

TEST(MultiHead, BadInputIsOneSentence) {
  Plain p;
  Call call = p.bench.call(p.own);
  Tensor wide = random_normal({14, 25}, DType::f32, 1);
  EXPECT_EQ(error_of([&] { p.layer.forward(wide.view(), call, nullptr); }),
            "multi_head: x is f32 [14 25]; give [tokens 24]");
  call.sequences.tokens = 6;
  EXPECT_EQ(error_of([&] { p.layer.forward(p.x.view(), call, nullptr); }),
            "multi_head: x is f32 [14 24] but its sequences hold 12 rows; give a row for each token");
  EXPECT_EQ(error_of([&] {
              p.layer.forward({.x = p.x.view(),
                               .keys = p.source.view(),
                               .sequences = p.own,
                               .kv_sequences = {.batch = 1, .tokens = 10}},
                              call, nullptr);
            }),
            "multi_head: x has 2 sequences and keys have 1; give as many, both padded or both with offsets");
  EXPECT_EQ(error_of([&] { MultiHead(p.params, "b", "mha", {}); }),
            "multi_head: model_dim is 0; it starts at 1");
}

}  // namespace
}  // namespace headwise
