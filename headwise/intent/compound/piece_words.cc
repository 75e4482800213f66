#include "headwise/intent/compound/piece_words.h"

#include <algorithm>
#include <cmath>

#include "headwise/text/words.h"

namespace headwise {
namespace {

constexpr double kUnseen = 0.1;  // a count of what was never seen

template <class F>
void each_word(std::string_view text, F&& f) {
  std::string last;
  split_words(text, {}, [&](const Word& w) {
    f(w.text);
    if (!last.empty()) f(last + ' ' + w.text);
    last = w.text;
  });
}

}  // namespace

void PieceWords::add(std::string_view text, Index label) {
  each_word(text, [&](const std::string& word) {
    std::vector<Index>& counts = by_word_[word];
    counts.resize(counts_.size());
    ++counts[static_cast<std::size_t>(label)];
    ++counts_[static_cast<std::size_t>(label)];
  });
}

std::vector<double> PieceWords::scores(std::string_view text) const {
  std::vector<double> x(counts_.size(), 0);
  const double words = kUnseen * static_cast<double>(by_word_.size() + 1);
  each_word(text, [&](const std::string& word) {
    const auto at = by_word_.find(word);
    if (at == by_word_.end()) return;
    for (std::size_t l = 0; l < x.size(); ++l)
      x[l] += std::log((static_cast<double>(at->second[l]) + kUnseen) /
                       (static_cast<double>(counts_[l]) + words));
  });
  const double most = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const double v : x) sum += std::exp(v - most);
  for (double& v : x) v -= most + std::log(sum);
  return x;
}

}  // namespace headwise
