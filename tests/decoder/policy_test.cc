// Head policies: pages given back and pages closed by a mask give the same bits; windows bound what is held.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
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
    const auto number = [&](Index least, Index most) {
      return least + static_cast<Index>(random() % static_cast<unsigned>(most - least));
    };
    const auto kind = random() % 5;
    if (kind == 0)
      p.heavy = number(1, 20), p.recent = number(1, 12), p.first = number(0, 12);
    else if (kind == 1)
      p.snap = number(1, 12), p.look = number(1, 6);
    else if (kind < 4)
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
  std::vector<GenerateRequest> requests = some_requests(6);
  for (GenerateRequest& r : requests) r.max_tokens = 40;
  NgramDrafter ngrams;
  const bool slow = std::getenv("HEADWISE_SLOW") != nullptr;
  for (int round = 0; round < (slow ? 100 : 4); ++round) {
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

/// Heavy hitters written out anew, in double, from q and k of the first layer.
class PlainHeavy {
 public:
  PlainHeavy(const HeadPolicy& policy, Index page, double scale) : p_(policy), page_(page), scale_(scale) {}
  /// One more token: its key, and the queries of the head's group.
  void push(const std::vector<std::vector<double>>& queries, const std::vector<double>& key) {
    keys_.push_back(key);
    const auto n = static_cast<Index>(keys_.size());
    if ((n - 1) % page_ == 0) sums_.push_back(0), closed_.push_back(false);
    for (const std::vector<double>& q : queries) {
      std::vector<double> w;
      double all = 0;
      for (Index k = 0; k < n; ++k) {
        double dot = 0;
        for (std::size_t c = 0; c < q.size(); ++c) dot += q[c] * keys_[static_cast<std::size_t>(k)][c];
        w.push_back(closed_[static_cast<std::size_t>(k / page_)] ? 0 : std::exp(scale_ * dot));
        all += w.back();
      }
      for (Index k = 0; k < n; ++k)
        sums_[static_cast<std::size_t>(k / page_)] += w[static_cast<std::size_t>(k)] / all;
    }
    if (n % page_ == 0) choose(n);
  }
  const std::vector<bool>& closed() const { return closed_; }

 private:
  void choose(Index n) {
    std::vector<std::pair<double, Index>> rest;
    for (Index i = 0; i < n / page_; ++i) {
      const bool first = i * page_<p_.first, recent = (i + 1) * page_> n + 1 - p_.recent;
      if (!first && !recent && !closed_[static_cast<std::size_t>(i)])
        rest.emplace_back(-sums_[static_cast<std::size_t>(i)], i);
    }
    std::sort(rest.begin(), rest.end());
    for (std::size_t i = static_cast<std::size_t>((p_.heavy + page_ - 1) / page_); i < rest.size(); ++i)
      closed_[static_cast<std::size_t>(rest[i].second)] = true;
  }
  HeadPolicy p_;
  Index page_;
  double scale_;
  std::vector<std::vector<double>> keys_;
  std::vector<double> sums_;
  std::vector<bool> closed_;
};

TEST(HeadPolicies, HeavyKeepsThePagesThatGotTheMostWeight) {
  GeneratorBench bench;
  const KvShape s = bench.model.kv_shape();
  const DecoderConfig& c = bench.model.config();
  const HeadPolicy policy = parse_head_policy("heavy:16,recent:10,first:3");
  KvOptions kv{.bytes = 1 << 20, .page_tokens = 8};
  kv.heads.assign(static_cast<std::size_t>(s.layers * s.kv_heads), policy);
  KvCache cache(s, kv);
  const SequenceId id = cache.open();
  std::vector<PlainHeavy> plain(static_cast<std::size_t>(s.kv_heads),
                                PlainHeavy(policy, 8, 1 / std::sqrt(static_cast<double>(c.head_dim))));
  DecoderStep step;
  step.look = [&](Index layer, const AnyView& q, const AnyView& k, const AnyView&) {
    if (layer != 0) return;
    const auto row = [&](const AnyView& x, Index head) {
      std::vector<double> out;
      for (Index d = 0; d < c.head_dim; ++d)
        out.push_back(static_cast<double>(static_cast<const float*>(x.data)[head * x.step[2] + d]));
      return out;
    };
    const Index group = c.heads / c.kv_heads;
    for (Index h = 0; h < c.kv_heads; ++h) {
      std::vector<std::vector<double>> queries;
      for (Index g = 0; g < group; ++g) queries.push_back(row(q, h * group + g));
      plain[static_cast<std::size_t>(h)].push(queries, row(k, h));
    }
  };
  Index gone = 0;
  for (TokenId t = 0; t < 88; ++t) {
    const DecoderRow row{id, (t * 7) % 50, true};
    ASSERT_TRUE(cache.reserve(id, 1));
    bench.model.forward(std::span(&row, 1), cache, step, bench.ctx);
    cache.commit(id, std::span(&row.token, 1));
    cache.check();
    for (Index h = 0; h < s.kv_heads; ++h) {
      const std::vector<bool>& closed = cache.head(0, h).cache->closed_pages(id);
      EXPECT_EQ(closed, plain[static_cast<std::size_t>(h)].closed()) << "token " << t << " head " << h;
      gone = std::max(gone, static_cast<Index>(std::count(closed.begin(), closed.end(), true)));
    }
  }
  EXPECT_EQ(gone, 11 - 1 - 2 - 2);  // first, heavy, recent pages of 11 stay
  EXPECT_EQ(cache.most_rows(id), 8);
  EXPECT_EQ(
      sentence_of(ErrorKind::bad_argument, [&] { cache.truncate(id, 87); }),
      "kv cache: sequence 0 has heads that weigh their tokens, which cannot be undone; it keeps all 88");
  const std::vector<DecoderRow> many(9, DecoderRow{id, 1, false});
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [&] { bench.model.forward(many, cache, step, bench.ctx); }),
            "decoder: sequence 0 has 9 rows, but heads that weigh tokens decide after 8; compute at most so "
            "many at "
            "once");
  const SequenceId fork = cache.fork(id);
  EXPECT_EQ(cache.head(0, 0).cache->closed_pages(fork), cache.head(0, 0).cache->closed_pages(id));
  cache.close(id), cache.close(fork);
  cache.check();
}

