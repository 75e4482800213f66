// Surveys: planted heads are named and only these, shuffled models earn nothing, maps, clusters and pages.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/lab/survey/head_survey.h"

#include <cmath>
#include <cstdlib>

#include "headwise/intent/training/training.h"
#include "headwise/lab/cut/cut.h"
#include "headwise/lab/cut/keep_roles.h"
#include "headwise/lab/figures/score_rank.h"
#include "headwise/lab/survey/head_map.h"
#include "tests/lab/tiny_recognizer.h"

namespace headwise {
namespace {

using namespace test;

constexpr Index kPlaces = 32, kWide = 64, kHeads = 6;
enum Planted : Index { kPrevious, kNext, kSelf, kFirst, kSep, kPunctuation };

/// One layer whose heads are built by hand over rows that are one-hot in their place and in their token.
class PlantedModel {
 public:
  explicit PlantedModel(const std::string& folder) {
    RecognizerConfig c;
    c.encoder.model_dim = kWide, c.encoder.feed_dim = 4, c.encoder.max_tokens = kPlaces, c.encoder.depth = 1;
    c.encoder.heads = text("mha:heads=", kHeads, ",dim=", kPlaces);
    c.encoder.positions = Positions::learned;
    c.labels = {"a", "b"}, c.ngrams.buckets = 0, c.chunk_tokens = kPlaces, c.chunk_overlap = 4;
    Recognizer model(c, lab_vocabulary(), 1);
    params_ = &model.params();
    for (Param& p : params_->all())
      for (Index i = 0; i < p.value.count(); ++i)
        store_double(p.value.data, p.value.dtype, i, p.name.find("norm") != std::string::npos ? 1 : 0);
    const Vocabulary vocabulary = lab_vocabulary();
    for (Index i = 0; i < kPlaces; ++i) put("embed.positions", i * kWide + i, 1);
    for (Index id = 0; id < vocabulary.size(); ++id) put("embed.table", id * kWide + kPlaces + id, 1);
    for (Index i = 0; i < kPlaces; ++i) {
      for (const Index head : {kPrevious, kNext, kSelf}) put("q.weight", row(head, i) + i, 4);
      if (i > 0) put("k.weight", row(kPrevious, i) + i - 1, 1), put("k.weight", row(kNext, i - 1) + i, 1);
      put("k.weight", row(kSelf, i) + i, 1);
    }
    for (const Index head : {kFirst, kSep, kPunctuation}) put("q.bias", head * kPlaces, 20);
    put("k.weight", row(kFirst, 0), 1);
    put("k.weight", row(kSep, 0) + kPlaces + vocabulary.find("[SEP]"), 1);
    put("k.weight", row(kPunctuation, 0) + kPlaces + vocabulary.find("."), 1);
    model.save(folder);
  }

