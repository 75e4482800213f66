// Training recognisers: it learns, stops lose nothing, thresholds are right, bad data is one sentence.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/intent/training/training.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <set>
#include <sstream>

#include "tests/intent/support.h"

namespace headwise {
namespace {

using namespace test;

Corpus corpus_of(std::initializer_list<std::pair<const char*, std::vector<std::string>>> rows,
                 const char* name = "rows") {
  Corpus c{.name = name, .rows = {}};
  for (const auto& [words, labels] : rows)
    c.rows.push_back(
        {.text = words, .labels = labels, .extra = {}, .line = static_cast<Index>(c.rows.size()) + 1});
  return c;
}

/// Colours and sizes: one word says each.
Corpus toy(bool several, Index count) {
  const char* words[][2] = {{"red", "card"}, {"blue", "loan"}, {"green", "rate"}};
  Corpus c{.name = "toy", .rows = {}};
  for (Index i = 0; i < count; ++i) {
    const auto &a = words[i % 3], &b = words[(i / 3 + i + 1) % 3];
    Utterance u{.text = text("please tell ", i % 5, " about my ", a[0]),
                .labels = {a[1]},
                .extra = {},
                .line = i + 1};
    if (several && i % 2 && a[1] != b[1]) u.text += text(" and then ", b[0]), u.labels.emplace_back(b[1]);
    c.rows.push_back(std::move(u));
  }
  return c;
}

RecognizerConfig small_config() {
  RecognizerConfig c;
  c.encoder.model_dim = 16, c.encoder.feed_dim = 32, c.encoder.depth = 1, c.encoder.max_tokens = 64;
  c.encoder.heads = "mha:heads=2+gated:source=input,act=silu";
  c.encoder.dropout = 0.1, c.pool_dropout = 0.1;
  c.chunk_tokens = 64, c.chunk_overlap = 8;
  c.ngrams.buckets = 0;
  return c;
}
TrainingOptions quick() {
  TrainingOptions o;
  o.epochs = 12, o.batch = 8, o.rate = 1e-2, o.average = 0.9, o.pieces = 200, o.token_dropout = 0.05;
  return o;
}

TEST(Training, LearnsOneAndSeveralLabels) {
  for (const bool several : {false, true})
    for (const DType compute : {DType::f32, DType::bf16}) {
      TrainingOptions o = quick();
      o.compute = compute;
      RecognizerConfig c = small_config();
      if (several) c.pooling = Pooling::labels, c.ngrams.buckets = 100;
      const Corpus train = toy(several, 90), dev = toy(several, 30);
      Session session({.threads = 1});
      const Start start = from_scratch(c, train, o);
      EXPECT_EQ(start.config.multi_label, several);
      const TrainedRecognizer r = train_recognizer(start, train, dev, o, session);
      EXPECT_EQ(r.ending, Ending::finished);
      EXPECT_GT(r.dev.exact.value(), 0.95) << several << r.dev.print();
      EXPECT_NE(r.metrics.find("\"dev\""), std::string::npos);
    }
}

std::vector<float> weights(const Recognizer& model) {
  std::vector<float> all;
  for (const Param& p : model.params().all()) {
    const auto* x = static_cast<const float*>(p.value.data);
    all.insert(all.end(), x, x + p.value.count());
  }
  return all;
}

/// A stream that asks the trainer to stop after so many of its lines.
struct StopAfter : std::stringbuf {
  explicit StopAfter(int lines) : left(lines) {}
  std::streamsize xsputn(const char* s, std::streamsize n) override {
    if (std::string_view(s, static_cast<std::size_t>(n)).find("step") != std::string_view::npos &&
        --left == 0)
      ::raise(SIGINT);
    return n;
  }
  int left;
};

TEST(Training, AStoppedRunGoesOnToTheSameBits) {
  const Folder folder;
  TrainingOptions o = quick();
  o.epochs = 4;
  const Corpus train = toy(true, 60), dev = toy(true, 20);
  Session session({.threads = 1});
  const Start start = from_scratch(small_config(), train, o);
  o.run_folder = folder.at("whole");
  const TrainedRecognizer one = train_recognizer(start, train, dev, o, session);
  o.run_folder = folder.at("cut");
  StopAfter buffer(1);
  std::ostream stop(&buffer);
  o.out = &stop;
  const TrainedRecognizer first = train_recognizer(start, train, dev, o, session);
  EXPECT_EQ(first.ending, Ending::interrupted);
  o.out = nullptr;
  const TrainedRecognizer second = train_recognizer(start, train, dev, o, session);
  EXPECT_EQ(second.ending, Ending::finished);
  EXPECT_EQ(weights(one.model), weights(second.model));
  EXPECT_EQ(one.model.config().threshold, second.model.config().threshold);
  TrainingOptions other = o;
  other.label_smoothing = 0.2;
  EXPECT_SAYS(train_recognizer(start, train, dev, other, session), "give the same config");
}

TEST(Training, TimeThatEndsInTheFirstEpochKeepsWhatWasLearnt) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    TrainingOptions o = quick();
    o.compute = compute, o.batch = 1, o.minutes = 0.05 / 60;
    const Corpus train = toy(true, 6000), dev = toy(true, 30);
    Session session({.threads = 1});
    Start start = from_scratch(small_config(), train, o);
    start.config.threshold = 0.9337;  // none that is tried
    const TrainedRecognizer r = train_recognizer(start, train, dev, o, session);
    ASSERT_EQ(r.ending, Ending::early);
    ASSERT_GT(r.step, 0);
    ASSERT_EQ(r.epochs, 0);
    EXPECT_NE(weights(r.model), weights(Recognizer(start.config, start.vocabulary, o.seed))) << compute;
    EXPECT_NE(r.model.config().threshold, start.config.threshold) << compute << ": not calibrated";
  }
}

