// A decoder whose heads are cut over ranks: the logits and texts of one rank, its keys and values shared out.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>

#include "headwise/base/context.h"
#include "headwise/decoder/generator.h"
#include "headwise/distributed/threads_engine.h"
#include "tests/decoder/tiny_model.h"

namespace headwise {
namespace {

DecoderConfig config_of(const std::string& family, Index kv_heads) {
  DecoderConfig c{.family = family, .layers = 2, .model_dim = 48, .feed_dim = 72, .heads = 8};
  c.kv_heads = kv_heads, c.head_dim = 8, c.vocabulary = 61, c.positions = 64;
  return c;
}

std::vector<DecoderConfig> configs() {
  DecoderConfig llama = config_of("llama", 4);
  DecoderConfig few = config_of("qwen2", 2);
  few.qkv_bias = true, few.tied = true, few.head_norms = true;
  DecoderConfig gemma = config_of("gemma2", 1);
  gemma.norms_behind = true, gemma.norm_weight = WeightForm::one_plus, gemma.attention_softcap = 20;
  gemma.windows = {5, 0}, gemma.logit_softcap = 10;
  DecoderConfig gpt = config_of("gpt2", 8);
  gpt.norm = NormKind::layer, gpt.gated = false, gpt.activation = Activation::gelu_tanh;
  gpt.learned_positions = gpt.qkv_bias = gpt.out_bias = gpt.feed_bias = true;
  return {llama, few, gemma, gpt};
}

struct Result {
  std::string logits;  // of a prompt in two pieces, then of single tokens
  std::vector<TokenId> text;
  Index kv_bytes = 0;
};

Result run(const DecoderConfig& config, int ranks, std::optional<DType> dtype, DType kv = DType::f32) {
  Result first;
  std::mutex lock;
  run_ranks(ranks,
            [&](Communicator& team) {
              Context ctx({.threads = 1});
              TinySource source(config);
              const Decoder model(source, {.dtype = dtype, .team = &team}, ctx);
              KvOptions options;
              options.bytes = Index{1} << 20, options.dtype = kv;
              KvCache cache(model.kv_shape(), options);
              Result own;
              own.kv_bytes = model.kv_shape().kv_heads;
              DecoderStep step;
              const SequenceId id = cache.open();
              for (const Index count : {Index{7}, Index{4}, Index{1}, Index{1}}) {
                std::vector<DecoderRow> rows;
                std::vector<TokenId> tokens;
                for (Index i = 0; i < count; ++i) {
                  tokens.push_back(static_cast<TokenId>((cache.length(id) + i) * 17 % config.vocabulary));
                  rows.push_back({id, tokens.back(), true});
                }
                EXPECT_TRUE(cache.reserve(id, count));
                model.forward(rows, cache, step, ctx);
                for (Index i = 0; i < count; ++i)
                  own.logits.append(reinterpret_cast<const char*>(step.logits(i).data()),
                                    step.logits(i).size() * sizeof(float));
                cache.commit(id, tokens);
              }
              cache.close(id);
              Generator generator(model, nullptr, cache, {});
              GenerateRequest ask;
              ask.prompt = {1, 2, 3}, ask.max_tokens = 12;
              ask.sampling.temperature = 0.9, ask.sampling.seed = 5;
              generator.add(std::move(ask));
              while (generator.step(ctx))
                for (const GenerateEvent& e : generator.events())
                  own.text.insert(own.text.end(), e.tokens.begin(), e.tokens.end());
              const std::lock_guard<std::mutex> held(lock);
              if (first.logits.empty()) first = own;
              EXPECT_TRUE(own.logits == first.logits && own.text == first.text) << "rank " << team.rank();
            },
            {.check = true});
  return first;
}

TEST(DecoderRanks, HaveTheLogitsAndTextsOfOne) {
  for (const DecoderConfig& c : configs()) {
    const Result one = run(c, 1, {});
    EXPECT_EQ(one.text.size(), 12u);
    for (const int ranks : {2, 4, 8}) {
      const Result cut = run(c, ranks, {});
      EXPECT_TRUE(cut.logits == one.logits) << c.family << " on " << ranks;
      EXPECT_TRUE(cut.text == one.text) << c.family << " on " << ranks;
      EXPECT_EQ(cut.kv_bytes, std::max<Index>(1, c.kv_heads / ranks));
    }
  }
}

TEST(DecoderRanks, HaveThemInSixteenBitsToo) {
  const DecoderConfig c = configs()[0];
  EXPECT_TRUE(run(c, 4, DType::bf16).logits == run(c, 1, DType::bf16).logits);
  EXPECT_TRUE(run(c, 2, {}, DType::bf16).logits == run(c, 1, {}, DType::bf16).logits);
  EXPECT_TRUE(run(c, 2, {}, DType::i8).logits == run(c, 1, {}, DType::i8).logits);
}

/// Of a text of several splits: its logits, and the pages that all ranks of the context team keep of it.
struct LongText {
  std::string logits;
  Index pages = 0;
  Counted sent;
};
struct LongRun {
  int tensor = 1, context = 1;
  std::optional<DType> dtype = {};
  DType kv = DType::f32;
};
LongText read_long(DecoderConfig config, const LongRun& how) {
  config.positions = 8192;
  LongText first;
  std::mutex lock;
  run_ranks(how.tensor * how.context, [&](Communicator& world) {
    const Communicator tensor = world.part(world.rank() / how.tensor * how.tensor, how.tensor),
                       context = world.part(world.rank() % how.tensor, how.context, how.tensor);
    Context ctx({.threads = 1});
    TinySource source(config);
    const Decoder model(source, {.dtype = how.dtype, .team = &tensor, .context = &context}, ctx);
    KvOptions options;
    options.bytes = Index{32} << 20, options.dtype = how.kv, options.share = model.key_share();
    KvCache cache(model.kv_shape(), options);
    std::string logits;
    DecoderStep step;
    const SequenceId id = cache.open(), other = cache.open();
    const auto read = [&](SequenceId of, Index count) {
      std::vector<DecoderRow> rows;
      std::vector<TokenId> tokens;
      for (Index i = 0; i < count; ++i) {
        // Each text begins with tokens of its own: one rank would share equal beginnings.
        tokens.push_back(
            static_cast<TokenId>(((cache.length(of) + i) * 17 + (of == id ? 0 : 5)) % config.vocabulary));
        rows.push_back({of, tokens.back(), i + 1 == count});
      }
      EXPECT_TRUE(cache.reserve(of, count));
      model.forward(rows, cache, step, ctx);
      logits.append(reinterpret_cast<const char*>(step.logits(0).data()),
                    step.logits(0).size() * sizeof(float));
      cache.commit(of, tokens);
      cache.check();
    };
    const Counted before = world.counted();
    for (const Index count : {Index{1800}, Index{400}, Index{2100}, Index{1}}) read(id, count);
    read(other, 30);
    cache.truncate(id, 4200);
    // Both in one step, one row each.
    EXPECT_TRUE(cache.reserve(id, 1) && cache.reserve(other, 1));
    model.forward(std::vector<DecoderRow>{{id, 5, true}, {other, 7, true}}, cache, step, ctx);
    for (const Index row : {Index{0}, Index{1}})
      logits.append(reinterpret_cast<const char*>(step.logits(row).data()),
                    step.logits(row).size() * sizeof(float));
    const Counted after = world.counted();
    std::vector<Index> held(static_cast<std::size_t>(how.context));
    const Index mine = cache.stats().held;
    context.gather_bytes(&mine, held.data(), sizeof mine);
    const std::lock_guard<std::mutex> one(lock);
    if (first.logits.empty()) {
      first.logits = logits;
      for (const Index pages : held) first.pages += pages;
    }
    if (world.rank() == 0) first.sent = {.bytes = after.bytes - before.bytes};
    EXPECT_TRUE(logits == first.logits) << "rank " << world.rank();
    // No rank keeps more than the first: two of three splits' worth at most over two ranks.
    EXPECT_LE(mine, held[0]);
  });
  return first;
}

TEST(DecoderRanks, ShareOutTheKeysOfLongTexts) {
  for (const DecoderConfig& c : {configs()[0], configs()[2]}) {
    const LongText one = read_long(c, {});
    for (const int ranks : {2, 3, 4}) {
      const LongText shared = read_long(c, {.context = ranks});
      EXPECT_TRUE(shared.logits == one.logits) << c.family << " on " << ranks;
      EXPECT_EQ(shared.pages, one.pages) << "each page is kept by one rank";
    }
  }
  const DecoderConfig c = configs()[1];
  EXPECT_TRUE(read_long(c, {.tensor = 2, .context = 2}).logits == read_long(c, {}).logits);
  const LongRun half{.dtype = DType::bf16, .kv = DType::bf16}, bytes{.kv = DType::i8};
  for (LongRun how : {half, bytes}) {
    const LongText one = read_long(c, how);
    how.context = 2;
    EXPECT_TRUE(read_long(c, how).logits == one.logits);
  }
}

TEST(DecoderRanks, SendTheStatesOfTheTable) {
  // [splits heads value_dim + 2] f32 of every row and layer: rank 0 of 2 sends those of splits 0 and 2.
  const DecoderConfig c = configs()[0];
  const Index each = c.heads * (c.head_dim + 2) * 4 * c.layers;
  Index numbers = 0;
  // Rows of a step, and splits of rank 0 among those of the longest text in it.
  for (const auto& [rows, splits] :
       {std::pair<Index, Index>{1800, 1}, {400, 1}, {2100, 2}, {1, 2}, {30, 1}, {2, 2}})
    numbers += rows * splits;
  EXPECT_EQ(read_long(c, {.context = 2}).sent.bytes, numbers * each);
}

TEST(DecoderRanks, DecideAlikeWhatHasRoom) {
  const KvShape shape{.layers = 1, .kv_heads = 1, .head_dim = 8, .value_dim = 8};
  KvOptions options;
  options.bytes = Index{128} * 16 * 8 * 4 * 2;  // one split of pages
  for (int rank = 0; rank < 2; ++rank) {
    options.share = {rank, 2};
    KvCache cache(shape, options);
    EXPECT_EQ(cache.pages(), 256);
    const SequenceId a = cache.open(), b = cache.open();
    EXPECT_TRUE(cache.reserve(a, 4096));
    EXPECT_FALSE(cache.reserve(a, 4097)) << "rank " << rank;
    EXPECT_FALSE(cache.reserve(b, 1)) << "rank " << rank;
    cache.close(a);
    EXPECT_TRUE(cache.reserve(b, 4096));
    cache.check();
    EXPECT_THROW(cache.fork(b), Error);
  }
  options.window = 16;
  EXPECT_THROW(KvCache(shape, options), Error);
}

std::string refusal(const DecoderConfig& config, int ranks) {
  try {
    run(config, ranks, {});
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(DecoderRanks, RefuseWhatTheyCannotShare) {
  EXPECT_EQ(refusal(configs()[0], 3),
            "decoder: the model has 8 heads, which 3 ranks cannot share; take fewer");
  DecoderConfig odd = config_of("llama", 3);
  odd.heads = 12;
  EXPECT_EQ(refusal(odd, 2), "decoder: the model has 3 kv heads, which 2 ranks cannot share; take fewer");
}

}  // namespace
}  // namespace headwise
