#include "headwise/intent/compound/cuts.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace headwise {
namespace {

constexpr std::size_t kMostCandidates = 5;
constexpr double kLeast = 0.02;             // probability of a candidate
constexpr std::size_t kTriedOfEach = 3;     // labels of a span, where two spans want the same
constexpr std::size_t kMostTriedSpans = 6;  // 3^6 choices

double ln_sigmoid(double x) { return std::min(x, 0.0) - std::log1p(std::exp(-std::abs(x))); }

/// The largest `count` scores, best first.
std::vector<Index> best_labels(const std::vector<double>& scores, std::size_t count) {
  std::vector<Index> order(scores.size());
  std::iota(order.begin(), order.end(), Index{0});
  count = std::min(count, order.size());
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(), [&](Index a, Index b) {
        const double x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
        return x != y ? x > y : a < b;
      });
  order.resize(count);
  return order;
}

/// Labels of the spans of one way with the largest sum, all different; the sum, or -infinity.
class Assignment {
 public:
  Assignment(const CutReading& reading, const std::vector<std::size_t>& parts)
      : reading_(reading), parts_(parts) {
    for (const std::size_t span : parts)
      likely_.push_back(best_labels(reading.scores[span], std::max(kTriedOfEach, parts.size())));
    // Many spans: each in turn takes the best label that is left.
    greedy_ = parts.size() > kMostTriedSpans;
    now_.resize(parts.size());
    tries(0, 0);
  }
  double sum() const { return best_; }
  const std::vector<Index>& labels() const { return chosen_; }

 private:
  void tries(std::size_t i, double sum) {
    if (i == parts_.size()) {
      if (sum > best_) best_ = sum, chosen_ = now_;
      return;
    }
    for (const Index label : likely_[i]) {
      if (std::find(now_.begin(), now_.begin() + static_cast<std::ptrdiff_t>(i), label) !=
          now_.begin() + static_cast<std::ptrdiff_t>(i))
        continue;
      now_[i] = label;
      tries(i + 1, sum + reading_.scores[parts_[i]][static_cast<std::size_t>(label)]);
      if (greedy_) break;
    }
  }
  const CutReading& reading_;
  const std::vector<std::size_t>& parts_;
  std::vector<std::vector<Index>> likely_;
  std::vector<Index> now_, chosen_;
  bool greedy_ = false;
  double best_ = -std::numeric_limits<double>::infinity();
};

}  // namespace

CutReading plan_cuts(std::span<const TokenTags> tokens, const CutOptions& o) {
  const double least = std::log(kLeast / (1 - kLeast));
  std::vector<std::size_t> at;
  for (std::size_t t = 1; t < tokens.size(); ++t)
    if (tokens[t].start > least && tokens[t].begins_word) at.push_back(t);
  std::stable_sort(at.begin(), at.end(),
                   [&](std::size_t a, std::size_t b) { return tokens[a].start > tokens[b].start; });
  at.resize(std::min(at.size(), kMostCandidates));
  std::sort(at.begin(), at.end());

  CutReading out;
  const auto count = static_cast<Index>(tokens.size());
  out.spans.push_back({0, count});
  for (const std::size_t t : at) out.candidates.push_back(tokens[t].start);
  // A span ends before the connector in front of the next one, and keeps one token at least.
  const auto end_before = [&](Index start, Index first) {
    Index end = start;
    while (end - 1 > first && start - end < o.connector_tokens &&
           tokens[static_cast<std::size_t>(end - 1)].connector > 0)
      --end;
    return end;
  };
  for (unsigned way = 0; way < 1u << at.size(); ++way) {
    if (std::popcount(way) >= o.most_intents) continue;
    std::vector<std::size_t> parts;
    Index first = 0;
    const auto add = [&](Index last) {
      const TokenRange range{first, last};
      const auto there = std::find(out.spans.begin(), out.spans.end(), range);
      parts.push_back(static_cast<std::size_t>(there - out.spans.begin()));
      if (there == out.spans.end()) out.spans.push_back(range);
    };
    for (std::size_t i = 0; i < at.size(); ++i)
      if (way >> i & 1u) {
        add(end_before(static_cast<Index>(at[i]), first));
        first = static_cast<Index>(at[i]);
      }
    add(count);
    out.ways.push_back(way);
    out.parts.push_back(std::move(parts));
  }
  return out;
}

std::vector<ChosenSpan> choose_cuts(const CutReading& r, double shift, double weight) {
  double best = -std::numeric_limits<double>::infinity();
  std::vector<ChosenSpan> chosen;
  for (std::size_t w = 0; w < r.ways.size(); ++w) {
    const Assignment labels(r, r.parts[w]);
    if (labels.labels().empty()) continue;  // more spans than labels
    double score = weight * labels.sum();
    for (std::size_t i = 0; i < r.candidates.size(); ++i)
      score += ln_sigmoid((r.ways[w] >> i & 1u ? 1 : -1) * (r.candidates[i] + shift));
    if (score <= best) continue;
    best = score;
    chosen.clear();
    for (std::size_t i = 0; i < r.parts[w].size(); ++i) chosen.push_back({r.parts[w][i], labels.labels()[i]});
  }
  return chosen;
}

}  // namespace headwise