TEST(Training, ALostBestIsNotGoneOnWithout) {
  const Folder folder;
  TrainingOptions o = quick();
  o.epochs = 2, o.run_folder = folder.at("run");
  const Corpus train = toy(false, 30), dev = toy(false, 12);
  Session session({.threads = 1});
  const Start start = from_scratch(small_config(), train, o);
  const auto run = [&] { return train_recognizer(start, train, dev, o, session); };
  const std::vector<float> want = weights(run().model);
  EXPECT_EQ(weights(run().model), want);
  std::filesystem::resize_file(folder.at("run/best/model.safetensors"), 100);
  EXPECT_SAYS(run(), "run/best");
  std::filesystem::remove_all(folder.at("run/best"));
  EXPECT_SAYS(run(), "and train again");
  // Without a checkpoint everything is made again.
  for (const auto& f : std::filesystem::directory_iterator(folder.at("run")))
    if (f.path().filename().string().starts_with("step-")) std::filesystem::remove(f.path());
  EXPECT_EQ(weights(run().model), want);
}

/// Runs `work` in a child; the status it ended with.
template <class F>
int in_child(F&& work, const std::function<void(pid_t)>& meanwhile = {}) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    try {
      work();
    } catch (const Error&) {
      ::_exit(3);
    }
    ::_exit(0);
  }
  if (meanwhile) meanwhile(pid);
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST(Training, KillsAndFullDisksLoseNothing) {
  const Folder folder;
  TrainingOptions o = quick();
  o.epochs = 5;
  const Corpus train = toy(false, 60), dev = toy(false, 20);
  const Start start = from_scratch(small_config(), train, o);
  const auto run = [&] {
    Session session({.threads = 1});  // no threads: the child has only its own
    return train_recognizer(start, train, dev, o, session);
  };
  const std::vector<float> want = weights(run().model);
  o.run_folder = folder.at("run");
  // A disk that takes 20 kB of a file, less than a checkpoint.
  const int full = in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit little{20000, 20000};
    ::setrlimit(RLIMIT_FSIZE, &little);
    run();
  });
  EXPECT_EQ(WEXITSTATUS(full), 3);
  in_child(run, [&](pid_t pid) {
    const auto saved = [&] {
      for (const auto& f : std::filesystem::directory_iterator(folder.at("run")))
        if (f.path().filename().string().starts_with("step-")) return true;
      return false;
    };
    for (int i = 0; i < 100000 && !saved() && ::kill(pid, 0) == 0; ++i) ::usleep(200);
    ::kill(pid, SIGKILL);
  });
  EXPECT_EQ(weights(run().model), want);
}

