// Packed keys and KV of 8 bits: what goes in comes out, what a row quantizes to, and one sentence for each
// bad input.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/ops/keys/packed_keys.h"

#include "headwise/ops/keys/quantize_kv.h"
#include "tests/base/sentence.h"
#include "tests/support/decode.h"

namespace headwise::test {
namespace {

constexpr DType kKinds[] = {DType::f32, DType::bf16, DType::f16, DType::i8, DType::e4m3};

Tensor some_keys(DType dtype, Index batch, Index tokens, Index dim) {
  Tensor x = random_normal({batch, tokens, 3, dim}, DType::f32, 5);
  Tensor k(dtype, {batch, tokens, 3, dim});
  for (Index n = 0; n < x.view().count(); ++n)
    store_double(k.view().data, dtype, n,
                 load_double(x.view().data, DType::f32, n) * (dtype == DType::i8 ? 40 : 1));
  return k;
}

TEST(PackedKeys, WhatGoesInComesOut) {
  each_level([] {
    for (const DType dtype : kKinds)
      for (const Index dim : {1, 5, 16, 40, 128})
        for (const Index tokens : {1, 15, 16, 17, 33, 100}) {
          Tensor k = some_keys(dtype, 2, tokens, dim);
          const Packed packed(k.view(), 5);
          EXPECT_EQ(packed.about.tokens, tokens);
          EXPECT_EQ(static_cast<std::size_t>(3 * packed.about.room() * size_of(dtype)),
                    packed_key_bytes(packed.about));
          Tensor back(dtype, {2, tokens, 3, dim});
          unpack_keys(packed.buffer.view(), packed.about, back.view(), online());
          EXPECT_TRUE(same_bits(k, back)) << dtype << " dim " << dim << " tokens " << tokens;
        }
  });
}

/// A buffer grown by appends of any width is the buffer packed at once.
TEST(PackedKeys, AppendedIsPacked) {
  each_level([] {
    for (const DType dtype : kKinds) {
      Tensor k = some_keys(dtype, 2, 90, 24);
      const Packed whole(k.view());
      PackedKeys about = packed_keys(dtype, 3, 24, 90);
      Tensor buffer(dtype, {2, 3, about.room()});
      poison(buffer);
      for (Index at = 0, width = 1; at < 90; at += width, width = at % 7 + 1)
        append_keys(tokens_of(k.view(), at, min_of(width, 90 - at)), buffer.view(), about, online());
      EXPECT_EQ(about, whole.about);
      EXPECT_TRUE(same_bits(whole.buffer, buffer)) << dtype;
    }
  });
}

/// A batch of none has as many tokens as one of some.
TEST(PackedKeys, ABatchOfNoneCountsItsTokens) {
  PackedKeys about = packed_keys(DType::f32, 3, 16, 64);
  Tensor k(DType::f32, {0, 7, 3, 16}), buffer(DType::f32, {0, 3, about.room()});
  pack_keys(k.view(), buffer.view(), about, online());
  EXPECT_EQ(about.tokens, 7);
  append_keys(k.view(), buffer.view(), about, online());
  EXPECT_EQ(about.tokens, 14);
}

/// Nothing to move: no address is formed from null data.
TEST(PackedKeys, NoTokensNeedNoMemory) {
  PackedKeys about = packed_keys(DType::f32, 2, 16, 0);
  AnyView k = AnyView::packed(nullptr, DType::f32, {2, 0, 2, 16});
  k.step[0] = k.step[2] = 1;
  pack_keys(k, AnyView::packed(nullptr, DType::f32, {2, 2, 0}), about, online());
  EXPECT_EQ(about.tokens, 0);
  unpack_keys(AnyView::packed(nullptr, DType::f32, {2, 2, 0}), about, k, online());
}

/// Sequences of a batch grow from lengths of their own, and over what was there.
TEST(PackedKeys, EverySequenceAtItsOwnStart) {
  Tensor k = some_keys(DType::f32, 2, 40, 16), more = some_keys(DType::f32, 2, 3, 16);
  PackedKeys about = packed_keys(DType::f32, 3, 16, 64);
  Tensor buffer(DType::f32, {2, 3, about.room()}), back(DType::f32, {2, 43, 3, 16});
  pack_keys(k.view(), buffer.view(), about, online());
  Tensor starts = tensor_of(std::vector<Index>{40, 7});
  append_keys(more.view(), buffer.view(), about, online(), starts.view());
  EXPECT_EQ(about.tokens, 43);
  unpack_keys(buffer.view(), about, back.view(), online());
  for (Index b = 0; b < 2; ++b) {
    const Index at = b == 0 ? 40 : 7;
    EXPECT_TRUE(same_bits(tokens_of(batch_of(back.view(), b, 1), at, 3), batch_of(more.view(), b, 1)));
    EXPECT_TRUE(
        same_bits(tokens_of(batch_of(back.view(), b, 1), 0, at), tokens_of(batch_of(k.view(), b, 1), 0, at)));
  }
}

TEST(QuantizeKv, RoundsToNearestEvenAndKeepsTheLargest) {
  const float x[] = {127, -63.5f, 0.5f, 1.5f, 2.5f, -2.5f, 126.4f, 0};
  Tensor in(DType::f32, {1, 1, 1, 8}), out(DType::i8, {1, 1, 1, 8}), scale(DType::f32, {1, 1, 1});
  std::copy_n(x, 8, in.values<float>().data());
  quantize_kv(in.view(), out.view(), scale.view(), online());
  EXPECT_EQ(scale.values<float>()[0], 1.0f);
  const int want[] = {127, -64, 0, 2, 2, -2, 126, 0};
  for (std::size_t n = 0; n < 8; ++n) EXPECT_EQ(out.values<std::int8_t>()[n], want[n]) << n;
}

TEST(QuantizeKv, RoundsToTheNearestE4m3AndKeepsTheLargest) {
  const float x[] = {448, -1, 17, 19, -20.5f, 0.0009765625f, 0.002f, 0};
  Tensor in(DType::f32, {1, 1, 1, 8}), out(DType::e4m3, {1, 1, 1, 8}), scale(DType::f32, {1, 1, 1});
  std::copy_n(x, 8, in.values<float>().data());
  quantize_kv(in.view(), out.view(), scale.view(), online());
  EXPECT_EQ(scale.values<float>()[0], 1.0f);
  const float want[] = {448, -1, 16, 20, -20, 0, 0x1p-9f, 0};
  for (std::size_t n = 0; n < 8; ++n) EXPECT_EQ(static_cast<float>(out.values<e4m3>()[n]), want[n]) << n;
}

/// Half a step is the most a number moves, of i8 a scale, of e4m3 at most an eighth of the number; rows of
/// zeros, tiny rows and rows with NaN or Inf.
void expect_rows_of_every_kind(DType kv) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    Tensor x = random_normal({2, 9, 3, 33}, dtype, 3);
    Tensor out(kv, {2, 9, 3, 33}), scale(DType::f32, {2, 9, 3});
    const auto number = [&](Index n) { return load_double(out.view().data, kv, n); };
    for (Index c = 0; c < 33; ++c) store_double(x.view().data, dtype, c, 0);
    store_double(x.view().data, dtype, 33, kNan), store_double(x.view().data, dtype, 66, -kInf);
    if (dtype == DType::f32)
      for (Index c = 0; c < 33; ++c) store_double(x.view().data, dtype, 99 + c, 1e-44);
    quantize_kv(x.view(), out.view(), scale.view(), online());
    EXPECT_EQ(scale.values<float>()[0], 0.0f);
    EXPECT_TRUE(std::isnan(scale.values<float>()[1]) && std::isnan(scale.values<float>()[2]));
    for (Index n = 0; n < 99; ++n) EXPECT_EQ(number(n), 0);
    for (Index n = 99; n < x.view().count(); ++n) {
      const auto s = static_cast<double>(scale.values<float>()[static_cast<std::size_t>(n / 33)]);
      const double want = load_double(x.view().data, dtype, n);
      const double step = kv == DType::i8 ? s : std::max(std::fabs(want) / 8, s * 0x1p-9);
      EXPECT_LE(std::fabs(s * number(n) - want), step * 0.50001 + 1e-44) << dtype << " " << n;
    }
  }
}
TEST(QuantizeKv, RowsOfEveryKind) {
  for (const DType kv : kEightBits) expect_rows_of_every_kind(kv);
}
/// A row of no numbers has the scale of a row of zeros; x and out need no memory.
TEST(QuantizeKv, RowsOfDimZeroHaveScaleZero) {
  for (const DType kv : kEightBits) {
    Tensor scale = random_normal({2, 3, 2}, DType::f32, 1);
    AnyView x = AnyView::packed(nullptr, DType::f32, {2, 3, 2, 0});
    AnyView out = AnyView::packed(nullptr, kv, {2, 3, 2, 0});
    x.step[0] = out.step[0] = 8;
    quantize_kv(x, out, scale.view(), online());
    for (const float s : scale.values<float>()) EXPECT_EQ(s, 0);
  }
}
TEST(QuantizeKv, Sentences) {
  Tensor x = random_normal({1, 2, 3, 4}, DType::f32, 1), out(DType::u8, {1, 2, 3, 4}),
         scale(DType::f32, {1, 2, 3});
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_shape, [&] { quantize_kv(x.view(), out.view(), scale.view(), online()); }),
      "quantize_kv: out is u8 [1 2 3 4] but i8 or e4m3 of x's sizes is needed, x is f32 [1 2 3 4]");
}

