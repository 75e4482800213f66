// cpu/online against ref by the policy T1 to T5; its probes, its tile visits, no allocation in a run.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/kernels/cpu/forward/online.h"

#include <map>

#include "tests/support/count_allocations.h"
#include "tests/support/online.h"

namespace headwise::test {
namespace {

constexpr DType kHalves[] = {DType::f32, DType::bf16, DType::f16};

std::vector<Case> sizes() {
  std::vector<Case> all = odd_cases();
  for (const Case& c : square_cases()) all.push_back(c);
  for (const Index dim : {1, 3, 8, 16, 20, 33, 64, 65, 96, 128})
    all.push_back({.name = "dim",
                   .q_tokens = 33,
                   .kv_tokens = 65,
                   .heads = 2,
                   .kv_heads = 1,
                   .head_dim = dim,
                   .value_dim = 129 - dim});
  all.push_back({.name = "long",
                 .q_tokens = 3,
                 .kv_tokens = 4500,
                 .heads = 2,
                 .kv_heads = 1,
                 .head_dim = 64,
                 .value_dim = 64});
  return all;
}

/// The largest and the mean square error over several draws: at a few hundred outputs one draw says little.
struct Spread {
  double largest = 0, error = 0, norm = 0;
  void add(const InputView& got, const InputView& truth) {
    for (Index n = 0; n < truth.count(); ++n) {
      const double x = load_double(got.data, got.dtype, n), y = load_double(truth.data, truth.dtype, n);
      largest = std::isfinite(x) ? std::max(largest, std::fabs(x - y)) : kInf;
      error += (x - y) * (x - y), norm += y * y;
    }
  }
  double relative() const { return norm > 0 ? std::sqrt(error / norm) : std::sqrt(error); }
};

/// T1: not worse than the plain formula in the same dtype; T5 beside it.
TEST(CpuOnline, T1_T5_NotWorseThanAPlainRun) {
  for (const Case& base : sizes())
    for (const DType dtype : kHalves) {
      const Case c = with_dtype(base, dtype);
      const int draws = c.batch * c.q_tokens * c.heads * c.value_dim < 2000 ? 12 : 1;
      std::map<std::string, Spread> kernel;
      Spread plain;
      double most = 0;
      for (int draw = 0; draw < draws; ++draw) {
        CaseRun r(c, static_cast<std::uint64_t>(draw + 1));
        const MaskView mask = MaskView::window(60, 5);
        if (c.kv_tokens % 2 && c.q_tokens > 3) r.args.mask = {&mask, 1};
        const AttentionProblem p = problem_of(r.args);
        const Truth truth = truth_of(p, r.args, reference());
        Tensor yard = r.out.clone();
        plain_run(p, r.args, yard.view());
        plain.add(yard.view(), truth.out.view());
        most = std::max(most, largest_of(truth.out.view()));
        each_level([&] {
          poison(r.out), poison(r.lse);
          attention(r.args, online());
          kernel[cpu::chosen_isa().name].add(r.out.view(), truth.out.view());
          EXPECT_TRUE(lse_is_close(r.lse.view(), truth.lse.view())) << c;
        });
      }
      const double factor = dtype == DType::f32 ? 1.5 : 1.0, ulp = ulp_of(dtype, most),
                   relative_ulp = 2 * ulp_of(dtype, 1.0) / 2;
      for (const auto& [level, spread] : kernel) {
        EXPECT_LE(spread.largest, factor * plain.largest + 2 * ulp) << level << " " << c;
        EXPECT_LE(spread.relative(), factor * plain.relative() + relative_ulp) << level << " " << c;
      }
    }
}

/// T2: the guard in the 2-norm for unit-normal data.
TEST(CpuOnline, T2_UnitNormalData) {
  for (const DType dtype : kHalves) {
    const Case c = with_dtype({.name = "normal",
                               .q_tokens = 64,
                               .kv_tokens = 1024,
                               .heads = 4,
                               .kv_heads = 4,
                               .head_dim = 64,
                               .value_dim = 64},
                              dtype);
    CaseRun r(c);
    const Truth truth = truth_of(problem_of(r.args), r.args, reference());
    each_level([&] {
      attention(r.args, online());
      EXPECT_LE(distance_of(r.out.view(), truth.out.view()).relative, relative_guard(dtype)) << dtype;
    });
  }
}

/// T4: a million errors have no preferred sign.
TEST(CpuOnline, T4_ErrorsHaveNoPreferredSign) {
  for (const DType dtype : kHalves) {
    const Case c = with_dtype({.name = "bias",
                               .q_tokens = 2048,
                               .kv_tokens = 64,
                               .heads = 8,
                               .kv_heads = 8,
                               .head_dim = 8,
                               .value_dim = 64},
                              dtype);
    CaseRun r(c);
    const Truth truth = truth_of(problem_of(r.args), r.args, reference());
    each_level([&] {
      attention(r.args, online());
      EXPECT_LE(std::fabs(signed_bias(r.out.view(), truth.out.view())), 3) << dtype;
    });
  }
}

/// T3: logits far beyond what training makes, bound computed per case.
TEST(CpuOnline, T3_HugeLogits) {
  for (const double size : {4.0, 30.0, 1000.0}) {
    const Case c{.name = "huge",
                 .q_tokens = 40,
                 .kv_tokens = 600,
                 .heads = 2,
                 .kv_heads = 1,
                 .head_dim = 64,
                 .value_dim = 32};
    CaseRun r(c);
    for (float& x : r.q.values<float>()) x *= static_cast<float>(size);
    expect_matches(r, "huge logits");
  }
}

TEST(CpuOnline, SizesOfZeroGiveZeros) {
  each_level([] {
    for (const Case& c : empty_cases())
      for (const DType dtype : kHalves) {
        CaseRun r(with_dtype(c, dtype));
        poison(r.out), poison(r.lse);
        attention(r.args, online());
        for (Index n = 0; n < r.out.view().count(); ++n) {
          const double x = load_double(r.out.view().data, dtype, n);
          EXPECT_TRUE(x == 0 && !std::signbit(x)) << c;
        }
        for (float x : r.lse.values<float>()) EXPECT_EQ(x, -static_cast<float>(kInf)) << c;
      }
  });
}

/// Probes: ties go to the lowest key, empty rows to nothing; the numbers themselves are judged by the
/// pairwise cases.
TEST(CpuOnline, ProbeTiesAndEmptyRows) {
  each_level([] {
    const Index q = 40, kv = 300;
    const Case c{.name = "ties", .q_tokens = q, .kv_tokens = kv, .heads = 2, .kv_heads = 1};
    CaseRun r(c);
    fill(r.q.view(), 0);
    const MaskView mask = MaskView::window(5, 0);
    Tensor start = tensor_of(std::vector<Index>{280});  // rows 305.. see nothing
    r.args.mask = {&mask, 1}, r.args.q_start = start.view();
    Tensor f[5], position(DType::i64, {1, 2, q}), keys(DType::i64, {1, 2, q, 8}),
        weights(DType::f32, {1, 2, q, 8});
    for (Tensor& t : f) t = Tensor(DType::f32, {1, 2, q}), poison(t);
    r.args.probe = {.entropy = f[0].view(),
                    .top_weight = f[1].view(),
                    .second_moment = f[2].view(),
                    .mean_distance = f[3].view(),
                    .sink_mass = f[4].view(),
                    .top_position = position.view(),
                    .top_keys = keys.view(),
                    .top_weights = weights.view()};
    attention(r.args, online(), {.rows = true, .top_k = 8});
    for (Index h = 0; h < 2; ++h)
      for (Index i = 0; i < q; ++i) {
        const auto row = static_cast<std::size_t>(h * q + i);
        const Index at = 280 + i, first = at - 5, open = std::max<Index>(0, std::min(at, kv - 1) - first + 1);
        EXPECT_EQ(position.values<std::int64_t>()[row], open > 0 ? first : -1) << i;
        EXPECT_NEAR(f[0].values<float>()[row], open > 0 ? std::log(static_cast<double>(open)) : 0, 1e-6) << i;
        EXPECT_NEAR(f[1].values<float>()[row], open > 0 ? 1.0 / static_cast<double>(open) : 0, 1e-6) << i;
        EXPECT_EQ(f[4].values<float>()[row], 0);
        for (Index j = 0; j < 8; ++j)
          EXPECT_EQ(keys.values<std::int64_t>()[row * 8 + static_cast<std::size_t>(j)],
                    j < open ? first + j : -1)
              << i << " " << j;
      }
  });
}

/// Statistics of rows asked for alone and by twos have the bits they have together.
TEST(CpuOnline, RowStatisticsThatAreNotGivenAreLeftOut) {
  each_level([] {
    const Index q = 40, kv = 300;
    CaseRun r({.name = "some", .q_tokens = q, .kv_tokens = kv, .heads = 2, .kv_heads = 1});
    const auto views = {&ProbeOut::entropy,       &ProbeOut::top_weight, &ProbeOut::second_moment,
                        &ProbeOut::mean_distance, &ProbeOut::sink_mass,  &ProbeOut::top_position};
    const auto ask = [&](ProbeOut& to, auto which, Tensor& t) {
      t = Tensor(which == &ProbeOut::top_position ? DType::i64 : DType::f32, {1, 2, q});
      poison(t);
      to.*which = t.view();
    };
    ProbeOut all;
    Tensor whole[6];
    std::size_t n = 0;
    for (const auto view : views) ask(all, view, whole[n++]);
    r.args.probe = all;
    attention(r.args, online(), {.rows = true});
    for (const auto one : views)
      for (const auto other : views) {
        ProbeOut some;
        Tensor part[2];
        ask(some, one, part[0]);
        if (other != one) ask(some, other, part[1]);
        r.args.probe = some;
        attention(r.args, online(), {.rows = true});
        for (const auto view : {one, other}) EXPECT_TRUE(same_bits(some.*view, all.*view));
      }
  });
}

/// The kernel visits exactly the tiles whose tile() is not empty, and for interval terms exactly those with
/// an open pair.
TEST(CpuOnline, VisitsTheTilesThatAreNotEmpty) {
  each_level([] {
    for (const char* text : {"causal", "window(100, 20)", "causal & window(300, 0)", "prefix(300)",
                             "documents(0, 100, 500, 1200)", "causal & documents(0, 700, 1500)",
                             "lengths(700)", "strided(600, 3)"})
      for (const Index start : {0, 300, -50}) {
        const Case c{.name = text,
                     .q_tokens = 700,
                     .kv_tokens = 1500,
                     .heads = 1,
                     .kv_heads = 1,
                     .head_dim = 1,
                     .value_dim = 1};
        CaseRun r(c);
        const Mask mask = parse_mask(text);
        Tensor first = tensor_of(std::vector<Index>{start});
        r.args.mask = mask.set(), r.args.q_start = first.view();
        const AttentionProblem p = problem_of(r.args);
        const Buffer memory(cpu::forward::kOnline.workspace_bytes(p, 2));
        std::atomic<Index> visits = 0;
        ASSERT_EQ(cpu::forward::run_counting(p, r.args, memory.span(), online().pool(), visits), Status::ok);
        const Index granule = cpu::forward::granule_of(p), panel = cpu::forward::panel_of(p);
        Index not_empty = 0, with_open = 0;
        for (Index i = 0; i < 700; i += panel)
          for (Index k = 0; k < 1500; k += granule) {
            const Index q1 = std::min<Index>(700, i + panel), k1 = std::min<Index>(1500, k + granule);
            const MaskSubject at{0, 0, start};
            not_empty += mask.tile(start + i, start + q1, k, k1, at) != TileKind::empty;
            bool open = false;
            for (Index q = i; q < q1 && !open; ++q)
              for (Index j = k; j < k1 && !open; ++j) open = mask.may_attend(start + q, j, at);
            with_open += open;
          }
        EXPECT_EQ(visits.load(), not_empty) << text << " from " << start;
        const bool intervals = std::string(text).find("strided") == std::string::npos;
        EXPECT_EQ(visits.load(), intervals ? with_open : not_empty) << text << " from " << start;
      }
  });
}

TEST(CpuOnline, RunAllocatesNothing) {
  each_level([] {
    for (const DType dtype : kHalves) {
      const Case c = with_dtype({.name = "allocations",
                                 .batch = 2,
                                 .q_tokens = 6,
                                 .kv_tokens = 2200,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 24,
                                 .value_dim = 20},
                                dtype);
      CaseRun r(c);
      const Mask mask = Mask::per_head(
          std::vector<Mask>{Mask::causal(), Mask::window(9, 0), Mask::strided(7), Mask::all()});
      Tensor sinks = filled(4, 1), slopes = filled(4, 0.1),
             bias = random_normal({1, 4, 6, 2200}, DType::bf16, 4),
             gate = random_normal({2, 6, 4}, DType::f32, 5);
      Tensor columns(DType::f32, {2, 4, 2200}), picks(DType::i64, {2, 3}), picked(DType::f32, {2, 2200});
      r.args.mask = mask.set();
      r.args.inputs = {.softcap = 20,
                       .slopes = slopes.view(),
                       .bias = bias.view(),
                       .sinks = sinks.view(),
                       .gate = gate.view(),
                       .dropout = 0.1};
      r.args.probe.column_sums = columns.view(), r.args.probe.picks = picks.view(),
      r.args.probe.picked_weights = picked.view();
      const AttentionPlan plan(problem_of(r.args, {.columns = true, .picked = 2}), online());
      plan.run(r.args, online());
      const std::uint64_t before = allocations();
      for (int n = 0; n < 10; ++n) plan.run(r.args, online());
      EXPECT_EQ(allocations() - before, 0u) << dtype;
    }
  });
}

/// R102: what fixes the bits depends on ISA, dtype and widths alone, never on batch, tokens or threads.
TEST(CpuOnline, R102_NumericsClassKnowsNoSizes) {
  each_level([] {
    for (const DType dtype : kHalves) {
      const CaseRun small(with_dtype({.name = "small"}, dtype));
      const CaseRun large(with_dtype(
          {.name = "large", .batch = 3, .q_tokens = 99, .kv_tokens = 3000, .heads = 6, .kv_heads = 2},
          dtype));
      const std::string numerics = AttentionPlan(problem_of(small.args), online(1)).numerics();
      EXPECT_EQ(numerics, AttentionPlan(problem_of(large.args), online(7)).numerics());
      const CaseRun wider(with_dtype({.name = "wider", .head_dim = 16, .value_dim = 8}, dtype));
      EXPECT_NE(numerics, AttentionPlan(problem_of(wider.args), online(1)).numerics());
    }
  });
}

}  // namespace
}  // namespace headwise::test