TEST(Training, HeldOutRowsAreNotLearnt) {
  Corpus train = toy(false, 200);
  train.rows.push_back({.text = "once", .labels = {"alone"}, .extra = {}, .line = 201});
  const Corpus dev = hold_out(train, 0.2, 3);
  EXPECT_EQ(train.rows.size() + dev.rows.size(), 201u);
  EXPECT_GT(dev.rows.size(), 10u);
  std::set<std::string> texts, labels;
  for (const Utterance& row : train.rows) texts.insert(row.text), labels.insert(row.labels[0]);
  for (const Utterance& row : dev.rows) EXPECT_FALSE(texts.contains(row.text)) << row.text;
  EXPECT_TRUE(labels.contains("alone"));
}

TEST(Training, OfFewRowsOneIsHeldOut) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    Corpus train = toy(false, 20);
    EXPECT_GE(hold_out(train, 0.05, seed).rows.size(), 1u) << seed;
    EXPECT_GE(train.rows.size(), 10u) << seed;
  }
}

/// Sure answers on dev do not refuse what is only less sure: own labels held out, rows have 0.5 and 0.6.
void scope_is_bounded_by_held_out_labels() {
  RecognizerConfig c;
  c.labels = {"a", "b", "c"};
  const Corpus dev = corpus_of({{"1", {"a"}}, {"2", {"b"}}});
  const std::vector<Prediction> sure = {{.probability = {0.98f, 0.01f, 0.01f}},
                                        {.probability = {0.02f, 0.95f, 0.03f}}};
  EXPECT_NEAR(held_out_confidence(c, dev.rows[0], sure[0]), 0.5, 1e-6);
  EXPECT_NEAR(held_out_confidence(c, dev.rows[1], sure[1]), 0.6, 1e-6);
  EXPECT_NEAR(calibrate(c, dev, sure, "oos", 0.5).out_of_scope, 0.6, 1e-6);
  EXPECT_EQ(calibrate(c, dev, sure, "oos", 0).out_of_scope, 0);
  // A model that gets nothing right does not refuse everything.
  const std::vector<Prediction> wrong = {sure[1], sure[0]};
  EXPECT_LE(calibrate(c, dev, wrong, "oos", 0.5).out_of_scope, 1.0 / 3);
  c.out_of_scope = 0.6 - 1e-3;
  const std::string words = scope_words(c, dev, sure, "oos");
  EXPECT_NE(words.find("Below 59.9 %"), words.npos) << words;
  EXPECT_NE(words.find("held out, 50.0 %"), words.npos) << words;
  c.out_of_scope = 0;
  EXPECT_NE(scope_words(c, dev, sure, "oos").find("Nothing is refused"), words.npos);
}

