// Head policies: pages given back and pages closed by a mask give the same bits; windows bound what is held.
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "tests/base/sentence.h"
#include "tests/decoder/generator_bench.h"

namespace headwise {
namespace {

/// Answers of all requests over a cache with these options.
std::vector<Answer> answers(GeneratorBench& bench, const std::vector<GenerateRequest>& requests,
                            const KvOptions& kv, const GeneratorOptions& options,
                            const Decoder* model = nullptr) {
  const Decoder& with = model != nullptr ? *model : bench.model;
  KvCache cache(with.kv_shape(), kv);
  std::vector<Answer> out(requests.size());
  Generator g(with, nullptr, cache, options);
  for (const GenerateRequest& r : requests) g.add(r);
  while (g.step(bench.ctx)) {
    cache.check();
    for (const GenerateEvent& e : g.events()) GeneratorBench::take(out[static_cast<std::size_t>(e.id)], e);
  }
  EXPECT_EQ(cache.stats().sequences, 0);
  return out;
}

std::vector<HeadPolicy> random_plan(const KvShape& s, std::mt19937& random) {
  std::vector<HeadPolicy> plan;
  for (Index i = 0; i < s.layers * s.kv_heads; ++i) {
    HeadPolicy p;
    if (random() % 3 > 0)
      p.window = static_cast<Index>(1 + random() % 20), p.first = static_cast<Index>(random() % 12);
    if (random() % 4 == 0) p.dtype = DType::bf16;
    if (random() % 5 == 0) p.dtype = DType::i8;
    plan.push_back(p);
  }
  return plan;
}

TEST(HeadPolicies, PagesGoneAndPagesClosedAreTheSameBits) {
  GeneratorBench bench;
  std::mt19937 random(2);
  std::vector<GenerateRequest> requests = some_requests(8);
  for (GenerateRequest& r : requests) r.max_tokens = 50;
  NgramDrafter ngrams;
  for (int round = 0; round < 6; ++round) {
    KvOptions kv{.bytes = 1 << 20, .page_tokens = 8, .heads = random_plan(bench.model.kv_shape(), random)};
    kv.drop = false;
    const auto closed = answers(bench, requests, kv, {.step_tokens = 256, .sequences = 1});
    kv.drop = true;
    EXPECT_EQ(closed, answers(bench, requests, kv, {.step_tokens = 256, .sequences = 8}));
    EXPECT_EQ(closed, answers(bench, requests, kv, {.step_tokens = 5, .sequences = 3}));
    EXPECT_EQ(closed, answers(bench, requests, kv, {.step_tokens = 40, .sequences = 4, .drafter = &ngrams}));
    kv.bytes = 1 << 15;  // few pages: texts are sent away and come back
    EXPECT_EQ(closed, answers(bench, requests, kv, {.step_tokens = 16, .sequences = 4}));
  }
}

TEST(HeadPolicies, FullHeadsAreThoseOfACacheWithoutAPlan) {
  GeneratorBench bench;
  const std::vector<GenerateRequest> requests = some_requests(10);
  const KvShape s = bench.model.kv_shape();
  for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
    KvOptions kv{.bytes = 1 << 19, .page_tokens = 8, .dtype = dtype};
    const auto plain = answers(bench, requests, kv, {});
    kv.heads.assign(static_cast<std::size_t>(s.layers * s.kv_heads), {});
    EXPECT_EQ(plain, answers(bench, requests, kv, {}));
    kv.heads.assign(kv.heads.size(), HeadPolicy{.window = 1000, .first = 3});
    EXPECT_EQ(plain, answers(bench, requests, kv, {}));
  }
}

/// A window of every head is what a model with a sliding window computes.
TEST(HeadPolicies, AWindowOfAllHeadsIsASlidingModel) {
  GeneratorBench bench;
  DecoderConfig config = tiny_config();
  config.windows.assign(static_cast<std::size_t>(config.layers), 6);
  config.sliding_rope = config.rope;
  TinySource source(config, 1);
  const Decoder sliding(source, {}, bench.ctx);
  std::vector<GenerateRequest> requests = some_requests(6);
  for (GenerateRequest& r : requests) r.max_tokens = 40;
  KvOptions kv{.bytes = 1 << 20, .page_tokens = 8};
  const auto truth = answers(bench, requests, kv, {}, &sliding);
  kv.heads.assign(static_cast<std::size_t>(config.layers * config.kv_heads), HeadPolicy{.window = 6});
  EXPECT_EQ(truth, answers(bench, requests, kv, {}));
  EXPECT_NE(truth, answers(bench, requests, {.bytes = 1 << 20, .page_tokens = 8}, {}));
}

TEST(HeadPolicies, AWindowHoldsFewPages) {
  GeneratorBench bench;
  const KvShape s = bench.model.kv_shape();
  KvOptions kv{.bytes = 1 << 20, .page_tokens = 8};
  kv.heads.assign(static_cast<std::size_t>(s.layers * s.kv_heads), HeadPolicy{.window = 16, .first = 8});
  KvCache cache(s, kv);
  const SequenceId id = cache.open();
  DecoderStep step;
  for (TokenId t = 0; t < 120; ++t) {
    const DecoderRow row{id, t % 50, true};
    ASSERT_TRUE(cache.reserve(id, 1));
    bench.model.forward(std::span(&row, 1), cache, step, bench.ctx);
    cache.commit(id, std::span(&row.token, 1));
    cache.check();
    EXPECT_LE(cache.stats().held, 1 + 3);  // the first page; 16 tokens lie in three pages at most
  }
  EXPECT_EQ(cache.length(id), 120);
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { cache.truncate(id, 50); }),
            "kv cache: sequence 0 gave tokens before 104 back; it cannot be cut to 50");
  const SequenceId fork = cache.fork(id);
  cache.check();
  cache.close(id), cache.close(fork);
  cache.check();
}

TEST(HeadPolicies, TextsOfPolicies) {
  for (const char* t : {"full", "window:5,first:0", "window:256,first:16,dtype:i8", "full,dtype:bf16"})
    EXPECT_EQ(to_text(parse_head_policy(t)), t);
  const auto says = [](const char* t) {
    return sentence_of(ErrorKind::bad_argument, [&] { parse_head_policy(t); });
  };
  const std::string end = "; write full or window:N,first:M, and dtype:T behind it";
  EXPECT_EQ(says(""), "head policy: \"\" keeps nothing" + end);
  EXPECT_EQ(says("heavy:8"),
            "head policy: \"heavy:8\" has the part \"heavy:8\", which is not known there" + end);
  EXPECT_EQ(says("window:0"),
            "head policy: \"window:0\" has the number \"0\", which must be 1 or more" + end);
  EXPECT_EQ(says("window:9x"),
            "head policy: \"window:9x\" has the number \"9x\", which must be 1 or more" + end);
  EXPECT_EQ(says("full,dtype:i4"),
            "head policy: \"full,dtype:i4\" has a dtype other than f32, bf16, f16, i8 and e4m3" + end);
  GeneratorBench bench;
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_shape, [&] { KvCache(bench.model.kv_shape(), {.heads = {HeadPolicy{}}}); }),
      text("kv cache: got 1 head policies for ", bench.model.kv_shape().layers, " layers of ",
           bench.model.kv_shape().kv_heads, " kv heads"));
}

}  // namespace
}  // namespace headwise
