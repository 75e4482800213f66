#include <algorithm>
#include <cmath>

#include "headwise/analysis/report/page.h"
#include "headwise/analysis/report/report_answers.h"
#include "headwise/analysis/report/shown_text.h"

namespace headwise {
namespace {

constexpr std::size_t kMostLabels = 3, kMostWords = 4;

std::string signed_number(double x) { return (x < 0 ? "−" : "+") + decimal(std::abs(x), 2); }

/// What one label that was not given would have needed.
std::string need_of(const Recognizer& r, const Explanation& e, const ReportWords& say) {
  const auto name = [&](Index l) { return html(shown(r.config().labels[static_cast<std::size_t>(l)], 60)); };
  const bool passed = e.rival >= 0 && !e.prediction.out_of_scope;
  return passed
             ? say("<b>{0}</b> was missed: it has {1} and would need more than the {2} of {3}, {4} more in "
                   "log-odds. ",
                   name(e.label), percent(e.probability), percent(e.needed), name(e.rival),
                   decimal(e.lacks(), 2))
             : say("<b>{0}</b> was missed: it has {1} and would need {2}, {3} more in log-odds. ",
                   name(e.label), percent(e.probability), percent(e.needed), decimal(e.lacks(), 2));
}

}  // namespace

std::string missed_note(const Recognizer& r, const Utterance& row, const Prediction& given,
                        const NoteWay& way, Session& session) {
  const ReportWords& say = way.say;
  const std::vector<std::string>& names = r.config().labels;
  const std::vector<bool> hide = way.redact ? private_bytes(row.text) : std::vector<bool>{};
  const auto word = [&](const WordWeight& w) {
    return html(shown(row.text, w.span, way.redact ? &hide : nullptr, 60));
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
      if (w.frees) freed += text(freed.empty() ? "" : say(" or "), say("“{0}”", word(w)));
    out += text(
        "<p class=small>", need_of(r, e, say),
        against.empty() ? say("No single word speaks against it.") : say("Words against it: {0}.", against),
        freed.empty() ? std::string() : say(" Without {0} it would be given.", freed), "</p>");
  }
  return out;
}

}  // namespace headwise
