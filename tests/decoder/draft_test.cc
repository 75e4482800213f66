// Drafts: right, wrong or absurd guesses change no token and no log-prob of a text.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/decoder/drafter.h"

#include "headwise/base/context.h"

#include "tests/base/sentence.h"
#include "tests/decoder/generator_bench.h"

namespace headwise {
namespace {

/// Guesses from a list of texts: what follows where `tokens` is their beginning, with some of it spoilt.
class KnowingDrafter final : public Drafter {
 public:
  KnowingDrafter(std::vector<std::vector<TokenId>> texts, Index wrong_from, Index width)
      : texts_(std::move(texts)), wrong_from_(wrong_from), width_(width) {}
  std::vector<TokenId> guess(const DraftPlace& place, Context&) override {
    std::vector<TokenId> out;
    for (const auto& t : texts_) {
      if (t.size() <= place.tokens.size() || !std::equal(place.tokens.begin(), place.tokens.end(), t.begin()))
        continue;
      for (Index i = 0; i < std::min(place.most, width_); ++i) {
        const std::size_t at = place.tokens.size() + static_cast<std::size_t>(i);
        const TokenId right = at < t.size() ? t[at] : 0;
        out.push_back(i >= wrong_from_ ? (right + 1) % 50 : right);
      }
      break;
    }
    most_ = std::max(most_, static_cast<Index>(out.size()));
    return out;
  }
  void forget(std::int64_t id) override { forgotten_.push_back(id); }
  Index most_ = 0;
  std::vector<std::int64_t> forgotten_;

 private:
  std::vector<std::vector<TokenId>> texts_;
  Index wrong_from_, width_;
};

std::vector<std::vector<TokenId>> whole(const std::vector<GenerateRequest>& requests,
                                        const std::vector<Answer>& answers) {
  std::vector<std::vector<TokenId>> texts;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    texts.push_back(requests[i].prompt);
    texts.back().insert(texts.back().end(), answers[i].tokens.begin(), answers[i].tokens.end());
  }
  return texts;
}

TEST(Drafts, TextsAndLogprobsAreThoseWithout) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
    GeneratorBench bench(dtype);
    const std::vector<GenerateRequest> requests = some_requests(12);
    const std::vector<Answer> plain = bench.run(requests, 100, 8, {});
    for (const Index width : {1, 2, 5, 15})
      for (const Index wrong : {0, 1, 3, 99}) {
        KnowingDrafter drafter(whole(requests, plain), wrong, width);
        GeneratorStats stats;
        EXPECT_EQ(plain, bench.run(requests, 60, 8, {.step_tokens = 64, .sequences = 8, .drafter = &drafter},
                                   &stats))
            << width << " " << wrong;
        EXPECT_TRUE(wrong != 0 || stats.right == 0);
        EXPECT_TRUE(wrong != 99 || (stats.right > 0) == (stats.guessed > 0));
      }
  }
}

/// A wrong guess costs a row: who is never right is asked ever more seldom.
TEST(Drafts, WrongGuessesGetRare) {
  GeneratorBench bench;
  std::vector<GenerateRequest> requests = some_requests(1);
  requests[0].max_tokens = 100, requests[0].ignore_end = true;
  const std::vector<Answer> plain = bench.run(requests, 100, 8, {});
  KnowingDrafter drafter(whole(requests, plain), 0, 15);
  GeneratorStats stats;
  EXPECT_EQ(plain, bench.run(requests, 100, 8, {.step_tokens = 64, .drafter = &drafter}, &stats));
  EXPECT_EQ(stats.right, 0);
  EXPECT_EQ(stats.guessed, 4);  // behind 0, 9, 26 and 59 tokens
}

