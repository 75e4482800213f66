// KvCache: random use against a model of plain vectors, what a page promises, refusals.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/cache/kv_cache.h"

#include "headwise/base/context.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "tests/base/sentence.h"

namespace headwise {
namespace {

using Ids = std::vector<std::int32_t>;

/// Keys and values that tell from which tokens they were computed: as in a model, of the whole text so far.
float mark(const Ids& text, std::size_t n, Index layer, bool key) {
  std::uint32_t h = key ? 17 : 91;
  for (std::size_t i = 0; i <= n; ++i) h = h * 31 + static_cast<std::uint32_t>(text[i]) + 1;
  return static_cast<float>((h + static_cast<std::uint32_t>(layer)) % 4096);
}

class Driver {
 public:
  explicit Driver(Index pages, unsigned seed)
      : random(seed), cache({2, 2, 3, 2}, {.bytes = pages * kPage, .page_tokens = 8}) {}
  static constexpr Index kPage = 2 * 8 * 2 * (3 + 2) * 4;

  void write(SequenceId id, const Ids& more) {
    Ids all = texts[id];
    const std::size_t done = all.size();
    all.insert(all.end(), more.begin(), more.end());
    const auto n = static_cast<Index>(more.size());
    for (Index layer = 0; layer < 2; ++layer) {
      Tensor k(DType::f32, {n, 2, 3}), v(DType::f32, {n, 2, 2});
      for (std::size_t t = 0; t < more.size(); ++t) {
        for (std::size_t i = 0; i < 6; ++i)
          k.values<float>()[t * 6 + i] = mark(all, done + t, layer, true) + static_cast<float>(i);
        for (std::size_t i = 0; i < 4; ++i)
          v.values<float>()[t * 4 + i] = mark(all, done + t, layer, false) + static_cast<float>(i);
      }
      cache.write(id, layer, k.view(), v.view(), ctx);
    }
    cache.commit(id, more);
    texts[id] = all;
  }
  /// Everything committed reads back as it was written, through the table attention takes.
  void compare(SequenceId id) {
    const Ids& t = texts.at(id);
    ASSERT_EQ(Ids(cache.tokens(id).begin(), cache.tokens(id).end()), t);
    const Index length = cache.length(id);
    const KvTable table = cache.table(std::span(&id, 1), std::span(&length, 1));
    for (Index layer = 0; layer < 2; ++layer)
      for (std::size_t i = 0; i < t.size(); ++i) {
        const Index place = (table.pages[i / 8] * 8 + static_cast<Index>(i % 8));
        ASSERT_EQ(static_cast<const float*>(cache.k(layer).data)[place * 6], mark(t, i, layer, true));
        ASSERT_EQ(static_cast<const float*>(cache.v(layer).data)[place * 4 + 3],
                  mark(t, i, layer, false) + 3);
      }
  }
  Ids draw(Index most) {
    Ids more(random() % static_cast<unsigned>(most) + 1);
    for (auto& t : more) t = static_cast<std::int32_t>(random() % 2);  // two words: beginnings meet often
    return more;
  }
  SequenceId any() {
    return std::next(texts.begin(), static_cast<std::ptrdiff_t>(random() % texts.size()))->first;
  }

