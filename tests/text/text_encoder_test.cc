// TextEncoder: vectors of texts through a tiny BERT, against plain loops; bits that depend on a text alone.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/text/text_encoder.h"

#include "headwise/base/context.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/base/sentence.h"
#include "tests/model/tiny_bert.h"

namespace headwise {
namespace {

Tensor embed(const TextEncoder& encoder, const std::vector<std::string>& texts, int threads = 2) {
  Context ctx({.threads = threads});
  StepMemory memory;
  return encoder.embed(texts, ctx, memory);
}

TEST(TextEncoder, MeanOfRowsNormalized) {
  const TinyBert tiny;
  const TextEncoder encoder(tiny.folder.path());
  EXPECT_EQ(encoder.max_tokens(), 7);
  Tensor y = embed(encoder, {"My CARDS?", ""});
  // [CLS] my card ##s ? [SEP], and [CLS] [SEP]
  const std::vector<std::vector<int>> ids = {{2, 4, 5, 8, 9, 3}, {2, 3}};
  for (std::size_t t = 0; t < 2; ++t) {
    const Matrix rows = tiny.rows(ids[t]);
    std::vector<double> mean(TinyBert::kWidth);
    double square = 0;
    for (std::size_t i = 0; i < mean.size(); ++i) {
      for (const auto& row : rows) mean[i] += row[i] / static_cast<double>(rows.size());
      square += mean[i] * mean[i];
    }
    for (std::size_t i = 0; i < mean.size(); ++i)
      EXPECT_NEAR(y.values<float>()[t * TinyBert::kWidth + i], mean[i] / std::sqrt(square), 1e-6);
  }
}

TEST(TextEncoder, BitsDependOnTheTextAlone) {
  const TinyBert tiny;
  const TextEncoder together(tiny.folder.path()), few(tiny.folder.path(), {.batch_tokens = 1});
  const std::vector<std::string> texts = {"my card is lost ?", "pay", "",
                                          "lost lost lost lost lost lost lost", "pay"};
  Tensor a = embed(together, texts), b = embed(few, texts, 1);
  EXPECT_EQ(std::memcmp(a.view().data, b.view().data, texts.size() * TinyBert::kWidth * sizeof(float)), 0);
  EXPECT_EQ(embed(together, {}).view().size[0], 0);
}

TEST(TextEncoder, FollowsTheFolder) {
  const TinyBert tiny;
  const std::string where = tiny.folder.path();
  std::filesystem::create_directory(tiny.folder / "1_Pooling");
  tiny.folder.file("1_Pooling/config.json",
                   R"({"pooling_mode_cls_token":true,"pooling_mode_mean_tokens":false})");
  tiny.folder.file("sentence_bert_config.json", R"({"max_seq_length":4})");
  tiny.folder.file("tokenizer_config.json", R"({"do_lower_case":false,"model_max_length":5})");
  const TextEncoder first(where, {.normalized = false});
  EXPECT_EQ(first.max_tokens(), 4);
  Tensor y = embed(first, {"A my lost lost"});
  const Matrix rows = tiny.rows({2, 11, 4, 3});  // a capital is kept, the text is cut
  for (std::size_t i = 0; i < TinyBert::kWidth; ++i) EXPECT_NEAR(y.values<float>()[i], rows[0][i], 1e-5);
  EXPECT_EQ(TextEncoder(where, {.max_tokens = 6}).max_tokens(), 6);
  const auto refusal = [&](const TextEncoderOptions& o = {}) {
    return sentence_of(ErrorKind::bad_argument, [&] { TextEncoder encoder(where, o); });
  };
  EXPECT_EQ(refusal({.max_tokens = 8}),
            "text encoder: max_tokens is 8; " + where + " has positions for 3 to 7 tokens");
  tiny.folder.file("1_Pooling/config.json",
                   R"({"pooling_mode_max_tokens":true,"pooling_mode_mean_tokens":true})");
  EXPECT_EQ(refusal(),
            "text encoder: " + (tiny.folder / "1_Pooling/config.json") +
                ": \"pooling_mode_max_tokens\" is true; the mean of all tokens and [CLS] are computed");
  tiny.folder.file("1_Pooling/config.json", "{}");
  EXPECT_EQ(refusal(), "text encoder: " + (tiny.folder / "1_Pooling/config.json") +
                           ": \"pooling_mode_mean_tokens\" is absent; choose it or pooling_mode_cls_token");
  std::filesystem::remove(tiny.folder / "1_Pooling/config.json");
  tiny.folder.file("vocab.txt", std::string(TinyBert::kVocabulary) + "more\n");
  EXPECT_EQ(refusal(), "text encoder: " + where +
                           ": vocab.txt has 13 pieces but config.json a vocab_size of 12; they are of "
                           "different models");
}

}  // namespace
}  // namespace headwise
