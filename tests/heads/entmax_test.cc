// cpu/entmax against ref in double, crossed with masks, groups, ragged batches, lists and terms; its bits,
// its exact zeros, its memory.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/kernels/cpu/entmax/forward.h"

#include "headwise/kernels/ref/normalize.h"
#include "tests/support/backward_run.h"
#include "tests/support/cover.h"

namespace headwise::test {
namespace {

constexpr const char* kName = "cpu/entmax";

/// |a - b| / |b| in the 2-norm, and whether both are finite in the same places. Sums that cancel to nothing
/// (equal scores have no slope) are judged by their own size.
double apart(const InputView& got, const InputView& truth) {
  const Distance d = distance_of(got, truth);
  if (d.mismatched > 0) return kInf;
  return d.largest <= 1e-6 ? 0 : d.relative;
}

Tensor alphas(Index heads, int which) {
  constexpr double kEach[][4] = {
      {1.5, 1.5, 1.5, 1.5}, {2, 2, 2, 2}, {1.25, 1.25, 1.25, 1.25}, {1.5, 1.75, 2, 1.1}, {1, 1.5, 1, 1.3}};
  Tensor t(DType::f32, {heads});
  for (Index h = 0; h < heads; ++h)
    t.values<float>()[static_cast<std::size_t>(h)] = static_cast<float>(kEach[which][h % 4]);
  return t;
}

/// A run in double and the same numbers in f32, which were f32 before.
struct Twins {
  GradientRun wide;
  std::deque<Tensor> kept;
  BackwardArgs narrow;
  Twins(const Posed& posed, const Tensor& alpha, std::uint64_t seed) : wide(double_of(posed, seed)) {
    Tensor dout = converted(wide.args.dout, DType::f32);
    wide.args.dout = keep(converted(dout.view(), DType::f64));
    bool learns = true;
    for (const float a : alpha.values<float>()) learns = learns && a > 1;
    wide.args.forward.inputs.alpha = keep(converted(alpha.view(), DType::f64));
    if (learns) wide.args.dalpha = keep(converted(alpha.view(), DType::f64));
    wide.args.dbias = wide.args.drelative = {};  // which cpu/entmax leaves to ref
    narrow = wide.args;
    each_gradient(narrow, [&](const char*, AnyView& input, AnyView& gradient) {
      if (input.given()) input = keep(converted(input, DType::f32));
      if (gradient.given()) gradient = keep(converted(gradient, DType::f32));
    });
    narrow.dout = keep(converted(wide.args.dout, DType::f32));
    narrow.forward.out = keep(converted(wide.args.forward.out, DType::f32));
    const InputView& out = narrow.forward.out;
    narrow.forward.lse = keep(Tensor(DType::f32, {out.size[0], out.size[2], out.size[1]}));
    wide.args.forward.lse = keep(Tensor(DType::f64, {out.size[0], out.size[2], out.size[1]}));
  }
  AnyView keep(Tensor t) {
    kept.push_back(std::move(t));
    return kept.back().view();
  }
};

TEST(CpuEntmax, EqualsRefInDouble) {
  Choice counts{};
  counts.fill(1);
  counts[kHeads] = 5, counts[kQTokens] = values_of(kQTokens), counts[kBatch] = 4, counts[kRagged] = 2;
  counts[kKvTokens] = 13, counts[kHeadDim] = 8, counts[kValueDim] = 8, counts[kStart] = values_of(kStart);
  counts[kMask] = values_of(kMask), counts[kSoftcap] = 3, counts[kAlibi] = 2, counts[kRelative] = 3;
  counts[kScale] = 5, counts[kBias] = values_of(kBias), counts[kSinks] = values_of(kSinks);
  counts[kDropout] = 3, counts[kGate] = 2, counts[kHeadKind] = values_of(kHeadKind), counts[kRows] = 3;
  Cover cover(11, counts, 6e6);
  int cases = 0;
  double worst = 0;
  for (; !cover.done() && !HasFailure(); ++cases) {
    const Choice c = cover.next();
    const auto seed = static_cast<std::uint64_t>(cases + 1);
    Posed posed;
    pose(c, {.seed = seed}, posed);
    const Index heads = posed.sizes.heads;
    Tensor alpha = alphas(heads, cases % 5);
    Twins t(posed, alpha, seed);
    attention(t.wide.args.forward, context_of("ref"), {}, posed.heads);
    attention_backward(t.wide.args, context_of("ref"), posed.heads);
    SCOPED_TRACE(describe(c) + " seed " + std::to_string(seed));
    double power = 1;
    for (const float a : alpha.values<float>())
      power = std::max(power, a > 1 ? 1.0 / (static_cast<double>(a) - 1) : 1);
    // A logit is off by its own rounding, and a weight by that times the power of its distance from tau.
    const double bound = 4e-7 * (1 + power) * (8 + posed.most_logit);
    cpu::force_isa(nullptr);
    const auto levels = run_levels();
    cpu::force_isa(&levels[static_cast<std::size_t>(cases) % levels.size()]);
    poison_gradients(t.narrow);
    fill(t.narrow.forward.out, kNan), fill(t.narrow.forward.lse, kNan);
    attention(t.narrow.forward, context_of(kName, 1 + cases % 3), {}, posed.heads);
    attention_backward(t.narrow, context_of(kName, 1 + cases % 3), posed.heads);
    cpu::force_isa(nullptr);
    const auto check = [&](const char* name, const InputView& got, const InputView& truth) {
      const double error = apart(got, truth);
      worst = std::max(worst, error / bound);
      EXPECT_LE(error, bound) << name << ": " << load_double(got.data, got.dtype, 0) << " against "
                              << load_double(truth.data, truth.dtype, 0);
    };
    check("out", t.narrow.forward.out, t.wide.args.forward.out);
    check("lse", t.narrow.forward.lse, t.wide.args.forward.lse);
    std::map<std::string, AnyView> truth;
    each_gradient(t.wide.args,
                  [&](const char* name, const InputView&, const InputView& g) { truth[name] = g; });
    each_gradient(t.narrow, [&](const char* name, const InputView&, const InputView& g) {
      if (g.given()) check(name, g, truth[name]);
    });
  }
  std::printf("cpu/entmax: %d cases, worst error %.2f of its bound\n", cases, worst);
}

struct EntmaxRun : BackwardRun {
  Tensor alpha, dalpha;
  Mask mask = Mask::causal();
  explicit EntmaxRun(const Case& c, int which = 3)
      : BackwardRun(c), alpha(alphas(c.heads, which)), dalpha(alpha.clone()) {
    args.forward.inputs.alpha = alpha.view(), args.forward.mask = mask.set();
    if (which < 4) args.dalpha = dalpha.view();
  }
  Gradients run(int threads) {
    poison(inputs.out), poison(inputs.lse);
    attention(args.forward, context_of(kName, threads));
    return run_backward(args, kName, threads);
  }
};
const Case kCase{.name = "entmax",
                 .batch = 2,
                 .q_tokens = 150,
                 .kv_tokens = 600,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 32,
                 .value_dim = 32};

TEST(CpuEntmax, BitsDependOnNeitherThreadsNorBatch) {
  each_level([] {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      EntmaxRun r(with_dtype(kCase, dtype));
      const Gradients one = r.run(1);
      Tensor out = r.inputs.out.clone(), lse = r.inputs.lse.clone();
      expect_same_bits(r.run(3), one, "3 threads");
      EXPECT_TRUE(same_bits(r.inputs.out, out));
      EXPECT_TRUE(same_bits(r.inputs.lse, lse));
      AttentionArgs second = r.args.forward;
      for (AnyView* v :
           std::initializer_list<AnyView*>{&second.q, &second.k, &second.v, &second.out, &second.lse})
        *v = batch_of(*v, 1, 1);
      poison(r.inputs.out), poison(r.inputs.lse);
      attention(second, context_of(kName, 2));
      EXPECT_TRUE(same_bits(batch_of(r.inputs.out.view(), 1, 1), batch_of(out.view(), 1, 1)));
      EXPECT_TRUE(same_bits(batch_of(r.inputs.lse.view(), 1, 1), batch_of(lse.view(), 1, 1)));
    }
  });
}

TEST(CpuEntmax, HeadsWithAnAlphaOfOneHaveTheBitsOfSoftmax) {
  each_level([] {
    BackwardRun soft(kCase);
    const Mask causal = Mask::causal();
    soft.args.forward.mask = causal.set();
    attention(soft.args.forward, context_of("cpu/online"));
    const Gradients of_soft = run_backward(soft.args, "cpu/backward");

    EntmaxRun all(kCase, 4);
    fill(all.alpha.view(), 1);
    expect_same_bits(all.run(2), of_soft);
    EXPECT_TRUE(same_bits(all.inputs.out, soft.inputs.out));
    EXPECT_TRUE(same_bits(all.inputs.lse, soft.inputs.lse));

    EntmaxRun some(kCase, 4);  // heads 0 and 2
    some.run(2);
    for (Index i = 0; i < 150; ++i)
      for (Index h = 0; h < 4; h += 2) {
        const std::size_t at = static_cast<std::size_t>((i * 4 + h) * 32);
        for (std::size_t c = 0; c < 32; ++c)
          ASSERT_EQ(some.inputs.out.values<float>()[at + c], soft.inputs.out.values<float>()[at + c]);
      }
  });
}

/// variants.md 6.5: one key far below is exactly 0 with a zero slope; a row with a single key is its value.
TEST(CpuEntmax, AFarKeyWeighsNothingAndASingleKeyAll) {
  each_level([] {
    const Case c{.name = "far",
                 .q_tokens = 70,
                 .kv_tokens = 40,
                 .heads = 4,
                 .kv_heads = 4,
                 .head_dim = 16,
                 .value_dim = 16};
    EntmaxRun r(c);
    const Mask none;
    r.args.forward.mask = none.set();
    Tensor bias(DType::f32, {1, 1, 1, 40});
    bias.values<float>()[7] = -100;
    r.args.forward.inputs.bias = bias.view();
    for (std::size_t n = 0; n < 64; ++n) r.inputs.v.values<float>()[7 * 64 + n] = static_cast<float>(kNan);
    const Gradients g = r.run(2);
    EXPECT_TRUE(all_finite(r.inputs.out));
    for (const char* name : {"q", "k", "v", "alpha"}) EXPECT_TRUE(all_finite(g.at(name))) << name;
    for (std::size_t n = 0; n < 64; ++n) {
      EXPECT_EQ(g.at("k").values<float>()[7 * 64 + n], 0);
      EXPECT_EQ(g.at("v").values<float>()[7 * 64 + n], 0);
    }

    EntmaxRun single(c);  // causal: row 0 sees key 0 alone
    const Gradients d = single.run(2);
    for (std::size_t n = 0; n < 64; ++n) {
      EXPECT_EQ(single.inputs.out.values<float>()[n], single.inputs.v.values<float>()[n]);
      EXPECT_EQ(d.at("q").values<float>()[n], 0);
    }
  });
}

TEST(CpuEntmax, NanReachesTheRowsThatSeeIt) {
  each_level([] {
    EntmaxRun r(kCase), clean(kCase);
    clean.run(2);
    r.inputs.k.values<float>()[(100 * 2 + 1) * 32 + 3] = static_cast<float>(kNan);  // key 100, kv head 1
    r.run(2);
    const auto row = [](const Tensor& t, Index i, Index h) {
      return t.values<float>().data() + (i * 4 + h) * 32;
    };
    for (Index i = 0; i < 150; ++i)
      for (Index h = 0; h < 4; ++h)
        if (i >= 100 && h >= 2) {
          ASSERT_TRUE(std::isnan(*row(r.inputs.out, i, h))) << i << " " << h;
          ASSERT_TRUE(std::isnan(*row(r.dq, i, h))) << i << " " << h;
        } else {
          ASSERT_EQ(*row(r.inputs.out, i, h), *row(clean.inputs.out, i, h)) << i << " " << h;
          ASSERT_EQ(*row(r.dq, i, h), *row(clean.dq, i, h)) << i << " " << h;
        }
  });
}

TEST(CpuEntmax, MemoryGrowsWithTheTokensAlone) {
  const auto bytes = [](Index tokens, bool backward) {
    BackwardProblem p;
    p.forward.heads.q = p.forward.heads.k = p.forward.heads.v = HeadLayout::split(16, 64);
    p.forward.heads.norm = Norm::entmax;
    p.forward.batch = 1, p.forward.q_tokens = p.forward.kv_tokens = tokens, p.forward.lse = true;
    p.wants = {.q = true, .k = true, .v = true, .alpha = true};
    return static_cast<double>(backward ? BackwardPlan(p, 2, kName).workspace_bytes()
                                        : AttentionPlan(p.forward, 2, kName).workspace_bytes());
  };
  for (const bool backward : {false, true}) {
    EXPECT_LE(bytes(8192, backward), 2.1 * bytes(4096, backward));
    EXPECT_LE(bytes(8192, backward), 64 << 20);  // one head's weights alone would be 256 MiB
  }
}

/// Where nothing is sparse: equal scores weigh all keys alike.
TEST(CpuEntmax, EqualScoresGiveTheMeanOfTheValues) {
  each_level([] {
    EntmaxRun r(kCase);
    const Mask none;
    r.args.forward.mask = none.set();
    fill(r.inputs.q.view(), 0);
    r.run(2);
    for (Index h = 0; h < 4; ++h)
      for (std::size_t c = 0; c < 32; ++c) {
        double mean = 0;
        for (std::size_t j = 0; j < 600; ++j)
          mean += static_cast<double>(
                      r.inputs.v.values<float>()[(j * 2 + static_cast<std::size_t>(h / 2)) * 32 + c]) /
                  600;
        EXPECT_NEAR(r.inputs.out.values<float>()[static_cast<std::size_t>(h) * 32 + c], mean, 1e-5);
      }
  });
}

}  // namespace
}  // namespace headwise::test
