// NaN planted where a gradient must not look changes no bit of it; one it sees touches its own rows alone.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/backward_run.h"

namespace headwise::test {
namespace {

constexpr DType kNarrow[] = {DType::f32, DType::bf16, DType::f16};
constexpr const char* kMasks[] = {
    "prefix(5)",     "lengths(0, 40)",           "window(3, 0)",
    "causal",        "documents(0, 20, 21, 40)", "causal & window(9, 0) | prefix(4)",
    "strided(64, 3)"};

void put_token(const InputView& v, Index b, Index token, Index head, double x) {
  for (Index c = 0; c < v.size[3]; ++c)
    store_double(v.data, v.dtype, ((b * v.size[1] + token) * v.size[2] + head) * v.size[3] + c, x);
}
/// Row (b, token, head) of a row-major tensor.
AnyView token_of(const InputView& v, Index b, Index token, Index head) {
  AnyView r = v;
  r.data = static_cast<std::byte*>(v.data) +
           ((b * v.size[1] + token) * v.size[2] + head) * v.size[3] * size_of(v.dtype);
  r.size[0] = r.size[1] = r.size[2] = 1;
  return r;
}
bool is_zero(const InputView& v) {
  for (Index n = 0; n < v.count(); ++n)
    if (load_double(v.data, v.dtype, n) != 0) return false;
  return true;
}
bool has_nan(const InputView& v) {
  for (Index n = 0; n < v.count(); ++n)
    if (std::isnan(load_double(v.data, v.dtype, n))) return true;
  return false;
}

/// Keys no query sees, and queries that see no key: whatever they hold, and whatever comes back to them.
TEST(BackwardPoison, R004_WhatIsClosedGivesNothingAndGetsZero) {
  for (const char* text : kMasks)
    for (const DType dtype : kNarrow)
      each_backward_kernel([&](const char* kernel) {
        const Case c = with_dtype({.name = text,
                                   .batch = 2,
                                   .q_tokens = 35,
                                   .kv_tokens = 80,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .head_dim = 20,
                                   .value_dim = 33},
                                  dtype);
        const Mask mask = parse_mask(text);
        FullBackward clean(c), planted(c);
        for (FullBackward* r : {&clean, &planted}) r->mask = mask, r->point_terms();
        std::vector<std::pair<Index, Index>> hidden_keys, empty_rows;
        for (Index b = 0; b < 2; ++b) {
          for (Index j = 0; j < 80; ++j) {
            bool seen = false;
            for (Index i = 0; i < 35; ++i) seen = seen || mask.may_attend(i, j, {b, 0, 0});
            if (!seen) hidden_keys.emplace_back(b, j);
          }
          for (Index i = 0; i < 35; ++i) {
            bool sees = false;
            for (Index j = 0; j < 80; ++j) sees = sees || mask.may_attend(i, j, {b, 0, 0});
            if (!sees) empty_rows.emplace_back(b, i);
          }
        }
        for (const auto& [b, j] : hidden_keys)
          for (Index h = 0; h < 2; ++h) {
            put_token(planted.args.forward.k, b, j, h, kNan);
            put_token(planted.args.forward.v, b, j, h, j % 2 ? kInf : kNan);
          }
        for (const auto& [b, i] : empty_rows)
          for (Index h = 0; h < 4; ++h) {
            put_token(planted.args.forward.q, b, i, h, kInf);
            put_token(planted.args.dout, b, i, h, kNan);
          }
        EXPECT_FALSE(hidden_keys.empty() && empty_rows.empty()) << text;
        clean.forward(), planted.forward();
        const Gradients want = run_backward(clean.args, kernel), got = run_backward(planted.args, kernel);
        expect_same_bits(want, got, text);
        for (const auto& [b, j] : hidden_keys)
          for (Index h = 0; h < 2; ++h) {
            EXPECT_TRUE(is_zero(token_of(got.at("k").view(), b, j, h))) << text << " dk of " << j;
            EXPECT_TRUE(is_zero(token_of(got.at("v").view(), b, j, h))) << text << " dv of " << j;
          }
        for (const auto& [b, i] : empty_rows)
          for (Index h = 0; h < 4; ++h)
            EXPECT_TRUE(is_zero(token_of(got.at("q").view(), b, i, h))) << text << " dq of " << i;
      });
}

/// Where a bad number stands.
enum class Place { q, dout, k, v };

/// A bad number spoils the rows that see it, and what these rows give back to the keys they see; every other
/// gradient keeps its bits.
TEST(BackwardPoison, ABadNumberTouchesWhatSeesItAlone) {
  for (const char* text : {"causal", "window(20, 5) | strided(50, 1)", "documents(0, 33, 64, 90)"})
    each_backward_kernel([&](const char* kernel) {
      const Case c{.name = text, .q_tokens = 90, .kv_tokens = 90, .heads = 4, .kv_heads = 2, .value_dim = 20};
      const Mask mask = parse_mask(text);
      BackwardRun clean(c);
      clean.args.forward.mask = mask.set();
      clean.forward();
      const Gradients want = run_backward(clean.args, kernel);
      for (const Place place : {Place::q, Place::dout, Place::k, Place::v})
        for (const Index token : {0, 33, 64, 89})
          for (const double x : {kNan, kInf}) {
            BackwardRun r(c);
            r.args.forward.mask = mask.set();
            const bool in_row = place == Place::q || place == Place::dout;
            const Index head = in_row ? 2 : 1;  // both belong to kv head 1
            const InputView& target = place == Place::q   ? r.args.forward.q
                                      : place == Place::k ? r.args.forward.k
                                      : place == Place::v ? r.args.forward.v
                                                          : r.args.dout;
            put_token(target, 0, token, head, x);
            r.forward();
            const Gradients got = run_backward(r.args, kernel);
            // A bad query or dout: one row of one head. A bad key or value: the rows of its heads that see
            // it.
            const auto bad_row = [&](Index i, Index h) {
              return in_row ? i == token && h == 2 : h >= 2 && mask.may_attend(i, token);
            };
            bool seen = false;
            for (Index i = 0; i < 90; ++i)
              for (Index h = 0; h < 4; ++h) {
                const AnyView row = token_of(got.at("q").view(), 0, i, h);
                if (bad_row(i, h))
                  seen = seen || has_nan(row);
                else
                  ASSERT_TRUE(same_bits(row, token_of(want.at("q").view(), 0, i, h))) << text << " dq " << i;
              }
            for (Index j = 0; j < 90; ++j)
              for (Index kv = 0; kv < 2; ++kv) {
                bool touched = false;
                for (Index i = 0; i < 90; ++i)
                  for (Index h = 2 * kv; h < 2 * kv + 2; ++h)
                    touched = touched || (bad_row(i, h) && mask.may_attend(i, j));
                for (const char* name : {"k", "v"}) {
                  const AnyView row = token_of(got.at(name).view(), 0, j, kv);
                  if (touched)
                    seen = seen || has_nan(row);
                  else
                    ASSERT_TRUE(same_bits(row, token_of(want.at(name).view(), 0, j, kv)))
                        << text << " d" << name << " " << j << " place " << static_cast<int>(place);
                }
              }
            EXPECT_TRUE(seen) << text << " token " << token << " place " << static_cast<int>(place);
          }
    });
}

/// A dropped pair reads no value: what it holds is nobody's business.
TEST(BackwardPoison, ValuesEveryRowDroppedDoNotMatter) {
  each_backward_kernel([](const char* kernel) {
    const Case c{.name = "dropped", .q_tokens = 2, .kv_tokens = 60, .heads = 1, .kv_heads = 1};
    BackwardRun clean(c), planted(c);
    const DropoutRule rule = DropoutRule::of(0.7, 9);
    Index dropped = 0;
    for (Index j = 0; j < 60; ++j)
      if (!rule.keep(0, 0, 0, j) && !rule.keep(0, 0, 1, j)) {
        put_token(planted.args.forward.v, 0, j, 0, kNan);
        ++dropped;
      }
    EXPECT_GT(dropped, 10);
    for (BackwardRun* r : {&clean, &planted}) {
      r->args.forward.inputs.dropout = 0.7, r->args.forward.inputs.seed = 9;
      r->forward();
    }
    expect_same_bits(run_backward(clean.args, kernel), run_backward(planted.args, kernel));
  });
}

}  // namespace
}  // namespace headwise::test
