// Decode is prefill: eight ways to the same rows (prefill, chunks, one by one, plain, packed, 8 bits,
// batch, threads).
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "tests/support/decode.h"

namespace headwise::test {
namespace {

constexpr Index kTokens = 2090, kHeads = 3, kKvHeads = 1, kDim = 32, kValueDim = 48;

/// A causal prefill of one sequence; every other way must give rows of it.
struct Prefill {
  CaseRun run;
  Mask causal = Mask::causal();
  Tensor out, lse;
  /// `kv`: the dtype of q, or one of kEightBits.
  explicit Prefill(DType dtype, DType kv)
      : run(with_dtype({.name = "prefill",
                        .q_tokens = kTokens,
                        .kv_tokens = kTokens,
                        .heads = kHeads,
                        .kv_heads = kKvHeads,
                        .head_dim = kDim,
                        .value_dim = kValueDim},
                       dtype)),
        quantized(run.args.k, run.args.v, kv == dtype ? DType::i8 : kv) {
    if (kv != dtype) quantized.use(run.args);
    run.args.mask = causal.set();
    attention(run.args, online());
    out = run.out.clone(), lse = run.lse.clone();
  }
  Quantized quantized;
};

/// Queries [begin, end) against the keys that exist by then.
struct Step {
  AttentionArgs args;
  Tensor start, out, lse;
  Step(const Prefill& whole, Index begin, Index end)
      : args(whole.run.args),
        start(tensor_of(std::vector<Index>{begin})),
        out(args.q.dtype, {1, end - begin, kHeads, kValueDim}),
        lse(DType::f32, {1, kHeads, end - begin}) {
    args.q = tokens_of(args.q, begin, end - begin);
    args.k = tokens_of(args.k, 0, end), args.v = tokens_of(args.v, 0, end);
    if (args.k_scale.given())
      args.k_scale = tokens_of(args.k_scale, 0, end), args.v_scale = tokens_of(args.v_scale, 0, end);
    args.q_start = start.view(), args.out = out.view(), args.lse = lse.view();
    poison(out), poison(lse);
  }
};

testing::AssertionResult rows_are(const Prefill& whole, const Step& step, Index begin) {
  const Index n = step.out.view().size[1];
  if (const auto same = same_bits(tokens_of(whole.out.view(), begin, n), step.out.view()); !same) return same;
  for (Index h = 0; h < kHeads; ++h)
    if (std::memcmp(whole.lse.values<float>().data() + h * kTokens + begin,
                    step.lse.values<float>().data() + h * n, static_cast<std::size_t>(n) * 4) != 0)
      return testing::AssertionFailure() << "lse of head " << h;
  return testing::AssertionSuccess();
}

void expect_all_ways(DType dtype, DType kv) {
  const Prefill whole(dtype, kv);
  const std::string what = text(dtype, ", kv ", kv);
  Packed cache(tokens_of(whole.run.args.k, 0, 500), kTokens - 500);  // grown token by token below
  const auto packed_step = [&](Step& step, Index tokens) {
    cache.use(step.args);
    step.args.packed.tokens = tokens;
    poison(step.out), poison(step.lse);
  };
  // One by one around a block and around the split, else in chunks that end anywhere.
  for (Index begin = 500; begin < kTokens;) {
    const bool single = begin < 517 || (begin >= 2043 && begin < 2053);
    const Index end = single         ? begin + 1
                      : begin == 517 ? 533
                      : begin == 533 ? 2003
                                     : min_of(begin + 20, kTokens);
    append_keys(tokens_of(whole.run.args.k, begin, end - begin), cache.buffer.view(), cache.about, online());
    ASSERT_EQ(cache.about.tokens, end);
    if (begin == 533) {  // a long chunk is only appended: another test attends such ones
      begin = end;
      continue;
    }
    Step step(whole, begin, end);
    for (const int threads : {1, 3}) {  // the plan chooses the kernel
      static Context* any[6] = {};
      if (!any[threads]) any[threads] = new Context({.threads = threads});
      attention(step.args, *any[threads]);
      EXPECT_TRUE(rows_are(whole, step, begin)) << what << " plain, rows " << begin << ".." << end;
      Step packed(whole, begin, end);
      packed_step(packed, end);
      attention(packed.args, *any[threads]);
      EXPECT_TRUE(rows_are(whole, packed, begin)) << what << " packed, rows " << begin << ".." << end;
    }
    begin = end;
  }
}

TEST(DecodeLaws, EightWaysOneResult) {
  each_level([] {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const DType kv : {dtype, DType::i8, DType::e4m3}) expect_all_ways(dtype, kv);
  });
}

/// A sequence's rows in a batch of other lengths are its rows alone, plain and packed.
TEST(DecodeLaws, AloneOrInABatch) {
  each_level([] {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      for (const DType kv : {dtype, DType::i8, DType::e4m3}) {
        const std::vector<Index> lengths = {2600, 513, 2049, 1};
        CaseRun all(with_dtype({.name = "batch",
                                .batch = 4,
                                .q_tokens = 1,
                                .kv_tokens = 2600,
                                .heads = 4,
                                .kv_heads = 2,
                                .head_dim = 64,
                                .value_dim = 64},
                               dtype));
        const Quantized q(all.args.k, all.args.v, kv == dtype ? DType::i8 : kv);
        if (kv != dtype) q.use(all.args);
        const Mask mask = Mask::lengths(lengths);
        all.args.mask = mask.set();
        attention(all.args, decoding(3));
        const Packed packed(all.args.k);
        for (Index b = 0; b < 4; ++b) {
          const Index n = lengths[static_cast<std::size_t>(b)];
          AttentionArgs one = all.args;
          Tensor out(dtype, {1, 1, 4, 64}), lse(DType::f32, {1, 4, 1});
          one.mask = {}, one.out = out.view(), one.lse = lse.view();
          for (AnyView* v :
               std::initializer_list<AnyView*>{&one.q, &one.k, &one.v, &one.k_scale, &one.v_scale})
            if (v->given()) *v = batch_of(*v, b, 1);
          for (AnyView* v : std::initializer_list<AnyView*>{&one.k, &one.v, &one.k_scale, &one.v_scale})
            if (v->given()) *v = tokens_of(*v, 0, n);
          attention(one, n >= 512 ? decoding() : online());
          EXPECT_TRUE(same_bits(batch_of(all.out.view(), b, 1), out.view())) << dtype << kv << " at " << b;
          one.k = batch_of(packed.buffer.view(), b, 1), one.packed = packed.about, one.packed.tokens = n;
          poison(out);
          attention(one, n >= 512 ? decoding() : online());
          EXPECT_TRUE(same_bits(batch_of(all.out.view(), b, 1), out.view()))
              << dtype << kv << " packed " << b;
        }
      }
  });
}

/// 8-bit attention is attention on scale * its numbers: held to ref by the a-priori bound, and ref to itself
/// exactly.
void expect_own_numbers(DType dtype) {
  CaseRun r({.name = "own numbers",
             .q_tokens = 3,
             .kv_tokens = 600,
             .heads = 4,
             .kv_heads = 2,
             .head_dim = 32,
             .value_dim = 32});
  const Quantized q(r.args.k, r.args.v, dtype);
  AttentionArgs wide = r.args;
  Tensor k(DType::f32, {1, 600, 2, 32}), v(DType::f32, {1, 600, 2, 32});
  for (Index n = 0; n < 600 * 2 * 32; ++n) {
    const auto at = static_cast<std::size_t>(n), row = static_cast<std::size_t>(n / 32);
    const auto number = [&](const Tensor& x, const Tensor& scale) {
      return static_cast<float>(load_double(x.view().data, dtype, n)) * scale.values<float>()[row];
    };
    k.values<float>()[at] = number(q.k, q.k_scale), v.values<float>()[at] = number(q.v, q.v_scale);
  }
  wide.k = k.view(), wide.v = v.view();
  q.use(r.args);
  attention(wide, reference());
  Tensor truth = r.out.clone();
  poison(r.out);
  attention(r.args, reference());
  EXPECT_TRUE(same_bits(truth, r.out));
  const Packed packed(r.args.k);
  AttentionArgs p = r.args;
  packed.use(p);
  poison(r.out);
  attention(p, reference());
  EXPECT_TRUE(same_bits(truth, r.out)) << "packed";
  each_level([&] {
    for (Context* ctx : {&online(), &decoding()}) {
      poison(r.out);
      attention(r.args, *ctx);
      EXPECT_TRUE(matches_ref(wide)) << ctx->kernels();
    }
  });
}
TEST(DecodeLaws, EightBitsAreTheirOwnNumbers) {
  for (const DType dtype : kEightBits) expect_own_numbers(dtype);
}

/// Every code of e4m3 as the only key's number and as a value's: its LSE and its output are that number, NaN
/// for the two codes that are NaN.
TEST(DecodeLaws, EveryCodeOfE4m3) {
  Tensor q(DType::f32, {256, 1, 1, 1}), k(DType::e4m3, {256, 1, 1, 1}), v(DType::e4m3, {256, 1, 1, 256}),
      scale(DType::f32, {256, 1, 1}), one(DType::f32, {1}), out(DType::f32, {256, 1, 1, 256}),
      lse(DType::f32, {256, 1, 1});
  one.values<float>()[0] = 1;
  for (std::size_t b = 0; b < 256; ++b) {
    q.values<float>()[b] = 1, scale.values<float>()[b] = 2;
    k.values<e4m3>()[b].bits = static_cast<std::uint8_t>(b);
    for (std::size_t c = 0; c < 256; ++c)
      v.values<e4m3>()[256 * b + c].bits = b == 0 ? static_cast<std::uint8_t>(c) : std::uint8_t{0x38};
  }
  AttentionArgs a{.q = q.view(), .k = k.view(), .v = v.view(), .out = out.view(), .lse = lse.view()};
  a.inputs.scale = one.view(), a.k_scale = scale.view(), a.v_scale = scale.view();
  const auto is = [](float got, std::size_t code) {
    e4m3 x;
    x.bits = static_cast<std::uint8_t>(code);
    const float want = 2 * static_cast<float>(x);
    return std::isnan(want) ? std::isnan(got) : got == want;
  };
  each_level([&] {
    for (Context* ctx : {&reference(), &online()}) {
      poison(out), poison(lse);
      attention(a, *ctx);
      for (std::size_t code = 0; code < 256; ++code) {
        EXPECT_TRUE(is(lse.values<float>()[code], code)) << ctx->kernels() << " key " << code;
        EXPECT_TRUE(is(out.values<float>()[code], code)) << ctx->kernels() << " value " << code;
      }
    }
  });
}

/// A scale that is NaN reaches every number of the rows that may see its token, and no other row.
TEST(DecodeLaws, Int8ScalesThatAreNaN) {
  CaseRun r({.name = "int8 nan",
             .q_tokens = 3,
             .kv_tokens = 600,
             .heads = 4,
             .kv_heads = 2,
             .head_dim = 32,
             .value_dim = 32});
  Quantized q(r.args.k, r.args.v);
  q.use(r.args);
  Tensor start = tensor_of(std::vector<Index>{597});
  r.args.q_start = start.view();
  const Mask causal = Mask::causal();
  r.args.mask = causal.set();
  each_level([&] {
    for (Context* ctx : {&online(), &decoding()})
      for (Tensor* scale : {&q.k_scale, &q.v_scale}) {
        attention(r.args, *ctx);
        Tensor before = r.out.clone();
        float& unusual = scale->values<float>()[598 * 2];  // of the first two heads
        const float usual = std::exchange(unusual, std::numeric_limits<float>::quiet_NaN());
        attention(r.args, *ctx);
        unusual = usual;
        for (Index n = 0; n < 3 * 4 * 32; ++n) {
          const auto at = static_cast<std::size_t>(n);
          const bool sees = n / (4 * 32) >= 1 && n / 32 % 4 < 2;
          const float got = r.out.values<float>()[at];
          EXPECT_TRUE(sees ? std::isnan(got) : got == before.values<float>()[at]) << n << ": " << got;
        }
      }
  });
}

}  // namespace
}  // namespace headwise::test
