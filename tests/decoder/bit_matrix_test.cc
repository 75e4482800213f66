// The matrix of promises: one text, made in every way the library knows, differs in no token and no log-prob.
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "headwise/decoder/forward/kv_file.h"

#include "headwise/base/context.h"
#include "tests/decoder/generator_bench.h"

namespace headwise {
namespace {

int requests_of_a_row() {
  const char* slow = std::getenv("HEADWISE_SLOW");
  return slow != nullptr && *slow == '1' ? 200 : 16;
}

/// Words of tokens and log-probs that differ, as integers.
Index differing_words(const std::vector<Answer>& a, const std::vector<Answer>& b) {
  Index words = a.size() == b.size() ? 0 : 1'000'000;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i].tokens.size() != b[i].tokens.size() || a[i].finish != b[i].finish) {
      words += 1000;
      continue;
    }
    for (std::size_t t = 0; t < a[i].tokens.size(); ++t) {
      words += a[i].tokens[t] != b[i].tokens[t];
      words += std::memcmp(&a[i].logprobs[t], &b[i].logprobs[t], sizeof(double)) != 0;
    }
  }
  return words;
}

class BitMatrix : public ::testing::TestWithParam<DType> {
 protected:
  BitMatrix() : bench(GetParam()), requests(some_requests(requests_of_a_row())) {
    for (const GenerateRequest& r : requests) alone.push_back(bench.run({r}, 20, 8, {})[0]);
  }
  void same(const char* way, const std::vector<Answer>& answers) {
    EXPECT_EQ(differing_words(alone, answers), 0) << way;
  }
  std::vector<Answer> run(const GeneratorOptions& options, Index pages = 600, Index page_tokens = 8) {
    return bench.run(requests, pages, page_tokens, options);
  }

  GeneratorBench bench;
  std::vector<GenerateRequest> requests;
  std::vector<Answer> alone;
};

TEST_P(BitMatrix, Neighbours) {
  for (const Index sequences : {2, 3, 7, 16})
    same("neighbours", run({.step_tokens = 512, .sequences = sequences}));
}

TEST_P(BitMatrix, Chunks) {
  for (const Index step : {1, 7, 16, 256}) same("chunks", run({.step_tokens = step, .sequences = 4}));
}

TEST_P(BitMatrix, Pages) {
  for (const Index page : {8, 16, 32, 64, 128, 256})
    same("pages", run({.step_tokens = 40, .sequences = 4}, 40, page));
}

TEST_P(BitMatrix, PrefixHits) {
  std::vector<GenerateRequest> twice = requests;
  twice.insert(twice.end(), requests.begin(), requests.end());
  GeneratorStats stats;
  const std::vector<Answer> both = bench.run(twice, 900, 8, {.step_tokens = 64, .sequences = 2}, &stats);
  const auto middle = both.begin() + std::ssize(alone);
  same("miss", {both.begin(), middle});
  same("hit", {middle, both.end()});
  EXPECT_GT(stats.adopted, 100);
}

TEST_P(BitMatrix, Preempted) {
  for (const Index pages : {8, 10, 14}) same("preempted", run({.step_tokens = 24, .sequences = 6}, pages));
}

TEST_P(BitMatrix, Drafts) {
  NgramDrafter ngrams;
  TinySource right(tiny_config(), 1), other(tiny_config(), 5);
  const Decoder self(right, {}, bench.ctx), wrong(other, {}, bench.ctx);
  for (const Index width : {1, 2, 4, 15}) {
    ModelDrafter always(self, 1 << 20), never(wrong, 1 << 20);
    for (Drafter* drafter : std::initializer_list<Drafter*>{&ngrams, &always, &never})
      same("drafts", run({.step_tokens = 64, .sequences = 4, .drafter = drafter, .draft_tokens = width}));
  }
}

TEST_P(BitMatrix, Statistics) {
  for (GenerateRequest& r : requests) r.watch = true;
  same("watched", run({.step_tokens = 64, .sequences = 5}));
}

TEST_P(BitMatrix, Threads) {
  for (const int threads : {1, 2, 3, 8}) {
    bench.ctx = Context({.threads = threads});
    same("threads", run({.step_tokens = 32, .sequences = 4}));
  }
}

/// Forked, saved and loaded: logits of one more token, as words.
TEST_P(BitMatrix, ForkedSavedLoaded) {
  const KvOptions options{.bytes = 1 << 20, .page_tokens = 8, .dtype = GetParam()};
  const std::string path = (std::filesystem::temp_directory_path() /
                            text("headwise_matrix_", getpid(), "_", static_cast<int>(GetParam()), ".kv"))
                               .string();
  KvCache cache(bench.model.kv_shape(), options), other(bench.model.kv_shape(), options);
  DecoderStep step;
  const auto logits = [&](KvCache& in, SequenceId id, std::span<const TokenId> tokens) {
    std::vector<DecoderRow> rows;
    for (const TokenId t : tokens) rows.push_back({id, t, false});
    rows.back().logits = true;
    EXPECT_TRUE(in.reserve(id, static_cast<Index>(tokens.size())));
    bench.model.forward(rows, in, step, bench.ctx);
    in.commit(id, tokens);
    return std::vector<float>(step.logits(0).begin(), step.logits(0).end());
  };
  Index differing = 0;
  for (const GenerateRequest& r : requests) {
    const SequenceId plain = cache.open("plain");
    const TokenId next[] = {17};
    logits(cache, plain, r.prompt);
    const SequenceId fork = cache.fork(plain);
    save_kv(cache, plain, bench.model, path);
    const SequenceId loaded = load_kv(other, bench.model, path);
    ASSERT_GE(loaded, 0);
    const auto truth = logits(cache, plain, next);
    for (const auto& got : {logits(cache, fork, next), logits(other, loaded, next)})
      for (std::size_t i = 0; i < truth.size(); ++i) differing += std::memcmp(&truth[i], &got[i], 4) != 0;
    cache.close(plain), cache.close(fork), other.close(loaded);
  }
  EXPECT_EQ(differing, 0);
  std::filesystem::remove(path);
}

/// The count can see: noise that depends on the place in a batch is found at once.
TEST_P(BitMatrix, ABrokenRuleIsSeen) {
  std::vector<GenerateRequest> broken = requests;
  for (std::size_t i = 0; i < broken.size(); ++i) broken[i].sampling.seed += i;
  EXPECT_GT(differing_words(alone, bench.run(broken, 600, 8, {.step_tokens = 64, .sequences = 4})), 0);
}

INSTANTIATE_TEST_SUITE_P(Kv, BitMatrix, ::testing::Values(DType::f32, DType::bf16, DType::i8),
                         [](const auto& of) { return std::string(name_of(of.param)); });

}  // namespace
}  // namespace headwise
