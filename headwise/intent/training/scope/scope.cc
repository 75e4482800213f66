#include <algorithm>
#include <iomanip>
#include <set>
#include <utility>

#include "headwise/intent/training/training.h"

namespace headwise {
namespace {

/// Of a row of dev: how sure the answer was, and whether it was right, wrong, or out of scope.
enum class Answer : std::uint8_t { out_of_scope, wrong, right };
struct Judged {
  double confidence = 0;
  Answer answer = Answer::wrong;
};

std::vector<Judged> judged_answers(const RecognizerConfig& c, const Corpus& dev,
                                   std::span<const Prediction> given, const std::string& out_of_scope) {
  std::vector<Judged> all;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const Utterance& row = dev.rows[i];
    std::set<std::string> got;
    for (const Index l : given[i].labels) got.insert(c.labels[static_cast<std::size_t>(l)]);
    const bool right = got == std::set<std::string>(row.labels.begin(), row.labels.end());
    all.push_back({given[i].confidence, is_out_of_scope(row, c.multi_label, out_of_scope)
                                            ? Answer::out_of_scope
                                        : right ? Answer::right
                                                : Answer::wrong});
  }
  return all;
}

/// The confidence below which four in five rows that are out of scope lie, rounded up; `all` ascends.
double refuses_most(std::span<const Judged> all) {
  std::vector<double> unknown;
  for (const Judged& j : all)
    if (j.answer == Answer::out_of_scope) unknown.push_back(j.confidence);
  return std::min(unknown[(4 * unknown.size() + 4) / 5 - 1] + 1e-6, 0.999999);
}

Index count(std::span<const Judged> all, Answer answer) {
  return std::count_if(all.begin(), all.end(), [&](const Judged& j) { return j.answer == answer; });
}

/// `all` ascends. Without the second bound a corpus whose dev is answered surely refuses what is only worded
/// otherwise: 778 of 1,200 utterances of the built-in corpus's test, whose patterns are others than dev's.
double scope_without_rows(const RecognizerConfig& c, const Corpus& dev, std::span<const Prediction> given,
                          std::span<const Judged> all, double may_lose) {
  const double allowed = may_lose * static_cast<double>(all.size());
  auto left = static_cast<Index>(allowed);
  double most = 0;  // where no more than may be lost is right, there is nothing to go by
  for (const Judged& j : all)
    if (j.answer == Answer::right && left-- == 0) {
      most = j.confidence;
      break;
    }
  // Of few rows the least sure one says little: as much less as a whole row is more than may be lost.
  const double least = c.multi_label ? 0 : 1 / static_cast<double>(c.labels.size());
  if (allowed < 1) most = least + allowed * std::max(0.0, most - least);
  std::vector<double> held_out;
  for (std::size_t i = 0; i < given.size(); ++i)
    held_out.push_back(held_out_confidence(c, dev.rows[i], given[i]));
  std::sort(held_out.begin(), held_out.end());
  return std::min({most, held_out[held_out.size() * 9 / 10], 0.999999});
}

std::string percent(double x) { return text(std::fixed, std::setprecision(1), 100 * x, " %"); }

}  // namespace

double held_out_confidence(const RecognizerConfig& c, const Utterance& row, const Prediction& given) {
  double own = 0, most = 0;
  for (std::size_t l = 0; l < given.probability.size(); ++l) {
    const auto p = static_cast<double>(given.probability[l]);
    if (std::find(row.labels.begin(), row.labels.end(), c.labels[l]) != row.labels.end())
      own += p;
    else
      most = std::max(most, p);
  }
  return c.multi_label ? most : own < 1 ? std::min(1.0, most / (1 - own)) : 0;
}

