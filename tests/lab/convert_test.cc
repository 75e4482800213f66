// Sharing keys and values: bits at as many kv heads, aligned against mean, turned copies, RoPE, refusals.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/lab/convert/convert.h"

#include <cmath>
#include <cstring>

#include "headwise/lab/convert/share_scores.h"
#include "headwise/lab/model/texts.h"
#include "tests/lab/tiny_recognizer.h"
#include "tests/model/tiny_bert.h"

namespace headwise {
namespace {

using namespace test;

LabModel converted(const LabModel& model, const Converted& c, const Folder& folder, const char* name) {
  model.save(c.edited, folder.at(name), "test");
  return LabModel(folder.at(name));
}

SmallMatrix random_matrix(Index n, std::uint64_t seed) {
  SmallMatrix m(n, n);
  for (Index i = 0; i < n * n; ++i) m.values[static_cast<std::size_t>(i)] = normal_at(seed, i);
  return m;
}

TEST(SmallMatrix, SingularValuesEigenvaluesAndTurns) {
  const SmallMatrix a = random_matrix(7, 1);
  const Svd f = svd_of(a);
  SmallMatrix s(7, 7);
  for (Index i = 0; i < 7; ++i) s.at(i, i) = f.s[static_cast<std::size_t>(i)];
  SmallMatrix rest = product(product(f.u, s), transposed(f.v));
  add_scaled(rest, a, -1);
  EXPECT_LT(std::sqrt(inner(rest, rest)), 1e-12);
  const SmallMatrix r = nearest_orthogonal(a), square = product(transposed(r), r);
  for (Index i = 0; i < 7; ++i)
    for (Index j = 0; j < 7; ++j) EXPECT_NEAR(square.at(i, j), i == j, 1e-12);
  // Eigenvalues: their sum is the trace, the sum of their squares that of the square's.
  const auto all = eigenvalues(a);
  std::complex<double> sum = 0, squares = 0, cubes = 0;
  for (const auto& x : all) sum += x, squares += x * x, cubes += x * x * x;
  const auto trace = [](const SmallMatrix& m) {
    double t = 0;
    for (Index i = 0; i < m.rows; ++i) t += m.at(i, i);
    return t;
  };
  EXPECT_NEAR(std::abs(sum - trace(a)), 0, 1e-9);
  EXPECT_NEAR(std::abs(squares - trace(product(a, a))), 0, 1e-8);
  EXPECT_NEAR(std::abs(cubes - trace(product(product(a, a), a))), 0, 1e-7);
  const SymmetricEigen e = symmetric_eigen(product(transposed(a), a));
  for (std::size_t i = 0; i < 7; ++i) EXPECT_NEAR(e.values[i], f.s[i] * f.s[i], 1e-10);
}

TEST(Convert, AsManyKvHeadsAreTheSameFunctionBitForBit) {
  for (const char* heads : {"mha:heads=4,dim=3", "mha:heads=4,dim=3+gated:source=input,act=silu"}) {
    Folder folder;
    lab_recognizer(heads).save(folder.at("whole"));
    const LabModel whole(folder.at("whole"));
    Session session({.threads = 1});
    const KvGrams grams = kv_grams(whole, lab_texts(), session);
    for (const MergeBy by : {MergeBy::mean, MergeBy::first, MergeBy::aligned}) {
      const LabModel same = converted(whole, share_kv(whole, 4, by, grams), folder, "same");
      EXPECT_TRUE(same.recognizer().config().encoder.heads.starts_with("gqa:heads=4,kv_heads=4,dim=3"));
      const auto a = whole.recognizer().predict(lab_texts(), session),
                 b = same.recognizer().predict(lab_texts(), session);
      for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_EQ(0, std::memcmp(a[i].probability.data(), b[i].probability.data(), 3 * sizeof(float)));
    }
  }
}

TEST(Convert, AlignedIsNeverFartherThanTheMean) {
  for (const Positions positions : {Positions::learned, Positions::rope})
    for (const char* heads : {"mha:heads=4,dim=4", "gqa:heads=8,kv_heads=4,dim=4",
                              "mha:heads=4,dim=4+gated:source=input,act=silu"}) {
      Folder folder;
      lab_recognizer(heads, positions).save(folder.at("whole"));
      const LabModel whole(folder.at("whole"));
      Session session({.threads = 1});
      const KvGrams grams = kv_grams(whole, lab_texts(), session);
      for (const Index kv : {2, 1}) {
        const Converted mean = share_kv(whole, kv, MergeBy::mean, grams),
                        first = share_kv(whole, kv, MergeBy::first, grams),
                        best = share_kv(whole, kv, MergeBy::aligned, grams);
        for (std::size_t i = 0; i < 2; ++i) {
          EXPECT_LT(best.layers[i].total(), mean.layers[i].total());
          EXPECT_LT(mean.layers[i].total(), first.layers[i].total());
          // At equal grouping keys and values each are no farther.
          for (const auto& group : best.layers[i].groups) {
            const TurnRule none{.turns = Turns::none}, any{};
            EXPECT_LE(aligned(grams.values[i], group, any).error, mean_of(grams.values[i], group).error);
            EXPECT_LE(aligned(grams.keys[i], group, none).error, mean_of(grams.keys[i], group).error);
          }
        }
        const LabModel made = converted(whole, best, folder, "made");
        EXPECT_LT(made.params().count(), whole.params().count());
        EXPECT_GT(change_of(whole, made, lab_texts(), session).kl, 0);
      }
    }
}

/// Heads that are turned and scaled copies of one are joined without a change of the function: head h has
/// W_K R_h^T, W_V Q_h^T, and W_Q, W_O to match.
void expect_copies_are_joined(Positions positions) {
  Folder folder;
  Recognizer model = lab_recognizer("mha:heads=4,dim=4", positions);
  for (Index layer = 0; layer < 2; ++layer)
    for (Index h = 1; h < 4; ++h) {
      SmallMatrix turn = nearest_orthogonal(random_matrix(4, static_cast<std::uint64_t>(10 * layer + h))),
                  pairs = turn;
      if (positions == Positions::rope) {
        pairs = SmallMatrix::identity(4);
        for (Index i = 0; i < 2; ++i) {
          const double angle = normal_at(99, 4 * layer + 2 * h + i);
          pairs.at(i, i) = pairs.at(i + 2, i + 2) = std::cos(angle);
          pairs.at(i + 2, i) = std::sin(angle), pairs.at(i, i + 2) = -std::sin(angle);
        }
      }
      const double size = 0.5 + 0.25 * static_cast<double>(h);
      for (const char* part : {".k.weight", ".k.bias", ".v.weight", ".v.bias"}) {
        const SmallMatrix& r = part[1] == 'k' ? pairs : turn;
        const AnyView w = model.params().find(attention_name(layer) + part).value();
        const Index columns = w.rank == 1 ? 1 : w.size[1];
        for (Index i = 0; i < 4; ++i)
          for (Index c = 0; c < columns; ++c) {
            double sum = 0;
            for (Index j = 0; j < 4; ++j) sum += r.at(i, j) * load_double(w.data, w.dtype, j * columns + c);
            store_double(w.data, w.dtype, (h * 4 + i) * columns + c, size * sum);
          }
      }
    }
  model.save(folder.at("whole"));
  const LabModel whole(folder.at("whole"));
  Session session({.threads = 1});
  const KvGrams grams = kv_grams(whole, lab_texts(), session);
  const Converted c = share_kv(whole, 1, MergeBy::aligned, grams);
  EXPECT_LT(c.layers[0].total(), 1e-6);
  EXPECT_LT(c.layers[1].total(), 1e-6);
  const LabModel made = converted(whole, c, folder, "made");
  EXPECT_EQ(made.recognizer().config().encoder.heads, "gqa:heads=4,kv_heads=1,dim=4");
  EXPECT_LT(change_of(whole, made, lab_texts(), session).kl, 1e-6);
  const LabModel mean = converted(whole, share_kv(whole, 1, MergeBy::mean, grams), folder, "mean");
  EXPECT_GT(change_of(whole, mean, lab_texts(), session).kl, 1e-5);
}
TEST(Convert, TurnedCopiesAreJoinedWithoutAChange) { expect_copies_are_joined(Positions::learned); }
TEST(Convert, PairsOfRopeTurnAndTheFunctionStays) { expect_copies_are_joined(Positions::rope); }

TEST(Convert, AnEncoderIsSavedWithItsKvHeads) {
  const TinyBert bert;
  const LabModel whole(bert.folder.path());
  Folder folder;
  Session session({.threads = 1});
  const std::vector<std::string> texts = {"my card is lost", "pay my card ?"};
  const Converted c = share_kv(whole, 1, MergeBy::aligned, kv_grams(whole, texts, session));
  const LabModel made = converted(whole, c, folder, "made");
  EXPECT_EQ(made.transformer().config().heads, "gqa:heads=2,kv_heads=1,dim=4");
  EXPECT_NE(content_of(folder.at("made") + "/config.json").find("\"num_key_value_heads\": 1"),
            std::string::npos);
  const AnswerChange change = change_of(whole, made, texts, session);
  EXPECT_GT(change.cosine, 0.5);
  EXPECT_LT(change.cosine, 1);
}

TEST(Convert, WhatCannotBeSharedIsRefused) {
  Folder folder;
  Session session({.threads = 1});
  lab_recognizer("mha:heads=4,dim=3").save(folder.at("whole"));
  const LabModel whole(folder.at("whole"));
  EXPECT_SAYS(share_kv(whole, 3, MergeBy::mean, kv_grams(whole, lab_texts(), session)),
              "give a divisor of 4");
  lab_recognizer("talking:heads=4,dim=3").save(folder.at("talking"));
  const LabModel talking(folder.at("talking"));
  EXPECT_SAYS(kv_grams(talking, lab_texts(), session), "are not converted");
}

LabModel collaborative(const LabModel& model, const SharedScores& c, const Folder& folder, const char* name) {
  model.save(c.edited, folder.at(name), "test");
  return LabModel(folder.at(name));
}

/// With all columns the scores are the same numbers, summed in another order; with fewer they move.
TEST(Convert, CollaborativeHeadsOfFullRankAreTheSameFunction) {
  for (const char* heads : {"mha:heads=4,dim=3", "gqa:heads=4,kv_heads=2,dim=3"}) {
    Folder folder;
    lab_recognizer(heads).save(folder.at("whole"));
    const std::string before = content_of(folder.at("whole") + "/model.safetensors");
    const LabModel whole(folder.at("whole"));
    Session session({.threads = 1});
    const SharedScores all = share_scores(whole, 12, 50, session);
    const LabModel same = collaborative(whole, all, folder, "same");
    EXPECT_TRUE(
        same.recognizer().config().encoder.heads.starts_with("collaborative:heads=4,dim=3,shared=12"));
    const auto a = whole.recognizer().predict(lab_texts(), session),
               b = same.recognizer().predict(lab_texts(), session);
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t l = 0; l < 3; ++l)
        EXPECT_NEAR(a[i].probability[l], b[i].probability[l], 2e-6) << heads;
    double last = 1 + 1e-9, far = 0;
    for (const Index shared : {12, 6, 2}) {
      const SharedScores some = share_scores(whole, shared, 50, session);
      ASSERT_EQ(some.energy.size(), 2u);
      EXPECT_LT(some.energy[0], last) << shared;
      EXPECT_GT(some.energy[0], 0) << shared;
      last = some.energy[0];
      const LabModel made = collaborative(whole, some, folder, "made");
      far = change_of(whole, made, lab_texts(), session).kl;
    }
    EXPECT_LT(last, 0.95);
    EXPECT_GT(far, 1e-6);
    EXPECT_EQ(before, content_of(folder.at("whole") + "/model.safetensors"));
  }
}

TEST(Convert, AnEncoderIsSavedWithCollaborativeHeads) {
  const TinyBert bert;
  const LabModel whole(bert.folder.path());
  Folder folder;
  Session session({.threads = 1});
  const std::vector<std::string> texts = {"my card is lost", "pay my card ?"};
  const LabModel made = collaborative(whole, share_scores(whole, 8, 50, session), folder, "made");
  EXPECT_TRUE(made.transformer().config().heads.starts_with("collaborative:heads=2,dim=4,shared=8"));
  EXPECT_NEAR(change_of(whole, made, texts, session).cosine, 1, 1e-6);
  const LabModel less = collaborative(whole, share_scores(whole, 3, 50, session), folder, "less");
  EXPECT_LT(less.params().count(), made.params().count());
  EXPECT_LT(change_of(whole, less, texts, session).cosine, 1 - 1e-7);
  // A folder that was converted is a model like others: its heads can be cut.
  EXPECT_EQ(made.heads("test"), (std::vector<Index>{2, 2}));
}

TEST(Convert, WhatCannotBecomeCollaborativeIsRefused) {
  Session session({.threads = 1});
  const LabModel turned(lab_recognizer("mha:heads=4,dim=4", Positions::rope)),
      talking(lab_recognizer("talking:heads=4,dim=3")), plain(lab_recognizer("mha:heads=4,dim=3"));
  EXPECT_SAYS(share_scores(turned, 4, 5, session), "RoPE turns queries and keys");
  EXPECT_SAYS(share_scores(talking, 4, 5, session), "do not become collaborative");
  EXPECT_SAYS(share_scores(plain, 13, 5, session), "give 1 to 12");
  EXPECT_SAYS(share_scores(plain, 0, 5, session), "give 1 or more");
}

TEST(Texts, TreesAndPairsAreReadOrRefusedByLine) {
  const char* tree =
      "# text = My card's "
      "lost.\n1\tMy\tmy\t_\t_\t_\t2\tnmod:poss\t_\t_\n2\tcard\tcard\t_\t_\t_\t4\tnsubj\t_\t"
      "SpaceAfter=No\n3-4\tx\t_\t_\t_\t_\t_\t_\t_\t_\n3\t's\tbe\t_\t_\t_\t4\taux\t_\t_\n4\tlost\tlose\t_\t_"
      "\t_\t0\troot\t_\t"
      "SpaceAfter=No\n5\t.\t.\t_\t_\t_\t4\tpunct\t_\t_\n\n";
  const auto read = parse_conllu(tree, "t");
  ASSERT_EQ(read.size(), 1u);
  EXPECT_EQ(read[0].text, "My card's lost.");
  ASSERT_EQ(read[0].relations.size(), 3u);
  EXPECT_EQ(read[0].relations[0].name, "nmod");
  EXPECT_EQ(read[0].relations[1].to, 3);
  EXPECT_EQ(read[0].text.substr(7, 2), "'s");
  std::string cycle = tree;
  cycle.replace(cycle.find("0\troot"), 1, "2");
  EXPECT_SAYS(parse_conllu(cycle, "t"), "a cycle");
  std::string far = tree;
  far.replace(far.find("0\troot"), 1, "9");
  EXPECT_SAYS(parse_conllu(far, "t"), "no word");
  EXPECT_SAYS(parse_conllu("1\ta\n", "t"), "line 1: has 2 columns");
  const auto pairs = parse_pairs("coref\tAnna said she slept\tshe\tAnna\n", "p");
  EXPECT_EQ(pairs[0].words[1].second, 4);
  EXPECT_SAYS(parse_pairs("coref\tAnna slept\tshe\tAnna\n", "p"), "is not in its text");
}

}  // namespace
}  // namespace headwise
