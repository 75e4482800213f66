// Compound intents: connectors, pieces out of rows, drawn texts, cuts, and a recogniser that cuts.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "headwise/analysis/explain.h"
#include "headwise/base/random.h"
#include "headwise/intent/compound/connectors.h"
#include "headwise/intent/compound/joined_texts.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/intent/training/train_forms.h"
#include "tests/intent/support.h"
#include "tests/layers/check.h"

namespace headwise {
namespace {

using namespace test;

const std::vector<std::string> kSmall = {",", "and", "and then", "，", "然后"};

std::set<std::string> found(std::string_view text) {
  std::set<std::string> all;
  for (const ConnectorPlace& p : connector_places(text, kSmall))
    all.emplace(text.substr(static_cast<std::size_t>(p.begin), static_cast<std::size_t>(p.end - p.begin)));
  return all;
}

TEST(Connectors, AreWholeWordsOfAnyCaseAloneOrTogether) {
  EXPECT_EQ(found("pay And then stop"), (std::set<std::string>{"And", "And then"}));
  EXPECT_EQ(found("a, and b"), (std::set<std::string>{",", "and", ", and"}));
  EXPECT_EQ(found("sand 1,000 handy"), std::set<std::string>{});
  EXPECT_EQ(found("我要还款，然后查余额"), (std::set<std::string>{"，", "然后", "，然后"}));
  EXPECT_EQ(piece_key("  How  MUCH? "), "how much");
  EXPECT_TRUE(connector_places(std::string(1000, ','), kSmall).empty());  // too many to try
}

Utterance row(std::string words, std::vector<std::string> labels) {
  return {.text = std::move(words), .labels = std::move(labels), .extra = {}, .line = 1};
}

TEST(Pieces, AreFoundByWhatOtherRowsKnow) {
  const Corpus corpus{.name = "rows",
                      .rows = {row("pay my loan and my card", {"loan"}), row("what is the rate", {"rate"}),
                               row("pay my loan and my card and what is the rate", {"loan", "rate"}),
                               // "block it" is known from two rows, then cuts the third.
                               row("what is the rate and then block it", {"rate", "card"}),
                               row("block it , what is the rate", {"card", "rate"}),
                               row("block it and my fee", {"card", "fee"}),
                               row("these words have no place to cut", {"card", "fee"}),
                               // No piece of it is another row's; its words are.
                               row("the rate of it and then the card my loan has", {"rate", "loan"})}};
  const std::vector<std::string> labels = {"card", "fee", "loan", "rate"};
  const CutRows cut = cut_rows(corpus, labels, kSmall);
  EXPECT_EQ(cut.cut, 5);
  EXPECT_EQ(cut.by_words, 1);
  EXPECT_EQ(cut.whole, (std::vector<Index>{6}));
  std::set<std::pair<std::string, Index>> pieces;
  for (const LabelledPiece& p : cut.pieces) pieces.emplace(p.text, p.label);
  const std::set<std::pair<std::string, Index>> wanted = {
      {"pay my loan and my card", 2}, {"what is the rate", 3},    {"block it", 0}, {"my fee", 1},
      {"the rate of it", 3},          {"the card my loan has", 2}};
  EXPECT_EQ(pieces, wanted);
  EXPECT_EQ(cut.connectors, (std::map<std::string, Index>{{"and", 2}, {"and then", 2}, {",", 1}}));
  EXPECT_EQ(cut.rows_by_labels, (std::vector<Index>{0, 2, 6}));
}

/// A token a word, numbered as met.
struct Words {
  std::map<std::string, TokenId> numbers;
  std::vector<TokenId> operator()(const std::string& words) {
    std::vector<TokenId> ids;
    std::istringstream in(words);
    for (std::string w; in >> w;)
      ids.push_back(numbers.emplace(w, static_cast<TokenId>(numbers.size())).first->second);
    return ids;
  }
};

TEST(JoinedTexts, AreJoinsOfDifferentLabelsAndDependOnTheirSeedAlone) {
  CutRows rows;
  rows.pieces = {{"pay a and b", 0}, {"rate", 1}, {"block it now", 2}};
  rows.connectors = {{"and then", 3}};
  rows.rows_by_labels = {0, 3, 5, 2};
  Words words;
  const JoinedTexts texts(rows, 3, std::vector<std::string>{"and then", "and"},
                          [&](const std::string& s) { return words(s); });
  EXPECT_EQ(texts.most_intents(), 3);
  EXPECT_EQ(texts.connector_tokens(), 2);
  int counts[4] = {}, broken = 0;
  for (std::uint32_t i = 0; i < 2000; ++i) {
    const DrawnText a = texts.compound(7, i), b = texts.compound(7, i);
    EXPECT_EQ(a.ids, b.ids);
    ASSERT_EQ(a.ids.size(), a.marks.size());
    const auto starts = std::count(a.marks.begin(), a.marks.end(), TokenMark::start);
    ++counts[starts + 1];
    EXPECT_EQ(a.label == 3, starts > 0);
    // An intent begins behind a connector and nowhere else.
    for (std::size_t t = 1; t < a.ids.size(); ++t)
      EXPECT_EQ(a.marks[t] == TokenMark::start,
                a.marks[t] != TokenMark::connector && a.marks[t - 1] == TokenMark::connector);
    const DrawnText piece = texts.piece(7, i);
    broken += piece.label == 3;
    EXPECT_TRUE(piece.label != 3 || piece.ids.size() <= 2);
  }
  EXPECT_NEAR(counts[1], 600, 90);
  EXPECT_NEAR(counts[2], 1000, 100);
  EXPECT_NEAR(counts[3], 400, 80);
  EXPECT_NEAR(broken, 200, 60);  // a third of the pieces, 30 % of them
}

/// The best of all ways and all labels, tried one by one.
double best_by_trying(const CutReading& r, double shift, double weight) {
  double best = -1e300;
  for (std::size_t w = 0; w < r.ways.size(); ++w) {
    double cuts = 0;
    for (std::size_t i = 0; i < r.candidates.size(); ++i) {
      const double z = (r.ways[w] >> i & 1u ? 1 : -1) * (r.candidates[i] + shift);
      cuts += -std::log(1 + std::exp(-z));
    }
    const auto parts = r.parts[w].size(), labels = r.scores[0].size();
    std::vector<std::size_t> l(parts, 0);
    for (;;) {
      double sum = cuts;
      for (std::size_t i = 0; i < parts; ++i) sum += weight * r.scores[r.parts[w][i]][l[i]];
      if (std::set<std::size_t>(l.begin(), l.end()).size() == parts) best = std::max(best, sum);
      std::size_t i = 0;
      while (i < parts && ++l[i] == labels) l[i++] = 0;
      if (i == parts) break;
    }
  }
  return best;
}

TEST(Cuts, TheChoiceIsTheBestOfAll) {
  const std::vector<TokenTags> tokens = {{0, -5, true}, {-9, -5, true}, {1, 4, true},  {-1, 3, true},
                                         {2, -4, true}, {5, -4, false}, {-2, 2, true}, {0.5, -3, true}};
  const CutReading plan = plan_cuts(tokens, {.on = true, .most_intents = 3, .connector_tokens = 2});
  EXPECT_EQ(plan.candidates, (std::vector<double>{1, -1, 2, -2, 0.5}));  // no piece inside a word
  EXPECT_EQ(plan.ways.size(), 1u + 5u + 10u);
  EXPECT_EQ(plan.spans[0], (TokenRange{0, 8}));
  // The span before token 4 loses its two connectors, the one before 7 loses one.
  EXPECT_NE(std::find(plan.spans.begin(), plan.spans.end(), TokenRange{0, 2}), plan.spans.end());
  EXPECT_NE(std::find(plan.spans.begin(), plan.spans.end(), TokenRange{4, 6}), plan.spans.end());
  for (std::uint32_t trial = 0; trial < 50; ++trial) {
    CutReading r = plan;
    for (std::size_t s = 0; s < r.spans.size(); ++s) {
      r.scores.emplace_back();
      for (std::uint32_t l = 0; l < 3; ++l)
        r.scores.back().push_back(
            -4e-9 * static_cast<double>(Philox::block(5, {trial, static_cast<std::uint32_t>(s), l, 0})[0]));
    }
    const auto chosen = choose_cuts(r, 0.3, 1.5);
    double got = 0;
    std::vector<std::size_t> parts;
    for (const ChosenSpan& c : chosen) {
      got += 1.5 * r.scores[c.span][static_cast<std::size_t>(c.label)];
      parts.push_back(c.span);
    }
    // Two ways may ask for the same spans: of these the likelier one.
    double cuts = -1e300;
    for (std::size_t w = 0; w < r.ways.size(); ++w) {
      if (r.parts[w] != parts) continue;
      double sum = 0;
      for (std::size_t i = 0; i < r.candidates.size(); ++i)
        sum -= std::log(1 + std::exp(-(r.ways[w] >> i & 1u ? 1 : -1) * (r.candidates[i] + 0.3)));
      cuts = std::max(cuts, sum);
    }
    EXPECT_NEAR(got + cuts, best_by_trying(r, 0.3, 1.5), 1e-9);
  }
}

TEST(Cuts, AnEmptyTextIsOneSpan) {
  const CutReading plan = plan_cuts({}, {.on = true});
  EXPECT_EQ(plan.spans.size(), 1u);
  EXPECT_EQ(plan.ways.size(), 1u);
}

RecognizerConfig small_config() {
  RecognizerConfig c;
  c.encoder.model_dim = 16, c.encoder.feed_dim = 32, c.encoder.depth = 1, c.encoder.max_tokens = 64;
  c.encoder.heads = "mha:heads=2+gated:source=input,act=silu";
  c.encoder.dropout = 0.1, c.pool_dropout = 0.1;
  c.chunk_tokens = 64, c.chunk_overlap = 8;
  c.ngrams.buckets = 60, c.ngrams.columns = 8;
  c.cuts.on = true;
  return c;
}

/// Three things to ask for, each in a few words, alone or two together.
Corpus toy(Index count) {
  const char* words[][3] = {
      {"card", "block my red card", "my card is lost"},
      {"loan", "how large is the loan", "i want a blue loan"},
      {"rate", "tell me the rate", "what is my green rate"},
  };
  const char* joins[] = {" and ", " and then ", " , "};
  Corpus c{.name = "toy", .rows = {}};
  for (Index i = 0; i < count; ++i) {
    const auto &a = words[i % 3], &b = words[(i + 1 + i / 3 % 2) % 3];
    Utterance u = row(a[1 + i / 2 % 2], {a[0]});
    if (i % 2) u.text += joins[i / 6 % 3] + std::string(b[1 + i / 5 % 2]), u.labels.emplace_back(b[0]);
    c.rows.push_back(std::move(u));
  }
  return c;
}

TrainingOptions quick() {
  TrainingOptions o = compound_training();
  o.epochs = 12, o.batch = 16, o.rate = 1e-2, o.average = 0.9, o.pieces = 200;
  o.token_dropout = o.compound_dropout = 0.05;
  return o;
}

TEST(CuttingRecognizer, HasItsGradients) {
  RecognizerConfig c = small_config();
  c.labels = {"card", "loan"}, c.multi_label = true;
  c.encoder.model_dim = 8, c.encoder.feed_dim = 12;
  std::vector<std::string> pieces = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "my", "card", "and"};
  Bench bench;
  Recognizer model(c, Vocabulary(pieces), 1, DType::f64);
  const std::vector<std::string> texts = {"my card and my my", "card"};
  const TextBatch batch = model.batch(texts);
  Recognizer::Saved saved;
  AnyView logits, tags;
  // Both outputs in one row of numbers, so that both gradients are looked at.
  expect_gradients(
      {.name = "cuts",
       .params = model.params(),
       .inputs = {},
       .call = [&] { return bench.call({}, true); },
       .forward =
           [&](Call& call, bool) {
             logits = model.forward(batch, call, &saved, &tags);
             const AnyView y = call.memory.take(DType::f64, {1, logits.count() + tags.count()});
             auto* to = static_cast<double*>(y.data);
             std::copy_n(static_cast<const double*>(logits.data), logits.count(), to);
             std::copy_n(static_cast<const double*>(tags.data), tags.count(), to + logits.count());
             return y;
           },
       .backward =
           [&](const InputView& dy, Call& call) {
             auto* from = const_cast<double*>(static_cast<const double*>(dy.data));
             model.backward(AnyView::packed(from, DType::f64, {logits.size[0], logits.size[1]}), call, saved,
                            AnyView::packed(from + logits.count(), DType::f64, {tags.size[0], 2}));
             return std::vector<AnyView>{};
           }});
}

TEST(CuttingRecognizer, LearnsToCutAndNamesWhatSaidEachIntent) {
  const Corpus train = toy(90), dev = toy(36);
  const TrainingOptions o = quick();
  Session session({.threads = 1}), two({.threads = 2});
  const TrainedRecognizer made =
      train_recognizer(from_scratch(small_config(), train, o), train, dev, o, session);
  EXPECT_GT(made.dev.exact.value(), 0.9) << made.dev.print();
  EXPECT_EQ(made.model.config().cuts.most_intents, 2);

  const std::string words = "What is my green rate and then block my red card";
  const Prediction p = made.model.predict(words, session);
  ASSERT_EQ(p.spans.size(), 2u);
  const auto said = [&](std::size_t i) {
    const TextSpan& s = p.spans[i].span;
    return words.substr(static_cast<std::size_t>(s.begin), static_cast<std::size_t>(s.end - s.begin));
  };
  EXPECT_EQ(said(0), "What is my green rate");
  EXPECT_EQ(said(1), "block my red card");
  const Explanation e = explain_text(made.model, words, session, {.label = p.spans[1].label});
  EXPECT_EQ(e.prediction.probability, p.probability);
  EXPECT_EQ(e.tokens[1].span.begin, p.spans[1].span.begin);

  // In a batch, with more threads and from its folder: the same bits. Any text has an answer.
  const std::vector<std::string> texts = {"", words, "zzz \xff", "card", std::string(500, ',')};
  const Folder folder;
  made.model.save(folder.at("model"));
  const Recognizer again = Recognizer::load(folder.at("model"));
  EXPECT_EQ(again.config().cuts, made.model.config().cuts);
  const std::vector<Prediction> together = again.predict(texts, two);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Prediction alone = made.model.predict(texts[i], session);
    EXPECT_EQ(together[i].probability, alone.probability) << texts[i];
    EXPECT_EQ(together[i].labels, alone.labels) << texts[i];
    EXPECT_FALSE(alone.labels.empty());
  }
}

