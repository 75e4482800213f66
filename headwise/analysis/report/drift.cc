#include "headwise/analysis/report/drift.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "headwise/analysis/report/page.h"
#include "headwise/analysis/report/report_words.h"
#include "headwise/analysis/report/shown_text.h"
#include "headwise/text/word_breaks.h"

namespace headwise {
namespace {

using Counts = std::map<std::string, std::pair<Index, Index>>;  // texts before, texts now
constexpr Index kLeastTexts = 5;
constexpr double kLeastZ = 3;
constexpr std::size_t kShownRows = 15;
constexpr const char* kNoLabel = "out of scope";

void count_labels(const Recognizer& r, std::span<const std::string> texts,
                  Index std::pair<Index, Index>::*side, Session& session, Counts& to) {
  for (const Prediction& p : r.predict(texts, session)) {
    for (const Index l : p.labels) ++(to[r.config().labels[static_cast<std::size_t>(l)]].*side);
    if (p.labels.empty()) ++(to[kNoLabel].*side);
  }
}

/// Words as people read them, in lower case; what has no letter or digit of ASCII and no byte above it is
/// none.
void count_words(std::span<const std::string> texts, Index std::pair<Index, Index>::*side, Counts& to) {
  const auto is_word = [](const std::string& w) {
    return std::any_of(w.begin(), w.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 128;
    });
  };
  for (const std::string& t : texts) {
    std::vector<Index> breaks = word_breaks(t);
    breaks.push_back(static_cast<Index>(t.size()));
    std::set<std::string> here;
    for (std::size_t i = 0; i + 1 < breaks.size(); ++i) {
      std::string word;
      split_words(std::string_view(t).substr(static_cast<std::size_t>(breaks[i]),
                                             static_cast<std::size_t>(breaks[i + 1] - breaks[i])),
                  {}, [&](const Word& w) { word += w.text; });
      if (is_word(word)) here.insert(std::move(word));
    }
    for (const std::string& word : here) ++(to[word].*side);
  }
}

/// z of two shares with one variance: (p - q) / sqrt(s (1 - s) (1 / n + 1 / m)), s of both together.
double z_of(Index before, Index of_before, Index now, Index of_now) {
  const auto n = static_cast<double>(of_before), m = static_cast<double>(of_now);
  const double s = static_cast<double>(before + now) / (n + m);
  const double deviation = std::sqrt(s * (1 - s) * (1 / n + 1 / m));
  return deviation > 0 ? (static_cast<double>(now) / m - static_cast<double>(before) / n) / deviation : 0;
}

std::vector<Moved> moved(const Counts& counts, Index before, Index now, double least_z, Index least) {
  std::vector<Moved> all;
  for (const auto& [name, texts] : counts) {
    const double z = z_of(texts.first, before, texts.second, now);
    if (texts.first + texts.second >= least && std::abs(z) >= least_z)
      all.push_back({name, texts.first, texts.second, z});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Moved& a, const Moved& b) { return std::abs(a.z) > std::abs(b.z); });
  return all;
}

double share(Index part, Index whole) { return static_cast<double>(part) / static_cast<double>(whole); }

std::string table(const Drift& d, const std::vector<Moved>& all, const std::string& what,
                  const ReportWords& say) {
  std::vector<std::vector<std::string>> rows;
  for (std::size_t i = 0; i < std::min(all.size(), kShownRows); ++i)
    rows.push_back({html(all[i].name == kNoLabel ? say(kNoLabel) : shown(all[i].name, 60)),
                    percent(share(all[i].before, d.texts_before)), percent(share(all[i].now, d.texts_now)),
                    (all[i].z < 0 ? "−" : "+") + decimal(std::abs(all[i].z), 1)});
  return rows.empty() ? text("<p class=small>", say("None moved."), "</p>")
                      : html_table({what, say("#before"), say("#now"), "#z"}, rows);
}

}  // namespace

Drift drift_between(const Recognizer& r, std::span<const std::string> before,
                    std::span<const std::string> now, Session& session) {
  require(!before.empty() && !now.empty(), ErrorKind::bad_argument, "report", "compares ", before.size(),
          " texts of before with ", now.size(), "; give some of both");
  Drift d{.texts_before = static_cast<Index>(before.size()), .texts_now = static_cast<Index>(now.size())};
  using Pair = std::pair<Index, Index>;
  Counts labels, words;
  count_labels(r, before, &Pair::first, session, labels),
      count_labels(r, now, &Pair::second, session, labels);
  count_words(before, &Pair::first, words), count_words(now, &Pair::second, words);
  d.labels = moved(labels, d.texts_before, d.texts_now, 0, 1);
  d.words = moved(words, d.texts_before, d.texts_now, kLeastZ, kLeastTexts);
  return d;
}

std::string print(const Drift& d, std::size_t most) {
  std::string out = text("moved since: ", d.texts_before, " texts before, ", d.texts_now, " now\n");
  const auto list = [&](const std::vector<Moved>& all, const char* what, double least) {
    std::size_t shown_rows = 0;
    for (const Moved& m : all)
      if (std::abs(m.z) >= least && shown_rows++ < most)
        out += text("  ", what, ' ', shown(m.name, 60), ": ", percent(share(m.before, d.texts_before)),
                    " -> ", percent(share(m.now, d.texts_now)), " (z ", m.z < 0 ? "-" : "+",
                    decimal(std::abs(m.z), 1), ")\n");
    if (shown_rows == 0) out += text("  no ", what, " moved by more than chance\n");
  };
  list(d.labels, "label", 2);
  list(d.words, "word", kLeastZ);
  return out;
}

std::string drift_section(const Drift& d, const ReportWords& say) {
  return text(
      "<h3 style=\"margin-top:28px\">", say("What moved"), "</h3><p class=small>",
      say("{0} texts before, {1} now: in how many of them a label was given, and a word was said. z is "
          "the difference over its standard error; beyond 3 it is hardly chance.",
          grouped(d.texts_before), grouped(d.texts_now)),
      "</p><div class=two><div class=card><h3>", say("Labels"), "</h3>",
      table(d, d.labels, say("label"), say), "</div><div class=card><h3>", say("Words"), "</h3>",
      table(d, d.words, say("word"), say), "</div></div>");
}

}  // namespace headwise
