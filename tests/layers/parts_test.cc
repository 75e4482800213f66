// Linear, norms, embedding, feed-forward, memory of a step: gradients in f64, bits, allocations, refusals.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/layers/basic/embed.h"
#include "headwise/layers/basic/feed_forward.h"
#include "headwise/layers/basic/norm_layer.h"
#include "tests/layers/check.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

/// A layer with forward(x, call, saved) and backward(dy, call, saved) on [rows in].
template <class Layer>
void check_layer(const std::string& name, ParamSet& params, const Layer& layer, Index rows, Index in,
                 bool training = false) {
  Bench bench;
  Tensor x = random_normal({rows, in}, DType::f64, 5);
  typename Layer::Saved saved;
  expect_gradients(
      {.name = name,
       .params = params,
       .inputs = {x.view()},
       .call = [&] { return bench.call({.tokens = rows}, training); },
       .forward = [&](Call& call,
                      bool keep) { return layer.forward(x.view(), call, keep ? &saved : nullptr); },
       .backward = [&](const InputView& dy,
                       Call& call) { return std::vector<AnyView>{layer.backward(dy, call, saved)}; }});
}

TEST(Layers, LinearAndNormsHaveTheirGradients) {
  for (const bool bias : {true, false}) {
    ParamSet params(DType::f64, 1);
    check_layer("linear", params, Linear(params, "linear", 5, 7, {.bias = bias}), 6, 5);
    ParamSet more(DType::f64, 1);
    check_layer("layer norm", more, NormLayer(more, "norm", 6, {.bias = bias}), 4, 6);
  }
  ParamSet params(DType::f64, 1);
  check_layer("rms norm", params, NormLayer(params, "norm", 6, {.kind = NormKind::rms}), 4, 6);
}

TEST(Layers, FeedForwardsHaveTheirGradients) {
  for (const FeedKind kind : {FeedKind::relu, FeedKind::gelu, FeedKind::gelu_tanh, FeedKind::swiglu})
    for (const bool bias : {true, false})
      for (const double p : {0.0, 0.3}) {
        ParamSet params(DType::f64, 2);
        const FeedForward feed(params, "feed",
                               {.kind = kind, .model_dim = 5, .feed_dim = 9, .bias = bias, .dropout = p});
        check_layer(std::string(name_of(kind)), params, feed, 4, 5, true);
      }
}

TEST(Layers, TailsAddResidualAndDropout) {
  for (const double p : {0.0, 0.4}) {
    Bench bench;
    ParamSet params(DType::f64, 3);
    const Linear linear(params, "linear", 5, 5);
    Tensor x = random_normal({4, 5}, DType::f64, 5), r = random_normal({4, 5}, DType::f64, 6);
    Linear::Saved saved;
    expect_gradients({.name = "tail",
                      .params = params,
                      .inputs = {x.view(), r.view()},
                      .call = [&] { return bench.call({.tokens = 4}, true); },
                      .forward =
                          [&](Call& call, bool keep) {
                            return linear.forward(x.view(), call, keep ? &saved : nullptr,
                                                  {.residual = r.view(), .dropout = p});
                          },
                      .backward =
                          [&](const InputView& dy, Call& call) {
                            return std::vector<AnyView>{linear.backward(dy, call, saved), dy};
                          }});
  }
}

TEST(Layers, EmbeddingsAddTokenTypesAndNormTheSum) {
  Tensor ids = longs({3, 0, 3, 1}), types = longs({0, 0, 1, 1}), zeros = longs({0, 0, 0, 0});
  Bench bench;
  ParamSet params(DType::f64, 4);
  const Embed embed(params, "embed",
                    {.vocabulary = 4,
                     .model_dim = 6,
                     .max_tokens = 4,
                     .positions = Positions::learned,
                     .token_types = 2,
                     .norm = NormOptions{.eps = 1e-12},
                     .dropout = 0.2});
  Embed::Saved saved;
  expect_gradients({.name = "types",
                    .params = params,
                    .inputs = {},
                    .call = [&] { return bench.call({.tokens = 4}, true); },
                    .forward =
                        [&](Call& c, bool keep) {
                          return embed.forward(ids.view(), types.view(), c, keep ? &saved : nullptr);
                        },
                    .backward =
                        [&](const InputView& dy, Call& c) {
                          embed.backward(dy, c, saved);
                          return std::vector<AnyView>{};
                        }});
  Call c = bench.call({.tokens = 4});
  const AnyView y = embed.forward(ids.view(), types.view(), c, nullptr);
  const auto at = [&](const char* name, Index i) { return value(params.find(name).value(), i); };
  double sum[6], mean = 0, variance = 0;  // row 2: token 3 of type 1 at position 2
  for (Index i = 0; i < 6; ++i)
    mean +=
        (sum[i] = at("embed.table", 18 + i) + at("embed.positions", 12 + i) + at("embed.types", 6 + i)) / 6;
  for (const double x : sum) variance += (x - mean) * (x - mean) / 6;
  for (Index i = 0; i < 6; ++i)
    EXPECT_NEAR(
        value(y, 12 + i),
        (sum[i] - mean) / std::sqrt(variance + 1e-12) * at("embed.norm.weight", i) + at("embed.norm.bias", i),
        1e-12);
  EXPECT_TRUE(
      same_bits(embed.forward(ids.view(), c, nullptr), embed.forward(ids.view(), zeros.view(), c, nullptr)));
  ParamSet others(DType::f64, 4);
  const Embed plain(others, "embed", {.vocabulary = 4, .model_dim = 6});
  EXPECT_EQ(
      error_of([&] { plain.forward(ids.view(), types.view(), c, nullptr); }),
      "embed: types is i64 [4] for ids i64 [4] and 0 token types; give one for each token to a model that "
      "has them");
}

