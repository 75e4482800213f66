// A recogniser behind the service: answers with the bits of predict, joined or alone, whatever happens to its
// folder.
#include "headwise/server/model/intent_model.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/server/harness.h"

namespace headwise::server {
namespace {

namespace fs = std::filesystem;

Recognizer tiny(std::uint64_t seed) {
  std::vector<std::string> pieces = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]",
                                     "卡",    "款",    "card",  "loan",  "rate"};
  for (char c = 'a'; c <= 'z'; ++c) pieces.emplace_back(1, c), pieces.push_back(std::string("##") + c);
  RecognizerConfig c;
  c.encoder.model_dim = 16, c.encoder.feed_dim = 16, c.encoder.max_tokens = 64;
  c.encoder.heads = "mha:heads=2+gated:source=input,act=silu";
  c.labels = {"card", "loan", "<script>\"rate\""};
  c.chunk_tokens = 32, c.chunk_overlap = 8;
  return Recognizer(c, Vocabulary(pieces), seed);
}

class IntentModel : public ::testing::Test {
 protected:
  IntentModel()
      : folder_((fs::temp_directory_path() / ("headwise_serve_" + std::to_string(::getpid()))).string()) {
    tiny(1).save(folder_);
    recognizer_ = std::make_shared<const Recognizer>(Recognizer::load(folder_));
  }
  ~IntentModel() override { fs::remove_all(folder_); }
  Served model() const { return serve_recognizer(recognizer_, {.name = "tiny", .threads = 2, .top = 2}); }

  std::string folder_;
  std::shared_ptr<const Recognizer> recognizer_;
};

TEST_F(IntentModel, SaysWhatPredictSays) {
  Running service(with_token(), [&](Served& m) { m = model(); });
  Session session;
  for (const std::string s :
       {"my card", "", "卡款 loan", "the loan rate and again the loan rate and then my card again, twice"}) {
    const Prediction p = recognizer_->predict(s, session);
    const Reply r = ask_text(service.port(), s);
    EXPECT_EQ(r.status, 200);
    std::string expected = "{\"model\": \"tiny\", \"answers\": [{\"labels\": [";
    for (const Index label : p.labels)
      expected += page_string(recognizer_->config().labels[static_cast<std::size_t>(label)]);
    expected += "], \"confidence\": " + json_number(static_cast<float>(p.confidence)) +
                ", \"out_of_scope\": false, \"top\": [";
    EXPECT_EQ(r.body.substr(0, expected.size()), expected);
    EXPECT_NE(r.body.find(", \"probability\": " +
                          json_number(*std::max_element(p.probability.begin(), p.probability.end()))),
              std::string::npos)
        << r.body;
    EXPECT_EQ(r.body.find("<script>"), std::string::npos);
    EXPECT_NE(r.body.find("\"tokens\": " + std::to_string(recognizer_->encode(s).ids.size()) + "}"),
              std::string::npos);
  }
}

TEST_F(IntentModel, JoinedAnswersHaveTheSameBytes) {
  std::vector<std::string> texts;
  for (int i = 0; i < 16; ++i)
    texts.push_back(std::string(static_cast<std::size_t>(i * 5), 'a') + " card loan " + std::to_string(i));
  const Served m = model();
  const std::vector<std::string> joined = m.intents(texts);
  for (std::size_t i = 0; i < texts.size(); ++i)
    EXPECT_EQ(joined[i], m.intents(std::span(texts).subspan(i, 1))[0]);
  ServiceOptions o = with_token();
  o.batcher.linger = 20ms;
  Running service(o, [&](Served& served) { served = model(); });
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < texts.size(); ++i)
    threads.emplace_back([&, i] {
      EXPECT_NE(ask_text(service.port(), texts[i]).body.find("[" + joined[i] + "]"), std::string::npos)
          << texts[i];
    });
  for (std::thread& t : threads) t.join();
}

TEST_F(IntentModel, AFolderThatChangesChangesNoAnswer) {
  Running service(with_token(), [&](Served& m) { m = model(); });
  const std::string before = ask_text(service.port(), "my card").body;
  tiny(2).save(folder_);  // another model of the same name
  EXPECT_EQ(ask_text(service.port(), "my card").body, before);
  std::ofstream(folder_ + "/model.safetensors", std::ios::trunc) << "cut short";
  std::ofstream(folder_ + "/vocab.txt", std::ios::trunc) << "nothing\n";
  EXPECT_EQ(ask_text(service.port(), "my card").body, before);
  fs::remove_all(folder_);
  EXPECT_EQ(ask_text(service.port(), "my card").body, before);
}

TEST_F(IntentModel, ExplainsByTokensAndHeads) {
  Running service(with_token(), [&](Served& m) { m = model(); });
  Ask a;
  a.path = "/v1/explain", a.body = R"({"text": "my card"})";
  const Reply r = ask(service.port(), a);
  EXPECT_EQ(r.status, 200);
  EXPECT_NE(r.body.find("{\"piece\": \"card\", \"begin\": 3, \"end\": 7, \"importance\": "),
            std::string::npos)
      << r.body;
  for (const char* key :
       {"\"given\": ", "\"needed\": ", "\"lacks\": ", "\"words\": [{\"begin\": 0, \"end\": 2"})
    EXPECT_NE(r.body.find(key), std::string::npos) << key << r.body;
  EXPECT_NE(r.body.find("\"explained\": "), std::string::npos);
  EXPECT_NE(r.body.find("\"heads\": [["), std::string::npos) << r.body;
  EXPECT_EQ(ask(service.port(), a).body, r.body);
}

}  // namespace
}  // namespace headwise::server