  std::mt19937 random;
  Context ctx{{.threads = 1}};
  KvCache cache;
  std::map<SequenceId, Ids> texts;
};

TEST(KvCache, RandomUseKeepsEveryPromise) {
  const bool slow = std::getenv("HEADWISE_SLOW") != nullptr;
  for (unsigned seed = 1; seed <= (slow ? 4000u : 4u); ++seed) {  // 10^7 turns when slow
    Driver d(12, seed);
    for (int turn = 0; turn < 2500; ++turn) {
      const unsigned what = d.random() % 16;
      if (d.texts.empty() || (what < 3 && d.texts.size() < 6)) {
        const SequenceId id = d.cache.open();
        Ids prompt = d.draw(30);
        const Index got = d.cache.adopt(id, prompt);
        ASSERT_LT(got, std::ssize(prompt));
        d.texts[id] = Ids(prompt.begin(), prompt.begin() + got);
      } else if (what < 4 && d.texts.size() < 6) {
        const SequenceId from = d.any(), id = d.cache.fork(from);
        d.texts[id] = d.texts[from];
      } else if (what < 6) {
        const SequenceId id = d.any();
        d.cache.close(id);
        d.texts.erase(id);
      } else if (what < 8) {
        const SequenceId id = d.any();
        const auto keep = static_cast<Index>(d.random() % (d.texts[id].size() + 1));
        d.cache.truncate(id, keep);
        d.texts[id].resize(static_cast<std::size_t>(keep));
      } else {
        const SequenceId id = d.any();
        const Ids more = d.draw(11);
        const KvStats before = d.cache.stats();
        if (d.cache.reserve(id, std::ssize(more))) {
          d.write(id, more);
        } else {
          EXPECT_EQ(d.cache.stats().free, before.free);
          EXPECT_EQ(d.cache.stats().evictions, before.evictions);
        }
      }
      d.cache.check();
      if (turn % 7 == 0)
        for (const auto& [id, t] : d.texts) d.compare(id);
    }
    EXPECT_GT(d.cache.stats().hit_tokens, 0);
    EXPECT_GT(d.cache.stats().evictions, 0);
    EXPECT_GT(d.cache.stats().copies, 0);
    while (!d.texts.empty()) {
      d.cache.close(d.texts.begin()->first);
      d.texts.erase(d.texts.begin());
    }
    d.cache.check();
    EXPECT_EQ(d.cache.stats().held, 0);
  }
}

/// Which pages are taken, given back and evicted in which order is one list, whatever is changed inside.
TEST(KvCache, PagesAreUsedAgainInOneOrder) {
  Driver d(10, 77);
  std::uint64_t all = 1469598103934665603u;
  for (int turn = 0; turn < 1000; ++turn) {
    if (d.texts.size() < 2 || (d.random() % 4 == 0 && d.texts.size() < 5)) {
      const SequenceId id = d.cache.open();
      const Ids prompt = d.draw(30);
      const Index got = d.cache.adopt(id, prompt);
      d.texts[id] = Ids(prompt.begin(), prompt.begin() + got);
    } else if (d.random() % 4 == 0) {
      const SequenceId id = d.any();
      d.cache.close(id);
      d.texts.erase(id);
      continue;
    }
    const SequenceId id = d.any();
    const Ids more = d.draw(12);
    if (d.cache.reserve(id, std::ssize(more))) d.write(id, more);
    const Index length = d.cache.length(id);
    for (const std::int32_t page : d.cache.table(std::span(&id, 1), std::span(&length, 1)).pages)
      all = (all ^ static_cast<std::uint64_t>(page + 1)) * 1099511628211u;
  }
  EXPECT_GT(d.cache.stats().evictions, 50);
  EXPECT_EQ(all, 13421644487061071856u);
}

TEST(KvCache, AWholePromptInTheTreeLeavesItsLastToken) {
  Driver d(8, 1);
  const Ids prompt = {1, 1, 0, 1, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0, 1};  // two pages
  const SequenceId a = d.cache.open();
  ASSERT_TRUE(d.cache.reserve(a, 16));
  d.write(a, prompt);
  const SequenceId b = d.cache.open();
  EXPECT_EQ(d.cache.adopt(b, prompt), 15);
  const SequenceId c = d.cache.open("someone else");
  EXPECT_EQ(d.cache.adopt(c, prompt), 0);
  const SequenceId e = d.cache.open();
  EXPECT_EQ(d.cache.adopt(e, {}), 0);
  EXPECT_EQ(d.cache.adopt(e, std::span(prompt).first(1)), 0);
  EXPECT_EQ(d.cache.adopt(e, std::span(prompt).first(9)), 8);
  d.cache.check();
}

TEST(KvCache, RefusalsNameWhatWasAsked) {
  Driver d(2, 1);
  const SequenceId id = d.cache.open();
  EXPECT_FALSE(d.cache.reserve(id, 17));
  EXPECT_TRUE(d.cache.reserve(id, 16));
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { d.cache.commit(id, Ids(17)); }),
            "kv cache: sequence 0 has room for 16 more tokens, not for 17; reserve first");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { d.cache.truncate(id, 1); }),
            "kv cache: sequence 0 has 0 tokens and 1 were to be kept; keep 0 to 0");
  d.cache.close(id);
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { d.cache.close(id); }),
            "kv cache: there is no open sequence 0; it was closed, or never opened");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [&] {
                          const KvCache none({2, 2, 3, 2}, {.bytes = 10});
                        }),
            "kv cache: got 10 bytes; one page of 16 tokens takes 1280: give as many or more");
  EXPECT_EQ(sentence_of(ErrorKind::bad_shape,
                        [&] {
                          const KvCache none({2, 2, 3, 2}, {.page_tokens = 7});
                        }),
            "kv cache: a page has 7 tokens; it may have 8, 16, 32, 64, 128 or 256");
}

}  // namespace
}  // namespace headwise
