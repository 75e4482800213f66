#include "headwise/ops/row/rope.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "headwise/base/context.h"
#include "headwise/kernels/ref/rope.h"
#include "tests/ops/row_op_cases.h"
#include "tests/support/count_allocations.h"

namespace headwise {
namespace {

using namespace test;

constexpr DType kFloats[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

Tensor turned(const InputView& x, const RopePositions& positions, const RopeOptions& options,
              int threads = 2) {
  Context ctx({.threads = threads});
  Tensor out = tensor_like(x);
  rope(x, positions, out.view(), options, ctx);
  return out;
}
Tensor counting(Index from, Index tokens, Index step = 1) {
  Tensor p(DType::i64, {tokens});
  for (Index t = 0; t < tokens; ++t) p.values<Index>()[static_cast<std::size_t>(t)] = from + t * step;
  return p;
}
double dot(const InputView& a, const InputView& b) {
  double sum = 0;
  for (Index i = 0; i < a.count(); ++i) sum += value(a, i) * value(b, i);
  return sum;
}
std::vector<RopeScaling> all_scalings() {
  RopeScaling plain_yarn = RopeScaling::yarn(4, 32);
  plain_yarn.truncate = false;
  plain_yarn.attention_factor = 1;
  return {{}, RopeScaling::linear(4), RopeScaling::ntk(4), plain_yarn, RopeScaling::llama3(8, 1, 4, 64)};
}

// Values below were computed apart from this library, from the published formulas.
void expect_frequencies(const RopeOptions& o, Index dim,
                        const std::vector<std::pair<Index, double>>& expected) {
  const RopeRule rule(o, dim);
  for (const auto& [pair, frequency] : expected)
    EXPECT_NEAR(rule.frequency(pair) / frequency, 1.0, 1e-14) << "pair " << pair;
}
TEST(Rope, PlainAndLinearFrequencies) {
  expect_frequencies({}, 4, {{0, 1.0}, {1, 0.01}});
  expect_frequencies({.scaling = RopeScaling::linear(4)}, 4, {{0, 0.25}, {1, 0.0025}});
  expect_frequencies({.base = 500000}, 128, {{1, 0.8146172338565447}});
}
TEST(Rope, NtkChangesTheBase) {
  // The base becomes 40889.94...: pair 0 keeps its frequency, the last one is divided by the factor.
  expect_frequencies({.scaling = RopeScaling::ntk(4)}, 128,
                     {{0, 1.0}, {1, 0.8471171851512068}, {63, 2.8869549617236452e-05}});
  expect_frequencies({.scaling = RopeScaling::ntk(4)}, 2, {{0, 1.0}});
  EXPECT_EQ(RopeScaling::dynamic_ntk(4, 2048, 2048), RopeScaling::ntk(1));
  EXPECT_EQ(RopeScaling::dynamic_ntk(4, 4096, 2048), RopeScaling::ntk(5));
}
TEST(Rope, YarnFrequencies) {
  const RopeOptions o{.base = 1e6, .scaling = RopeScaling::yarn(4, 32768)};
  expect_frequencies(o, 128,
                     {{0, 1.0},
                      {23, 0.006978305848598663},
                      {24, 0.005375321490790102},
                      {30, 0.0010643609812470017},
                      {39, 6.490394320837028e-05},
                      {40, 4.445698525097307e-05},
                      {63, 3.102344401879299e-07}});
  EXPECT_NEAR(RopeRule(o, 128).attention_factor, 1.138629436111989, 1e-15);
  RopeOptions whole{.base = 150000, .scaling = RopeScaling::yarn(32, 4096)};
  whole.scaling.truncate = false;
  expect_frequencies(whole, 64,
                     {{8, 0.050813274815461475},
                      {9, 0.03170569618466377},
                      {12, 0.006794959489732219},
                      {17, 0.00012931870124506317},
                      {18, 3.8308812373753384e-05},
                      {31, 3.0235114281192144e-07}});
  whole.scaling.attention_factor = 1.5;
  EXPECT_EQ(RopeRule(whole, 64).attention_factor, 1.5);
  EXPECT_EQ(RopeRule({.scaling = RopeScaling::yarn(1, 64)}, 64).attention_factor, 1.0);
}
TEST(Rope, Llama3Frequencies) {
  expect_frequencies({.base = 500000, .scaling = RopeScaling::llama3(8, 1, 4, 8192)}, 128,
                     {{0, 1.0},
                      {28, 0.003211445994752591},
                      {29, 0.002166570763503359},
                      {32, 0.0005248461609929547},
                      {34, 0.0001785078127679964},
                      {35, 9.556212353964683e-05},
                      {63, 3.068925988914511e-07}});
}

TEST(Rope, ValuesByHand) {
  // Position 3, dim 4: angles 3 and 0.03.
  Tensor x(DType::f64, {1, 1, 1, 4});
  for (std::size_t i = 0; i < 4; ++i) x.values<double>()[i] = static_cast<double>(i + 1);
  const double half[] = {-1.413352520780047, 1.8791180666879925, -2.828857481741469, 4.058191135400942};
  const double interleaved[] = {-1.27223251272018, -1.8388649851410237, 2.87866810043698, 4.088186635603437};
  Tensor h = turned(x.view(), 3, {}), i = turned(x.view(), 3, {.kind = RopeKind::interleaved});
  for (Index d = 0; d < 4; ++d) {
    EXPECT_NEAR(value(h.view(), d), half[d], 2e-15);
    EXPECT_NEAR(value(i.view(), d), interleaved[d], 2e-15);
  }
}
TEST(Rope, PositionsNearTheEndOfItsReachAreExact) {
  // cos and sin of 2147483647 * 0.01 with 60 digits; a single double product is off by 1e-9 there.
  Tensor x(DType::f64, {1, 1, 1, 4});
  x.values<double>()[1] = 1;
  for (Index p : {2147483647, -2147483647}) {
    Tensor y = turned(x.view(), p, {});
    EXPECT_NEAR(value(y.view(), 1), -0.7128174923748066, 3e-16);
    EXPECT_NEAR(value(y.view(), 3), p > 0 ? 0.7013495722993581 : -0.7013495722993581, 3e-16);
  }
  // n / sqrt(2): what the product cuts off is nearly 2^-23 here, and its square still counts.
  Tensor down = turned(x.view(), 2147481141, {.base = 2}), along = turned(x.view(), 2147445245, {.base = 2});
  EXPECT_NEAR(value(down.view(), 1), -0.09256078778884172, 3e-16);
  EXPECT_NEAR(value(down.view(), 3), -0.9957070355098979, 3e-16);
  EXPECT_NEAR(value(along.view(), 1), 0.9949908049207312, 3e-16);
  EXPECT_NEAR(value(along.view(), 3), 0.09996648499970093, 3e-16);
  Context ctx;
  EXPECT_NO_THROW(rope(x.view(), kRopeReach, x.view(), {}, ctx));
  EXPECT_NO_THROW(rope(x.view(), -kRopeReach, x.view(), {}, ctx));
}

TEST(Rope, MatchesTheReferenceInEveryLayout) {
  EXPECT_TRUE(rc::check("any sizes, steps, kind, scaling, positions", [] {
    const auto size = [](Index low, Index high) { return *rc::gen::inRange<Index>(low, high); };
    const DType dtype = kFloats[size(0, 4)];
    const Index batch = size(0, 4), tokens = size(0, 5), heads = size(0, 4), dim = size(0, 150);
    RopeOptions o{.kind = size(0, 2) ? RopeKind::half : RopeKind::interleaved,
                  .rotary_dim = 2 * size(0, dim / 2 + 1),
                  .scaling = all_scalings()[static_cast<std::size_t>(size(0, 5))],
                  .inverse = size(0, 2) == 1};
    Tensor x = random_normal({batch, tokens, heads, dim}, dtype, static_cast<std::uint64_t>(size(0, 1000)));
    Tensor positions(DType::i64, {batch, tokens});
    for (Index& p : positions.values<Index>()) p = size(-5000, 100000);
    const std::vector<int> orders[] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}};
    const Scattered from(x.view(), orders[size(0, 4)], size(0, 3));
    Scattered to(x.view(), orders[size(0, 4)], size(0, 3));
    Context ctx({.threads = static_cast<int>(size(1, 4))});
    rope(from.view, positions.view(), to.view, o, ctx);
    RC_ASSERT(to.gaps_intact() && from.gaps_intact());
    Tensor truth(DType::f64, {batch, tokens, heads, dim});
    Tensor got = to.packed();
    each_index(x.view(), [&](const Index* at) {
      if (at[3] != 0) return;
      const Index p = positions.values<Index>()[static_cast<std::size_t>(at[0] * tokens + at[1])];
      ref::rope(row_of(x.view(), at), p, row_of(truth.view(), at), o, o.rotary_dim);
    });
    for (Index i = 0; i < got.view().count(); ++i)
      RC_ASSERT(rounded_once(dtype, value(got.view(), i), value(truth.view(), i),
                             dtype == DType::f64 ? 2e-14 : 1e-13));
  }));
}
TEST(Rope, RoundsOnceOverManyValues) {
  for (DType dtype : kFloats) {
    Tensor x = random_normal({1, 64, 8, 128}, dtype, 5);
    Tensor y = turned(x.view(), 70000, {});
    Tensor truth(DType::f64, {1, 64, 8, 128});
    each_index(x.view(), [&](const Index* at) {
      if (at[3] == 0) ref::rope(row_of(x.view(), at), 70000 + at[1], row_of(truth.view(), at), {}, 128);
    });
    for (Index i = 0; i < y.view().count(); ++i)
      ASSERT_TRUE(rounded_once(dtype, value(y.view(), i), value(truth.view(), i), 3e-14))
          << dtype << " element " << i;
  }
}

TEST(RopeLaws, RotationKeepsLengths) {
  Tensor x = random_normal({2, 9, 3, 64}, DType::f64, 1);
  for (const RopeScaling& s : all_scalings()) {
    Tensor y = turned(x.view(), 1000, {.scaling = s});
    each_index(x.view(), [&](const Index* at) {
      if (at[3] != 0) return;
      Tensor a = Scattered(row_of(x.view(), at), {0}, 0).packed(),
             b = Scattered(row_of(y.view(), at), {0}, 0).packed();
      EXPECT_NEAR(dot(a.view(), a.view()), dot(b.view(), b.view()), 1e-12);
    });
  }
}
TEST(RopeLaws, ScoresDependOnDistanceAlone) {
  Tensor q = random_normal({1, 1, 1, 32}, DType::f64, 2), k = random_normal({1, 1, 1, 32}, DType::f64, 3);
  for (RopeKind kind : {RopeKind::half, RopeKind::interleaved})
    for (const RopeScaling& s : all_scalings()) {
      const RopeOptions o{.kind = kind, .rotary_dim = 24, .scaling = s};
      const auto score = [&](Index m, Index n) {
        return dot(turned(q.view(), m, o).view(), turned(k.view(), n, o).view());
      };
      for (Index shift : {Index{1}, Index{4096}, Index{131071}, kRopeReach - 8, -kRopeReach})
        EXPECT_NEAR(score(7 + shift, 3 + shift), score(7, 3), 2e-14) << "shift " << shift;
      EXPECT_GT(std::abs(score(7, 3) - score(8, 3)), 1e-3);
    }
}
TEST(RopeLaws, R033_ChunkedPositionsEqualOneShot) {
  Tensor x = random_normal({2, 37, 3, 40}, DType::f32, 4);
  for (const RopeScaling& s : all_scalings()) {
    const RopeOptions o{.scaling = s};
    Tensor whole = turned(x.view(), 100, o);
    for (Index chunk : {1, 2, 5, 16, 36}) {
      Tensor parts = tensor_like(x.view());
      Context ctx({.threads = 2});
      for (Index t = 0; t < 37; t += chunk) {
        const Index end = min_of(37, t + chunk);
        rope(slice(x.view(), 1, t, end), 100 + t, slice(parts.view(), 1, t, end), o, ctx);
      }
      EXPECT_TRUE(same_bits(whole.view(), parts.view())) << "chunk " << chunk;
    }
  }
}
TEST(RopeLaws, InverseUndoesForward) {
  for (RopeKind kind : {RopeKind::half, RopeKind::interleaved}) {
    Tensor x = random_normal({2, 5, 2, 48}, DType::f64, 5);
    RopeOptions o{.kind = kind, .rotary_dim = 32};
    Tensor there = turned(x.view(), 12345, o);
    o.inverse = true;
    Tensor back = turned(there.view(), 12345, o);
    for (Index i = 0; i < x.view().count(); ++i)
      EXPECT_NEAR(value(x.view(), i), value(back.view(), i), 4e-15);
  }
}
TEST(RopeLaws, InverseIsTheTransposeAlsoWithAnAttentionFactor) {
  Tensor x = random_normal({1, 3, 2, 32}, DType::f64, 6), dy = random_normal({1, 3, 2, 32}, DType::f64, 7);
  RopeOptions o{.scaling = RopeScaling::yarn(16, 64)};
  Tensor y = turned(x.view(), 50, o);
  o.inverse = true;
  Tensor dx = turned(dy.view(), 50, o);
  EXPECT_NEAR(dot(y.view(), dy.view()), dot(x.view(), dx.view()), 1e-12);
  const double factor = 0.1 * std::log(16.0) + 1;
  EXPECT_NEAR(dot(y.view(), y.view()), factor * factor * dot(x.view(), x.view()), 1e-10);
}
TEST(RopeLaws, NothingTurnsAtRotaryDimZeroOrPositionZero) {
  for (DType dtype : kFloats) {
    Tensor x = random_normal({2, 3, 2, 7}, dtype, 8);
    EXPECT_TRUE(same_bits(turned(x.view(), 99, {.rotary_dim = 0}).view(), x.view()));
    Tensor one = random_normal({4, 1, 3, 10}, dtype, 9);
    EXPECT_TRUE(same_bits(turned(one.view(), 0, {}).view(), one.view()));
  }
}
TEST(RopeLaws, KindsAgreeAfterPermutation) {
  for (DType dtype : kFloats) {
    const Index dim = 150, rotary = 140;
    Tensor x = random_normal({2, 6, 2, dim}, dtype, 10);
    const auto permute = [&](const InputView& v, bool to_half) {
      Tensor r = tensor_like(v);
      each_index(v, [&](const Index* at) {
        if (at[3] % 2 && at[3] < rotary) return;
        for (Index part = 0; part < (at[3] < rotary ? 2 : 1); ++part) {
          const Index h = at[3] < rotary ? at[3] / 2 + part * rotary / 2 : at[3], i = at[3] + part;
          const Index row = offset_of(v, at) - at[3];
          store_double(r.view().data, dtype, row + (to_half ? h : i), value(v, row + (to_half ? i : h)));
        }
      });
      return r;
    };
    Tensor direct = turned(x.view(), 31, {.kind = RopeKind::interleaved, .rotary_dim = rotary});
    Tensor way = permute(turned(permute(x.view(), true).view(), 31, {.rotary_dim = rotary}).view(), false);
    EXPECT_TRUE(same_bits(direct.view(), way.view())) << dtype;
  }
}

TEST(RopeBits, SameForThreadsBatchAndEveryWayToSayPositions) {
  for (DType dtype : kFloats) {
    Tensor x = random_normal({3, 50, 4, 96}, dtype, 11);
    const RopeOptions o{.kind = RopeKind::interleaved, .rotary_dim = 90, .scaling = RopeScaling::yarn(4, 32)};
    Tensor one = turned(x.view(), 40, o, 1);
    for (int threads : {2, 3, 7}) EXPECT_TRUE(same_bits(one.view(), turned(x.view(), 40, o, threads).view()));
    Tensor tokens = counting(40, 50);
    EXPECT_TRUE(same_bits(one.view(), turned(x.view(), tokens.view(), o).view()));
    AnyView both = tokens.view();  // [batch tokens] by a step of 0
    both.rank = 2;
    both.size[0] = 3, both.size[1] = 50, both.step[0] = 0, both.step[1] = 1;
    EXPECT_TRUE(same_bits(one.view(), turned(x.view(), both, o).view()));
    for (Index b = 0; b < 3; ++b)
      EXPECT_TRUE(
          same_bits(slice(one.view(), 0, b, b + 1), turned(slice(x.view(), 0, b, b + 1), 40, o).view()));
    Context ctx({.threads = 2});
    const RopeTable table(o, 96, 90, ctx);
    Tensor from_table = tensor_like(x.view());
    rope(x.view(), 40, from_table.view(), table, ctx);
    EXPECT_TRUE(same_bits(one.view(), from_table.view()));
    EXPECT_EQ(table.bytes(), 90u * 90u * 8u);
    RopeOptions back = o;
    back.inverse = true;
    rope(x.view(), tokens.view(), from_table.view(), table, true, ctx);
    EXPECT_TRUE(same_bits(turned(x.view(), 40, back).view(), from_table.view()));
  }
}
TEST(Rope, WideHeadsMatchTheReferenceWithAndWithoutATable) {
  for (RopeKind kind : {RopeKind::half, RopeKind::interleaved}) {
    const RopeOptions o{.kind = kind, .rotary_dim = 2200};
    Tensor x = random_normal({1, 3, 2, 2300}, DType::f64, 15);
    Tensor y = turned(x.view(), 5, o);
    Context ctx({.threads = 2});
    const RopeTable table(o, 2300, 8, ctx);
    Tensor from_table = tensor_like(x.view()), truth = tensor_like(x.view());
    rope(x.view(), 5, from_table.view(), table, ctx);
    EXPECT_TRUE(same_bits(y.view(), from_table.view()));
    each_index(x.view(), [&](const Index* at) {
      if (at[3] == 0) ref::rope(row_of(x.view(), at), 5 + at[1], row_of(truth.view(), at), o, 2200);
    });
    for (Index i = 0; i < y.view().count(); ++i)
      ASSERT_NEAR(value(y.view(), i), value(truth.view(), i), 2e-15);
  }
}
TEST(RopeBits, InPlaceEqualsOutOfPlaceAlsoForHeadsWiderThanABlock) {
  for (DType dtype : kFloats)
    for (RopeKind kind : {RopeKind::half, RopeKind::interleaved}) {
      const RopeOptions o{.kind = kind, .rotary_dim = 1400};
      Tensor x = random_normal({1, 3, 2, 1500}, dtype, 12);
      Tensor apart = turned(x.view(), 5, o);
      Context ctx({.threads = 2});
      rope(x.view(), 5, x.view(), o, ctx);
      EXPECT_TRUE(same_bits(apart.view(), x.view()));
    }
}
TEST(RopeBits, PackedQueriesTurnInPlaceBesideTheirKeys) {
  Tensor qkv = random_normal({2, 5, 3 * 4, 16}, DType::f32, 13);  // q, k, v heads side by side
  Tensor before = qkv.clone();
  const AnyView q = slice(qkv.view(), 2, 0, 4), k = slice(qkv.view(), 2, 4, 8);
  Context ctx({.threads = 2});
  rope(q, 9, q, {}, ctx);
  Tensor expected = turned(slice(before.view(), 2, 0, 4), 9, {});
  EXPECT_TRUE(same_bits(Scattered(q, {0, 1, 2, 3}, 0).packed().view(), expected.view()));
  EXPECT_TRUE(same_bits(Scattered(slice(qkv.view(), 2, 4, 12), {0, 1, 2, 3}, 0).packed().view(),
                        Scattered(slice(before.view(), 2, 4, 12), {0, 1, 2, 3}, 0).packed().view()));
  EXPECT_NO_THROW(rope(q, 9, k, {}, ctx));
}
TEST(RopeBits, NanStaysInItsPair) {
  Tensor x = random_normal({2, 3, 2, 8}, DType::f32, 14);
  Tensor clean = turned(x.view(), 4, {});
  const Index planted = ((1 * 3 + 2) * 2 + 1) * 8 + 5;
  x.values<float>()[static_cast<std::size_t>(planted)] = NAN;
  Tensor y = turned(x.view(), 4, {});
  for (Index i = 0; i < x.view().count(); ++i) {
    if (i == planted || i == planted - 4)
      EXPECT_TRUE(std::isnan(value(y.view(), i)));
    else
      EXPECT_EQ(value(y.view(), i), value(clean.view(), i));
  }
}
TEST(Rope, RunsAllocateNothingAfterTheFirst) {
  Tensor x = random_normal({2, 9, 3, 64}, DType::f32, 16);
  Context ctx({.threads = 2});
  const RopeTable table({}, 64, 32, ctx);
  rope(x.view(), 3, x.view(), RopeOptions{}, ctx);
  const std::uint64_t before = allocations();
  for (int run = 0; run < 10; ++run) {
    rope(x.view(), 3, x.view(), RopeOptions{}, ctx);
    rope(x.view(), 3, x.view(), table, ctx);
  }
  EXPECT_EQ(allocations(), before);
}
TEST(Rope, SizesOfZeroAreLegal) {
  for (int axis = 0; axis < 4; ++axis) {
    Index n[] = {2, 3, 4, 6};
    n[axis] = 0;
    Tensor x(DType::f32, {n[0], n[1], n[2], n[3]});
    EXPECT_EQ(turned(x.view(), counting(0, n[1]).view(), {}).view().count(), 0);
  }
  Context ctx;
  EXPECT_EQ(RopeTable({}, 0, 0, ctx).bytes(), 0u);
}

TEST(RopeErrors, EachIsOneSentence) {
  Context ctx({.threads = 1});
  Tensor x(DType::f32, {2, 3, 4, 8});
  Tensor out = tensor_like(x.view());
  const auto with = [&](const RopeOptions& o) {
    return error_of([&] { rope(x.view(), 0, out.view(), o, ctx); });
  };
  EXPECT_EQ(with({.rotary_dim = 5}),
            "rope: rotary_dim is 5; give an even number, since dimensions turn in pairs");
  EXPECT_EQ(with({.rotary_dim = 10}),
            "rope: rotary_dim is 10 and head_dim 8; give 0 to head_dim, or kWholeHead");
  EXPECT_EQ(with({.rotary_dim = -2}),
            "rope: rotary_dim is -2 and head_dim 8; give 0 to head_dim, or kWholeHead");
  EXPECT_EQ(with({.base = 0}), "rope: base is 0; give a positive finite number");
  EXPECT_EQ(with({.base = -10000}), "rope: base is -10000; give a positive finite number");
  EXPECT_EQ(with({.base = INFINITY}), "rope: base is inf; give a positive finite number");
  EXPECT_EQ(with({.scaling = RopeScaling::linear(0)}),
            "rope: scaling factor is 0; give a positive finite number");
  EXPECT_EQ(with({.scaling = RopeScaling::ntk(-2)}),
            "rope: scaling factor is -2; give a positive finite number");
  EXPECT_EQ(with({.scaling = RopeScaling::yarn(NAN, 64)}),
            "rope: scaling factor is nan; give a positive finite number");
  EXPECT_EQ(with({.scaling = RopeScaling::yarn(4, 0)}),
            "rope: original_length is 0; give the length of the training texts");
  EXPECT_EQ(with({.base = 1, .scaling = RopeScaling::yarn(4, 64)}),
            "rope: base is 1; yarn needs one above 1");
  RopeScaling betas = RopeScaling::yarn(4, 64);
  betas.beta_fast = 0.5;
  EXPECT_EQ(
      with({.scaling = betas}),
      "rope: beta_fast is 0.5 and beta_slow 1; give positive numbers, the slow one not above the fast one");
  RopeScaling cold = RopeScaling::yarn(4, 64);
  cold.attention_factor = -1;
  EXPECT_EQ(with({.scaling = cold}),
            "rope: attention_factor is -1; give a positive finite number, or 0 for 0.1 ln(factor) + 1");
  EXPECT_EQ(with({.scaling = RopeScaling::llama3(8, 4, 4, 64)}),
            "rope: low_freq_factor is 4 and high_freq_factor 4; give positive numbers, the low one below the "
            "high one");
  EXPECT_EQ(with({.scaling = RopeScaling::llama3(8, 1, 4, -1)}),
            "rope: original_length is -1; give the length of the training texts");
  Tensor odd(DType::f32, {1, 1, 1, 7});
  EXPECT_EQ(error_of([&] { rope(odd.view(), 0, odd.view(), {}, ctx); }),
            "rope: head_dim is 7, which leaves one dimension without a partner; give an even rotary_dim");
}
TEST(RopeErrors, TensorsAndPositions) {
  Context ctx({.threads = 1});
  Tensor x(DType::f32, {2, 3, 4, 8});
  Tensor out = tensor_like(x.view());
  const auto at = [&](const InputView& a, const InputView& positions, const InputView& b) {
    return error_of([&] { rope(a, positions, b, {}, ctx); });
  };
  Tensor good = counting(0, 3), longer = counting(0, 4), wrong(DType::i32, {3}),
         turned_around(DType::i64, {3, 2});
  EXPECT_EQ(at(x.view(), wrong.view(), out.view()), "rope: positions are i32 [3]; give i64");
  EXPECT_EQ(
      at(x.view(), longer.view(), out.view()),
      "rope: positions are i64 [4] but x is f32 [2 3 4 8]; give one a token: [tokens] or [batch tokens]");
  EXPECT_EQ(
      at(x.view(), turned_around.view(), out.view()),
      "rope: positions are i64 [3 2] but x is f32 [2 3 4 8]; give one a token: [tokens] or [batch tokens]");
  EXPECT_EQ(at(x.view(), AnyView{}, out.view()),
            "rope: positions are empty; give i64 [tokens] or [batch tokens], or a start");
  Tensor whole(DType::i64, {2, 3, 4, 8}), flat(DType::f32, {3, 8}), narrow(DType::bf16, {2, 3, 4, 8});
  EXPECT_EQ(at(whole.view(), good.view(), whole.view()),
            "rope: x is i64 [2 3 4 8]; give f32, bf16, f16 or f64");
  EXPECT_EQ(at(flat.view(), good.view(), flat.view()), "rope: x is f32 [3 8]; give [batch tokens heads dim]");
  EXPECT_EQ(at(x.view(), good.view(), narrow.view()),
            "rope: out is bf16 [2 3 4 8] but x is f32 [2 3 4 8]; give out the dtype and sizes of x");
  EXPECT_EQ(at(x.view(), good.view(), slice(out.view(), 2, 0, 3)),
            "rope: out is f32 [2 3 3 8] but x is f32 [2 3 4 8]; give out the dtype and sizes of x");
  const std::string overlap =
      "rope: out overlaps x without being x; give it memory of its own, or x itself to work in place";
  Tensor wide(DType::f32, {2, 3, 5, 8});
  EXPECT_EQ(at(slice(wide.view(), 2, 0, 4), good.view(), slice(wide.view(), 2, 1, 5)), overlap);
  AnyView swapped = x.view();
  std::swap(swapped.step[0], swapped.step[1]);
  EXPECT_EQ(at(x.view(), good.view(), swapped), overlap);
  AnyView repeated = out.view();
  repeated.step[2] = 0;
  EXPECT_EQ(
      at(x.view(), good.view(), repeated),
      "rope: out is f32 [2 3 4 8] with steps that put several elements in one place; give each its own");
  AnyView inside = AnyView::packed(out.view().data, DType::i64, {3});
  EXPECT_EQ(at(x.view(), inside, out.view()), "rope: out overlaps positions; give it memory of its own");
  AnyView backwards = x.view();
  backwards.step[1] = -32;
  EXPECT_EQ(at(backwards, good.view(), out.view()),
            "rope: x has a step of -32 on axis 1; steps start at 0, copy the tensor first");
  AnyView nowhere = x.view();
  nowhere.data = nullptr;
  EXPECT_EQ(at(nowhere, good.view(), out.view()),
            "rope: x is f32 [2 3 4 8] without memory; give its address");
}
TEST(RopeErrors, PositionsBeyondReachOrTable) {
  Context ctx({.threads = 1});
  Tensor x(DType::f32, {2, 3, 4, 8});
  const auto at = [&](const RopePositions& p) {
    return error_of([&] { rope(x.view(), p, x.view(), {}, ctx); });
  };
  EXPECT_EQ(at(kRopeReach - 1),
            "rope: start 2147483647 with 3 tokens goes beyond 2147483648; angles are exact only there");
  EXPECT_EQ(at(-kRopeReach - 1),
            "rope: position -2147483649 of token 0 in sequence 0 is outside -2147483648 to "
            "2147483648; angles are exact only there");
  Tensor p(DType::i64, {2, 3});
  p.values<Index>()[4] = kRopeReach + 1;
  EXPECT_EQ(at(p.view()),
            "rope: position 2147483649 of token 1 in sequence 1 is outside -2147483648 to 2147483648; "
            "angles are exact only there");
  const RopeTable table({}, 8, 16, ctx);
  const auto with = [&](const InputView& v, Index start) {
    return error_of([&] { rope(v, start, v, table, ctx); });
  };
  EXPECT_EQ(with(x.view(), 13), "no error");
  EXPECT_EQ(with(x.view(), 14),
            "rope: start 14 with 3 tokens goes beyond 15; make a longer table, or call without one");
  EXPECT_EQ(with(x.view(), -1),
            "rope: position -1 of token 0 in sequence 0 is outside 0 to 15; make a longer table, "
            "or call without one");
  EXPECT_EQ(with(slice(x.view(), 3, 0, 6), 0),
            "rope: x is f32 [2 3 4 6] but the table was made for head_dim 8; make one for these heads");
  EXPECT_EQ(error_of([&] { RopeTable({}, 8, -1, ctx); }),
            "rope: a table of -1 positions was asked; give 0 to 2147483648");
  EXPECT_EQ(error_of([&] { RopeTable({}, Index{1} << 32, kRopeReach, ctx); }),
            "rope: a table of 2147483648 positions and 4294967296 dimensions has more bytes than any address "
            "space; "
            "use fewer positions, or no table");
}

}  // namespace
}  // namespace headwise
