// Blocks, stacks and whole Transformers: gradients, shared layers, merged attention, bits, suggested heads.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/layers/transformer/transformer.h"

#include "headwise/base/context.h"
#include "headwise/layers/basic/packed_weights.h"
#include "headwise/layers/multi_head/suggest_heads.h"
#include "tests/layers/check.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

void check_block(BlockOptions o, bool training) {
  Bench bench;
  ParamSet params(DType::f64, 1);
  o.heads = "mha:heads=2,dim=2", o.model_dim = 4, o.feed_dim = 6;
  const Block block(params, "block", o);
  Tensor x = random_normal({6, 4}, DType::f64, 2), source = random_normal({8, 4}, DType::f64, 3),
         dsource(DType::f64, {8, 4});
  const Mask causal = Mask::causal();
  Block::Saved saved;
  GradientCase c{.name = text("block ", o.norm_first, static_cast<int>(o.cross), name_of(o.feed)),
                 .params = params,
                 .inputs = {x.view()},
                 .call =
                     [&] {
                       Call call = bench.call({.batch = 2, .tokens = 3}, training);
                       call.mask = causal.set();
                       call.source = source.view(), call.source_sequences = {.batch = 2, .tokens = 4};
                       return call;
                     },
                 .forward = [&](Call& call,
                                bool keep) { return block.forward(x.view(), call, keep ? &saved : nullptr); },
                 .backward = {}};
  const bool cross = o.cross != Cross::none;
  if (cross) c.inputs.push_back(source.view());
  c.backward = [&](const InputView& dy, Call& call) {
    call.dsource = dsource.view();
    std::vector<AnyView> all = {block.backward(dy, call, saved)};
    if (cross) all.push_back(dsource.view());
    return all;
  };
  expect_gradients(c);
}

TEST(Block, EveryFormHasItsGradients) {
  for (const bool first : {true, false})
    for (const Cross cross : {Cross::none, Cross::attention, Cross::merged}) {
      check_block({.cross = cross, .norm_first = first}, false);
      check_block({.cross = cross,
                   .feed = FeedKind::swiglu,
                   .norm = {.kind = NormKind::rms},
                   .norm_first = first,
                   .bias = false,
                   .dropout = 0.2,
                   .attention_dropout = 0.2},
                  true);
    }
}

TEST(MergedAttention, ZeroSourceValuesGiveTheRunningMean) {
  Bench bench;
  ParamSet params(DType::f64, 1);
  const MergedAttention merged(params, "merged", "mha:heads=2,dim=2", {.model_dim = 4, .bias = false});
  Tensor x = random_normal({7, 4}, DType::f64, 2), zeros(DType::f64, {8, 4}), offsets = longs({0, 3, 7}),
         source_offsets = longs({0, 5, 8});
  Call call = bench.call({.offsets = offsets.view()});
  call.source = zeros.view(), call.source_sequences = {.offsets = source_offsets.view()};
  const AnyView y = merged.forward(x.view(), call, nullptr);
  const AnyView wv = params.find("merged.v.weight").value(), wo = params.find("merged.out.weight").value();
  for (const auto& [first, end] : {std::pair<Index, Index>{0, 3}, {3, 7}})
    for (Index t = first; t < end; ++t)
      for (Index c = 0; c < 4; ++c) {
        double want = 0;
        for (Index j = 0; j < 4; ++j)
          for (Index u = first; u <= t; ++u)
            for (Index i = 0; i < 4; ++i)
              want += value(x.view(), u * 4 + i) * value(wv, j * 4 + i) * value(wo, c * 4 + j) /
                      static_cast<double>(t - first + 1);
        EXPECT_NEAR(value(y, t * 4 + c), want, 1e-13);
      }
}

