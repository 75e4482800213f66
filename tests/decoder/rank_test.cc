// A decoder whose heads are cut over ranks: the logits and texts of one rank, its keys and values shared out.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <mutex>

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