/// Of few rows four in five unknown ones are refused, rounded up: eight of ten, one of one.
TEST(Training, AFewUnknownRowsAreRefusedFourInFive) {
  RecognizerConfig c;
  c.labels = {"a", "b"};
  for (const auto& [unknown, refused] : {std::pair{10, 8}, {1, 1}, {4, 4}, {60, 48}}) {
    Corpus dev = corpus_of({{"known", {"a"}}});
    std::vector<Prediction> p = {{.probability = {0.999f, 0.001f}}};
    for (int i = 1; i <= unknown; ++i) {
      dev.rows.push_back(corpus_of({{"unknown", {"oos"}}}).rows[0]);
      const float x = 0.5f + 0.4f * static_cast<float>(i) / static_cast<float>(unknown);
      p.push_back({.probability = {x, 1 - x}});
    }
    const auto least = static_cast<float>(calibrate(c, dev, p, "oos", 0.018).out_of_scope);
    const auto below = [&](const Prediction& one) { return one.probability[0] < least; };
    EXPECT_EQ(std::count_if(p.begin(), p.end(), below), refused) << unknown;
  }
}

TEST(Training, ThresholdsComeFromDev) {
  RecognizerConfig c;
  c.labels = {"a", "b"};
  const Corpus dev = corpus_of({{"1", {"a"}}, {"2", {"b"}}, {"3", {"oos"}}, {"4", {}}, {"5", {"a"}}});
  const auto given = [](std::initializer_list<float> first) {
    std::vector<Prediction> p;
    for (const float x : first) p.push_back({.probability = {x, 1 - x}});
    return p;
  };
  const auto t = calibrate(c, dev, given({0.9f, 0.1f, 0.6f, 0.55f, 0.8f}), "oos");
  EXPECT_GT(t.out_of_scope, 0.6);
  EXPECT_LT(t.out_of_scope, 0.8);
  // Without out-of-scope rows nothing is refused.
  const Corpus inside = corpus_of({{"1", {"a"}}, {"2", {"b"}}, {"3", {"b"}}});
  const auto u = calibrate(c, inside, given({0.9f, 0.3f, 0.6f}), "oos");
  EXPECT_EQ(u.out_of_scope, 0);
  // Where some may be lost: of three rows one right answer may go, the least sure; a wrong one costs nothing.
  const auto some = calibrate(c, inside, given({0.9f, 0.3f, 0.6f}), "oos", 0.4);
  EXPECT_FLOAT_EQ(static_cast<float>(some.out_of_scope), 0.9f);
  // Where less than a row may go, as much less: 0.6 of the way from chance to the least sure right one.
  EXPECT_FLOAT_EQ(
      static_cast<float>(calibrate(c, inside, given({0.9f, 0.3f, 0.6f}), "oos", 0.2).out_of_scope), 0.62f);
  scope_is_bounded_by_held_out_labels();
  // One answer in eight is too much for one stranger in three, as if one text in five were a stranger's.
  const Corpus dear = corpus_of({{"1", {"a"}},
                                 {"2", {"a"}},
                                 {"3", {"a"}},
                                 {"4", {"a"}},
                                 {"5", {"a"}},
                                 {"6", {"a"}},
                                 {"7", {"a"}},
                                 {"8", {"a"}},
                                 {"9", {"oos"}},
                                 {"10", {"oos"}},
                                 {"11", {"oos"}}});
  const auto kept = given({0.55f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.9f, 0.6f, 0.95f, 0.95f});
  EXPECT_EQ(calibrate(c, dear, kept, "oos").out_of_scope, 0);
  c.multi_label = true;
  const Corpus both = corpus_of({{"1", {"a"}}, {"2", {"a", "b"}}});
  std::vector<Prediction> p(2);
  p[0].probability = {0.9f, 0.2f}, p[1].probability = {0.8f, 0.3f};
  const auto v = calibrate(c, both, p, "oos");
  EXPECT_GT(v.threshold, 0.2);
  EXPECT_LT(v.threshold, 0.31);
}