Thresholds calibrate(const RecognizerConfig& config, const Corpus& dev, std::span<const Prediction> given,
                     const std::string& out_of_scope, double may_lose) {
  RecognizerConfig c = config;
  c.out_of_scope = 0;
  const EvaluationOptions plain{.out_of_scope = out_of_scope, .confusions = 0, .bad_cases = 0};
  std::vector<Prediction> now(given.begin(), given.end());
  const auto exact = [&] {
    for (Prediction& p : now) decide(c, p);
    return evaluate(c, dev, now, plain);
  };
  Thresholds best{.threshold = c.threshold};
  if (!c.one_class()) {
    // Of equally good ones the middle of the first run of them.
    double most = -1;
    int first = 0, last = 0;
    for (int i = 5; i <= 95; ++i) {
      c.threshold = i / 100.0;
      const double score = exact().exact.value();
      if (score > most) most = score, first = i;
      if (score >= most && (i == first || last == i - 1)) last = i;
    }
    best.threshold = (first + last) / 200.0;
  }
  c.threshold = best.threshold;
  const Evaluation open = exact();
  std::vector<Judged> answers = judged_answers(c, dev, now, out_of_scope);
  const Index outside = count(answers, Answer::out_of_scope);
  std::sort(answers.begin(), answers.end(),
            [](const Judged& a, const Judged& b) { return a.confidence < b.confidence; });
  if (outside == 0) {
    if (may_lose > 0) best.out_of_scope = scope_without_rows(c, dev, now, answers, may_lose);
    return best;
  }
  // As if one text in five were out of scope, whatever their share of dev: texts people thought of to
  // calibrate with do not say how often customers ask for something else.
  double most = 0;
  Index lost = 0, caught = 0;
  for (const auto& [confidence, answer] : answers) {
    lost += answer == Answer::right, caught += answer == Answer::out_of_scope;
    const double score = -4 * static_cast<double>(lost) / static_cast<double>(max_of(1, open.exact.whole)) +
                         static_cast<double>(caught) / static_cast<double>(outside);
    if (score > most) most = score, best.out_of_scope = std::min(confidence + 1e-6, 0.999999);
  }
  // Few rows do not show what is lost: then the unknown ones alone say how far to go.
  const Index inside = static_cast<Index>(answers.size()) - outside;
  if (may_lose > 0 && may_lose * static_cast<double>(inside) < 1)
    best.out_of_scope = std::min(best.out_of_scope, refuses_most(answers));
  return best;
}

std::string scope_words(const RecognizerConfig& config, const Corpus& dev, std::span<const Prediction> given,
                        const std::string& out_of_scope) {
  RecognizerConfig c = config;
  const double below = std::exchange(c.out_of_scope, 0);
  if (below <= 0) return "Nothing is refused: every text gets a label, also one that belongs to none.";
  std::vector<Prediction> open(given.begin(), given.end());
  Index unknown = 0;
  for (std::size_t i = 0; i < open.size(); ++i) {
    decide(c, open[i]);
    unknown += held_out_confidence(c, dev.rows[i], open[i]) < below;
  }
  const std::vector<Judged> answers = judged_answers(c, dev, open, out_of_scope);
  const auto refused = [&](Answer answer) {
    return std::count_if(answers.begin(), answers.end(),
                         [&](const Judged& j) { return j.answer == answer && j.confidence < below; });
  };
  const double rows = static_cast<double>(answers.size());
  std::string words = text("Below ", percent(below), " a text is answered as out of scope. On ", dev.name,
                           " this refuses ", percent(static_cast<double>(refused(Answer::right)) / rows),
                           " of the rows although they were right");
  if (const Index outside = count(answers, Answer::out_of_scope); outside > 0)
    return text(words, ", and ",
                percent(static_cast<double>(refused(Answer::out_of_scope)) / static_cast<double>(outside)),
                " of those out of scope.");
  return text(words, ". There are no out-of-scope rows to calibrate with; with their own labels held out, ",
              percent(static_cast<double>(unknown) / rows), " of the rows would be refused.");
}

}  // namespace headwise