/// A stream that asks the trainer to stop after its first step.
struct StopSoon : std::stringbuf {
  std::streamsize xsputn(const char* s, std::streamsize n) override {
    if (!asked && std::string_view(s, static_cast<std::size_t>(n)).find("step") != std::string_view::npos)
      asked = true, ::raise(SIGINT);
    return n;
  }
  bool asked = false;
};

TEST(CuttingRecognizer, AStoppedRunGoesOnToTheSameBits) {
  const Folder folder;
  TrainingOptions o = quick();
  o.epochs = 2;
  const Corpus train = toy(60), dev = toy(20);
  Session session({.threads = 1});
  const Start start = from_scratch(small_config(), train, o);
  o.run_folder = folder.at("whole");
  const TrainedRecognizer one = train_recognizer(start, train, dev, o, session);
  o.run_folder = folder.at("cut");
  StopSoon buffer;
  std::ostream stop(&buffer);
  o.out = &stop;
  EXPECT_EQ(train_recognizer(start, train, dev, o, session).ending, Ending::interrupted);
  o.out = nullptr;
  const TrainedRecognizer second = train_recognizer(start, train, dev, o, session);
  EXPECT_EQ(second.ending, Ending::finished);
  EXPECT_EQ(one.model.config().cuts, second.model.config().cuts);
  for (std::size_t i = 0; i < one.model.params().all().size(); ++i) {
    const AnyView &a = one.model.params().all()[i].value, &b = second.model.params().all()[i].value;
    EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(a.count()) * 4), 0);
  }
}