TEST(Training, BadDataIsOneSentence) {
  const RecognizerConfig c = small_config();
  const TrainingOptions o = quick();
  Session session({.threads = 1});
  EXPECT_SAYS(from_scratch(c, Corpus{.name = "empty", .rows = {}}, o), "no rows to learn from");
  EXPECT_SAYS(from_scratch(c, corpus_of({{"x", {"a"}}, {"y", {"a"}}}), o), "give a second class");
  EXPECT_SAYS(from_scratch(c, corpus_of({{"x", {"a"}}, {"y", {"oos"}}}), o), "two or more");
  const Corpus train = toy(false, 12);
  const Start start = from_scratch(c, train, o);
  EXPECT_SAYS(train_recognizer(start, train, corpus_of({{"x", {"other"}}}, "dev"), o, session),
              "never shows");
  EXPECT_SAYS(train_recognizer(start, train, Corpus{}, o, session), "give some of both");
  TrainingOptions one = o;
  one.multi_label = false;
  EXPECT_SAYS(from_scratch(c, toy(true, 12), one), "let it give several");
  Corpus copy = train;
  EXPECT_SAYS(hold_out(copy, 1.5, 1), "held_out is 1.5");
}

TEST(Evaluation, FiguresByHand) {
  RecognizerConfig c;
  c.labels = {"a", "b", "c"};
  c.multi_label = true, c.at_least_one = true, c.out_of_scope = 0.2;
  const Corpus rows = corpus_of(
      {{"1", {"a"}}, {"2", {"a", "b"}}, {"3", {"c"}}, {"4", {"oos"}}, {"5", {"b"}}, {"6", {"a", "c"}}},
      "test");
  const float x[6][3] = {{0.9f, 0.1f, 0.1f}, {0.9f, 0.4f, 0.1f},  {0.1f, 0.8f, 0.3f},
                         {0.1f, 0.1f, 0.1f}, {0.1f, 0.1f, 0.15f}, {0.7f, 0.1f, 0.8f}};
  std::vector<Prediction> given(6);
  for (std::size_t i = 0; i < 6; ++i) given[i].probability = {x[i][0], x[i][1], x[i][2]}, decide(c, given[i]);
  const Evaluation e = evaluate(c, rows, given);
  EXPECT_EQ(e.exact.part, 2);
  EXPECT_EQ(e.exact.whole, 5);
  EXPECT_EQ(e.by_intents.at(2).part, 1);
  EXPECT_EQ(e.scope_recall.part, 1);
  EXPECT_EQ(e.scope_precision.whole, 2);
  EXPECT_DOUBLE_EQ(e.micro_f1, 2.0 * 4 / (7 + 5));
  ASSERT_EQ(e.confusions.size(), 1u);
  EXPECT_EQ(e.confusions[0].wanted + e.confusions[0].given, "cb");
  EXPECT_EQ(e.bad_cases.size(), 3u);
  EXPECT_EQ(e.bad_cases[0].text, "2");
  EXPECT_NE(e.json().find("\"bad_cases\""), std::string::npos);
  EXPECT_NE(e.print().find("2 intents   50.00 % (1 of 2)"), std::string::npos) << e.print();
  EXPECT_SAYS(evaluate(c, corpus_of({{"1", {"zzz"}}}), std::span(given).first(1)), "never learnt the label");
}

/// Tiny part of real data, where it is: the recipe begins to learn it.
TEST(Training, RealRows) {
  const char* data = std::getenv("HEADWISE_DATA");
  if (!data) GTEST_SKIP() << "HEADWISE_DATA is not set";
  Corpus train = read_corpus(text(data, "/unified_tsv/crosswoz_val_role_dialog.tsv.gz"));
  train.rows.resize(300);
  TrainingOptions o = quick();
  o.epochs = 3, o.pieces = 800, o.batch = 32;
  const Corpus dev = hold_out(train, 0.2, 1);
  Session session;
  const Start start = from_scratch(small_config(), train, o);
  EXPECT_TRUE(start.config.multi_label);
  const TrainedRecognizer r = train_recognizer(start, train, dev, o, session);
  EXPECT_GT(r.dev.micro_f1, 0.2) << r.dev.print();
}

}  // namespace
}  // namespace headwise