/// A gate, an edit and a pair knocked out act on W_O's rows, the mean and what the head gives together, as
/// the formula says; the gradient of a gate is that of its part of these rows.
TEST(MergedAttention, HeadsAreSeenGatedAndEdited) {
  Bench bench;
  ParamSet params(DType::f64, 1);
  const MergedAttention merged(params, "merged", "mha:heads=2,dim=2", {.model_dim = 4, .bias = false});
  Tensor x = random_normal({7, 4}, DType::f64, 2), source = random_normal({8, 4}, DType::f64, 3),
         dy = random_normal({7, 4}, DType::f64, 4), offsets = longs({0, 3, 7}), ends = longs({0, 5, 8}),
         gates(DType::f64, {1, 2}), dgates(DType::f64, {1, 7, 2}), bias(DType::f64, {1, 2, 4, 5});
  gates.values<double>()[0] = 0.5, gates.values<double>()[1] = -2;
  std::fill(bias.values<double>().begin(), bias.values<double>().end(), 0.0);
  bias.values<double>()[(0 * 4 + 2) * 5 + 1] = -std::numeric_limits<double>::infinity();
  Taps taps;
  Call call = bench.call({.offsets = offsets.view()});
  call.source = source.view(), call.source_sequences = {.offsets = ends.view()};
  call.taps = &taps, call.head_gates = gates.view(), call.dhead_gates = dgates.view();
  call.score_bias = bias.view();
  MergedAttention::Saved saved;
  params.make_grads();
  const AnyView y = merged.forward(x.view(), call, &saved);
  merged.backward(dy.view(), call, saved);
  const AnyView wv = params.find("merged.v.weight").value(), wo = params.find("merged.out.weight").value();
  const auto projected = [&](const AnyView& from, Index row, Index c) {
    double sum = 0;
    for (Index i = 0; i < 4; ++i) sum += value(from, row * 4 + i) * value(wv, c * 4 + i);
    return sum;
  };
  ASSERT_EQ(taps.all.size(), 2u);
  for (const Tap& tap : taps.all) {
    EXPECT_EQ(tap.at(0, 2, 1), 0);
    EXPECT_GT(tap.at(1, 2, 1), 0);
    const Index q0 = tap.sequence == 0 ? 0 : 3, k0 = tap.sequence == 0 ? 0 : 5;
    for (Index t = 0; t < tap.q_tokens; ++t) {
      double rows[4] = {};
      for (Index c = 0; c < 4; ++c) {
        for (Index u = 0; u <= t; ++u) rows[c] += projected(x.view(), q0 + u, c) / static_cast<double>(t + 1);
        for (Index j = 0; j < tap.kv_tokens; ++j)
          rows[c] += static_cast<double>(tap.at(c / 2, t, j)) * projected(source.view(), k0 + j, c);
      }
      double slope[2] = {};
      for (Index c = 0; c < 4; ++c) {
        double want = 0;
        for (Index j = 0; j < 4; ++j) {
          want += value(wo, c * 4 + j) * gates.values<double>()[static_cast<std::size_t>(j / 2)] * rows[j];
          slope[j / 2] += value(dy.view(), (q0 + t) * 4 + c) * value(wo, c * 4 + j) * rows[j];
        }
        EXPECT_NEAR(value(y, (q0 + t) * 4 + c), want, 1e-6);
      }
      for (Index h = 0; h < 2; ++h) EXPECT_NEAR(value(dgates.view(), (q0 + t) * 2 + h), slope[h], 1e-6);
    }
  }
  Call off = bench.call({.offsets = offsets.view()}), edited = bench.call({.offsets = offsets.view()});
  gates.values<double>()[0] = 1, gates.values<double>()[1] = 0;
  off.source = edited.source = source.view();
  off.source_sequences = edited.source_sequences = {.offsets = ends.view()};
  off.head_gates = gates.view();
  const HeadEdit edit = [&](Index, const AnyView& rows) {
    for (Index r = 0; r < 7; ++r)
      for (Index c = 2; c < 4; ++c) store_double(rows.data, rows.dtype, r * 4 + c, 0);
  };
  edited.edit_heads = &edit;
  const AnyView a = merged.forward(x.view(), off, nullptr), b = merged.forward(x.view(), edited, nullptr);
  for (Index i = 0; i < 28; ++i) EXPECT_EQ(value(a, i), value(b, i));
  EXPECT_NE(error_of([&] { merged.forward(x.view(), edited, &saved); }).find("no gradient"),
            std::string::npos);
}

