// Survey and report: figures against their definitions, and a page that holds any text as text.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/analysis/report/report.h"

#include <gtest/gtest.h>

#include <cmath>

#include "headwise/analysis/explain.h"
#include "headwise/intent/corpus/builtin.h"
#include "tests/ops/row_op_cases.h"

namespace headwise {
namespace {

using test::error_of;
using test::value;

Recognizer small(std::string heads = "mha:heads=2,dim=4", bool multi_label = false) {
  std::vector<std::string> pieces = {"[PAD]", "[UNK]", "[CLS]",  "[SEP]", "[MASK]", "<",
                                     ">",     "/",     "script", "pay",   "no"};
  for (char c = '0'; c <= '9'; ++c) pieces.emplace_back(1, c);
  for (char c = 'a'; c <= 'z'; ++c) pieces.emplace_back(1, c), pieces.push_back(std::string("##") + c);
  RecognizerConfig c;
  c.encoder.model_dim = 8, c.encoder.feed_dim = 8, c.encoder.depth = 2, c.encoder.heads = std::move(heads);
  c.labels = {"x", "y", "z"}, c.multi_label = multi_label, c.chunk_tokens = 24, c.chunk_overlap = 4;
  return Recognizer(c, Vocabulary(pieces), 3, DType::f64);
}

Corpus corpus_of(std::vector<std::pair<std::string, std::string>> rows) {
  Corpus c{.name = "made up", .rows = {}};
  for (auto& [text, label] : rows)
    c.rows.push_back({.text = text, .labels = {label}, .extra = {}, .line = 1});
  return c;
}
const Corpus kCorpus = corpus_of({{"pay 3 now", "x"},
                                  {"no pay", "y"},
                                  {"a b c d", "x"},
                                  {"pay 7 7 a b c d e f g h i j k l m n o p q r s t u v", "z"}});

/// -ln p of the true label of every utterance under gates.
std::vector<double> losses(const Recognizer& r, const InputView& gates) {
  std::vector<double> all;
  Session session({.threads = 1});
  for (const Utterance& u : kCorpus.rows) {
    session.memory.reset();
    const TextBatch batch = r.batch(std::span(&u.text, 1));
    Call call{.ctx = session.ctx, .memory = session.memory};
    call.head_gates = gates;
    const AnyView logits = r.forward(batch, call, nullptr);
    double sum = 0;
    for (Index l = 0; l < 3; ++l) sum += std::exp(value(logits, l));
    all.push_back(std::log(sum) - value(logits, u.labels[0][0] - 'x'));
  }
  return all;
}

TEST(Survey, ImportanceAndHurtAreWhatTheySay) {
  const Recognizer r = small();
  Session session;
  const Survey s = survey_heads(r, kCorpus, RoleBook::builtin(), session);
  ASSERT_EQ(s.all.size(), 4u);
  EXPECT_EQ(s.utterances, 4);
  Tensor gates(DType::f64, {2, 2});
  const auto with = [&](Index head, double gate) {
    for (Index i = 0; i < 4; ++i) gates.values<double>()[static_cast<std::size_t>(i)] = i == head ? gate : 1;
    return losses(r, gates.view());
  };
  const std::vector<double> on = with(0, 1);
  for (Index head = 0; head < 4; ++head) {
    const std::vector<double> up = with(head, 1 + 1e-5), down = with(head, 1 - 1e-5), off = with(head, 0);
    double importance = 0, hurt = 0;
    for (std::size_t u = 0; u < 4; ++u)
      importance += std::abs(up[u] - down[u]) / 2e-5 / 4, hurt += (off[u] - on[u]) / 4;
    EXPECT_NEAR(s.all[static_cast<std::size_t>(head)].importance, importance, 1e-7);
    EXPECT_NEAR(s.all[static_cast<std::size_t>(head)].hurt, hurt, 1e-9);
    EXPECT_GT(s.all[static_cast<std::size_t>(head)].figures.rows, 0);
  }
  EXPECT_NEAR(s.loss, (on[0] + on[1] + on[2] + on[3]) / 4, 1e-9);
}

TEST(Survey, LeavesOutWhatItCannotJudge) {
  const Recognizer r = small();
  Session session;
  Corpus odd = kCorpus;
  odd.rows[0].labels = {"unheard of"};
  const Survey s = survey_heads(r, odd, RoleBook::builtin(), session, {.utterances = 2});
  EXPECT_EQ(s.unknown, 1);
  EXPECT_EQ(s.utterances, 1);
  EXPECT_TRUE(survey_heads(small("gated:heads=2,dim=4,source=heads"), kCorpus, RoleBook::builtin(), session)
                  .all.empty());
}

TEST(Report, IsTheSameForAnyThreadsAndHoldsTextAsText) {
  Corpus corpus = kCorpus;
  corpus.rows[0].text = "<script>alert(1)</script> \xE2\x80\xAE \xFF";
  corpus.name = "<data>";
  corpus.rows[0].labels = corpus.rows[1].labels = {"</script>"};  // never given: both are mistakes
  std::string first;
  for (const int threads : {1, 3}) {
    Session session({.threads = threads});
    const Report made = make_report(small(), corpus, RoleBook::builtin(), session, {.data = corpus.name});
    if (first.empty()) first = made.page;
    EXPECT_TRUE(made.page == first) << threads;
    EXPECT_EQ(made.utterances, 4);
    EXPECT_EQ(made.right + made.mistakes, 4);
  }
  EXPECT_EQ(first.find("<script>alert"), std::string::npos);
  EXPECT_NE(first.find("&lt;script&gt;alert(1)&lt;/script&gt; &lt;U+202E&gt; \xEF\xBF\xBD"),
            std::string::npos);
  EXPECT_NE(first.find("&lt;data&gt;"), std::string::npos);
  EXPECT_EQ(first.find("{{"), first.rfind("{{")) << "a part of the template was not filled";
  EXPECT_EQ(first.find("http://"), first.find("http://www.w3.org/2000/svg"));  // a name, not an address
  EXPECT_EQ(first.find("https://"), std::string::npos);
  std::size_t ends = 0;
  for (std::size_t at = first.find("</script"); at != std::string::npos; at = first.find("</script", at + 1))
    ++ends;
  EXPECT_EQ(ends, 2u);  // the data's and the viewer's own
}

TEST(Report, EveryKindOfHeadHasAPicture) {
  std::vector<std::string> kinds = {"gated:heads=2,source=heads"};
  const std::string names = head_names();
  for (std::size_t at = 0; at < names.size(); at = std::min(names.find(", ", at), names.size() - 2) + 2) {
    const std::string name = names.substr(at, names.find(", ", at) - at);
    kinds.push_back(name + (name == "moh" ? ":heads=2,shared=1,k=1" : ":heads=2"));
  }
  ASSERT_GE(kinds.size(), 12u);
  Session session({.threads = 1});
  for (const std::string& kind : kinds) {
    const Report made = make_report(small(kind), kCorpus, RoleBook::builtin(), session);
    const std::size_t gallery = made.page.find("\"gallery\":[{");
    const std::size_t heads = made.page.find(",\"h\":[[0,0,", gallery);
    const std::size_t weights = made.page.find("\"w\":\"", heads) + 5;
    ASSERT_NE(heads, std::string::npos) << kind;
    EXPECT_LT(made.page.find_first_not_of('A', weights), made.page.find('"', weights)) << kind;  // A: all 0
    for (const SurveyedHead& h : made.survey.all) {
      EXPECT_GT(h.figures.entropy, 0) << kind;
      EXPECT_NE(h.hurt, 0) << kind;
    }
    const bool mixed = kind.starts_with("talking") || kind.starts_with("dcmha");
    EXPECT_EQ(made.survey.mixed, mixed) << kind;
    EXPECT_EQ(made.page.find("mix their weights") != std::string::npos, mixed) << kind;
    EXPECT_EQ(made.survey.all.empty(), kind == kinds[0]) << kind;
  }
}

TEST(Report, RedactsAndSaysSo) {
  Session session;
  ReportOptions o;
  o.redact = true;
  const std::string page = make_report(small(), kCorpus, RoleBook::builtin(), session, o).page;
  EXPECT_EQ(page.find("pay 3 now"), std::string::npos);
  EXPECT_NE(page.find("masked by dots"), std::string::npos);
  o.redact = false;
  EXPECT_NE(make_report(small(), kCorpus, RoleBook::builtin(), session, o).page.find("--redact"),
            std::string::npos);
}

/// What a reader sees of a page, and the words read out: no tags but their labels, no style, no script.
std::string seen_words(const std::string& page) {
  std::string out;
  bool hidden = false;
  for (std::size_t at = 0; at < page.size(); ++at) {
    if (page[at] != '<') {
      if (!hidden) out += page[at];
      continue;
    }
    const std::size_t end = page.find('>', at);
    const std::string tag = page.substr(at, end - at);
    if (tag.starts_with("<style") || tag.starts_with("<script") || tag.starts_with("<code") ||
        tag.starts_with("<b>"))
      hidden = !tag.starts_with("<b>");
    if (tag.starts_with("</style") || tag.starts_with("</script") || tag.starts_with("</code"))
      hidden = false;
    for (const std::string name : {"aria-label=\"", "placeholder=\"", "data-dark=\"", "data-light=\""})
      if (const std::size_t from = tag.find(name); from != std::string::npos)
        out += ' ' + tag.substr(from + name.size(), tag.find('"', from + name.size()) - from - name.size());
    out += ' ';
    at = end;
  }
  return out;
}

TEST(Report, SpeaksChinese) {
  Session session;
  const std::vector<std::string> texts = {"pay 3 now", "no pay", "pay pay", "no no"};
  const Drift drift = drift_between(small(), texts, texts, session);
  ReportOptions o{.model = "m", .data = "d", .gallery = {"3 4"}, .curves = {{"loss", {{1, 2}, {2, 1}}}}};
  o.language = "zh", o.drift = &drift;
  Corpus corpus = kCorpus;
  corpus.rows[0].labels = {"y", "z"};
  for (const std::string heads :
       {"mha:heads=2,dim=4", "talking:heads=2,dim=4", "gated:heads=2,dim=4,source=heads"})
    for (const bool multi_label : {false, true}) {
      const std::string page =
          make_report(small(heads, multi_label), corpus,
                      RoleBook::parse("class num: @digits\nclass any: @any\nrole r: num -> any\n", "roles"),
                      session, o)
              .page;
      EXPECT_NE(page.find("<html lang=\"zh\">"), std::string::npos);
      EXPECT_NE(page.find("\"language\":\"zh\""), std::string::npos);
      EXPECT_EQ(page.substr(0, page.find("<script")).find("[["), std::string::npos);
      // No English word of four letters is left but names.
      const std::string seen = seen_words(page);
      std::string word, left;
      for (const char c : seen + ' ') {
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
          word += c;
          continue;
        }
        const bool name = word == "headwise" || word == "report" || word == "previous" || word == "next" ||
                          word == "separator" || word == "broad" || word == "dgate" || word == "digits";
        if (word.size() > 3 && !name) left += ' ' + word;
        word.clear();
      }
      EXPECT_EQ(left, "") << heads;
    }
  o.language = "fr";
  EXPECT_EQ(error_of([&] { make_report(small(), kCorpus, RoleBook::builtin(), session, o); }),
            "report: language is \"fr\"; give en or zh");
}

TEST(Report, SaysFirstHowGoodItIsAndWhatGoesWrong) {
  Session session;
  Corpus corpus = kCorpus;
  for (Utterance& row : corpus.rows) row.labels = {"z"};
  const Report made = make_report(small(), corpus, RoleBook::builtin(), session);
  const std::size_t summary = made.page.find("id=summary"), mistakes = made.page.find("id=\"mistakes\""),
                    heads = made.page.find("id=\"heads\"");
  ASSERT_NE(summary, std::string::npos);
  EXPECT_LT(summary, mistakes);
  EXPECT_LT(mistakes, heads);
  EXPECT_NE(made.page.find(text(made.right, " of 4 utterances are right, "), summary), std::string::npos);
  EXPECT_EQ(made.page.find("What goes wrong most: <b>z</b> taken for") != std::string::npos, made.right < 4);
}

TEST(Report, EveryKindOfHeadHasAPage) {
  Session session;
  for (const std::string head :
       {"talking:heads=2,dim=4", "gated:heads=2,dim=4,source=heads", "differential:heads=2,dim=2",
        "moh:heads=4,dim=2,shared=1,k=2", "gqa:heads=4,kv_heads=2,dim=2"})
    for (const bool multi_label : {false, true})
      EXPECT_GT(make_report(small(head, multi_label), kCorpus, RoleBook::builtin(), session).page.size(),
                10000u)
          << head;
  EXPECT_EQ(
      error_of([&] { make_report(small(), {.name = "nothing", .rows = {}}, RoleBook::builtin(), session); }),
      "report: nothing has no utterances; give some to look at");
}

}  // namespace
}  // namespace headwise
