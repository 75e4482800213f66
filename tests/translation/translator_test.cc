// Translators: a planted head, cross-attention against its own softmax, folders, and learning.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/translation/translator.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "headwise/translation/align_words.h"
#include "headwise/view/model_maps.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string room() {
  return (fs::temp_directory_path() / ("headwise_translator_" + std::to_string(::getpid()))).string();
}

void fill(const AnyView& v, double x) {
  for (Index i = 0; i < v.count(); ++i) static_cast<float*>(v.data)[i] = static_cast<float>(x);
}

/// One block whose cross-attention reads the source at its own place: rows are positions alone, because the
/// embeddings are 0 and no sublayer before it adds anything; W_Q and W_K are multiples of the identity.
Translator planted() {
  Translator t(Bpe(),
               {.heads = "mha:heads=1,dim=32", .model_dim = 32, .feed_dim = 4, .depth = 1, .dropout = 0}, 1);
  for (Param& p : t.params().all()) {
    const bool norm = p.name.find("norm") != p.name.npos;
    if (!norm) fill(p.value, 0);
    if (p.name == "stack.layers.0.cross.q.weight" || p.name == "stack.layers.0.cross.k.weight")
      for (Index i = 0; i < 32; ++i) static_cast<float*>(p.value.data)[i * 33] = 20;
  }
  return t;
}

const std::vector<SentencePair> kPairs = {{"ab cd, efg.", "hi jk, lmn."}, {"a b", "c d"}};

TEST(AlignWords, PlantedHeadThatReadsByPositionHasNoError) {
  const Translator t = planted();
  Session session({.threads = 1});
  const std::vector<GoldPair> gold = parse_gold("1: 0-0 1-1 2-2 3-3 4-4\n2: 0-0 1-1", "gold");
  const auto weights = word_weights(t, kPairs, StepRow::writes, session);
  for (const Merge m : {Merge::argmax, Merge::intersection, Merge::grow_diag, Merge::grow_diag_final_and}) {
    const auto all = align_words(weights, {.rules = {.merge = m}}, gold);
    ASSERT_EQ(all.size(), 2U);
    for (const HeadLinks& h : all) EXPECT_EQ(h.score.error_rate(), 0) << pharaoh(h.pairs[0]);
  }
  // The step that reads a piece stands one place further: one-letter words go to what follows them, the last
  // one to the end, where no word is.
  const auto read = word_weights(t, kPairs, StepRow::reads, session);
  const auto all = align_words(read, {.step = StepRow::reads, .rules = {.merge = Merge::argmax}}, gold);
  EXPECT_GT(all[0].score.error_rate(), 0.3);
}

TEST(AlignWords, WordsPoolColumnsBySumAndRowsByMean) {
  Translator t(Bpe(), {.heads = "mha:heads=2,dim=4", .model_dim = 8, .feed_dim = 8, .depth = 2}, 3);
  Session session({.threads = 1});
  const PairTokens tokens = t.encode(kPairs[0].source, kPairs[0].target);
  const PairTokens* asked[] = {&tokens};
  const std::vector<Tap> taps = t.cross_weights(asked, session);
  ASSERT_EQ(taps.size(), 2U);
  const WordWeights w = std::move(word_weights(t, kPairs, StepRow::writes, session)[0]);
  ASSERT_EQ(w.heads.size(), 4U);
  EXPECT_TRUE(w.heads[3].layer == 1 && w.heads[3].head == 1);
  const Tap& tap = taps[1];
  ASSERT_TRUE(tap.block == 1 && tap.q_tokens == 12 && tap.kv_tokens == 12);
  for (Index q = 0; q < tap.q_tokens; ++q) {
    double sum = 0;
    for (Index k = 0; k < tap.kv_tokens; ++k) sum += static_cast<double>(tap.at(1, q, k));
    EXPECT_NEAR(sum, 1, 1e-5);
  }
  // Words 3 and 0: bytes 7 to 10 of the target, "lmn", and 0 to 2 of the source, "ab".
  double want = 0;
  for (Index q = 7; q < 10; ++q)
    for (Index k = 0; k < 2; ++k) want += static_cast<double>(tap.at(1, q, k)) / 3;
  EXPECT_NEAR(static_cast<double>(w.of(3)[3 * 5 + 0]), want, 1e-6);
  const LayerHead named[] = {{1, 1}};
  EXPECT_EQ(w.mean(named)[15], w.of(3)[15]);
  const LayerHead none[] = {{2, 0}};
  EXPECT_EQ(error_of([&] { w.mean(none); }), "align: there is no head 2.0; the model's last one is 1.1");
}

/// The same weights from the projections, by the definition: softmax(q k / sqrt(dim)) over the norms' rows.
TEST(Translator, CrossWeightsAreThoseOfTheDefinition) {
  const Translator t = planted();
  const PairTokens tokens = t.encode("ab", "cde");
  const PairTokens* asked[] = {&tokens};
  Session session({.threads = 1});
  const Tap tap = std::move(t.cross_weights(asked, session)[0]);
  // Sinusoids (sine in even columns, cosine behind it), then a norm over 32 columns, on both sides.
  const auto row = [](Index place) {
    std::vector<double> x(32);
    double mean = 0, square = 0;
    for (int i = 0; i < 32; ++i) {
      const double angle =
          static_cast<double>(place) / std::pow(10000.0, static_cast<double>(i / 2 * 2) / 32);
      x[static_cast<std::size_t>(i)] = i % 2 ? std::cos(angle) : std::sin(angle);
      mean += x[static_cast<std::size_t>(i)] / 32;
    }
    for (double& v : x) v -= mean, square += v * v / 32;
    for (double& v : x) v /= std::sqrt(square + 1e-5);
    return x;
  };
  for (Index q = 0; q < 4; ++q) {
    double scores[3], sum = 0;
    for (Index k = 0; k < 3; ++k) {
      double dot = 0;
      for (std::size_t i = 0; i < 32; ++i) dot += row(q)[i] * row(k)[i];
      sum += scores[k] = std::exp(400 * dot / std::sqrt(32.0) - 400 * 32 / std::sqrt(32.0));
    }
    for (Index k = 0; k < 3; ++k) EXPECT_NEAR(static_cast<double>(tap.at(0, q, k)), scores[k] / sum, 1e-3);
  }
}