TransformerConfig tiny(ModelKind kind) {
  return {.kind = kind,
          .vocabulary = 7,
          .model_dim = 4,
          .feed_dim = 6,
          .depth = 2,
          .heads = "mha:heads=2,dim=2",
          .max_tokens = 8};
}

/// Ids of two sequences of 3 tokens, and a source of two of 4.
struct Ids {
  Tensor ids = longs({1, 2, 6, 0, 3, 3}), source = longs({4, 4, 0, 1, 5, 2, 6, 3});
  TransformerInput input() const {
    return {.ids = ids.view(),
            .source_ids = source.view(),
            .sequences = {.batch = 2, .tokens = 3},
            .source_sequences = {.batch = 2, .tokens = 4}};
  }
};

void check_model(const TransformerConfig& config, const std::string& name) {
  Bench bench;
  ParamSet params(DType::f64, 1);
  const Transformer model(params, config);
  const Ids ids;
  Transformer::Saved saved;
  expect_gradients(
      {.name = name,
       .params = params,
       .inputs = {},
       .call = [&] { return bench.call({}, true); },
       .forward = [&](Call& call,
                      bool keep) { return model.forward(ids.input(), call, keep ? &saved : nullptr); },
       .backward =
           [&](const InputView& dy, Call& call) {
             model.backward(dy, call, saved);
             return std::vector<AnyView>{};
           }});
}

TEST(Transformer, EveryKindHasItsGradients) {
  TransformerConfig c = tiny(ModelKind::encoder);
  check_model(c, "encoder");
  c.outputs = 3, c.norm_first = false, c.positions = Positions::sinusoidal;
  check_model(c, "classifier");
  c.positions = Positions::learned, c.token_types = 2, c.embed_norm = true, c.final_norm = false;
  c.dropout = 0.1, c.norm.eps = 1e-12;
  check_model(c, "bert");
  c = tiny(ModelKind::decoder);
  check_model(c, "decoder");
  c.tied = false, c.positions = Positions::rope, c.share_layers = 2, c.dropout = 0.1;
  check_model(c, "shared decoder");
  c = tiny(ModelKind::encoder_decoder);
  c.positions = Positions::alibi, c.ds_init = 0.5;
  check_model(c, "encoder-decoder");
  c.merged_attention = true, c.final_norm = false;
  check_model(c, "merged");
}

TEST(Transformer, SharedLayersAreStoredOnceAndAddTheirGradients) {
  TransformerConfig c = tiny(ModelKind::decoder);
  c.depth = 4;
  const auto weights = [&](Index share) {
    c.share_layers = share;
    ParamSet params(DType::f32, 1);
    const Transformer model(params, c);
    Index blocks = 0;
    for (const Param& p : params.all())
      blocks += p.name.find(".layers.") != std::string::npos ? p.value.count() : 0;
    return blocks;
  };
  EXPECT_EQ(weights(1), 4 * weights(4));
  EXPECT_EQ(weights(2), 2 * weights(4));
  c.share_layers = 3;
  ParamSet params(DType::f32, 1);
  EXPECT_EQ(error_of([&] { Transformer(params, c); }),
            "stack: depth (4) must be a multiple of share_layers (3); change one of them");
}