TEST(PackedKeys, Sentences) {
  Tensor k = some_keys(DType::f32, 1, 10, 8);
  PackedKeys about = packed_keys(DType::f32, 3, 8, 12);
  Tensor buffer(DType::f32, {1, 3, about.room()});
  pack_keys(k.view(), buffer.view(), about, online());
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape,
                        [&] { append_keys(tokens_of(k.view(), 0, 3), buffer.view(), about, online()); }),
            "append_keys: sequence 0 would have 3 tokens more than 10 but its buffer has room for 12; a "
            "cache cannot "
            "be longer than its buffer: make a larger one and pack again");
  for (const Index at : {-1, 11}) {
    Tensor start = tensor_of(std::vector<Index>{at});
    EXPECT_EQ(
        sentence_of(
            ErrorKind::bad_argument,
            [&] { append_keys(tokens_of(k.view(), 0, 1), buffer.view(), about, online(), start.view()); }),
        text("append_keys: the start of sequence 0 is ", at,
             " but 10 tokens are packed; give a start from 0 to 10"));
  }
  EXPECT_EQ(about.tokens, 10) << "a refused append leaves the description as it was";
  PackedKeys longer = about;
  longer.tokens = 13;
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { packed_key_bytes(longer); }),
            "packed_key_bytes: packed keys have 13 tokens but room for 12; a cache cannot be longer than its "
            "buffer");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { packed_key_bytes({}); }),
            "packed_key_bytes: the description of packed keys has no order; fill it with packed_keys(...)");
  EXPECT_EQ(sentence_of(ErrorKind::bad_dtype, [] { packed_keys(DType::i64, 1, 8, 8); }),
            "packed_keys: packed keys hold i64; use f32, bf16, f16, i8 or e4m3");
  PackedKeys other = about;
  other.order = {8, 4, 8};
  Tensor wide(DType::f32, {1, 3, other.room()});
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { append_keys(k.view(), wide.view(), other, online()); }),
      "append_keys: the buffer's keys lie [kv/8][dim/4][8][4] but this machine's class of f32 reads "
      "[kv/16][dim][16]; pack them again on this machine");
  Tensor small(DType::f32, {1, 3, 8});
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { pack_keys(k.view(), small.view(), about, online()); }),
            "pack_keys: the buffer is f32 [1 3 8] but f32 [1 3 256] is needed, [batch kv_heads room]");
  Tensor half(DType::bf16, {1, 2, 3, 8});
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_shape, [&] { append_keys(half.view(), buffer.view(), about, online()); }),
      "append_keys: k is bf16 [1 2 3 8] but f32 [batch tokens 3 8] is needed, [batch tokens kv_heads dim]");
  Tensor many(DType::f32, {1, 11, 3, 8});
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_shape, [&] { unpack_keys(buffer.view(), about, many.view(), online()); }),
      "unpack_keys: k asks for 11 tokens but 10 are packed; ask for fewer");
}