/// A prompt of 5 pages: the last tokens and one page more stay, and everything behind it.
TEST(HeadPolicies, SnapDecidesOnceAtTheEndOfThePrompt) {
  GeneratorBench bench;
  const KvShape s = bench.model.kv_shape();
  KvOptions kv{.bytes = 1 << 20, .page_tokens = 8};
  kv.heads.assign(static_cast<std::size_t>(s.layers * s.kv_heads), parse_head_policy("snap:8,look:3"));
  KvCache cache(s, kv);
  const SequenceId id = cache.open();
  cache.set_prompt(id, 37);
  DecoderStep step;
  for (Index done = 0; done < 60;) {
    const Index rows = std::min<Index>(cache.most_rows(id), 60 - done);
    std::vector<DecoderRow> list;
    std::vector<TokenId> tokens;
    for (Index i = 0; i < rows; ++i) tokens.push_back(static_cast<TokenId>((done + i) * 5 % 50));
    for (const TokenId t : tokens) list.push_back({id, t, false});
    ASSERT_TRUE(cache.reserve(id, rows));
    bench.model.forward(list, cache, step, bench.ctx);
    cache.commit(id, tokens);
    cache.check();
    done += rows;
    const std::vector<bool>& closed = cache.head(1, 0).cache->closed_pages(id);
    EXPECT_EQ(std::count(closed.begin(), closed.end(), true), done < 37 ? 0 : 3) << done;
    EXPECT_TRUE(std::none_of(closed.begin() + std::min<Index>(4, std::ssize(closed)), closed.end(),
                             [](bool gone) { return gone; }));
  }
  cache.close(id);
}

TEST(HeadPolicies, TextsOfPolicies) {
  for (const char* t :
       {"full", "window:5,first:0", "window:256,first:16,dtype:i8", "full,dtype:bf16",
        "heavy:64,recent:32,first:0", "heavy:9,recent:1,first:4,dtype:i8", "snap:128,look:16"})
    EXPECT_EQ(to_text(parse_head_policy(t)), t);
  const auto says = [](const char* t) {
    return sentence_of(ErrorKind::bad_argument, [&] { parse_head_policy(t); });
  };
  const std::string end =
      "; write full, window:N,first:M, heavy:N,recent:R,first:M or snap:N,look:W, and dtype:T behind it";
  EXPECT_EQ(says(""), "head policy: \"\" says nothing of what a head keeps" + end);
  EXPECT_EQ(says("heavy:8"), "head policy: \"heavy:8\" keeps no recent tokens; add recent:R" + end);
  EXPECT_EQ(says("snap:8"),
            "head policy: \"snap:8\" has no tokens of the prompt that look; add look:W" + end);
  EXPECT_EQ(says("snap:8,first:2"),
            "head policy: \"snap:8,first:2\" has the part \"first:2\", which is not known there" + end);
  EXPECT_EQ(says("window:8,window:9"),
            "head policy: \"window:8,window:9\" has the part \"window:9\", which is not known there" + end);
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
           bench.model.kv_shape().kv_heads, " kv heads; give one for each kv head of each layer"));
}

}  // namespace
}  // namespace headwise