/// Words of a small training of either form.
TrainWords small_words(const char* compound) {
  TrainWords w;
  w.config = small_config();
  w.config.cuts.on = false;
  for (const auto& [option, value] :
       std::initializer_list<std::pair<const char*, const char*>>{{"compound", compound},
                                                                  {"epochs", "3"},
                                                                  {"batch", "16"},
                                                                  {"rate", "1e-2"},
                                                                  {"vocabulary", "200"},
                                                                  {"ngrams", "60"},
                                                                  {"max-tokens", "64"}})
    say(w, option, value);
  return w;
}

TEST(Forms, AutoGivesTheOneThatDevPrefersAndSaysSo) {
  const Corpus train = toy(60), dev = toy(20);
  Session session({.threads = 1});
  const TrainedRecognizer made = train_forms(small_words("auto"), nullptr, train, dev, session);
  double exact[2];
  for (const int labels : {0, 1}) {
    TrainWords w = small_words(labels ? "labels" : "cut");
    take_recipes(w);
    EXPECT_EQ(config_of(w, nullptr).pooling == Pooling::labels, labels == 1);
    exact[labels] = train_recognizer(from_scratch(config_of(w, nullptr), train, w.training), train, dev,
                                     w.training, session)
                        .dev.exact.value();
  }
  EXPECT_EQ(made.dev.exact.value(), std::max(exact[0], exact[1]));
  EXPECT_EQ(made.model.config().cuts.on, exact[0] > exact[1]);
  char said[128];
  std::snprintf(said, sizeof said, "chosen on toy, by exact match: cut %.2f %%, asked by label %.2f %%.\n",
                100 * exact[0], 100 * exact[1]);
  EXPECT_NE(made.card.find(said), std::string::npos) << made.card << said;
}