TEST(Drafts, NgramsAndModelsChangeNothingEither) {
  GeneratorBench bench;
  const std::vector<GenerateRequest> requests = some_requests(12);
  const std::vector<Answer> plain = bench.run(requests, 100, 8, {});
  NgramDrafter ngrams;
  EXPECT_EQ(plain, bench.run(requests, 30, 8, {.step_tokens = 20, .sequences = 5, .drafter = &ngrams}));
  // The model itself is always right, one with other weights hardly ever.
  for (const std::uint64_t seed : {1, 2}) {
    TinySource source(tiny_config(), seed);
    const Decoder model(source, {}, bench.ctx);
    ModelDrafter drafter(model, 1 << 20);
    GeneratorStats stats;
    EXPECT_EQ(plain, bench.run(requests, 100, 8, {.drafter = &drafter}, &stats)) << seed;
    EXPECT_TRUE(seed != 1 || stats.right == stats.guessed) << stats.right << " of " << stats.guessed;
    EXPECT_GT(stats.guessed, 10);
  }
}

TEST(Drafts, FewPagesPreemptAndStayTheSame) {
  GeneratorBench bench;
  std::vector<GenerateRequest> requests;
  for (TokenId i = 0; i < 6; ++i) {
    GenerateRequest r;
    r.prompt = {i, 7}, r.max_tokens = 45, r.logprobs = 0, r.priority = i % 2;
    if (i > 2) r.sampling = {.temperature = 1, .seed = 3};
    requests.push_back(r);
  }
  const std::vector<Answer> plain = bench.run(requests, 100, 8, {});
  for (const Index pages : {6, 9, 13}) {
    KnowingDrafter drafter(whole(requests, plain), 4, 15);
    GeneratorStats stats;
    EXPECT_EQ(plain, bench.run(requests, pages, 8, {.step_tokens = 32, .sequences = 6, .drafter = &drafter},
                               &stats));
    EXPECT_GT(stats.preemptions, 3) << pages;
    EXPECT_GE(drafter.forgotten_.size(), requests.size());
  }
}

TEST(Drafts, NoGuessPassesTheLastToken) {
  GeneratorBench bench;
  GenerateRequest r;
  r.prompt = {1}, r.max_tokens = 128, r.logprobs = 0;
  const std::vector<Answer> plain = bench.run({r}, 16, 8, {});
  auto texts = whole({r}, plain);
  texts[0].resize(200, 3);
  KnowingDrafter drafter(texts, 99, 15);
  EXPECT_EQ(plain, bench.run({r}, 16, 8, {.drafter = &drafter}));
  EXPECT_EQ(drafter.most_, 15);
}

/// The definition, without any shortcut.
std::vector<TokenId> slow_ngram(std::span<const TokenId> all, Index most) {
  const auto n = static_cast<Index>(all.size());
  for (Index length = 4; length >= 1; --length)
    for (Index end = n - 1; end >= length; --end) {
      bool same = n > length;
      for (Index i = 1; same && i <= length; ++i)
        same = all[static_cast<std::size_t>(end - i)] == all[static_cast<std::size_t>(n - i)];
      if (!same) continue;
      std::vector<TokenId> out;
      for (Index i = end; i < n && static_cast<Index>(out.size()) < most; ++i)
        out.push_back(all[static_cast<std::size_t>(i)]);
      return out;
    }
  return {};
}

TEST(Drafts, NgramsFollowTheirDefinition) {
  std::mt19937 random(4);
  Context ctx({.threads = 1});
  NgramDrafter drafter;
  Index found = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<TokenId> text(random() % 40 + 1);
    const auto kinds = random() % 6 + 1;
    for (TokenId& t : text) t = static_cast<TokenId>(random() % kinds);
    const Index most = static_cast<Index>(random() % 16);
    const auto got = drafter.guess({.tokens = text, .most = most}, ctx);
    EXPECT_EQ(got, slow_ngram(text, most));
    found += !got.empty();
  }
  EXPECT_GT(found, 1000);
}

TEST(Drafts, RefusedInWords) {
  GeneratorBench bench;
  KvCache cache(bench.model.kv_shape(), {.bytes = 1 << 18, .page_tokens = 8});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [&] { Generator(bench.model, nullptr, cache, {.draft_tokens = 16}); }),
            "generate: got 16 guesses at once; 0 to 15 are checked in one step");
}

}  // namespace
}  // namespace headwise
