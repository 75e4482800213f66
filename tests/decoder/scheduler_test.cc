// The scheduler's laws over many random steps: requests end once and in order, no page is lost, every step
// does something, texts are those they are alone.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>

#include "tests/decoder/generator_bench.h"

namespace headwise {
namespace {

/// As small as a model can be: the scheduler is what is looked at.
DecoderConfig smallest() {
  DecoderConfig c;
  c.family = "llama";
  c.layers = 1, c.model_dim = 4, c.feed_dim = 4, c.heads = 1, c.kv_heads = 1, c.head_dim = 4;
  c.vocabulary = 8, c.positions = 64, c.tied = true;
  return c;
}

class Simulation {
 public:
  Simulation(unsigned seed, Index pages, const GeneratorOptions& options)
      : random_(seed),
        source_(smallest()),
        model_(source_, {}, ctx_),
        cache_(model_.kv_shape(), {.bytes = pages * kPage, .page_tokens = 8}),
        generator_(model_, nullptr, cache_, options) {
    EXPECT_EQ(cache_.pages(), pages);
  }

  void run(Index steps) {
    for (Index step = 0; step < steps && !testing::Test::HasFailure(); ++step) {
      while (random_() % 4 == 0 && open_.size() < 40) add();
      while (random_() % 16 == 0 && next_ > 0) cancel();
      one_step();
      if (step % 64 == 0) cache_.check();
    }
    while (!open_.empty() && !testing::Test::HasFailure()) one_step();
    EXPECT_FALSE(generator_.step(ctx_));  // an empty step is no step
    cache_.check();
    EXPECT_EQ(cache_.stats().sequences, 0);
    EXPECT_EQ(cache_.stats().held, 0);
    EXPECT_GT(generator_.stats().preemptions, steps / 1000);
    EXPECT_GT(ended_, steps / 20);
  }

 private:
  static constexpr Index kPage = 8 * 2 * 4 * 4;
  struct Known {
    GenerateRequest request;
    std::vector<TokenId> tokens;
    bool cancelled = false, begun = false;
  };

  void add() {
    GenerateRequest r;
    for (auto n = 1 + random_() % (random_() % 2 == 0 ? 1 : 30); n > 0; --n)
      r.prompt.push_back(static_cast<TokenId>(random_() % 2));
    r.max_tokens = static_cast<Index>(random_() % 20);
    r.priority = static_cast<Index>(random_() % 3);
    r.tenant = random_() % 3 == 0 ? "a" : "b";
    if (random_() % 2 == 0) r.sampling = {.temperature = 1, .seed = random_() % 9};
    const RequestId id = generator_.add(r);
    ASSERT_EQ(id, next_++);
    open_[id].request = r;
  }
  /// Of any number that was ever given: waiting, running or long gone.
  void cancel() {
    const auto id = static_cast<RequestId>(random_() % static_cast<unsigned>(next_));
    generator_.cancel(id);
    if (const auto found = open_.find(id); found != open_.end()) found->second.cancelled = true;
  }

  void one_step() {
    const bool work = !open_.empty();
    const GeneratorStats before = generator_.stats();
    ASSERT_EQ(generator_.step(ctx_), work);
    const GeneratorStats after = generator_.stats();
    // Progress: rows were computed, or somebody ended.
    ASSERT_TRUE(!work || after.rows > before.rows || !generator_.events().empty());
    for (const GenerateEvent& e : generator_.events()) take(e);
    ASSERT_EQ(generator_.running() + generator_.waiting(), std::ssize(open_));
  }
  void take(const GenerateEvent& e) {
    const auto found = open_.find(e.id);
    ASSERT_NE(found, open_.end()) << "request " << e.id << " spoke after its end";
    Known& k = found->second;
    if (!e.tokens.empty() && !std::exchange(k.begun, true)) check_order(e.id, k);
    k.tokens.insert(k.tokens.end(), e.tokens.begin(), e.tokens.end());
    ASSERT_LE(std::ssize(k.tokens), k.request.max_tokens);
    if (e.finish == Finish::none) return;
    ASSERT_EQ(e.finish, k.cancelled ? Finish::cancelled : Finish::length) << e.error;
    ASSERT_TRUE(k.cancelled || std::ssize(k.tokens) == k.request.max_tokens);
    if (!k.cancelled && ++ended_ % 50 == 0) check_text(k);
    open_.erase(found);
  }
  /// A prompt of one token is computed in the step that lets it in: of one priority, nobody who came earlier
  /// with such a prompt may still wait for a first token.
  void check_order(RequestId id, const Known& k) {
    if (k.request.prompt.size() != 1) return;
    for (const auto& [other, known] : open_) {
      if (other >= id) break;
      if (known.request.priority != k.request.priority || known.request.prompt.size() != 1) continue;
      ASSERT_TRUE(known.begun || known.cancelled || known.request.max_tokens == 0)
          << id << " was served before " << other;
    }
  }
  void check_text(const Known& k) {
    KvCache cache(model_.kv_shape(), {.bytes = 8 * kPage, .page_tokens = 8});
    Generator alone(model_, nullptr, cache);
    alone.add(k.request);
    std::vector<TokenId> tokens;
    while (alone.step(ctx_))
      for (const GenerateEvent& e : alone.events())
        tokens.insert(tokens.end(), e.tokens.begin(), e.tokens.end());
    ASSERT_EQ(tokens, k.tokens);
  }

