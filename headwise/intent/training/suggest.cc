#include "headwise/intent/training/suggest.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "headwise/intent/corpus/report.h"

namespace headwise {
namespace {

/// Square roots of the probabilities as shares of one: the distance of two is Hellinger's times sqrt(2).
std::vector<float> roots_of(const Prediction& p) {
  double sum = 0;
  for (const float x : p.probability) sum += static_cast<double>(x);
  std::vector<float> roots;
  for (const float x : p.probability)
    roots.push_back(static_cast<float>(std::sqrt(sum > 0 ? static_cast<double>(x) / sum : 0)));
  return roots;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    sum += d * d;
  }
  return std::sqrt(sum / 2);
}

double doubt_of(const Prediction& p) {
  double first = 0, second = 0;
  for (const float f : p.probability) {
    const auto x = static_cast<double>(f);
    if (x > first)
      second = first, first = x;
    else
      second = std::max(second, x);
  }
  return 1 - (first - second);
}

}  // namespace

std::vector<Suggestion> suggest_rows(const Recognizer& r, std::span<const std::string> texts, Index most,
                                     Session& session) {
  require(most >= 0, ErrorKind::bad_argument, "suggest", "got ", most, " rows; give 0 or more");
  std::vector<Suggestion> left, chosen;
  std::vector<std::vector<float>> roots;
  std::set<std::string> seen;
  const std::vector<Prediction> all = r.predict(texts, session);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!seen.insert(text_key(texts[i])).second) continue;
    left.push_back({static_cast<Index>(i), doubt_of(all[i]), 1, all[i]});
    roots.push_back(roots_of(all[i]));
  }
  const auto worth = [](const Suggestion& s) { return s.doubt * s.apart; };
  while (!left.empty() && static_cast<Index>(chosen.size()) < most) {
    std::size_t best = 0;  // ties go to the earlier text
    for (std::size_t i = 1; i < left.size(); ++i)
      if (worth(left[i]) > worth(left[best]) ||
          (worth(left[i]) == worth(left[best]) && left[i].text < left[best].text))
        best = i;
    chosen.push_back(std::move(left[best]));
    const std::vector<float> taken = std::move(roots[best]);
    left[best] = std::move(left.back()), roots[best] = std::move(roots.back());
    left.pop_back(), roots.pop_back();
    for (std::size_t i = 0; i < left.size(); ++i)
      left[i].apart = std::min(left[i].apart, distance(roots[i], taken));
  }
  return chosen;
}

}  // namespace headwise
