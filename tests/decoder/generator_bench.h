// GeneratorBench: a tiny model, requests of every kind, and what a Generator answers them.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <random>

#include "headwise/base/context.h"
#include "headwise/decoder/generator.h"
#include "tests/decoder/tiny_model.h"

namespace headwise {

struct Answer {
  std::vector<TokenId> tokens;
  std::vector<double> logprobs;
  Finish finish = Finish::none;
  Index events = 0, ends = 0;
  friend bool operator==(const Answer& a, const Answer& b) {
    return a.tokens == b.tokens && a.logprobs == b.logprobs && a.finish == b.finish;
  }
};

class GeneratorBench {
 public:
  explicit GeneratorBench(DType kv = DType::f32)
      : source(tiny_config()), model(source, {}, ctx), kv_dtype(kv) {}

  std::vector<Answer> run(const std::vector<GenerateRequest>& requests, Index pages, Index page_tokens,
                          const GeneratorOptions& options, GeneratorStats* stats = nullptr) {
    const KvShape s = model.kv_shape();
    const Index number = size_of(kv_dtype) == 1 ? s.head_dim + 4 : s.head_dim * size_of(kv_dtype);
    KvCache cache(s, {.bytes = pages * page_tokens * s.layers * s.kv_heads * 2 * number,
                      .page_tokens = page_tokens,
                      .dtype = kv_dtype});
    EXPECT_EQ(cache.pages(), pages);
    std::vector<Answer> out(requests.size());
    {
      Generator g(model, nullptr, cache, options);
      for (const GenerateRequest& r : requests) g.add(r);
      while (g.step(ctx)) {
        cache.check();
        for (const GenerateEvent& e : g.events()) take(out[static_cast<std::size_t>(e.id)], e);
      }
      if (stats != nullptr) *stats = g.stats();
      EXPECT_EQ(g.running() + g.waiting(), 0);
    }
    cache.check();
    EXPECT_EQ(cache.stats().sequences, 0);
    for (const Answer& a : out) EXPECT_EQ(a.ends, 1);
    return out;
  }
  static void take(Answer& a, const GenerateEvent& e) {
    a.tokens.insert(a.tokens.end(), e.tokens.begin(), e.tokens.end());
    for (const Drawn& d : e.drawn) a.logprobs.push_back(d.logprob);
    a.finish = e.finish;
    ++a.events, a.ends += e.finish != Finish::none;
  }

  Context ctx{{.threads = 2}};
  TinySource source;
  Decoder model;
  DType kv_dtype;
};

/// Prompts that share beginnings, greedy and drawn, with penalties, of different lengths.
inline std::vector<GenerateRequest> some_requests(int n) {
  std::mt19937 random(9);
  std::vector<TokenId> shared(20);
  for (TokenId& t : shared) t = static_cast<TokenId>(random() % 50);
  std::vector<GenerateRequest> all;
  for (int i = 0; i < n; ++i) {
    GenerateRequest r;
    if (i % 2 == 0) r.prompt.assign(shared.begin(), shared.begin() + static_cast<Index>(random() % 20) + 1);
    for (auto more = random() % 12; more > 0 || r.prompt.empty(); more -= more > 0)
      r.prompt.push_back(static_cast<TokenId>(random() % 50));
    r.max_tokens = static_cast<Index>(1 + random() % 20);
    r.logprobs = 0;
    if (i % 3 != 0) r.sampling = {.temperature = 0.9, .top_k = 30, .top_p = 0.95, .seed = random() % 5};
    if (i % 4 == 1) r.sampling.repetition_penalty = 1.3, r.sampling.frequency_penalty = 0.2;
    r.priority = i % 3;
    all.push_back(r);
  }
  return all;
}

}  // namespace headwise
