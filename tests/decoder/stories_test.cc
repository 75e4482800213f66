// stories260K, a trained model: llama2.c's own text and logits, and the double forward's.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "headwise/base/context.h"
#include "headwise/decoder/generator.h"
#include "headwise/model/file.h"
#include "tests/base/sentence.h"
#include "tests/decoder/tiny_model.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

std::string folder() {
  const char* const data = std::getenv("HEADWISE_DATA");
  return data != nullptr ? text(data, "/weights_stories260K") : "";
}

class Stories : public testing::Test {
 protected:
  void SetUp() override {
    if (folder().empty()) GTEST_SKIP() << "HEADWISE_DATA names no folder";
    source = open_decoder(folder() + "/stories260K.bin");
    model = std::make_unique<Decoder>(*source, DecoderOptions{}, ctx);
  }
  std::string greedy(const GenerateRequest& request) {
    KvCache cache(model->kv_shape(), {.bytes = 4 << 20});
    Generator g(*model, source->tokenizer(), cache);
    g.add(request);
    std::string out;
    while (g.step(ctx))
      for (const GenerateEvent& e : g.events()) out += e.text;
    cache.check();
    return out;
  }
  Context ctx{{.threads = 2}};
  std::unique_ptr<DecoderSource> source;
  std::unique_ptr<Decoder> model;
};

TEST_F(Stories, GreedyTextIsThatOfLlama2c) {
  const std::string want = read_text(folder() + "/golden_greedy_256.txt", 1 << 16, "test");
  GenerateRequest r;
  r.prompt = source->tokenizer()->encode("");
  ASSERT_EQ(r.prompt, std::vector<TokenId>{1});
  r.max_tokens = 256;
  EXPECT_EQ(greedy(r) + "\n", want);
}

TEST_F(Stories, LogitsAreThoseOfLlama2cAndOfPlainLoops) {
  const std::string golden = read_text(folder() + "/golden_logits_16steps.f32", 1 << 16, "test");
  const std::size_t each = 4 + 512 * 4;
  ASSERT_EQ(golden.size(), 16 * each);
  KvCache cache(model->kv_shape(), {.bytes = 4 << 20});
  DecoderStep step;
  const SequenceId id = cache.open();
  std::vector<TokenId> tokens;
  std::vector<std::vector<float>> ours;
  for (std::size_t i = 0; i < 16; ++i) {
    std::int32_t token = 0;
    std::memcpy(&token, golden.data() + i * each, 4);
    tokens.push_back(token);
    const DecoderRow row{id, token, true};
    ASSERT_TRUE(cache.reserve(id, 1));
    model->forward(std::span(&row, 1), cache, step, ctx);
    cache.commit(id, std::span(&token, 1));
    ours.emplace_back(step.logits(0).begin(), step.logits(0).end());
  }
  const auto truth = PlainForward(*source).logits(tokens);
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t v = 0; v < 512; ++v) {
      float theirs = 0;
      std::memcpy(&theirs, golden.data() + i * each + 4 + v * 4, 4);
      ASSERT_NEAR(ours[i][v], theirs, 2e-4) << i << " " << v;
      ASSERT_NEAR(static_cast<double>(ours[i][v]), truth[i][v], 1e-4) << i << " " << v;
    }
}

TEST_F(Stories, ATextGoesToIdsAndBack) {
  const Tokenizer& t = *source->tokenizer();
  for (const std::string s : {"Once upon a time", "  two  spaces ", "caf\xc3\xa9 \xf0\x9f\x98\x80\n", "x"}) {
    const std::vector<TokenId> ids = t.encode(s);
    EXPECT_EQ(ids[0], 1);
    EXPECT_EQ(t.decode(ids), s);
  }
  // run.c's own answer for a prompt of its tests' kind: a space, then merges by score.
  EXPECT_EQ(t.decode(t.encode("I like", {.begin = false})), "I like");
}

TEST_F(Stories, HalfFilesAreRefusedInWords) {
  const ScratchFolder scratch;
  const std::string whole = read_text(folder() + "/stories260K.bin", 4 << 20, "test");
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{27}, std::size_t{28}, whole.size() - 4}) {
    const std::string path = scratch.file("half.bin", std::string_view(whole).substr(0, bytes));
    const std::string said = sentence_of(ErrorKind::bad_argument, [&] { open_decoder(path); });
    EXPECT_TRUE(said.starts_with("llama2.c: ")) << said;
  }
}

}  // namespace
}  // namespace headwise
