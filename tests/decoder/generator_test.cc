// Generator: a text is the same whatever runs beside it; ends, cancels, preemption, refusals.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/decoder/generator.h"

#include <gtest/gtest.h>

#include "tests/base/sentence.h"
#include "tests/decoder/generator_bench.h"

namespace headwise {
namespace {

using Bench = GeneratorBench;

TEST(Generator, ATextDependsOnNothingBesideIt) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
    Bench bench(dtype);
    const std::vector<GenerateRequest> requests = some_requests(18);
    std::vector<Answer> alone;
    for (const GenerateRequest& r : requests) alone.push_back(bench.run({r}, 20, 8, {})[0]);
    EXPECT_EQ(alone, bench.run(requests, 100, 8, {.step_tokens = 256, .sequences = 16}));
    EXPECT_EQ(alone, bench.run(requests, 40, 16, {.step_tokens = 7, .sequences = 5}));
    EXPECT_EQ(alone, bench.run(requests, 20, 32, {.step_tokens = 1, .sequences = 3}));
    GeneratorStats stats;
    EXPECT_EQ(alone, bench.run(requests, 9, 8, {.step_tokens = 32, .sequences = 8}, &stats));
    EXPECT_GT(stats.adopted, 50);
    // Twice the same: the second time all prompts are in the tree.
    std::vector<GenerateRequest> twice = requests;
    twice.insert(twice.end(), requests.begin(), requests.end());
    const std::vector<Answer> both = bench.run(twice, 200, 8, {.step_tokens = 64, .sequences = 3}, &stats);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), both.begin()));
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), both.begin() + std::ssize(alone)));
  }
}

TEST(Generator, TextsThatAreSentAwayComeBackTheSame) {
  Bench bench;
  std::vector<GenerateRequest> requests;
  for (TokenId i = 0; i < 6; ++i) {
    GenerateRequest r;
    r.prompt = {i, 7}, r.max_tokens = 45, r.logprobs = 0, r.priority = i % 2;
    if (i > 2) r.sampling = {.temperature = 1, .seed = 3};
    requests.push_back(r);
  }
  std::vector<Answer> alone;
  for (const GenerateRequest& r : requests) alone.push_back(bench.run({r}, 20, 8, {})[0]);
  for (const Index pages : {6, 9, 13}) {
    GeneratorStats stats;
    EXPECT_EQ(alone, bench.run(requests, pages, 8, {.step_tokens = 32, .sequences = 6}, &stats)) << pages;
    EXPECT_GT(stats.preemptions, 3) << pages;
  }
}

TEST(Generator, GreedyIsTheDoubleForwardsLargestLogit) {
  Bench bench;
  GenerateRequest r;
  r.prompt = {3, 14, 15}, r.max_tokens = 12, r.logprobs = 2;
  const Answer a = bench.run({r}, 10, 8, {})[0];
  PlainForward plain(bench.source);
  std::vector<TokenId> text = r.prompt;
  for (const TokenId t : a.tokens) {
    const std::vector<double> l = plain.logits(text).back();
    EXPECT_EQ(t, std::max_element(l.begin(), l.end()) - l.begin());
    text.push_back(t);
  }
  EXPECT_EQ(a.tokens.size(), 12u);
  EXPECT_EQ(a.finish, Finish::length);
}

TEST(Generator, NoTokensOneTokenAndAFullContext) {
  Bench bench;
  GenerateRequest r;
  r.prompt = {1}, r.max_tokens = 0;
  EXPECT_EQ(bench.run({r}, 4, 8, {})[0].finish, Finish::length);
  r.max_tokens = 1;
  EXPECT_EQ(bench.run({r}, 4, 8, {})[0].tokens.size(), 1u);
  r.max_tokens = 128;  // one position a token; the last is never computed
  EXPECT_EQ(bench.run({r}, 16, 8, {})[0].tokens.size(), 128u);
}

TEST(Generator, WhatCanNeverRunIsRefusedAtTheDoor) {
  Bench bench;
  KvCache cache(bench.model.kv_shape(), {.bytes = 8 * 2 * 2 * 6 * 4 * 2 * 4, .page_tokens = 8});
  ASSERT_EQ(cache.pages(), 4);
  Generator g(bench.model, nullptr, cache);
  const auto say = [&](const GenerateRequest& r) {
    return sentence_of(ErrorKind::bad_argument, [&] { g.add(r); });
  };
  GenerateRequest r;
  EXPECT_EQ(say(r), "generate: the prompt has no token; give at least one");
  r.prompt = {1, 2};
  r.max_tokens = 128;
  EXPECT_EQ(say(r),
            "generate: a prompt of 2 tokens and 128 more do not fit the model's 128; shorten one of them");
  r.max_tokens = 32;
  EXPECT_EQ(say(r),
            "generate: a prompt of 2 tokens and 32 more take 5 pages; the cache has 4; give it more bytes");
  r.max_tokens = 4;
  r.prompt = {50};
  EXPECT_EQ(say(r), "generate: the prompt has token 50; ids run from 0 to 49");
  r.prompt = {1};
  for (const double t : {-1.0, 1e-9, 1e9, std::nan("")}) {
    r.sampling.temperature = t;
    EXPECT_TRUE(say(r).starts_with("sampling: temperature is ")) << t;
  }
  r.sampling = {};
  r.stop = {"x"};
  EXPECT_EQ(say(r), "generate: stop texts need a tokenizer, and this model has none");
  EXPECT_EQ(g.waiting(), 0);
}

TEST(Generator, CancelledTextsEndOnceAndOthersGoOn) {
  Bench bench;
  const std::vector<GenerateRequest> requests = some_requests(8);
  std::vector<Answer> alone;
  for (const GenerateRequest& r : requests) alone.push_back(bench.run({r}, 20, 8, {})[0]);
  for (Index when = 0; when < 6; ++when) {
    KvCache cache(bench.model.kv_shape(), {.bytes = 1 << 18, .page_tokens = 8});
    Generator g(bench.model, nullptr, cache, {.step_tokens = 16, .sequences = 4});
    std::vector<Answer> out(requests.size());
    for (const GenerateRequest& r : requests) g.add(r);
    g.cancel(99);
    for (Index step = 0;; ++step) {
      if (step == when) g.cancel(1), g.cancel(6), g.cancel(6);
      if (!g.step(bench.ctx)) break;
      cache.check();
      for (const GenerateEvent& e : g.events()) Bench::take(out[static_cast<std::size_t>(e.id)], e);
    }
    g.cancel(1);
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i].ends, 1) << i;
      if (i != 1 && i != 6) {
        EXPECT_EQ(out[i], alone[i]) << i;
      }
    }
    EXPECT_EQ(cache.stats().sequences, 0);
  }
}

}  // namespace
}  // namespace headwise
