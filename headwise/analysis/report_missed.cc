#include <algorithm>
#include <cmath>

#include "headwise/analysis/page.h"
#include "headwise/analysis/report_answers.h"
#include "headwise/analysis/shown_text.h"

namespace headwise {
namespace {

constexpr std::size_t kMostLabels = 3, kMostWords = 4;

std::string signed_number(double x) { return (x < 0 ? "−" : "+") + decimal(std::abs(x), 2); }

/// What one label that was not given would have needed.
std::string need_of(const Recognizer& r, const Explanation& e) {
  const auto name = [&](Index l) { return html(shown(r.config().labels[static_cast<std::size_t>(l)], 60)); };
  const bool passed = e.rival >= 0 && !e.prediction.out_of_scope;
  return text("<b>", name(e.label), "</b> was missed: it has ", percent(e.probability), " and would need ",
              passed ? "more than the " : "", percent(e.needed),
              passed ? " of " + name(e.rival) : std::string(), ", ", decimal(e.lacks(), 2),
              " more in log-odds. ");
}

}  // namespace

std::string missed_note(const Recognizer& r, const Utterance& row, const Prediction& given, bool redact,
                        Session& session) {
  const std::vector<std::string>& names = r.config().labels;
  const std::vector<bool> hide = redact ? private_bytes(row.text) : std::vector<bool>{};
  const auto word = [&](const WordWeight& w) {
    return html(shown(row.text, w.span, redact ? &hide : nullptr, 60));
  };
  std::string out;
  std::size_t told = 0;
  for (const std::string& label : row.labels) {
    const auto at = std::find(names.begin(), names.end(), label);
    if (at == names.end() || told == kMostLabels) continue;
    const Index l = at - names.begin();
    if (std::find(given.labels.begin(), given.labels.end(), l) != given.labels.end()) continue;
    ++told;
    const Explanation e = explain_text(r, row.text, session, {.label = l});
    std::vector<WordWeight> words = words_of(e);
    std::erase_if(words, [](const WordWeight& w) { return w.importance >= 0 && !w.frees; });
    std::stable_sort(words.begin(), words.end(),
                     [](const WordWeight& a, const WordWeight& b) { return a.importance < b.importance; });
    std::string against, freed;
    for (std::size_t i = 0; i < std::min(words.size(), kMostWords); ++i)
      if (words[i].importance < 0)
        against += text(against.empty() ? "" : ", ", word(words[i]), " ", signed_number(words[i].importance));
    for (const WordWeight& w : words)
      if (w.frees) freed += text(freed.empty() ? "" : " or ", "“", word(w), "”");
    out +=
        text("<p class=small>", need_of(r, e),
             against.empty() ? "No single word speaks against it." : text("Words against it: ", against, "."),
             freed.empty() ? std::string() : text(" Without ", freed, " it would be given."), "</p>");
  }
  return out;
}

}  // namespace headwise
