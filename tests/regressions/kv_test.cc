// Faults other libraries had in their caches of keys and values, as far as plain caches can have them.
// SPDX-License-Identifier: Apache-2.0
#include "tests/base/sentence.h"
#include "tests/support/decode.h"

namespace headwise::test {
namespace {

/// R038, R039: random chunks of random widths at the places a model of the cache says; then the cache is
/// read.
TEST(Regressions, R038_R039_RandomChunksAreWhereAModelPutsThem) {
  each_level([] {
    for (const std::uint64_t seed : {1, 2, 3}) {
      const Index capacity = 700, batch = 3;
      CaseRun r({.name = "chunks",
                 .batch = batch,
                 .q_tokens = 1,
                 .kv_tokens = capacity,
                 .heads = 2,
                 .kv_heads = 1,
                 .head_dim = 24,
                 .value_dim = 16});
      const std::vector<Index> widths = random_integers(200, 1, 9, seed);
      PackedKeys about = packed_keys(DType::f32, 1, 24, capacity);
      Tensor buffer(DType::f32, {batch, 1, about.room()});
      poison(buffer);
      std::vector<Index> length(static_cast<std::size_t>(batch), 0);
      Index longest = 0;
      for (std::size_t n = 0; n < widths.size(); ++n) {
        const auto b = static_cast<Index>(n % static_cast<std::size_t>(batch));
        Index& at = length[static_cast<std::size_t>(b)];
        const Index width = min_of(widths[n], capacity - at);
        Tensor start = tensor_of(std::vector<Index>{at});
        append_keys(tokens_of(batch_of(r.k.view(), b, 1), at, width), batch_of(buffer.view(), b, 1), about,
                    online(), start.view());
        at += width, longest = max_of(longest, at);
        ASSERT_EQ(about.tokens, longest);
      }
      AttentionArgs a = r.args;
      const Mask mask = Mask::lengths(length);
      a.mask = mask.set();
      a.k = tokens_of(a.k, 0, longest), a.v = tokens_of(a.v, 0, longest);
      attention(a, online());
      Tensor plain = r.out.clone();
      a.k = buffer.view(), a.packed = about;
      poison(r.out);
      attention(a, online());
      EXPECT_TRUE(same_bits(plain, r.out)) << seed;
    }
  });
}

/// R090: rounding is to nearest, so errors have no lean: their mean is far below half a step (policy T4).
TEST(Regressions, R090_Int8RoundsWithoutALean) {
  Tensor x = random_normal({1, 400, 2, 64}, DType::f32, 11);
  Tensor out(DType::i8, {1, 400, 2, 64}), scale(DType::f32, {1, 400, 2});
  quantize_kv(x.view(), out.view(), scale.view(), online());
  double lean = 0, outward = 0;
  const Index count = x.view().count();
  for (Index n = 0; n < count; ++n) {
    const auto s = static_cast<double>(scale.values<float>()[static_cast<std::size_t>(n / 64)]);
    const auto value = static_cast<double>(x.values<float>()[static_cast<std::size_t>(n)]);
    const double error = (s * out.values<std::int8_t>()[static_cast<std::size_t>(n)] - value) / s;
    lean += error, outward += value > 0 ? error : -error;
  }
  const double spread = 4 / std::sqrt(12.0 * static_cast<double>(count));  // four deviations of a fair mean
  EXPECT_LT(std::fabs(lean / static_cast<double>(count)), spread);
  EXPECT_LT(std::fabs(outward / static_cast<double>(count)), spread)
      << "truncation leans inward by half a step";
}

/// R091: every token and kv head of every sequence is multiplied by its own scale.
TEST(Regressions, R091_ScalesOfSequencesStayApart) {
  each_level([] {
    const Index batch = 3, tokens = 600, kv_heads = 2, dim = 16;
    CaseRun r({.name = "scales",
               .batch = batch,
               .q_tokens = 1,
               .kv_tokens = tokens,
               .heads = 4,
               .kv_heads = kv_heads,
               .head_dim = dim,
               .value_dim = dim});
    Tensor k(DType::i8, {batch, tokens, kv_heads, dim}), v(DType::i8, {batch, tokens, kv_heads, dim}),
        k_scale(DType::f32, {batch, tokens, kv_heads}), v_scale(DType::f32, {batch, tokens, kv_heads});
    std::fill_n(v.values<std::int8_t>().data(), v.view().count(), std::int8_t{1});
    for (Index n = 0; n < batch * tokens * kv_heads;
         ++n)  // keys are 0: weights are equal, the output is the mean scale
      v_scale.values<float>()[static_cast<std::size_t>(n)] =
          static_cast<float>(1 + n / (tokens * kv_heads) * 8 + n % kv_heads * 4);
    r.args.k = k.view(), r.args.v = v.view(), r.args.k_scale = k_scale.view(),
    r.args.v_scale = v_scale.view();
    const Packed packed(r.args.k);
    for (const bool packs : {false, true}) {
      AttentionArgs a = r.args;
      if (packs) packed.use(a);
      poison(r.out);
      attention(a, decoding());
      for (Index b = 0; b < batch; ++b)
        for (Index h = 0; h < 4; ++h)
          EXPECT_FLOAT_EQ(r.out.values<float>()[static_cast<std::size_t>((b * 4 + h) * dim)],
                          static_cast<float>(1 + b * 8 + h / 2 * 4));
    }
  });
}

/// R108: a full buffer works to its last token, one token more is refused and changes nothing.
TEST(Regressions, R108_AsLongAsTheBufferAndOneMore) {
  each_level([] {
    for (const DType dtype : {DType::f32, DType::bf16, DType::i8, DType::e4m3})
      for (const Index capacity : {1, 16, 31, 32, 33, 64}) {
        Tensor k(dtype, {1, capacity + 1, 2, 40});
        for (Index n = 0; n < k.view().count(); ++n)
          store_double(k.view().data, dtype, n, static_cast<double>(n % 100));
        PackedKeys about = packed_keys(dtype, 2, 40, capacity);
        Tensor buffer(dtype, {1, 2, about.room()});
        pack_keys(tokens_of(k.view(), 0, capacity), buffer.view(), about, online());
        Tensor before = buffer.clone();
        const std::string why = sentence_of(ErrorKind::bad_shape, [&] {
          append_keys(tokens_of(k.view(), capacity, 1), buffer.view(), about, online());
        });
        EXPECT_NE(why.find("a cache cannot be longer than its buffer"), std::string::npos) << why;
        EXPECT_TRUE(same_bits(before, buffer));
        Tensor back(dtype, {1, capacity, 2, 40});
        unpack_keys(buffer.view(), about, back.view(), online());
        EXPECT_TRUE(same_bits(back.view(), tokens_of(k.view(), 0, capacity))) << dtype << capacity;
      }
  });
}

}  // namespace
}  // namespace headwise::test
