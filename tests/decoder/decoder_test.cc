// Decoder: logits of every kind of model against plain loops in double; the same bits however rows come.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/decoder/forward/decoder.h"

#include "headwise/base/context.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "tests/base/sentence.h"
#include "tests/decoder/tiny_model.h"

namespace headwise {
namespace {

std::vector<TokenId> some_tokens(Index n, Index vocabulary, std::uint64_t seed = 7) {
  std::vector<TokenId> t;
  for (Index i = 0; i < n; ++i)
    t.push_back(static_cast<TokenId>(std::fabs(normal_at(seed, i)) * 1e6) % static_cast<TokenId>(vocabulary));
  return t;
}

/// Logits of all positions, computed in chunks of `chunk` tokens.
std::vector<std::vector<float>> in_chunks(const Decoder& model, KvCache& cache,
                                          std::span<const TokenId> tokens, Index chunk, Context& ctx,
                                          bool watch = false) {
  std::vector<std::vector<float>> out;
  DecoderStep step;
  step.watch = watch;
  const SequenceId id = cache.open();
  for (std::size_t at = 0; at < tokens.size();) {
    const auto part = tokens.subspan(at, std::min(static_cast<std::size_t>(chunk), tokens.size() - at));
    std::vector<DecoderRow> rows;
    for (const TokenId t : part) rows.push_back({id, t, true});
    EXPECT_TRUE(cache.reserve(id, static_cast<Index>(part.size())));
    model.forward(rows, cache, step, ctx);
    for (std::size_t i = 0; i < part.size(); ++i) {
      const auto l = step.logits(static_cast<Index>(i));
      out.emplace_back(l.begin(), l.end());
    }
    cache.commit(id, part);
    at += part.size();
  }
  cache.close(id);
  return out;
}

bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].size() != b[i].size() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
      return false;
  return true;
}

struct Kind {
  const char* name;
  DecoderConfig config;
};
std::vector<Kind> kinds() {
  std::vector<Kind> all;
  DecoderConfig c = tiny_config();
  all.push_back({"llama", c});
  c.rope.kind = RopeKind::interleaved, c.tied = true;
  all.push_back({"llama, interleaved, tied", c});
  c = tiny_config();
  c.rope.scaling = RopeScaling::llama3(8, 1, 4, 16);
  all.push_back({"llama 3, scaled", c});
  c = tiny_config();
  c.windows = {5, 5};
  all.push_back({"mistral", c});
  c = tiny_config();
  c.qkv_bias = true;
  all.push_back({"qwen2", c});
  c = tiny_config();
  c.head_norms = true, c.head_dim = 8;
  all.push_back({"qwen3", c});
  c = tiny_config();
  c.norm_weight = WeightForm::one_plus, c.activation = Activation::gelu_tanh, c.tied = true;
  c.embed_scale = std::sqrt(24.0), c.head_dim = 10, c.kv_heads = 1;
  all.push_back({"gemma", c});
  c.norms_behind = true, c.attention_softcap = 50, c.logit_softcap = 30, c.windows = {5, 0}, c.scale = 0.3;
  all.push_back({"gemma 2", c});
  c.attention_softcap = c.logit_softcap = 0, c.head_norms = true, c.sliding_rope.base = 100;
  all.push_back({"gemma 3", c});
  c = tiny_config();
  c.norm = NormKind::layer, c.activation = Activation::gelu_tanh, c.gated = false, c.kv_heads = 4;
  c.qkv_bias = c.out_bias = c.feed_bias = c.learned_positions = c.tied = true;
  all.push_back({"gpt2", c});
  return all;
}

TEST(Decoder, EveryKindOfModelIsCloseToPlainLoopsInDouble) {
  Context ctx({.threads = 1});
  for (const Kind& kind : kinds()) {
    TinySource source(kind.config);
    const Decoder model(source, {}, ctx);
    KvCache cache(model.kv_shape(), {.bytes = 1 << 20, .page_tokens = 8});
    const std::vector<TokenId> tokens = some_tokens(21, kind.config.vocabulary);
    const auto got = in_chunks(model, cache, tokens, 21, ctx);
    const auto want = PlainForward(source).logits(tokens);
    double far = 0, size = 0;
    for (std::size_t t = 0; t < got.size(); ++t)
      for (std::size_t i = 0; i < got[t].size(); ++i) {
        far += std::pow(static_cast<double>(got[t][i]) - want[t][i], 2);
        size += want[t][i] * want[t][i];
      }
    EXPECT_LT(std::sqrt(far / size), 3e-6) << kind.name;
    EXPECT_GT(size, 1.0) << kind.name;
  }
}

