// cut, convert and survey from outside: what they write, and what bad input does: one sentence, no folder.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kTree =
    "1\tcards\t_\t_\t_\t_\t2\tnsubj\t_\t_\n2\tare\t_\t_\t_\t_\t0\troot\t_\t_\n3\tlost\t_\t_\t_\t_"
    "\t2\txcomp\t_\t_"
    "\n\n";
constexpr const char* kCycle =
    "1\tcards\t_\t_\t_\t_\t2\tnsubj\t_\t_\n2\tare\t_\t_\t_\t_\t3\tcop\t_\t_\n3\tlost\t_\t_\t_\t_\t1\txcomp\t_"
    "\t_"
    "\n\n";

/// One room and one trained model of 2 layers with 4 heads for all tests: none of them may change it.
class LabWords : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    room_ = fs::temp_directory_path() / ("headwise_lab_words_" + std::to_string(getpid()));
    fs::remove_all(room_);
    fs::create_directories(room_);
    std::string rows, texts;
    for (int i = 0; i < 12; ++i) {
      const std::string n = std::to_string(i);
      rows += "my card " + n + " is lost\tlost_card\nwhat is the rate for " + n + " months\trate\n";
      texts += "my card " + n + " is lost, and the rate?\n";
    }
    write("rows.tsv", rows);
    write("texts.txt", texts);
    const Answer made = headwise(
        "train rows.tsv --out m --epochs 2 --heads mha:heads=4,dim=4 --model-dim 16 --depth 2 --feed-dim 16 "
        "--vocabulary 120 --ngrams 0 --batch 8 --max-tokens 32 --chunk-tokens 32 --threads 1 --quiet");
    ASSERT_EQ(made.code, 0) << made.err;
  }
  static void TearDownTestSuite() { fs::remove_all(room_); }

  static std::string at(const std::string& name) { return (room_ / name).string(); }
  static void write(const std::string& name, const std::string& content) {
    std::ofstream(room_ / name, std::ios::binary) << content;
  }
  static std::string content(const std::string& name) {
    std::ifstream file(room_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static Answer headwise(const std::string& words) {
    return shell("cd " + room_.string() + "; " HEADWISE_PROGRAM " " + words, at("err"));
  }
  /// One sentence that holds `part`, and nothing that was not there before.
  static void refused(const std::string& words, const std::string& part) {
    const std::string model = content("m/model.safetensors"), config = content("m/config.json");
    fs::remove_all(room_ / "out");
    const Answer a = headwise(words + " --out out");
    EXPECT_EQ(a.code, 1) << words << "\n" << a.out << a.err;
    EXPECT_EQ(a.err.rfind("headwise: ", 0), 0u) << a.err;
    EXPECT_NE(a.err.find(part), std::string::npos) << a.err;
    EXPECT_EQ(a.err.find('\n'), a.err.size() - 1) << a.err;
    for (const auto& entry : fs::directory_iterator(room_))
      EXPECT_NE(entry.path().filename().string().rfind("out", 0), 0u) << words << ": " << entry.path();
    EXPECT_EQ(content("m/model.safetensors"), model) << words;
    EXPECT_EQ(content("m/config.json"), config) << words;
  }

  static inline fs::path room_;
};

TEST_F(LabWords, CutWritesASmallerModelThatAnswers) {
  const Answer a = headwise("cut m rows.tsv --keep 5 --rank greedy --json --threads 1 --out small");
  ASSERT_EQ(a.code, 0) << a.err;
  const Json j = Json::parse(a.out);
  EXPECT_EQ(j.at("heads_before"), 8);
  EXPECT_EQ(j.at("heads_after"), 5);
  EXPECT_LT(j.at("parameters_after").get<int>(), j.at("parameters_before").get<int>());
  EXPECT_EQ(j.at("curve").size(), 4u);
  write("plan.json", j.at("plan").dump());
  ASSERT_EQ(headwise("cut m --plan plan.json --out planned --threads 1").code, 0);
  EXPECT_EQ(content("small/model.safetensors"), content("planned/model.safetensors"));
  EXPECT_EQ(headwise("predict small 'my card is lost' --threads 1").code, 0);
  // A cut model is a model: it can be cut again, converted and surveyed.
  EXPECT_EQ(headwise("cut small rows.tsv --keep 4 --threads 1 --out smaller").code, 0);
  EXPECT_EQ(headwise("survey small --texts texts.txt --threads 1 --out looked").code, 0);
}

TEST_F(LabWords, CutMeasuresTheWayThere) {
  const Answer a =
      headwise("cut m rows.tsv --keep 4 --threads 1 --curve way --states 3 --json --out measured");
  ASSERT_EQ(a.code, 0) << a.err;
  const Json j = Json::parse(a.out);
  ASSERT_EQ(j.at("states").size(), 3u);
  EXPECT_EQ(j.at("states")[0].at("heads"), 8);
  EXPECT_EQ(j.at("states")[1].at("heads"), 6);
  EXPECT_EQ(j.at("states")[2].at("parameters"), j.at("parameters_after"));
  EXPECT_EQ(j.at("states")[2].at("right"), j.at("exact_after"));
  EXPECT_EQ(j.at("states")[2].at("kv_bytes").get<int>() * 2, j.at("states")[0].at("kv_bytes").get<int>());
  EXPECT_EQ(j.at("order").size(), 4u);
  const std::string csv = content("way/curve.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 4);
  EXPECT_NE(content("way/curve.svg").find("right answers"), std::string::npos);
  EXPECT_NE(content("way/index.html").find("Heads cut from m"), std::string::npos);
  const Answer told = headwise("cut m rows.tsv --keep 4 --threads 1 --curve way --states 2 --out measured");
  EXPECT_NE(told.out.find("bytes of k, v"), std::string::npos) << told.out << told.err;
  write("plan.json", j.at("plan").dump());
  refused("cut m rows.tsv --plan plan.json --curve out_curve", "a plan has none");
  refused("cut m rows.tsv --keep 4 --curve ./out", "the same folder");
}

TEST_F(LabWords, BadCutsAreOneSentenceAndWriteNothing) {
  refused("cut m rows.tsv", "give one of them");
  refused("cut m rows.tsv --keep 3 --loss-within 1%", "got 2 of");
  refused("cut m --keep 3", "ranked on texts");
  refused("cut m rows.tsv --keep 1", "can keep 2 to 8");
  refused("cut m rows.tsv --keep 9", "asked to keep 9");
  refused("cut m rows.tsv --keep 3 --rank luck", "give one of michel, off, greedy");
  refused("cut m rows.tsv --keep 3 --rank michel --michel-sum row", "give one of text, token, batch");
  refused("cut m rows.tsv --loss-within some", "such as 1%");
  refused("cut nowhere rows.tsv --keep 3", "nowhere");
  write("other.json", R"({"heads": [4, 4, 4], "cut": {}})");
  refused("cut m --plan other.json", "make a plan for this model");
  write("all.json", R"({"heads": [4, 4], "cut": {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}})");
  refused("cut m --plan all.json", "no layer would keep a head");
  write("no.json", R"({"heads": [4, 4], "cut": {"0": [7]}})");
  refused("cut m --plan no.json", "name heads 0 to 3");
  write("half.json", R"({"heads": [4, 4], "cut")");
  refused("cut m --plan half.json", "half.json");
  write("strange.tsv", "a text\tno_such_label\n");
  refused("cut m strange.tsv --keep 3", "no row has labels of this model");
  const Answer own = headwise("cut m rows.tsv --keep 3 --out m");
  EXPECT_EQ(own.code, 1);
  EXPECT_NE(own.err.find("own folder"), std::string::npos) << own.err;
}

TEST_F(LabWords, CutKeepsRolesAndGoesOnTraining) {
  refused("cut m rows.tsv --keep 3 --keep-roles luck", "\"luck\" is no role");
  refused("cut m rows.tsv --keep 3 --keep-roles syntax", "--conllu");
  refused("cut m rows.tsv --keep 3 --tune", "no rows to learn from");
  refused("cut m rows.tsv --keep 3 --tune strange_rows.tsv", "strange_rows.tsv");
  write("unknown.tsv", "a text\tloan\nanother\trate\nmy card\tlost_card\n");
  refused("cut m rows.tsv --keep 3 --tune unknown.tsv", "which the model has not");
  refused("cut m rows.tsv --keep 3 --tune rows.tsv --device tpu", "\"tpu\"");
  refused("cut m rows.tsv --keep 3 --device cuda", "give --tune, or leave it out");
  refused("cut m --plan plan.json --keep-roles positional", "on texts");
  ASSERT_EQ(headwise("cut m rows.tsv --keep 2 --threads 1 --out raw").code, 0);
  const Answer a = headwise(
      "cut m rows.tsv --keep 2 --threads 1 --tune rows.tsv --epochs 8 --rate 1e-2 --json --out tuned");
  ASSERT_EQ(a.code, 0) << a.err;
  const Json j = Json::parse(a.out);
  EXPECT_EQ(j.at("heads_after"), 2);
  EXPECT_GE(j.at("exact_after").get<double>(), 0.9) << "two kinds of sentences are learnt again";
  EXPECT_EQ(fs::file_size(room_ / "raw/model.safetensors"), fs::file_size(room_ / "tuned/model.safetensors"));
  EXPECT_NE(content("raw/model.safetensors"), content("tuned/model.safetensors"));
}

TEST_F(LabWords, GatesShutHeadsWhileAModelLearns) {
  const std::string words =
      "train rows.tsv --heads mha:heads=4,dim=4 --model-dim 16 --depth 2 --feed-dim 16 --vocabulary 120 "
      "--ngrams 0 "
      "--batch 4 --epochs 16 --rate 1e-2 --threads 1 --quiet";
  const Answer a = headwise(words + " --gates l0=0.5 --out gated");
  ASSERT_EQ(a.code, 0) << a.err;
  EXPECT_NE(a.out.find("heads      8 -> 2"), std::string::npos) << a.out;
  EXPECT_EQ(content("gated/config.json").find("learn_gates"), std::string::npos);
  EXPECT_EQ(headwise("predict gated 'my card is lost' --threads 1").code, 0);
  refused(words + " --gates 0.5", "as l0=0.01");
  refused(words + " --gates l0=-1", "as l0=0.01");
  refused("train rows.tsv --heads dcmha:heads=4 --model-dim 16 --depth 1 --feed-dim 16 --gates l0=0.1",
          "dcmha");
}

TEST_F(LabWords, TrainKeepsFiguresOfEveryEpochAndItsBits) {
  const std::string words =
      "train rows.tsv --epochs 2 --heads mha:heads=4,dim=4 --model-dim 16 --depth 2 --feed-dim 16 "
      "--vocabulary 120 --ngrams 0 --batch 8 --max-tokens 32 --chunk-tokens 32 --threads 1 --quiet";
  const Answer a = headwise(words + " --during texts.txt --out seen");
  ASSERT_EQ(a.code, 0) << a.err;
  EXPECT_EQ(content("seen/model.safetensors"), content("m/model.safetensors"));
  const std::string csv = content("seen/during.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 17);  // its names, and 8 heads in 2 epochs
  EXPECT_EQ(Json::parse(content("seen/during.json")).at("heads").size(), 16u);
  EXPECT_NE(content("seen/during.html").find("entropy over epochs"), std::string::npos);
  refused(words + " --during nowhere.txt", "nowhere.txt");
  refused(words + " --during texts.txt --compound auto", "--compound auto trains two");
}

TEST_F(LabWords, ConvertSaysHowFarItWentAndRefusesInOneSentence) {
  const Answer a = headwise("convert m --kv-heads 2 --texts texts.txt --threads 1 --out grouped");
  ASSERT_EQ(a.code, 0) << a.err;
  EXPECT_NE(a.out.find("KL"), std::string::npos) << a.out;
  EXPECT_NE(content("grouped/config.json").find("kv_heads=2"), std::string::npos);
  EXPECT_EQ(headwise("predict grouped 'my card is lost' --threads 1").code, 0);
  const Answer shared = headwise("convert m --shared 8 --texts texts.txt --threads 1 --out collaborative");
  EXPECT_EQ(shared.code, 0) << shared.err;
  EXPECT_NE(shared.out.find("8 shared columns keep"), std::string::npos) << shared.out;
  EXPECT_NE(shared.out.find("KL"), std::string::npos) << shared.out;
  EXPECT_EQ(headwise("predict collaborative \"my card is lost\"").code, 0);
  const Answer tuned = headwise(
      "convert m --kv-heads 1 --texts texts.txt --tune rows.tsv --epochs 12 --rate 1e-2 --threads 1 --out "
      "tuned_mqa");
  EXPECT_EQ(tuned.code, 0) << tuned.err;
  EXPECT_NE(tuned.out.find("100.00 % tuned"), std::string::npos) << tuned.out;
  EXPECT_NE(content("tuned_mqa/config.json").find("kv_heads=1"), std::string::npos);
  EXPECT_NE(content("tuned_mqa/model.safetensors"), content("m/model.safetensors"));
  refused("convert m --kv-heads 2 --texts texts.txt --tune", "no rows to learn from");
  refused("convert m --kv-heads 2 --texts texts.txt --tune nowhere.tsv", "nowhere.tsv");
  refused("convert m --shared 17", "give 1 to 16");
  refused("convert m --shared 8 --kv-heads 2", "one of them");
  refused("convert m", "one of them");
  refused("convert m --kv-heads 2", "aligned on texts");
  refused("convert m --kv-heads 3 --by mean", "3");
  refused("convert m --kv-heads 2 --by luck", "give mean, first or aligned");
  refused("convert m --kv-heads 2 --texts nowhere.txt", "nowhere.txt");
  write("empty.txt", "\n\n");
  refused("convert m --kv-heads 2 --texts empty.txt", "holds no text");
  refused("convert nowhere --kv-heads 2 --by mean", "nowhere");
}

TEST_F(LabWords, SurveyWritesFiguresAndRefusesInOneSentence) {
  write("tree.conllu", kTree);
  write("pairs.txt", "same\tmy card is lost\tcard\tlost\n");
  const Answer a = headwise(
      "survey m --texts texts.txt --conllu tree.conllu --pairs pairs.txt --threads 1 --out looked_at");
  ASSERT_EQ(a.code, 0) << a.err;
  const Json j = Json::parse(content("looked_at/survey.json"));
  EXPECT_EQ(j.at("heads").size(), 8u);
  EXPECT_EQ(j.at("relations").size(), 3u);
  EXPECT_EQ(j.at("depth").at("rollout_own").size(), 2u);
  double flow = 0;
  for (const Json& x : j.at("path").at("flow")) flow += x.get<double>();
  EXPECT_NEAR(flow, 1, 1e-6);
  EXPECT_EQ(j.at("path").at("pieces").front(), "[CLS]");
  for (const char* file : {"index.html", "heads.csv", "depth.csv", "path.csv", "apart.csv", "map.svg"})
    EXPECT_FALSE(content(std::string("looked_at/") + file).empty()) << file;
  write("cycle.conllu", kCycle);
  refused("survey m --texts texts.txt --conllu cycle.conllu", "a cycle");
  write("short.conllu", "1\tcards\t_\n");
  refused("survey m --texts texts.txt --conllu short.conllu", "CoNLL-U has 10");
  write("beyond.txt", "same\tmy card is lost\tcard\tloan\n");
  refused("survey m --texts texts.txt --pairs beyond.txt", "is not in its text");
  refused("survey m --texts nowhere.txt", "nowhere.txt");
  refused("survey nowhere --texts texts.txt", "nowhere");
}

TEST_F(LabWords, TextsLongerThanTheModelAreNamedAndReadInPart) {
  std::string text;
  for (int i = 0; i < 60; ++i) text += "card ";
  write("long.txt", text + "\nmy card\n");
  const Answer a = headwise("survey m --texts long.txt --threads 1 --out long");
  ASSERT_EQ(a.code, 0) << a.err;
  EXPECT_NE(a.err.find("1 of 2 texts"), std::string::npos) << a.err;
  EXPECT_EQ(a.err.find('\n'), a.err.size() - 1) << a.err;
}

}  // namespace