TEST(Transformer, DsInitNarrowsDeeperBlocks) {
  TransformerConfig c = tiny(ModelKind::decoder);
  c.depth = 4, c.ds_init = 0.5;
  ParamSet params(DType::f64, 1);
  const Transformer model(params, c);
  for (Index l = 0; l < 4; ++l) {
    const AnyView w = params.find(text("stack.layers.", l, ".feed.in.weight")).value();
    const double range = std::sqrt(6.0 / (4 + 6)) / std::sqrt(static_cast<double>(l + 1));
    double most = 0;
    for (Index i = 0; i < w.count(); ++i) most = std::max(most, std::abs(value(w, i)));
    EXPECT_LE(most, range);
    EXPECT_GT(most, 0.7 * range);
  }
}

TEST(Transformer, ADecoderNeverSeesItsFuture) {
  Bench bench;
  ParamSet params(DType::f32, 1);
  const Transformer model(params, tiny(ModelKind::decoder));
  const auto logits = [&](const Tensor& ids) {
    Call call = bench.call();
    const AnyView y = model.forward({.ids = ids.view(), .sequences = {.tokens = 5}}, call, nullptr);
    return std::vector<float>(static_cast<float*>(y.data), static_cast<float*>(y.data) + y.count());
  };
  const auto a = logits(longs({1, 2, 3, 4, 5})), b = logits(longs({1, 2, 3, 6, 0}));
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 3 * 7, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 3 * 7, a.end(), b.begin() + 3 * 7));
}

TEST(Transformer, RaggedAndPaddedGiveTheSameBits) {
  Bench bench;
  ParamSet params(DType::f32, 1);
  const Transformer model(params, tiny(ModelKind::encoder_decoder));
  const Ids ids;
  Tensor offsets = longs({0, 3, 6}), source_offsets = longs({0, 4, 8});
  Call call = bench.call();
  const AnyView padded = model.forward(ids.input(), call, nullptr);
  TransformerInput ragged = ids.input();
  ragged.sequences = {.offsets = offsets.view()},
  ragged.source_sequences = {.offsets = source_offsets.view()};
  const AnyView same = model.forward(ragged, call, nullptr);
  EXPECT_TRUE(same_bits(padded, same));
}

TEST(Transformer, PackedWeightsGiveTheSameBits) {
  for (const ModelKind kind : {ModelKind::encoder, ModelKind::decoder, ModelKind::encoder_decoder}) {
    Bench bench;
    ParamSet params(DType::f32, 1);
    const Transformer model(params, tiny(kind));
    const Ids ids;
    Call call = bench.call();
    const AnyView plain = model.forward(ids.input(), call, nullptr);
    PackedWeights packed;
    call.packed = &packed;
    for (int turn = 0; turn < 2; ++turn)
      EXPECT_TRUE(same_bits(plain, model.forward(ids.input(), call, nullptr))) << static_cast<int>(kind);
    EXPECT_GT(packed.count(), 3u);
    EXPECT_GT(packed.bytes(), 0u);
    // A context of other kernels reads the weights as they lie, and training does.
    const std::size_t count = packed.count();
    Context other({.threads = 1, .kernels = "ref"});
    StepMemory memory;
    Call there{.ctx = other, .memory = memory, .packed = &packed};
    model.forward(ids.input(), there, nullptr);
    Call learns = bench.call({}, true);
    learns.packed = &packed;
    model.forward(ids.input(), learns, nullptr);
    EXPECT_EQ(packed.count(), count);
  }
}

TEST(Transformer, AStepHasTheSameBitsForThreadsAndAllocatesOnce) {
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    Bench bench(threads);
    TransformerConfig c = tiny(ModelKind::encoder_decoder);
    c.dropout = c.attention_dropout = 0.1;
    ParamSet params(DType::f32, 1);
    const Transformer model(params, c);
    params.make_grads();
    const Ids ids;
    Transformer::Saved saved;
    const auto step = [&] {
      Call call = bench.call({}, true);
      const AnyView y = model.forward(ids.input(), call, &saved);
      model.backward(y, call, saved);
    };
    step();
    std::vector<float> grads;
    for (const Param& p : params.all())
      for (Index i = 0; i < p.grad.count(); ++i) grads.push_back(static_cast<float*>(p.grad.data)[i]);
    if (first.empty()) first = grads;
    EXPECT_EQ(std::memcmp(first.data(), grads.data(), first.size() * sizeof(float)), 0) << threads;
    step();
    const std::uint64_t before = allocations();
    for (int n = 0; n < 3; ++n) step();
    EXPECT_EQ(allocations(), before);
  }
}