TEST(Decoder, ChunksPagesThreadsAndWatchingChangeNoBit) {
  for (const Kind& kind : kinds()) {
    Context one({.threads = 1}), two({.threads = 2});
    TinySource source(kind.config);
    const Decoder model(source, {}, one);
    const std::vector<TokenId> tokens = some_tokens(37, kind.config.vocabulary, 3);
    for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
      KvCache first(model.kv_shape(), {.bytes = 1 << 20, .page_tokens = 16, .dtype = dtype});
      const auto whole = in_chunks(model, first, tokens, 37, one);
      for (const Index chunk : {1, 5, 16}) {
        KvCache cache(model.kv_shape(),
                      {.bytes = 1 << 20, .page_tokens = chunk == 5 ? 8 : 32, .dtype = dtype});
        EXPECT_TRUE(same_bits(whole, in_chunks(model, cache, tokens, chunk, two)))
            << kind.name << " " << chunk;
        EXPECT_TRUE(same_bits(whole, in_chunks(model, cache, tokens, chunk, one, true)))
            << kind.name << " watched " << chunk;
        cache.check();
      }
    }
  }
}

/// What the heads of every row did, of texts that grow by one token each at once, or alone in one piece.
std::vector<std::vector<HeadStats>> watched_heads(const Decoder& model, KvCache& cache,
                                                  const std::vector<std::vector<TokenId>>& texts,
                                                  bool together, Context& ctx) {
  std::vector<std::vector<HeadStats>> out(texts.size());
  std::vector<SequenceId> ids;
  DecoderStep step;
  step.watch = true;
  for (std::size_t t = 0; t < texts.size(); ++t) ids.push_back(cache.open());
  for (std::size_t at = 0; at < (together ? texts[0].size() : texts.size()); ++at) {
    std::vector<DecoderRow> rows;
    std::vector<std::size_t> whose;
    for (std::size_t t = 0; t < texts.size(); ++t)
      for (std::size_t i = 0; i < texts[t].size(); ++i)
        if ((together ? i : t) == at) rows.push_back({ids[t], texts[t][i], true}), whose.push_back(t);
    std::map<SequenceId, std::vector<TokenId>> added;
    for (const DecoderRow& row : rows) added[row.sequence].push_back(row.token);
    for (const auto& [id, tokens] : added) EXPECT_TRUE(cache.reserve(id, std::ssize(tokens)));
    model.forward(rows, cache, step, ctx);
    for (std::size_t i = 0; i < rows.size(); ++i) out[whose[i]].push_back(step.heads()[i]);
    for (const auto& [id, tokens] : added) cache.commit(id, tokens);
  }
  for (const SequenceId id : ids) cache.close(id);
  return out;
}

TEST(Decoder, HeadsOfATextAreTheSameBesideOthersAndCloseToPlainLoops) {
  Context ctx({.threads = 2});
  for (const Kind& kind : kinds()) {
    TinySource source(kind.config);
    const Decoder model(source, {}, ctx);
    std::vector<std::vector<TokenId>> texts;
    for (std::uint64_t t = 0; t < 3; ++t)
      texts.push_back(some_tokens(static_cast<Index>(23 - 4 * t), kind.config.vocabulary, t + 5));
    for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
      KvCache cache(model.kv_shape(), {.bytes = 1 << 20, .page_tokens = 8, .dtype = dtype});
      const auto alone = watched_heads(model, cache, texts, false, ctx),
                 together = watched_heads(model, cache, texts, true, ctx);
      for (std::size_t t = 0; t < texts.size(); ++t)
        for (std::size_t i = 0; i < texts[t].size(); ++i) {
          EXPECT_EQ(alone[t][i].entropy, together[t][i].entropy) << kind.name << ' ' << t << ' ' << i;
          EXPECT_EQ(alone[t][i].top_weight, together[t][i].top_weight) << kind.name << ' ' << t << ' ' << i;
          EXPECT_EQ(alone[t][i].first_mass, together[t][i].first_mass) << kind.name << ' ' << t << ' ' << i;
        }
      if (dtype != DType::f32) continue;
      PlainForward plain(source);
      plain.logits(texts[0]);
      for (std::size_t i = 0; i < texts[0].size(); ++i)
        for (std::size_t h = 0; h < alone[0][i].entropy.size(); ++h) {
          const auto heads = static_cast<std::size_t>(kind.config.heads);
          const std::vector<double>& w = plain.own_weights[h / heads][i][h % heads];
          double entropy = 0;
          for (const double p : w) entropy -= p > 0 ? p * std::log(p) : 0;
          EXPECT_NEAR(alone[0][i].entropy[h], entropy, 2e-5) << kind.name;
          EXPECT_NEAR(alone[0][i].top_weight[h], *std::max_element(w.begin(), w.end()), 2e-5) << kind.name;
          EXPECT_NEAR(alone[0][i].first_mass[h], w[0], 2e-5) << kind.name;
        }
    }
  }
}

