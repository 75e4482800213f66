// Taps and gates of single heads: weights as they were used, heads switched off, and what a gate is worth.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/layers/multi_head/head_gates.h"

#include <cstring>

#include "headwise/layers/multi_head/mixed_taps.h"
#include "headwise/layers/transformer/transformer.h"
#include "tests/base/sentence.h"
#include "tests/heads/samples.h"
#include "tests/layers/check.h"

namespace headwise {
namespace {

using namespace test;

Tensor numbers(std::initializer_list<Index> sizes, double x, DType dtype = DType::f64) {
  Tensor t(dtype, sizes);
  for (Index i = 0; i < t.view().count(); ++i) store_double(t.view().data, dtype, i, x);
  return t;
}
void put(Tensor& t, Index i, double x) { store_double(t.view().data, t.view().dtype, i, x); }

/// An encoder of two blocks over ragged sequences of 3, 0 and 4 tokens.
struct Small {
  explicit Small(DType type = DType::f32, std::string heads = "mha:heads=2,dim=4")
      : dtype(type),
        params(type, 1),
        stack(params, "stack",
              {.block = {.heads = std::move(heads), .model_dim = 8, .feed_dim = 12}, .depth = 2}) {
    params.make_grads();
  }
  AnyView forward(Call& call, Stack::Saved* saved = nullptr) { return stack.forward(x.view(), call, saved); }
  Call call() { return bench.call({.offsets = offsets.view()}); }

  DType dtype;
  Bench bench;
  ParamSet params;
  Stack stack;
  Tensor offsets = longs({0, 3, 3, 7});
  Tensor x = random_normal({7, 8}, dtype, 2);
};

Tensor copy_of(const InputView& v) {
  Tensor t(v.dtype, {v.size[0], v.size[1]});
  copy_rows(v, t.view());
  return t;
}

/// Layers may have different heads: gates are as wide as the widest layer's, and the others read the first.
TEST(HeadGates, LayersOfDifferentHeadsReadTheFirstGates) {
  Small s(DType::f32, "mha:heads=1,dim=4; gqa:heads=4,kv_heads=2,dim=2");
  EXPECT_EQ(s.stack.most_heads(), 4);
  EXPECT_EQ(s.stack.block(0).self_attention()->head_count(), 1);
  Tensor other = numbers({2, 4}, 1, DType::f32);
  for (const Index unread : {1, 2, 3}) put(other, unread, 7);
  Call plain = s.call(), gated = s.call();
  Tensor y = copy_of(s.forward(plain));
  gated.head_gates = other.view();
  Tensor same = copy_of(s.forward(gated));
  EXPECT_EQ(0, std::memcmp(same.view().data, y.view().data, 7 * 8 * sizeof(float)));
  put(other, 0, 0);
  EXPECT_NE(copy_of(s.forward(gated)).values<float>()[0], y.values<float>()[0]);
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [] { Small(DType::f32, "mha:heads=2; mha:heads=4; mha:heads=8"); }),
            "stack: heads names 3 layers but there are 2 with weights of their own; give one text for all of "
            "them or "
            "one for each");
}

TEST(HeadGates, OneKeepsEveryBitForwardAndBackward) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    std::vector<Tensor> plain;
    for (const bool gated : {false, true}) {
      Small s(dtype);
      Tensor ones = numbers({2, 2}, 1, DType::f32);
      Call call = s.call();
      if (gated) call.head_gates = ones.view();
      Stack::Saved saved;
      Tensor y = copy_of(s.forward(call, &saved));
      Tensor dx = copy_of(s.stack.backward(s.x.view(), call, saved));
      if (!gated) {
        plain.push_back(copy_of(y.view())), plain.push_back(copy_of(dx.view()));
        continue;
      }
      EXPECT_TRUE(same_bits(plain[0].view(), y.view()));
      EXPECT_TRUE(same_bits(plain[1].view(), dx.view()));
    }
  }
}

TEST(HeadGates, ZeroIsZeroedColumnsOfWoForEveryHead) {
  AllHeads::each([]<Head H>(Type<H>) {
    for (const std::string& head : samples<H>()) {
      Bench bench;
      ParamSet params(DType::f64, 1);
      const MultiHead layer(params, "attention", head, {.model_dim = 5});
      Tensor x = random_normal({6, 5}, DType::f64, 2);
      const Sequences two{.batch = 2, .tokens = 3};
      if (layer.head_count() == 0) continue;
      const Index heads = layer.head_count(), off = heads - 1;
      Tensor gates = numbers({1, heads}, 1);
      put(gates, off, 0);
      Call call = bench.call(two);
      call.head_gates = gates.view();
      Tensor gated = copy_of(layer.forward(x.view(), call, nullptr));
      const AnyView w = layer.part(3).weight().value();
      const Index dim = w.size[1] / heads;
      for (Index row = 0; row < w.size[0]; ++row)
        for (Index c = off * dim; c < (off + 1) * dim; ++c)
          store_double(w.data, w.dtype, row * w.size[1] + c, 0);
      Call again = bench.call(two);
      const AnyView cut = layer.forward(x.view(), again, nullptr);
      for (Index i = 0; i < cut.count(); ++i)
        ASSERT_NEAR(value(gated.view(), i), value(cut, i), 1e-13) << head;
    }
  });
}