TEST(Block, Bf16StaysNearItsF64Twin) {
  const BlockOptions o{
      .heads = "gqa:heads=4,kv_heads=2,dim=8", .model_dim = 32, .feed_dim = 64, .feed = FeedKind::swiglu};
  ParamSet narrow(DType::bf16, 1), wide(DType::f64, 2);
  const Block a(narrow, "block", o), b(wide, "block", o);
  Tensor x = random_normal({14, 32}, DType::bf16, 3), x64(DType::f64, {14, 32});
  for (Index i = 0; i < 14 * 32; ++i) x64.values<double>()[static_cast<std::size_t>(i)] = value(x.view(), i);
  for (const Param& p : narrow.all())
    for (Index i = 0; i < p.value.count(); ++i)
      static_cast<double*>(wide.find(p.name).value().data)[i] = value(p.value, i);
  narrow.make_grads(), wide.make_grads();
  const auto distance = [](const InputView& got, const InputView& truth) {
    double error = 0, norm = 0;
    for (Index i = 0; i < got.count(); ++i) {
      error += std::pow(value(got, i) - value(truth, i), 2), norm += std::pow(value(truth, i), 2);
    }
    return std::sqrt(error / norm);
  };
  Bench one, two;
  Call low = one.call({.batch = 2, .tokens = 7}), high = two.call({.batch = 2, .tokens = 7});
  Block::Saved low_saved, high_saved;
  EXPECT_LT(distance(a.forward(x.view(), low, &low_saved), b.forward(x64.view(), high, &high_saved)), 0.01);
  EXPECT_LT(distance(a.backward(x.view(), low, low_saved), b.backward(x64.view(), high, high_saved)), 0.02);
  for (const Param& p : narrow.all())
    // A bias of the keys moves all scores of a row alike: its gradient is 0 but for rounding.
    if (p.name != "block.attention.k.bias") {
      EXPECT_LT(distance(p.grad, wide.find(p.name).grad()), 0.05) << p.name;
    }
}

TEST(SuggestHeads, IsADivisorNearTheWish) {
  const Index want[][3] = {{512, 8, 64}, {768, 12, 64}, {1024, 16, 64}, {4096, 32, 128}, {384, 6, 64},
                           {100, 2, 50}, {97, 1, 97},   {1, 1, 1},      {2048, 16, 128}, {8192, 64, 128}};
  for (const auto& [model_dim, heads, dim] : want) {
    const HeadsAdvice a = suggest_heads(model_dim);
    EXPECT_EQ(a.heads, heads) << model_dim;
    EXPECT_EQ(a.head_dim, dim) << model_dim;
    EXPECT_EQ(a.heads * a.head_dim, model_dim);
    EXPECT_EQ(a.kv_heads, a.heads) << "nothing says that more than 8 heads must share";
    EXPECT_EQ(a.sentence.find("pays"), std::string::npos) << a.sentence;
    EXPECT_EQ(a.sentence.find("gqa") != std::string::npos, heads > 8) << a.sentence;
  }
  EXPECT_EQ(
      suggest_heads(512).sentence,
      "8 heads of 64: of the divisors of 512 this width is nearest 64, and 1048576 weights cost the same "
      "for any number of heads");
  EXPECT_EQ(error_of([] { suggest_heads(0); }), "suggest_heads: model_dim is 0; give a width from 1 to 2^32");
}

}  // namespace
}  // namespace headwise