/// Scaled RoPE, and a text near the longest before and beside a short one.
TEST(Decoder, ALongTextLeavesNothingToAShortOne) {
  Context ctx({.threads = 1});
  DecoderConfig c = tiny_config();
  c.rope.scaling = RopeScaling::llama3(8, 1, 4, 16);
  TinySource source(c);
  const Decoder model(source, {}, ctx), fresh(source, {}, ctx);
  const std::vector<TokenId> text = some_tokens(12, c.vocabulary, 5),
                             other = some_tokens(128, c.vocabulary, 6);
  KvCache first(model.kv_shape(), {.bytes = 1 << 20, .page_tokens = 8}),
      second(model.kv_shape(), {.bytes = 1 << 20, .page_tokens = 8});
  const auto alone = in_chunks(fresh, first, text, 12, ctx);
  in_chunks(model, second, other, 128, ctx);
  EXPECT_TRUE(same_bits(alone, in_chunks(model, second, text, 12, ctx)));
}

TEST(Decoder, RowsOfOtherTextsChangeNoBit) {
  Context ctx({.threads = 2});
  TinySource source(tiny_config());
  const Decoder model(source, {}, ctx);
  KvCache cache(model.kv_shape(), {.bytes = 1 << 20, .page_tokens = 8});
  const std::vector<std::vector<TokenId>> texts = {some_tokens(19, 50, 1), some_tokens(30, 50, 2),
                                                   some_tokens(4, 50, 3), some_tokens(30, 50, 4)};
  std::vector<std::vector<std::vector<float>>> alone;
  for (const auto& t : texts) {
    KvCache own(model.kv_shape(), {.bytes = 1 << 20, .page_tokens = 8});
    alone.push_back(in_chunks(model, own, t, 30, ctx));
  }
  // Each step gives every text a run of its own length: some are single rows, some chunks.
  std::vector<SequenceId> ids;
  for (std::size_t i = 0; i < texts.size(); ++i) ids.push_back(cache.open(text(i)));
  DecoderStep step;
  for (Index turn = 0; turn < 60; ++turn) {
    std::vector<DecoderRow> rows;
    std::vector<std::pair<std::size_t, Index>> places;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const Index done = cache.length(ids[i]), left = static_cast<Index>(texts[i].size()) - done;
      const Index n = std::min(left, 1 + (turn * 7 + static_cast<Index>(i) * 3) % 4);
      ASSERT_TRUE(cache.reserve(ids[i], n));
      for (Index k = 0; k < n; ++k) {
        rows.push_back({ids[i], texts[i][static_cast<std::size_t>(done + k)], true});
        places.emplace_back(i, done + k);
      }
    }
    if (rows.empty()) break;
    model.forward(rows, cache, step, ctx);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const auto got = step.logits(static_cast<Index>(r));
      const auto& want = alone[places[r].first][static_cast<std::size_t>(places[r].second)];
      ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
          << "text " << places[r].first << " token " << places[r].second;
    }
    for (std::size_t i = 0; i < texts.size(); ++i) {
      std::vector<TokenId> done;
      for (const DecoderRow& row : rows)
        if (row.sequence == ids[i]) done.push_back(row.token);
      cache.commit(ids[i], done);
    }
    cache.check();
  }
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(cache.length(ids[i]), std::ssize(texts[i]));
}

TEST(Decoder, BadRowsAreRefusedInWords) {
  Context ctx({.threads = 1});
  TinySource source(tiny_config());
  const Decoder model(source, {}, ctx);
  KvCache cache(model.kv_shape(), {.bytes = 1 << 20});
  DecoderStep step;
  const SequenceId id = cache.open(), other = cache.open();
  ASSERT_TRUE(cache.reserve(id, 4) && cache.reserve(other, 4));
  const auto run = [&](std::vector<DecoderRow> rows) { model.forward(rows, cache, step, ctx); };
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [&] {
                          run({{id, 50, true}});
                        }),
            "decoder: got token 50; ids run from 0 to 49");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [&] {
                          run({{id, -1, true}});
                        }),
            "decoder: got token -1; ids run from 0 to 49");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument,
                        [&] {
                          run({{id, 1, true}, {other, 1, true}, {id, 2, true}});
                        }),
            "decoder: rows of sequence 0 do not stand together; give them one after another");
}

}  // namespace
}  // namespace headwise