TEST(HeadGates, GradientIsTheSlopeOfTheLoss) {
  for (const std::string head :
       {"mha:heads=2,dim=4", "gqa:heads=4,kv_heads=2,dim=2", "mha:heads=2,dim=4+gated:source=input,act=silu",
        "talking:heads=2,dim=4", "moh:heads=4,dim=2,shared=1,k=2", "differential:heads=2,dim=2"}) {
    Small s(DType::f64, head);
    const Index heads = s.stack.block(0).self_attention()->head_count();
    Tensor gates = numbers({2, heads}, 1), slopes = numbers({2, 7, heads}, 7);
    for (Index i = 0; i < 2 * heads; ++i) put(gates, i, 0.5 + 0.2 * static_cast<double>(i));
    Tensor w = random_normal({7, 8}, DType::f64, 5);
    Call call = s.call();
    call.head_gates = gates.view(), call.dhead_gates = slopes.view();
    Stack::Saved saved;
    s.forward(call, &saved);
    s.stack.backward(w.view(), call, saved);
    const auto loss = [&](Index i, double step) {
      const double was = value(gates.view(), i);
      put(gates, i, was + step);
      Call again = s.call();
      again.head_gates = gates.view();
      const double sum = dot(w.view(), s.forward(again));
      put(gates, i, was);
      return sum;
    };
    for (Index i = 0; i < 2 * heads; ++i) {
      double slope = 0;  // tokens' slopes add up to the head's
      for (Index t = 0; t < 7; ++t) slope += value(slopes.view(), (i / heads * 7 + t) * heads + i % heads);
      constexpr double kEps = 1e-5;
      const double numeric = (loss(i, kEps) - loss(i, -kEps)) / (2 * kEps);
      EXPECT_NEAR(slope, numeric, 1e-8 * std::max(1.0, std::abs(slope))) << head << " gate " << i;
    }
  }
}

TEST(HeadGates, SlopesComeWithoutGatesToo) {
  Small s(DType::f64);
  std::vector<Tensor> both;
  for (const bool gated : {false, true}) {
    Tensor ones = numbers({2, 2}, 1), slopes = numbers({2, 7, 2}, 7);
    Call call = s.call();
    if (gated) call.head_gates = ones.view();
    call.dhead_gates = slopes.view();
    Stack::Saved saved;
    s.forward(call, &saved);
    s.stack.backward(s.x.view(), call, saved);
    both.emplace_back(DType::f64, std::initializer_list<Index>{28});
    copy_rows(slopes.view(), both.back().view());
  }
  EXPECT_TRUE(same_bits(both[0].view(), both[1].view()));
}

TEST(Taps, AreTheWeightsThatWereUsedAndKeepTheBits) {
  for (const std::string head : {"mha:heads=2,dim=4", "gqa:heads=4,kv_heads=2,dim=2"}) {
    Small s(DType::f32, head);
    Call plain = s.call();
    Tensor without = copy_of(s.forward(plain));
    Taps taps;
    Call call = s.call();
    call.taps = &taps;
    Stack::Saved saved;
    EXPECT_TRUE(same_bits(without.view(), s.forward(call, &saved))) << head;
    s.stack.backward(s.x.view(), call, saved);  // what was looked at is no hindrance
    const Index heads = head[0] == 'm' ? 2 : 4;
    ASSERT_EQ(taps.all.size(), 6u);  // 2 blocks, 3 sequences
    for (std::size_t n = 0; n < 6; ++n) {
      const Tap& t = taps.all[n];
      EXPECT_EQ(t.block, static_cast<Index>(n) / 3);
      EXPECT_EQ(t.sequence, static_cast<Index>(n) % 3);
      ASSERT_EQ(t.heads, heads);
      ASSERT_EQ(t.q_tokens, (std::vector<Index>{3, 0, 4})[n % 3]);
      for (Index row = 0; row < heads * t.q_tokens; ++row) {
        double sum = 0;
        for (Index k = 0; k < t.kv_tokens; ++k) sum += t.at(row / t.q_tokens, row % t.q_tokens, k);
        EXPECT_NEAR(sum, 1, 1e-6);
      }
    }
    // Block 0 of the last sequence against the reference kernel's matrix.
    Tensor matrix(DType::f32, {3, heads, 4, 4});
    Tensor rows = copy_of(saved.blocks[0].self.args.x);
    Call whole = s.call();
    s.stack.block(0).self_attention()->forward(
        {.x = rows.view(), .sequences = whole.sequences, .weights = matrix.view()}, whole, nullptr);
    const Tap& last = taps.all[2];
    for (std::size_t i = 0; i < last.weights.size(); ++i)
      EXPECT_NEAR(last.weights[i], value(matrix.view(), 2 * heads * 16 + static_cast<Index>(i)), 1e-6);
  }
}