/// Sequences and heads are written by several threads at once.
TEST(PackedKeys, EveryElementIsWrittenOnce) {
  Tensor k = some_keys(DType::f32, 2, 10, 8);
  PackedKeys about = packed_keys(DType::f32, 3, 8, 12);
  Tensor buffer(DType::f32, {2, 3, about.room()});
  AnyView same = buffer.view(), crossing = buffer.view();
  same.step[0] = 0;
  crossing.step[0] = about.room() + 4, crossing.step[1] = 4;
  for (const auto& view : {same, crossing}) {
    EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { pack_keys(k.view(), view, about, online()); }),
              "pack_keys: the buffer is f32 [2 3 256] with steps that put two elements in one place; give it "
              "memory of its own");
    EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { append_keys(k.view(), view, about, online()); }),
              "append_keys: the buffer is f32 [2 3 256] with steps that put two elements in one place; give "
              "it memory of its own");
  }
  EXPECT_EQ(about.tokens, 0);
}

/// The same of keys, values and scales that attention reads: out is 0.
TEST(EightBitKv, NoTokensNeedNoMemory) {
  Tensor q = random_normal({2, 3, 4, 8}, DType::f32, 1), out = random_normal({2, 3, 4, 8}, DType::f32, 2);
  AttentionArgs a{.q = q.view(), .out = out.view()};
  a.k = a.v = AnyView::packed(nullptr, DType::i8, {2, 0, 2, 8});
  a.k_scale = a.v_scale = AnyView::packed(nullptr, DType::f32, {2, 0, 2});
  for (AnyView* scale : std::initializer_list<AnyView*>{&a.k_scale, &a.v_scale}) scale->step[0] = 1;
  for (AnyView* x : std::initializer_list<AnyView*>{&a.k, &a.v}) x->step[0] = 1;
  attention(a, online());
  for (const float x : out.values<float>()) EXPECT_EQ(x, 0);
}