TEST(Layers, EmbeddingsKnowTheirPositions) {
  Tensor ids = longs({3, 0, 3, 1, 2, 2, 0}), offsets = longs({0, 3, 3, 7});
  for (const Positions positions : {Positions::none, Positions::learned, Positions::sinusoidal})
    for (const bool scaled : {false, true}) {
      Bench bench;
      ParamSet params(DType::f64, 4);
      const Embed embed(
          params, "embed",
          {.vocabulary = 4, .model_dim = 6, .max_tokens = 5, .positions = positions, .scaled = scaled});
      Embed::Saved saved;
      const auto call = [&] { return bench.call({.offsets = offsets.view()}, true); };
      expect_gradients(
          {.name = std::string(name_of(positions)),
           .params = params,
           .inputs = {},
           .call = call,
           .forward = [&](Call& c,
                          bool keep) { return embed.forward(ids.view(), c, keep ? &saved : nullptr); },
           .backward =
               [&](const InputView& dy, Call& c) {
                 embed.backward(dy, c, saved);
                 return std::vector<AnyView>{};
               }});
      Call c = call();
      const AnyView y = embed.forward(ids.view(), c, nullptr);
      // Rows 0 and 6 hold tokens 3 and 0; row 6 is at position 3 of its sequence.
      const double factor = scaled ? std::sqrt(6.0) : 1;
      for (Index i = 0; i < 6; ++i) {
        double want = factor * value(params.find("embed.table").value(), i);
        if (positions == Positions::learned) want += value(params.find("embed.positions").value(), 3 * 6 + i);
        if (positions == Positions::sinusoidal) {
          const double angle = 3 / std::pow(1e4, static_cast<double>(i / 2 * 2) / 6);
          want += i % 2 ? std::cos(angle) : std::sin(angle);
        }
        EXPECT_NEAR(value(y, 6 * 6 + i), want, 1e-15);
      }
    }
}

TEST(Layers, AlibiSlopesAreThePapers) {
  Tensor eight = alibi_slopes_of(8), six = alibi_slopes_of(6);
  for (Index h = 0; h < 8; ++h) EXPECT_EQ(value(eight.view(), h), std::ldexp(1.0, -static_cast<int>(h) - 1));
  const double want[] = {0.25, 0.0625, 0.015625, 0.00390625, 0.5, 0.125};
  for (Index h = 0; h < 6; ++h) EXPECT_EQ(value(six.view(), h), want[h]);
}

TEST(StepMemory, GrowsOnceThenServesEveryStep) {
  StepMemory memory;
  const auto step = [&] {
    memory.reset();
    const AnyView a = memory.take(DType::f32, {1000, 300});
    const StepMemory::Mark mark = memory.mark();
    const AnyView b = memory.take(DType::f64, {2000, 100});
    EXPECT_NE(a.data, b.data);
    memory.release(mark);
    const AnyView c = memory.take(DType::f32, {1});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(c.data) % 64, 0u);
    memory.take(DType::f32, {500, 1000});
  };
  step();
  step();
  const std::uint64_t before = allocations();
  const std::size_t bytes = memory.capacity();
  for (int n = 0; n < 5; ++n) step();
  EXPECT_EQ(allocations(), before);
  EXPECT_EQ(memory.capacity(), bytes);
}

TEST(Layers, BadInputIsOneSentence) {
  Bench bench;
  ParamSet params(DType::f32, 1);
  const Embed embed(params, "embed",
                    {.vocabulary = 4, .model_dim = 6, .max_tokens = 2, .positions = Positions::learned});
  Tensor ids = longs({0, 1, 2});
  Call call = bench.call({.tokens = 3});
  EXPECT_EQ(
      error_of([&] { embed.forward(ids.view(), call, nullptr); }),
      "embed: the longest sequence has 3 tokens but there are positions for 2; cut it or make max_tokens "
      "larger");
  call.sequences.tokens = 4;
  EXPECT_EQ(error_of([&] { embed.forward(ids.view(), call, nullptr); }),
            "embed: ids is i64 [3] but the sequences hold 4 rows; give an id for each token");
  EXPECT_EQ(error_of([&] { Linear(params, "x", 0, 3); }),
            "linear: x goes from 0 to 3 columns; both start at 1");
}

}  // namespace
}  // namespace headwise