TEST(Taps, OfMixedHeadsAreWhatMultipliesTheValues) {
  for (const std::string head : {"talking:heads=2,key_heads=3,value_heads=4,dim=4", "talking:heads=2,dim=4",
                                 "dcmha:heads=2,dim=4,window=3,global_every=0"}) {
    for (const DType dtype : {DType::f64, DType::f32}) {
      Small s(dtype, head);
      Call plain = s.call();
      Tensor without = copy_of(s.forward(plain));
      Taps taps;
      Call call = s.call();
      call.taps = &taps;
      Stack::Saved saved;
      EXPECT_TRUE(same_bits(without.view(), s.forward(call, &saved))) << head;
      ASSERT_EQ(taps.all.size(), 6u);
      for (const Tap& t : taps.all) {
        // y = w v, head by head
        const HeadCall& run = saved.blocks[static_cast<std::size_t>(t.block)].self.run->call;
        const Index dim = 4, columns = t.heads * dim,
                    first = s.offsets.values<Index>()[static_cast<std::size_t>(t.sequence)];
        ASSERT_EQ(run.o.size[2], columns);
        for (Index h = 0; h < t.heads; ++h)
          for (Index i = 0; i < t.q_tokens; ++i)
            for (Index c = h * dim; c < (h + 1) * dim; ++c) {
              double y = 0;
              for (Index j = 0; j < t.kv_tokens; ++j)
                y += static_cast<double>(t.at(h, i, j)) * value(run.v, (first + j) * columns + c);
              EXPECT_NEAR(y, value(run.o, (first + i) * columns + c), 1e-6) << head;
            }
      }
      to_shares(taps);
      for (const Tap& t : taps.all)
        for (Index row = 0; row < t.heads * t.q_tokens; ++row) {
          float sum = 0;
          for (Index j = 0; j < t.kv_tokens; ++j) sum += t.at(row / t.q_tokens, row % t.q_tokens, j);
          EXPECT_NEAR(sum, 1, 1e-6);
        }
      s.stack.backward(s.x.view(), call, saved);  // what was looked at is no hindrance
    }
  }
}

TEST(Taps, LookAtChosenBlocksAlone) {
  Small s;
  Taps taps{.all = {}, .blocks = {1}};
  Call call = s.call();
  call.taps = &taps;
  s.forward(call);
  ASSERT_EQ(taps.all.size(), 3u);
  for (const Tap& t : taps.all) EXPECT_EQ(t.block, 1);
}

TEST(HeadGates, WhatMakesNoSenseIsOneSentence) {
  const auto refusal = [](Small& s, const Tensor& gates, Tensor slopes) {
    Call call = s.call();
    call.head_gates = gates.view(), call.dhead_gates = slopes.view();
    return error_of([&] { s.forward(call); });
  };
  Small s, whole(DType::f32, "gated:heads=2,dim=4,source=heads");
  Tensor fine = numbers({2, 2}, 1), slopes = numbers({2, 7, 2}, 0);
  EXPECT_EQ(refusal(s, numbers({2, 3}, 1), slopes.clone()),
            "multi_head: head gates are f64 [3] but mha has 2 heads; give a float for each");
  EXPECT_EQ(refusal(s, numbers({1, 2}, 1), slopes.clone()),
            "multi_head: head_gates is f64 [1 2] but block 1 runs; give [blocks heads]");
  EXPECT_EQ(refusal(s, fine, numbers({2, 6, 2}, 0)),
            "multi_head: gradients of head gates are f64 [6 2]; give floats [7 2], a number for each row and "
            "head");
  EXPECT_EQ(refusal(whole, fine, slopes.clone()),
            "multi_head: head gated gives the layer's output itself, whose columns belong to no head; leave "
            "out head gates");
}

}  // namespace
}  // namespace headwise
