// Regressions R001 to R070 that concern gradients: padding, overflow, ragged batches, every gradient there.
// SPDX-License-Identifier: Apache-2.0
#include "tests/support/backward_run.h"
#include "tests/support/gradient_yardstick.h"

namespace headwise::test {
namespace {

constexpr DType kNarrow[] = {DType::f32, DType::bf16, DType::f16};

/// Runs every kernel on `r` and holds it to the truth; `what` names the setting.
void expect_right(BackwardRun& r, const std::string& what) {
  const GradientTruth truth(r.args);
  each_backward_kernel([&](const char* kernel) {
    r.forward();
    const Gradients got = run_backward(r.args, kernel);
    EXPECT_EQ(truth.fault(r.args), "") << what;
    for (const auto& [name, tensor] : got) EXPECT_TRUE(all_finite(tensor)) << "d" << name << " " << what;
  });
}

TEST(BackwardRegression, R001_EveryRowAndEveryColumnMasked) {
  for (const char* text : {"prefix(0)", "lengths(0, 9)", "window(0, 0) & prefix(3)"}) {
    const Mask mask = parse_mask(text);
    BackwardRun r({.name = text, .batch = 2, .q_tokens = 9, .kv_tokens = 9, .heads = 2, .kv_heads = 1});
    r.args.forward.mask = mask.set();
    expect_right(r, text);
    if (std::string(text) != "prefix(0)") continue;
    each_backward_kernel([&](const char* kernel) {
      for (const auto& [name, tensor] : run_backward(r.args, kernel)) EXPECT_TRUE(all_zero(tensor)) << name;
    });
  }
}

/// A padded half tile scored 0 and exp(0 - lse) overflowed: every residue of the length, the log-sum-exp far
/// on both sides of 0.
TEST(BackwardRegression, R010_EveryLengthWithLargeLogSumExp) {
  for (const double shift : {-200.0, -122.0, -90.0, 0.0, 90.0, 200.0})
    for (Index tokens = 1; tokens <= 140; tokens += tokens < 66 ? 1 : 7) {
      const DType dtype = kNarrow[tokens % 3];
      BackwardRun r(with_dtype({.name = "R010",
                                .q_tokens = tokens,
                                .kv_tokens = tokens,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = 4,
                                .value_dim = 3},
                               dtype));
      Tensor bias(DType::f32, {1, 1, 1, 1});
      bias.values<float>()[0] = static_cast<float>(shift);
      const Mask mask = Mask::causal() | Mask::prefix(2);
      r.args.forward.inputs.bias = bias.view(), r.args.forward.mask = mask.set();
      expect_right(r, text(tokens, " tokens, lse near ", shift, " ", dtype));
    }
}

TEST(BackwardRegression, R010_OneQueryAndAnyNumberOfKeys) {
  for (Index keys = 1; keys <= 70; ++keys) {
    BackwardRun r({.name = "R010", .q_tokens = 1, .kv_tokens = keys, .heads = 2, .kv_heads = 1});
    expect_right(r, text(keys, " keys"));
  }
}

/// Logits five times larger and lengths that fill no tile.
TEST(BackwardRegression, R011_LargeInputsAndLengthsThatFillNoTile) {
  for (const DType dtype : kNarrow)
    for (const Index tokens : {1, 2, 5, 17, 128}) {
      BackwardRun r(with_dtype({.name = "R011",
                                .q_tokens = tokens,
                                .kv_tokens = tokens,
                                .heads = 2,
                                .kv_heads = 2,
                                .head_dim = 32,
                                .value_dim = 32},
                               dtype));
      for (Tensor* t : {&r.inputs.q, &r.inputs.k, &r.inputs.v, &r.dout})
        for (Index n = 0; n < t->view().count(); ++n)
          store_double(t->view().data, dtype, n, 5 * load_double(t->view().data, dtype, n));
      expect_right(r, text(tokens, " tokens ", dtype));
    }
}

struct Ragged : BackwardRun {
  Tensor q_at, kv_at, start;
  Mask mask = Mask::causal();
  Ragged(const std::vector<Index>& q, const std::vector<Index>& kv, bool at_end)
      : BackwardRun(
            {.name = "ragged", .q_tokens = q.back(), .kv_tokens = kv.back(), .heads = 4, .kv_heads = 2}),
        q_at(tensor_of(q)),
        kv_at(tensor_of(kv)),
        start(tensor_of({at_end ? kStartEnd : 0})) {
    args.forward.q_offsets = q_at.view(), args.forward.kv_offsets = kv_at.view();
    args.forward.mask = mask.set(), args.forward.q_start = start.view();
  }
};

/// Many queries for few keys under causality: with the last query at the last key most rows are empty.
TEST(BackwardRegression, R012_FarMoreQueriesThanKeys) {
  for (const bool at_end : {false, true}) {
    Ragged r({0, 76, 110, 256}, {0, 1, 2, 3}, at_end);
    expect_right(r, at_end ? "end" : "start");
  }
}

TEST(BackwardRegression, R013_SequencesWithoutQueriesOrKeys) {
  for (const auto& q : {std::vector<Index>{0, 0, 20, 33}, {0, 20, 20, 33}, {0, 20, 33, 33}, {0, 0, 0, 33}})
    for (const auto& kv :
         {std::vector<Index>{0, 17, 30, 41}, {0, 0, 30, 41}, {0, 30, 30, 41}, {0, 30, 41, 41}}) {
      Ragged r(q, kv, true);
      expect_right(r, "R013");
    }
}

/// Gradients that a specialisation forgot stayed 0: each is there and right at every width.
TEST(BackwardRegression, R068_EveryGradientAtEveryWidth) {
  for (const DType dtype : kNarrow)
    for (const auto& [dim, value_dim] : {std::pair<Index, Index>{1, 1},
                                         {8, 8},
                                         {20, 33},
                                         {64, 64},
                                         {80, 80},
                                         {96, 128},
                                         {128, 128},
                                         {192, 128},
                                         {256, 256},
                                         {576, 512},
                                         {64, 512}}) {
      FullBackward r(with_dtype({.name = "R068",
                                 .q_tokens = 7,
                                 .kv_tokens = 12,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = dim,
                                 .value_dim = value_dim},
                                dtype));
      r.scale = filled(2, 1 / std::sqrt(static_cast<double>(dim))), r.point_terms();
      const std::string what = text(dim, " x ", value_dim, " ", dtype);
      expect_right(r, what);
      each_backward_kernel([&](const char* kernel) {
        for (const auto& [name, tensor] : run_backward(r.args, kernel))
          EXPECT_FALSE(all_zero(tensor)) << "d" << name << " " << what;
      });
    }
}

/// Offsets of a batch this large left 32 bits elsewhere.
TEST(BackwardRegression, R070_SixteenThousandSequences) {
  BackwardRun r({.name = "R070",
                 .batch = 16384,
                 .q_tokens = 2,
                 .kv_tokens = 3,
                 .heads = 2,
                 .kv_heads = 1,
                 .head_dim = 4,
                 .value_dim = 4});
  expect_right(r, "R070");
}

}  // namespace
}  // namespace headwise::test
