// explain: every fact of a plan in its line; cost by hand; memory- or compute-bound on both sides of a ridge.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/ops/explain/explain.h"

#include "headwise/base/context.h"

#include <gtest/gtest.h>

#include "tests/support/case.h"
#include "tests/support/random_rows.h"

namespace headwise::test {
namespace {

const Roofline kRoof{.peak_gflops = 120, .read_gbytes = 10, .threads = 2, .isa = "test"};
const Case kCase{.name = "base",
                 .batch = 2,
                 .q_tokens = 5,
                 .kv_tokens = 7,
                 .heads = 4,
                 .kv_heads = 2,
                 .head_dim = 8,
                 .value_dim = 6};

AttentionPlan plan_of(const AttentionArgs& args, const char* kernels = "cpu/online,ref") {
  return AttentionPlan(problem_of(args), Context({.threads = 2, .kernels = kernels}));
}

TEST(Explain, WholeText) {
  const CaseRun r(with_dtype(kCase, DType::f64));
  const AttentionPlan plan = plan_of(r.args);
  EXPECT_EQ(explain(plan, {.roofline = &kRoof}),
            "attention   f64 q [2 5 4 8] x k [2 7 2 8], v [2 7 2 6] -> out [2 5 4 6]\n"
            "kernel      cpu/online  refused: " +
                plan.refusals().at(0).why +
                "\n"
                "            ref         chosen\n"
                "numerics    ref f64\n"
                "workspace   0 bytes for 2 threads\n"
                "positions   q_tokens (5) and kv_tokens (7) differ: by default query 0 stands at key 0 "
                "(top-left); q_start = end, "
                "here 2, puts the last query at the last key (bottom-right)\n"
                "cost        7.84 kFLOP with every pair open, 7.94 kB, 0.99 FLOP per byte\n"
                "machine     test, 2 threads: 120.0 GFLOP/s f32, 10.0 GB/s read (measured): ridge at 12.00 "
                "FLOP per byte\n"
                "bound       memory-bound\n");
}

TEST(Explain, CostByHand) {
  const CaseRun r(kCase);
  const AttentionCost cost = cost_of(problem_of(r.args));
  EXPECT_EQ(cost.flops, 2.0 * 2 * 4 * 5 * 7 * (8 + 6));
  EXPECT_EQ(cost.bytes, 4.0 * 2 * (5 * 4 * 8 + 7 * 2 * 8 + 7 * 2 * 6 + 5 * 4 * 6 + 4 * 5));
}

TEST(Explain, DecodeStaysAtTwoGroupsPerByte) {
  // 2 x group x q_tokens / bytes per element, whatever the number of keys: what the keys and values cost.
  for (const Index keys : {1000, 100000}) {
    AttentionProblem p;
    p.dtype = DType::bf16, p.batch = 8, p.q_tokens = 1, p.kv_tokens = keys;
    p.heads.q = HeadLayout::split(32, 128), p.heads.k = p.heads.v = HeadLayout::grouped(32, 8, 128);
    EXPECT_NEAR(cost_of(p).flops_per_byte(), 2 * 4 * 1 / 2.0, 0.02);
  }
}

TEST(Explain, BothSidesOfTheRidge) {
  const CaseRun small({.name = "one query", .kv_tokens = 64, .head_dim = 64, .value_dim = 64});
  const CaseRun large({.name = "many", .q_tokens = 256, .kv_tokens = 256, .head_dim = 64, .value_dim = 64});
  EXPECT_NE(explain(plan_of(small.args), {.roofline = &kRoof}).find("bound       memory-bound\n"),
            std::string::npos);
  EXPECT_NE(explain(plan_of(large.args), {.roofline = &kRoof}).find("bound       compute-bound\n"),
            std::string::npos);
}

TEST(Explain, PositionsAreWordsOnlyWhenLengthsDiffer) {
  const CaseRun equal({.name = "equal", .q_tokens = 4, .kv_tokens = 4});
  EXPECT_EQ(alignment_words(problem_of(equal.args)), "");
  CaseRun longer({.name = "longer", .q_tokens = 9, .kv_tokens = 4});
  EXPECT_EQ(alignment_words(problem_of(longer.args)),
            "q_tokens (9) and kv_tokens (4) differ: by default query 0 stands at key 0 (top-left); q_start = "
            "end, here -5, puts "
            "the last query at the last key (bottom-right)");
  Tensor qo = tensor_of(std::vector<Index>{0, 2, 9}), ko = tensor_of(std::vector<Index>{0, 3, 4});
  longer.args.q_offsets = qo.view(), longer.args.kv_offsets = ko.view();
  EXPECT_EQ(alignment_words(problem_of(longer.args)),
            "q_tokens (at most 7) and kv_tokens (at most 3) differ: by default each sequence's query 0 "
            "stands at key 0 "
            "(top-left); q_start = end puts its last query at its last key (bottom-right)");
}

TEST(Explain, ShapesAsTree) {
  CaseRun r({.name = "tree",
             .batch = 2,
             .q_tokens = 5,
             .kv_tokens = 5,
             .heads = 4,
             .kv_heads = 2,
             .head_dim = 8,
             .value_dim = 6});
  Tensor sinks = floats_of({0, 0, 0, 0});
  r.args.inputs.sinks = sinks.view();
  r.args.inputs.softcap = 5;
  const std::string s = explain(plan_of(r.args), {.shapes = true, .roofline = &kRoof});
  EXPECT_EQ(s.substr(s.find("\nx [") + 1),
            "x [2 5 model]                               [batch tokens model_dim]\n"
            "|- q [2 5 4 8]                              [batch q_tokens heads head_dim]  <- project\n"
            "|- k [2 5 2 8]                              [batch kv_tokens kv_heads head_dim]  <- project\n"
            "|- v [2 5 2 6]                              [batch kv_tokens kv_heads value_dim]  <- project\n"
            "`- scores [2 4 5 5]                         [batch heads q_tokens kv_tokens], in tiles, never "
            "whole  <- q.k, scale, softcap, mask\n"
            "   `- weights [2 4 5 5]                     rows and their sink sum to 1  <- sink, normalize "
            "over kv_tokens\n"
            "      `- out [2 5 4 6]                      [batch q_tokens heads value_dim]  <- weigh v\n"
            "         `- merged [2 5 24]                 [batch tokens heads*value_dim], a view of out  <- "
            "merge\n");
}

TEST(Explain, ShapesAsMermaid) {
  const CaseRun r(kCase);
  const std::string s = explain(plan_of(r.args), {.mermaid = true, .roofline = &kRoof});
  EXPECT_EQ(s.substr(s.find("flowchart")),
            "flowchart TD\n"
            "  x[\"x [2 5 model]<br/>[batch tokens model_dim]\"]\n"
            "  source[\"source [2 7 model]<br/>[batch kv_tokens model_dim]\"]\n"
            "  q[\"q [2 5 4 8]<br/>[batch q_tokens heads head_dim]\"]\n"
            "  k[\"k [2 7 2 8]<br/>[batch kv_tokens kv_heads head_dim]\"]\n"
            "  v[\"v [2 7 2 6]<br/>[batch kv_tokens kv_heads value_dim]\"]\n"
            "  scores[\"scores [2 4 5 7]<br/>[batch heads q_tokens kv_tokens], in tiles, never whole\"]\n"
            "  weights[\"weights [2 4 5 7]<br/>rows sum to 1\"]\n"
            "  out[\"out [2 5 4 6]<br/>[batch q_tokens heads value_dim]\"]\n"
            "  merged[\"merged [2 5 24]<br/>[batch tokens heads*value_dim], a view of out\"]\n"
            "  x -->|\"project\"| q\n"
            "  source -->|\"project\"| k\n"
            "  source -->|\"project\"| v\n"
            "  q -->|\"q.k, scale, mask\"| scores\n"
            "  k --> scores\n"
            "  scores -->|\"normalize over kv_tokens\"| weights\n"
            "  weights -->|\"weigh v\"| out\n"
            "  v --> out\n"
            "  out -->|\"merge\"| merged\n");
}

TEST(Explain, Json) {
  const CaseRun r(kCase);
  const std::string s = explain_json(plan_of(r.args, "ref"), {.roofline = &kRoof});
  EXPECT_EQ(s,
            "{\"op\": \"attention\", \"problem\": {\"dtype\": \"f32\", \"batch\": 2, \"q_tokens\": 5, "
            "\"kv_tokens\": 7, \"heads\": 4, "
            "\"kv_heads\": 2, \"head_dim\": 8, \"value_dim\": 6, \"ragged\": false}, \"kernel\": \"ref\", "
            "\"refusals\": [], "
            "\"numerics\": \"ref f64\", \"device\": \"cpu\", \"workspace_bytes\": 0, \"threads\": 2, "
            "\"positions\": \"" +
                alignment_words(problem_of(r.args)) +
                "\", \"flops\": 7840, \"bytes\": 3968, \"flops_per_byte\": 1.9758064516129032, \"isa\": "
                "\"test\", \"peak_gflops\": 120, "
                "\"read_gbytes\": 10, \"ridge\": 12, \"bound\": \"memory-bound\"}");
}

TEST(Explain, RoofsAreMeasured) {
  const Roofline roof = measure_roofline(1);
  EXPECT_GT(roof.peak_gflops, 0.1);
  EXPECT_GT(roof.read_gbytes, 0.1);
  EXPECT_EQ(roof.threads, 1);
  EXPECT_FALSE(roof.isa.empty());
}

}  // namespace
}  // namespace headwise::test