TEST(EightBitKv, Sentences) {
  CaseRun r({.name = "int8",
             .q_tokens = 2,
             .kv_tokens = 10,
             .heads = 4,
             .kv_heads = 2,
             .head_dim = 8,
             .value_dim = 8});
  const AttentionArgs plain = r.args;
  const Quantized q(r.args.k, r.args.v);
  q.use(r.args);
  const auto sentence = [&](ErrorKind kind) {
    return sentence_of(kind, [&] { attention(r.args, online()); });
  };
  EXPECT_EQ(sentence(ErrorKind::bad_shape), "(nothing was thrown)");
  r.args.k_scale = {};
  EXPECT_EQ(
      sentence(ErrorKind::bad_argument),
      "attention: k is i8 but k_scale is not given; pass the f32 scales quantize_kv wrote, [batch kv_tokens "
      "kv_heads]");
  r.args.k_scale = q.k_scale.view(), r.args.v_scale = {};
  EXPECT_EQ(
      sentence(ErrorKind::bad_argument),
      "attention: v is i8 but v_scale is not given; pass the f32 scales quantize_kv wrote, [batch kv_tokens "
      "kv_heads]");
  r.args.v_scale = tokens_of(q.v_scale.view(), 0, 9);
  EXPECT_EQ(sentence(ErrorKind::bad_shape),
            "attention: v_scale is f32 [1 9 2] but f32 [1 10 2] is needed, [batch kv_tokens kv_heads]");
  r.args = plain;
  r.args.k = q.k.view(), r.args.k_scale = q.k_scale.view(), r.args.v_scale = q.v_scale.view();
  EXPECT_EQ(
      sentence(ErrorKind::bad_dtype),
      "attention: v is f32 [1 10 2 8] but i8 [1 10 2 8] is needed, [batch kv_tokens kv_heads value_dim]");
  const Quantized floats(plain.k, plain.v, DType::e4m3);
  r.args.k = floats.k.view(), r.args.v = q.v.view(), r.args.v_scale = q.v_scale.view();
  EXPECT_EQ(
      sentence(ErrorKind::bad_dtype),
      "attention: v is i8 [1 10 2 8] but e4m3 [1 10 2 8] is needed, [batch kv_tokens kv_heads value_dim]");
  r.args.v = floats.v.view(), r.args.k_scale = {};
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: k is e4m3 but k_scale is not given; pass the f32 scales quantize_kv wrote, [batch "
            "kv_tokens kv_heads]");
  r.args = plain;
  r.args.k_scale = q.k_scale.view();
  EXPECT_EQ(sentence(ErrorKind::bad_argument),
            "attention: k_scale is given but the plan was made without 8-bit keys and values; plan with it "
            "or leave "
            "k_scale empty");
}