  std::mt19937 random_;
  Context ctx_{{.threads = 1}};
  TinySource source_;
  Decoder model_;
  KvCache cache_;
  Generator generator_;
  std::map<RequestId, Known> open_;
  RequestId next_ = 0;
  Index ended_ = 0;
};

TEST(Scheduler, LawsHoldOverRandomSteps) {
  const char* slow = std::getenv("HEADWISE_SLOW");
  const Index steps = slow != nullptr && *slow == '1' ? 250'000 : 1500;
  Simulation(1, 8, {.step_tokens = 16, .sequences = 6}).run(steps);
  Simulation(2, 12, {.step_tokens = 64, .sequences = 16}).run(steps);
  Simulation(3, 7, {.step_tokens = 3, .sequences = 4}).run(steps);
  NgramDrafter drafter;
  Simulation(4, 10, {.step_tokens = 24, .sequences = 8, .drafter = &drafter}).run(steps);
}

TEST(Scheduler, MemoryStaysFlatOverManyRequests) {
  Context ctx({.threads = 1});
  TinySource source(smallest());
  const Decoder model(source, {}, ctx);
  KvCache cache(model.kv_shape(), {.bytes = 8 * 8 * 2 * 4 * 4, .page_tokens = 8});
  Generator g(model, nullptr, cache, {.step_tokens = 16, .sequences = 4});
  std::mt19937 random(3);
  const auto bytes_after = [&](int requests) {  // in use when all have ended; 0 under a sanitizer's malloc
    for (int i = 0; i < requests; ++i) {
      GenerateRequest r;
      for (auto n = 1 + random() % 20; n > 0; --n) r.prompt.push_back(static_cast<TokenId>(random() % 8));
      r.max_tokens = 3, r.tenant = random() % 2 == 0 ? "a" : "b";
      g.add(r);
      if (random() % 3 == 0) g.cancel(g.add(r));
      while (i % 4 == 3 && g.step(ctx)) continue;
    }
    while (g.step(ctx)) continue;
    EXPECT_EQ(cache.stats().sequences, 0);
    return static_cast<Index>(mallinfo2().uordblks);
  };
  const Index early = bytes_after(400), late = bytes_after(2000);
  EXPECT_LT(late, early + 32'768);
}

/// A text that is sent away stands before all that came after it.
TEST(Scheduler, WhoWasPutOffStaysFirst) {
  Context ctx({.threads = 1});
  TinySource source(smallest());
  const Decoder model(source, {}, ctx);
  KvCache cache(model.kv_shape(), {.bytes = 4 * 8 * 2 * 4 * 4, .page_tokens = 8});
  Generator g(model, nullptr, cache, {.step_tokens = 8, .sequences = 3});
  GenerateRequest r;
  for (TokenId i = 0; i < 6; ++i) {
    r.prompt = {i}, r.max_tokens = 24;
    g.add(r);
  }
  std::vector<RequestId> ends;
  while (g.step(ctx))
    for (const GenerateEvent& e : g.events())
      if (e.finish != Finish::none) ends.push_back(e.id);
  EXPECT_GT(g.stats().preemptions, 0);
  EXPECT_EQ(ends, (std::vector<RequestId>{0, 1, 2, 3, 4, 5}));
}

/// Cancels the request of its choice while a step is being planned.
class CancellingDrafter final : public Drafter {
 public:
  std::vector<TokenId> guess(const DraftPlace&, Context&) override {
    generator->cancel(which);
    return {1, 2};
  }
  void forget(std::int64_t) override {}
  Generator* generator = nullptr;
  RequestId which = 0;
};

TEST(Scheduler, ACancelInsideAStepTouchesNobodyElse) {
  GeneratorBench bench;
  std::vector<GenerateRequest> requests = some_requests(6);
  for (GenerateRequest& r : requests) r.max_tokens = 15;
  std::vector<Answer> alone;
  for (const GenerateRequest& r : requests) alone.push_back(bench.run({r}, 20, 8, {})[0]);
  for (RequestId which = 0; which < 6; ++which) {
    KvCache cache(bench.model.kv_shape(), {.bytes = 1 << 18, .page_tokens = 8});
    CancellingDrafter drafter;
    Generator g(bench.model, nullptr, cache, {.step_tokens = 32, .drafter = &drafter});
    drafter.generator = &g, drafter.which = which;
    std::vector<Answer> out(requests.size());
    for (const GenerateRequest& r : requests) g.add(r);
    while (g.step(bench.ctx)) {
      cache.check();
      for (const GenerateEvent& e : g.events()) GeneratorBench::take(out[static_cast<std::size_t>(e.id)], e);
    }
    for (std::size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i].ends, 1);
      if (static_cast<RequestId>(i) == which)
        EXPECT_EQ(out[i].finish, Finish::cancelled);
      else
        EXPECT_EQ(out[i], alone[i]) << i;
    }
    EXPECT_EQ(cache.stats().held, 0);
  }
}

}  // namespace
}  // namespace headwise