TEST(Translator, LearnsAndItsFolderGivesTheSameBits) {
  const std::string folder = room() + "/model";
  fs::remove_all(room());
  fs::create_directories(room());
  Translator t(Bpe::train("eins zwei drei eins zwei drei", 270),
               {.heads = "mha:heads=2,dim=8", .model_dim = 16, .feed_dim = 32, .depth = 1, .dropout = 0}, 5);
  Session session({.threads = 1});
  const std::vector<PairTokens> pairs = {t.encode("one two", "eins zwei"), t.encode("two three", "zwei drei"),
                                         t.encode("three", "drei")};
  std::vector<const PairTokens*> all;
  for (const PairTokens& p : pairs) all.push_back(&p);
  Optimizer optimizer(t.params(), AdamWOptions{});
  TrainerOptions options{.steps = 150, .micro_rows = 3, .rate = Schedule::constant(0.01)};
  Trainer(optimizer, 3, options, session.ctx).run([&](const MicroBatch& m) {
    return t.learn(all, m, 0, session);
  });
  EXPECT_LT(t.judge(all, session).mean(), 0.1);
  const std::vector<std::vector<std::int32_t>> sources = {pairs[0].source, pairs[2].source};
  const auto found = t.translate(sources, session);
  EXPECT_EQ(t.bpe().decode(found[0]), "eins zwei");
  EXPECT_EQ(t.bpe().decode(found[1]), "drei");

  t.save(folder);
  const Translator back = Translator::load(folder);
  const auto weights = [&](const Translator& model) { return model.cross_weights(all, session); };
  const std::vector<Tap> a = weights(t), b = weights(back);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].weights, b[i].weights);
  // The viewer's map has the pieces, the end, and the model's own words where none are given.
  const AttentionMaps maps = maps_of_model(folder, {.text = "one two"}, session);
  EXPECT_EQ(maps.name, "cross");
  std::string written;
  for (const std::string& text : maps.queries.texts) written += text;
  EXPECT_EQ(maps.queries.count(), static_cast<Index>(pairs[0].target.size()) + 1);
  EXPECT_EQ(maps.keys.count(), static_cast<Index>(pairs[0].source.size()) + 1);
  EXPECT_EQ(written.substr(0, 4), "eins");

  std::ifstream file(folder + "/config.json");
  const std::string saved{std::istreambuf_iterator<char>(file), {}};
  std::string config = saved;
  const auto put = [&](const std::string& name, const std::string& value) {
    const std::size_t at = config.find("\"" + name + "\": ") + name.size() + 4;
    config.replace(at, config.find(',', at) - at, value);
  };
  put("model_dim", "4096"), put("max_tokens", "1048576");
  std::ofstream(folder + "/config.json") << config;
  EXPECT_NE(error_of([&] { Translator::load(folder); }).find("2^26 numbers of positions"), std::string::npos);
  std::ofstream(folder + "/config.json") << saved;

  std::ofstream(folder + "/bpe.txt") << "headwise-bpe 1\n";
  EXPECT_NE(error_of([&] { Translator::load(folder); }).find("files of two models are mixed"),
            std::string::npos);
  EXPECT_NE(error_of([&] { Translator::load(room()); }).find("has no config.json"), std::string::npos);
  fs::remove_all(room());
}

TEST(AlignWords, BadInputIsRefusedInWords) {
  const auto pairs = [](const char* text) {
    return error_of([&] { parse_sentence_pairs(text, "align: pairs.tsv"); });
  };
  EXPECT_EQ(parse_sentence_pairs("a b ||| c\r\nd\te f\n", "pairs").size(), 2U);
  EXPECT_EQ(parse_sentence_pairs("d\te f\n", "pairs")[0].target, "e f");
  EXPECT_EQ(parse_sentence_pairs("\xEF\xBB\xBF"
                                 "a b\tc\n",
                                 "pairs")[0]
                .source,
            "a b")
      << "a mark is no word";
  EXPECT_EQ(pairs("a b"),
            "align: pairs.tsv: line 1 has neither a tab nor \" ||| \" between two sentences; put one there");
  EXPECT_EQ(pairs("a\tb\n \tc"), "align: pairs.tsv: line 2 has a sentence without words; give two sentences");
  EXPECT_NE(error_of([] { parse_cross_head("1"); }), "no error");
  EXPECT_NE(error_of([] { parse_cross_head("1.x"); }), "no error");
  EXPECT_NE(error_of([] { parse_step("both"); }), "no error");
  const Translator t = planted();
  Session session({.threads = 1});
  EXPECT_NE(error_of([&] { t.encode(std::string(96, 'x'), "y"); }).find("the model reads 95"),
            std::string::npos);
  const auto weights = word_weights(t, kPairs, StepRow::writes, session);
  EXPECT_NE(error_of([&] { align_words(weights, {}, parse_gold("3: 0-0", "gold")); }).find("pair 3"),
            std::string::npos);
  EXPECT_NE(error_of([&] { align_words(weights, {}, parse_gold("2: 0-2", "gold")); }).find("words 0 and 2"),
            std::string::npos);
}

}  // namespace
}  // namespace headwise