 private:
  static Index row(Index head, Index i) { return (head * kPlaces + i) * kWide; }
  void put(const std::string& name, Index i, double x) {
    const AnyView v =
        params_->find(name.starts_with("embed") ? name : attention_name(0) + "." + name).value();
    store_double(v.data, v.dtype, i, x);
  }
  ParamSet* params_ = nullptr;
};

const std::vector<std::string> kSentences = {
    "my card is lost . pay the fee for my loan .", "the rate is my fee . lost card .",
    "pay the loan . is the rate for cards .", "lost . my loan rate . the fee is for pay"};

TEST(Survey, PlantedHeadsAreNamedAndOnlyThese) {
  Folder folder;
  PlantedModel(folder.at("planted"));
  const HeadSurvey s = survey_model(folder.at("planted"), kSentences, 1, {.apart = 4, .clusters = 3});
  ASSERT_EQ(s.heads.size(), 6u);
  const std::vector<std::vector<std::string>> wanted = {{"previous", "positional -1"},
                                                        {"next", "positional +1"},
                                                        {"self", "positional 0"},
                                                        {"first", "cls"},
                                                        {"sep"},
                                                        {"punctuation"}};
  for (std::size_t h = 0; h < 6; ++h) EXPECT_EQ(s.heads[h].roles, wanted[h]) << h;
  const auto figure = [&](Index head, std::string_view name) {
    return s.heads[static_cast<std::size_t>(head)].figures[figure_at(name)].value;
  };
  EXPECT_GT(figure(kPrevious, "previous"), 0.999);
  EXPECT_LT(figure(kSelf, "entropy"), 1e-3);
  EXPECT_LT(figure(kSelf, "distance"), 1e-3);
  EXPECT_NEAR(figure(kSelf, "sparsity"), 1, 1e-9);
  // Heads that look at different tokens are ln 2 apart.
  EXPECT_NEAR(s.apart.at(kPrevious, kNext), std::log(2.0), 0.08);
  EXPECT_EQ(s.apart.at(kSelf, kSelf), 0);
  for (const char* part : {"positional -1", "<svg", "Over depth", "chance"})
    EXPECT_NE(survey_page(s, "planted <b>", "texts").find(part), std::string::npos) << part;
  EXPECT_EQ(survey_page(s, "planted <b>", "texts").find("planted <b>"), std::string::npos);
  const std::string csv = survey_csv(s);
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 7);
}

/// q k^T of few rows against its singular values; also where the two largest are alike.
TEST(Survey, ScoreRankIsThatOfTheSingularValues) {
  constexpr Index kRows = 6, kDim = 8;
  for (int trial = 0; trial < 4; ++trial) {
    std::vector<float> q(kRows * kDim, 0), k = q;
    for (Index i = 0; i < kRows; ++i)
      for (Index d = 0; d < kDim; ++d) {
        const auto place = static_cast<std::size_t>(i * kDim + d);
        q[place] = trial == 0 ? static_cast<float>(i == d)
                              : static_cast<float>(normal_at(7, i * kDim + d + 100 * trial));
        k[place] = trial == 0 ? static_cast<float>(i == d ? (i < 2 ? 2 : 1) : 0)
                              : static_cast<float>(normal_at(8, i * kDim + d + 100 * trial));
      }
    SmallMatrix s(kRows, kRows);
    double square = 0;
    for (Index i = 0; i < kRows; ++i)
      for (Index j = 0; j < kRows; ++j) {
        for (Index d = 0; d < kDim; ++d)
          s.at(i, j) += static_cast<double>(q[static_cast<std::size_t>(i * kDim + d)]) *
                        static_cast<double>(k[static_cast<std::size_t>(j * kDim + d)]);
        square += s.at(i, j) * s.at(i, j);
      }
    const double top = svd_of(s).s[0];
    const ScoreRows rows_q{q.data(), kRows, kDim, kDim}, rows_k{k.data(), kRows, kDim, kDim};
    EXPECT_NEAR(score_rank_of(rows_q, rows_k), square / (top * top), 1e-6) << trial;
  }
  // Many small rows of another direction: a vector among them alone stands still, and is not the largest.
  for (const auto& [rows, size] : {std::pair{Index{21}, 0.25f}, std::pair{Index{4}, 0.6f}}) {
    const double top = static_cast<double>(rows - 1) * static_cast<double>(size * size);  // beside 1
    std::vector<float> x(static_cast<std::size_t>(rows * kWide), 0);
    for (Index i = 0; i < rows; ++i) x[static_cast<std::size_t>(i * kWide + (i > 0))] = i > 0 ? size : 1;
    const ScoreRows all{x.data(), rows, kWide, kWide};
    EXPECT_NEAR(score_rank_of(all, all), 1 + 1 / (top * top), 1e-4) << rows;
  }
  const std::vector<float> zeros(kRows * kDim, 0);
  const ScoreRows none{zeros.data(), kRows, kDim, kDim};
  EXPECT_EQ(score_rank_of(none, none), 0);
}

/// Figures of rows alone are those of a whole survey, and nothing else is there.
TEST(Survey, RowsAloneAreTheSameFiguresWithoutTheRest) {
  Folder folder;
  PlantedModel(folder.at("planted"));
  const HeadSurvey all = survey_model(folder.at("planted"), kSentences, 1, {.apart = 4}),
                   rows = survey_model(folder.at("planted"), kSentences, 1, {.rows_only = true});
  for (std::size_t h = 0; h < 6; ++h) {
    for (const char* name :
         {"self", "previous", "next", "first", "cls", "sep", "punctuation", "broad", "entropy",
          "first_row_entropy", "confidence", "positional", "distance", "sparsity"})
      EXPECT_EQ(rows.heads[h].figures[figure_at(name)].value, all.heads[h].figures[figure_at(name)].value)
          << name;
    for (const char* name : {"score_rank", "value_special", "induction"})
      EXPECT_TRUE(std::isnan(rows.heads[h].figures[figure_at(name)].value)) << name;
    EXPECT_TRUE(std::isnan(rows.heads[h].figures[0].shuffled));
    EXPECT_TRUE(rows.heads[h].roles.empty());
  }
  EXPECT_EQ(rows.apart.rows, 0);
  EXPECT_NE(survey_json(rows).find("null"), std::string::npos);
  EXPECT_EQ(survey_csv(rows).find("nan"), std::string::npos);
  const std::string page = survey_page(rows, "planted", "texts");
  for (const char* part : {"nan", "Rank collapse", "Through all layers", "score_rank</th>"})
    EXPECT_EQ(page.find(part), std::string::npos) << part;
  EXPECT_SAYS(survey_model(folder.at("planted"), kSentences, 1,
                           {.rows_only = true, .related = parse_pairs("c\tmy card\tmy\tcard\n", "p")}),
              "leave out trees and pairs");
}

/// Of all heads of shuffled models at most one in 20 gets a role.
TEST(Survey, ShuffledModelsEarnNoRoles) {
  Folder folder;
  PlantedModel(folder.at("planted"));
  lab_recognizer("mha:heads=4,dim=3").save(folder.at("random"));
  const int seeds = std::getenv("HEADWISE_SLOW") ? 20 : 4;
  Index heads = 0, named = 0;
  for (const char* model : {"planted", "random"})
    for (int seed = 1; seed <= seeds; ++seed) {
      const auto one = open_subject(folder.at(model), 1, true, static_cast<std::uint64_t>(100 + seed)),
                 other = open_subject(folder.at(model), 1, true, static_cast<std::uint64_t>(500 + seed));
      const HeadSurvey s = survey_subjects(*one, other.get(), kSentences, {.apart = 0});
      for (const SurveyedModelHead& h : s.heads) ++heads, named += !h.roles.empty();
    }
  EXPECT_LE(20 * named, heads) << named << " of " << heads;
}

/// A toy grammar: the head that looks at the word before finds every "my card", and no other relation.
TEST(Survey, RelationsAreFoundByTheHeadThatLooksThere) {
  Folder folder;
  PlantedModel(folder.at("planted"));
  HeadSurveyOptions o{.apart = 0, .least = 3};
  const char* lines =
      "1\tmy\t_\t_\t_\t_\t3\tdet\t_\t_\n2\tlost\t_\t_\t_\t_\t3\tamod\t_\t_\n3\tcards\t_\t_\t_\t_\t0\troot\t_"
      "\t_\n\n"
      "1\tpay\t_\t_\t_\t_\t0\troot\t_\t_\n2\tthe\t_\t_\t_\t_\t4\tdet\t_\t_\n3\tlost\t_\t_\t_\t_\t4\tamod\t_"
      "\t_\n"
      "4\tloan\t_\t_\t_\t_\t1\tobj\t_\t_\n\n1\tlost\t_\t_\t_\t_\t2\tamod\t_\t_\n2\tfee\t_\t_\t_\t_"
      "\t0\troot\t_\t_\n\n";
  o.related = parse_conllu(lines, "toy");
  const HeadSurvey s = survey_model(folder.at("planted"), kSentences, 1, o);
  ASSERT_EQ(s.relations.size(), 3u);
  std::size_t amod = 0;
  while (s.relations[amod].name != "amod") ++amod;
  EXPECT_EQ(s.relations[amod].count, 3);
  EXPECT_EQ(s.relations[amod].baseline, 1);  // always the word behind: no head can beat that
  EXPECT_EQ(s.heads[kNext].relations[amod].forth, 1);
  EXPECT_EQ(s.heads[kPrevious].relations[amod].back, 1);  // "cards" is two pieces: both count
  // "lost" begins the third text: the head looks at [CLS], and "fee" is the only other word.
  EXPECT_NEAR(s.heads[kPrevious].relations[amod].forth, 1.0 / 3, 1e-12);
  EXPECT_EQ(s.heads[kNext].roles, (std::vector<std::string>{"next", "positional +1"}));
}

/// Heads that stay for their role are still there, with it, when the smaller model has learnt on.
TEST(Survey, KeptRolesOutliveCutAndTuning) {
  Folder folder;
  PlantedModel(folder.at("planted"));
  const HeadSurvey before = survey_model(folder.at("planted"), kSentences, 1, {.apart = 0});
  const LabModel whole(folder.at("planted"));
  Corpus rows{.name = "rows", .rows = {}};
  for (std::size_t i = 0; i < kSentences.size(); ++i)
    rows.rows.push_back({kSentences[i], {i % 2 ? "a" : "b"}, {}, 0});
  Session session({.threads = 1});
  HeadTrial trial(whole, rows, 4, session);
  const RankOptions o{.keep = heads_with_roles(before, {"positional"})};
  ASSERT_EQ(o.keep, (std::vector<HeadName>{{0, kPrevious}, {0, kNext}, {0, kSelf}}));
  const ChosenCut cut = choose_cut(trial, rank_heads(trial, o, 3), 3, 0);
  EXPECT_EQ(cut.plan.cut[0], (std::vector<Index>{kFirst, kSep, kPunctuation}));
  const Recognizer small = whole.edited(cut_heads(whole, cut.plan), "test");
  TrainingOptions training;
  training.epochs = 2, training.rate = 1e-3;
  const TrainedRecognizer tuned = train_recognizer(from_recognizer(small), rows, rows, training, session);
  tuned.model.save(folder.at("tuned"));
  const HeadSurvey after = survey_model(folder.at("tuned"), kSentences, 1, {.apart = 0});
  ASSERT_EQ(after.heads.size(), 3u);
  for (std::size_t h = 0; h < 3; ++h) EXPECT_EQ(after.heads[h].roles, before.heads[h].roles) << h;
  // Without the wish another head would have gone.
  EXPECT_NE(choose_cut(trial, rank_heads(trial, {}, 3), 3, 0).plan.cut, cut.plan.cut);
}

TEST(Survey, DistancesBecomePlacesAndClusters) {
  // Points on a line: classical scaling gives them back.
  const double at[] = {0, 1, 5, 6};
  SmallMatrix d(4, 4);
  for (Index i = 0; i < 4; ++i)
    for (Index j = 0; j < 4; ++j) d.at(i, j) = std::abs(at[i] - at[j]);
  const auto places = places_of(d);
  for (std::size_t i = 0; i < 4; ++i)
    for (std::size_t j = 0; j < 4; ++j) {
      EXPECT_NEAR(std::abs(places[i].first - places[j].first), std::abs(at[i] - at[j]), 1e-9);
      EXPECT_NEAR(places[i].second, 0, 1e-6);
    }
  EXPECT_EQ(clusters_of(d, 2), (std::vector<Index>{0, 0, 1, 1}));
  // Two rows without a common key are ln 2 apart, equal ones 0.
  const float a[] = {1, 0, 0, 1}, b[] = {0, 1, 1, 0};
  SmallMatrix sum(3, 3);
  EXPECT_EQ(add_divergences({a, b, a}, {2, 2}, sum), 2);
  EXPECT_NEAR(sum.at(0, 1) / 2, std::log(2.0), 1e-8);
  EXPECT_EQ(sum.at(0, 2), 0);
}

/// 72 heads of which half lie on one another: every name has a box of its own, away from all dots.
TEST(Survey, NamesOnTheMapDoNotMeet) {
  std::vector<std::pair<double, double>> dots;
  for (Index i = 0; i < 72; ++i) {
    const double spread = i < 36 ? 8 : 250;
    dots.emplace_back(300 + spread * normal_at(1, i), 300 + spread * normal_at(2, i));
  }
  const LabelSizes sizes{.wide = 30, .high = 13, .dot = 4};
  const auto names = label_places(dots, sizes);
  ASSERT_EQ(names.size(), dots.size());
  const auto meets = [](const auto& a, const auto& b, double wide, double high) {
    return std::abs(a.first - b.first) < wide && std::abs(a.second - b.second) < high;
  };
  for (std::size_t i = 0; i < dots.size(); ++i)
    for (std::size_t j = 0; j < dots.size(); ++j) {
      EXPECT_FALSE(i != j && meets(names[i], names[j], sizes.wide, sizes.high)) << i << " " << j;
      EXPECT_FALSE(meets(names[i], dots[j], sizes.wide / 2 + sizes.dot, sizes.high / 2 + sizes.dot)) << i;
    }
  EXPECT_NEAR(label_places({{5, 7}}, sizes)[0].second, 7, 1e-12);  // a dot alone has its name beside it
}

TEST(Survey, RanksAndCopyingOfMatrices) {
  SmallMatrix one = SmallMatrix::identity(3), flat(3, 3);
  flat.at(0, 0) = 2;
  EXPECT_NEAR(stable_rank(one, one), 3, 1e-9);
  EXPECT_NEAR(stable_rank(flat, one), 1, 1e-9);
  EXPECT_NEAR(largest_singular(flat, one), std::sqrt(2.0), 1e-9);
  // W_V W_O that gives a token back copies; one that gives its opposite does not.
  HeadMatrices m{one, one, one, one};
  EXPECT_NEAR(matrix_figures(m, one)[5], 1, 1e-9);
  for (double& x : m.out.values) x = -x;
  EXPECT_NEAR(matrix_figures(m, one)[5], -1, 1e-9);
  EXPECT_NEAR(matrix_figures(m, one)[0], std::sqrt(3.0), 1e-12);
}

TEST(Survey, InductionAndDuplicatesOnRepeatedTokens) {
  SurveyTokens tokens = {{.id = 1}};
  for (int turn = 0; turn < 2; ++turn)
    for (TokenId id : {5, 6, 7}) tokens.push_back({id, 1, 2});
  std::vector<float> same(49, 0), behind(49, 0);
  for (std::size_t i = 4; i < 7; ++i) same[i * 7 + i - 3] = 1, behind[i * 7 + i - 2] = 1;
  HeadSums a, b;
  add_repeats({tokens, same.data(), true}, a), add_repeats({tokens, behind.data(), true}, b);
  EXPECT_EQ(a.figures[figure_at("duplicate")].value(), 1);
  EXPECT_EQ(a.figures[figure_at("induction")].value(), 0);
  EXPECT_EQ(b.figures[figure_at("induction")].value(), 1);
  EXPECT_EQ(b.figures[figure_at("duplicate")].value(), 0);
}

}  // namespace
}  // namespace headwise