TEST(PackedKeys, SentencesOfAttention) {
  CaseRun r({.name = "packed",
             .q_tokens = 2,
             .kv_tokens = 10,
             .heads = 4,
             .kv_heads = 2,
             .head_dim = 8,
             .value_dim = 8});
  const Packed packed(r.args.k);
  packed.use(r.args);
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape, [&] { attention(r.args, online()); }), "(nothing was thrown)");
  const AttentionPlan plan(problem_of(r.args), online());
  const auto spoilt = [&](ErrorKind kind, auto&& spoil) {
    AttentionArgs a = r.args;
    spoil(a);
    return sentence_of(kind, [&] { plan.run(a, online()); });
  };
  EXPECT_EQ(
      spoilt(ErrorKind::bad_argument, [](AttentionArgs& a) { a.packed = {}; }),
      "attention: the plan is for packed keys but args.packed is not given; pass the description pack_keys "
      "filled");
  EXPECT_EQ(spoilt(ErrorKind::bad_shape, [](AttentionArgs& a) { a.packed.tokens = 9; }),
            "attention: packed keys have 9 tokens, 2 kv_heads and head_dim 8 but the plan was made for 10, 2 "
            "and 8; "
            "plan for these keys");
  EXPECT_EQ(spoilt(ErrorKind::bad_argument,
                   [](AttentionArgs& a) {
                     a.packed.order = {16, 32, 32};
                   }),
            "attention: packed keys lie [kv/16][dim/32][16][32] but this machine's class of f32 reads "
            "[kv/16][dim][16]; pack the plain keys again on this machine");
  EXPECT_EQ(spoilt(ErrorKind::bad_shape, [](AttentionArgs& a) { a.packed.capacity = 40; }),
            "attention: k is f32 [1 2 256] but f32 [1 2 512] is needed, [batch kv_heads room]");
  AttentionProblem ragged = problem_of(r.args);
  ragged.ragged = true;
  EXPECT_EQ(
      sentence_of(ErrorKind::unsupported, [&] { AttentionPlan(ragged, online()); }),
      "attention: packed keys hold one padded batch of kv heads; unpack them for ragged batches and rows, or "
      "mask with lengths(...)");
}

}  // namespace
}  // namespace headwise::test
