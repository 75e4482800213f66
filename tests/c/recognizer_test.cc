// The C interface of recognisers: answers are those of the library, texts are freed, refusals are sentences.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/c/recognizer.h"

#include "headwise/analysis/answer_json.h"
#include "tests/intent/support.h"

namespace headwise {
namespace {

/// A folder of a recogniser with drawn weights.
std::string saved(const test::Folder& room) {
  std::vector<std::string> pieces = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "my", "card", "rate"};
  RecognizerConfig c;
  c.encoder.model_dim = 8, c.encoder.feed_dim = 8, c.encoder.depth = 1, c.encoder.heads = "mha:heads=2,dim=4";
  c.labels = {"card", "loan", "rate"}, c.ngrams.buckets = 0;
  Recognizer(c, Vocabulary(pieces), 3).save(room.at("m"));
  return room.at("m");
}

TEST(CRecognizer, SaysWhatTheLibrarySays) {
  const test::Folder room;
  const std::string folder = saved(room);
  const Recognizer model = Recognizer::load(folder);
  Session session({.threads = 1});
  const std::string text = "my card \xff";
  const Prediction p = model.predict(text, session);

  hw_recognizer* r = nullptr;
  const hw_recognizer_options options = {.struct_size = sizeof options, .threads = 1, .top = 2};
  ASSERT_EQ(hw_recognizer_load(folder.c_str(), &options, &r), HW_OK) << hw_last_error();
  char* answer = nullptr;
  ASSERT_EQ(hw_recognizer_predict(r, text.c_str(), &answer), HW_OK) << hw_last_error();
  EXPECT_EQ(answer, answer_json(model.config(), text, p, 2));
  hw_recognizer_answer_free(answer);
  ASSERT_EQ(hw_recognizer_explain(r, text.c_str(), nullptr, &answer), HW_OK) << hw_last_error();
  EXPECT_EQ(answer, answer_json(model.config(), text, p, 2, explain_labels(model, text, p, "", session)));
  hw_recognizer_answer_free(answer);
  ASSERT_EQ(hw_recognizer_explain(r, text.c_str(), "loan", &answer), HW_OK) << hw_last_error();
  EXPECT_NE(std::string(answer).find("\"explanations\":[{\"label\":\"loan\""), std::string::npos) << answer;
  hw_recognizer_answer_free(answer);

  answer = nullptr;
  EXPECT_EQ(hw_recognizer_explain(r, "x", "fee", &answer), HW_BAD_ARGUMENT);
  EXPECT_NE(std::string(hw_last_error()).find("there is no label \"fee\" among the 3"), std::string::npos);
  EXPECT_EQ(answer, nullptr);
  EXPECT_EQ(hw_recognizer_predict(r, nullptr, &answer), HW_BAD_ARGUMENT);
  EXPECT_EQ(hw_recognizer_predict(nullptr, "x", &answer), HW_BAD_ARGUMENT);
  EXPECT_EQ(hw_recognizer_predict(r, "x", nullptr), HW_BAD_ARGUMENT);
  hw_recognizer_free(r);
  hw_recognizer_free(nullptr);
  hw_recognizer_answer_free(nullptr);
}

TEST(CRecognizer, RefusesFoldersInASentence) {
  hw_recognizer* r = nullptr;
  EXPECT_NE(hw_recognizer_load("/nowhere", nullptr, &r), HW_OK);
  EXPECT_EQ(r, nullptr);
  EXPECT_NE(std::string(hw_last_error()).find("/nowhere"), std::string::npos) << hw_last_error();
  const hw_recognizer_options bad = {.struct_size = sizeof bad, .threads = 0, .top = -1};
  EXPECT_EQ(hw_recognizer_load("/nowhere", &bad, &r), HW_BAD_ARGUMENT);
  EXPECT_EQ(std::string(hw_last_error()), "hw_recognizer_load: top is -1; give 0 or more");
}

}  // namespace
}  // namespace headwise