TEST(Forms, WhereNothingCanBeCutLabelsAreAsked) {
  Corpus rows{.name = "rows", .rows = {}};
  for (int i = 0; i < 8; ++i)
    rows.rows.insert(rows.rows.end(), {row("aa", {"x"}), row("bb", {"y"}), row("no place", {"x", "y"})});
  Session session({.threads = 1});
  const TrainedRecognizer made = train_forms(small_words("auto"), nullptr, rows, rows, session);
  EXPECT_FALSE(made.model.config().cuts.on);
  EXPECT_EQ(made.model.config().pooling, Pooling::labels);
  EXPECT_NE(made.card.find("No row of several intents could be cut"), std::string::npos);
  TrainWords pooled = small_words("auto");
  pooled.pooling = "mean";
  EXPECT_SAYS(take_recipes(pooled), "leave out --pooling");
}

TEST(CuttingRecognizer, RefusesWhatItCannotCut) {
  const TrainingOptions o = quick();
  Session session({.threads = 1});
  Corpus rows{.name = "rows", .rows = {row("aa", {"x"}), row("bb", {"y"}), row("no place", {"x", "y"})}};
  EXPECT_SAYS(train_recognizer(from_scratch(small_config(), rows, o), rows, rows, o, session),
              "none of the 1 rows with several labels could be cut");
  rows.rows.pop_back();
  EXPECT_SAYS(train_recognizer(from_scratch(small_config(), rows, o), rows, rows, o, session),
              "cutting needs several labels a text");
  RecognizerConfig c = small_config();
  c.multi_label = true, c.labels = {"x", "y"}, c.pooling = Pooling::labels;
  EXPECT_SAYS(check(c), "pooling attention or mean");
}

}  // namespace
}  // namespace headwise
