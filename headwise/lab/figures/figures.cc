#include "headwise/lab/figures/figures.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "headwise/lab/figures/score_rank.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

double entropy_term(double w) { return w > 0 ? -w * std::log(w) : 0; }

/// A figure's place, found while this compiles: rows are many.
struct Figure {
  std::size_t place;
  consteval Figure(const char* name) : place(figure_at(name)) {}  // NOLINT: a name is a figure
};

/// Sums over the rows of one text; a row counts where its figure can.
class RowSums {
 public:
  void add(Figure f, double x, bool counts = true) {
    if (counts) sum_[f.place] += x, ++rows_[f.place];
  }
  void give(HeadSums& to) const {
    for (std::size_t f = 0; f < kTextFigureCount; ++f)
      if (rows_[f] > 0) to.figures[f].add(sum_[f] / static_cast<double>(rows_[f]));
  }

 private:
  double sum_[kTextFigureCount] = {};
  Index rows_[kTextFigureCount] = {};
};

/// Keys that take 90 % of a row of weights, which is put in order.
Index keys_for_most(std::vector<double>& row) {
  std::sort(row.begin(), row.end(), std::greater<>());
  double sum = 0, all = 0;
  for (const double w : row) all += w;
  Index keys = 0;
  while (keys < static_cast<Index>(row.size()) && sum < 0.9 * all) sum += row[at(keys++)];
  return keys;
}

struct RowFigures {
  double entropy = 0, distance = 0, cls = 0, sep = 0, punctuation = 0, top = 0, valued = 0, special = 0;
  Index argmax = -1;
};

RowFigures row_of(const MapOfText& m, Index i, Index end, std::vector<double>& row) {
  RowFigures r;
  row.clear();
  double best = -1;
  for (Index j = 0; j < end; ++j) {
    const double w = m.at(i, j);
    const SurveyToken& key = m.tokens[at(j)];
    row.push_back(w);
    r.entropy += entropy_term(w), r.distance += w * std::abs(static_cast<double>(i - j));
    if (key.cls) r.cls += w;
    if (key.sep) r.sep += w;
    if (key.punctuation) r.punctuation += w;
    if (!key.sep) r.top = std::max(r.top, w);
    if (!key.sep && w > best) best = w, r.argmax = j;
    const double valued = m.value_norm ? w * (*m.value_norm)[at(j)] : 0;
    r.valued += valued;
    if (key.cls || key.sep || (j == 0 && m.causal)) r.special += valued;
  }
  return r;
}

}  // namespace

double Mean::half() const {
  if (n < 2) return 0;
  const double count = static_cast<double>(n), mean = sum / count;
  return 1.96 * std::sqrt(std::max(0.0, squares / count - mean * mean) / (count - 1));
}

Index HeadSums::best_offset() const {
  Index best = 0;
  double most = -1;
  for (Index o = 0; o <= 2 * kMostOffset; ++o)
    if (offsets[o].value() > most) most = offsets[o].value(), best = o - kMostOffset;
  return best;
}

void HeadSums::finish() { figures[figure_at("positional")] = offsets[best_offset() + kMostOffset]; }

void add_figures(const MapOfText& m, HeadSums& to) {
  const auto n = static_cast<Index>(m.tokens.size());
  if (n < 3) return;
  RowSums sums;
  double hits[2 * kMostOffset + 1] = {};
  Index rows[2 * kMostOffset + 1] = {};
  std::vector<double> row;
  for (Index i = 0; i < n; ++i) {
    const Index end = m.causal ? i + 1 : n;
    const RowFigures r = row_of(m, i, end, row);
    if (i == 0) sums.add("first_row_entropy", r.entropy, !m.causal);
    if (end < 2) continue;  // nothing to choose
    sums.add("self", m.at(i, i));
    sums.add("previous", i > 0 ? m.at(i, i - 1) : 0, i > 0);
    sums.add("next", i + 1 < n ? m.at(i, i + 1) : 0, i + 1 < end);
    sums.add("first", m.at(i, 0), i > 0);
    sums.add("cls", r.cls), sums.add("sep", r.sep), sums.add("punctuation", r.punctuation);
    sums.add("entropy", r.entropy), sums.add("broad", r.entropy / std::log(static_cast<double>(end)));
    sums.add("confidence", r.top), sums.add("distance", r.distance);
    sums.add("sparsity", static_cast<double>(keys_for_most(row)));
    sums.add("value_special", r.valued > 0 ? r.special / r.valued : 0, m.value_norm != nullptr);
    sums.add("rare", r.argmax == m.rarest, m.rarest >= 0 && m.rarest < end && m.rarest != i);
    for (Index o = -kMostOffset; o <= kMostOffset; ++o)
      if (i + o >= 0 && i + o < end) ++rows[o + kMostOffset], hits[o + kMostOffset] += r.argmax == i + o;
  }
  if (m.score_rank >= 0) to.figures[figure_at("score_rank")].add(m.score_rank);
  // An offset that few rows have says little: it must be open to half of them.
  for (Index o = 0; o <= 2 * kMostOffset; ++o)
    if (rows[o] * 2 >= n) to.offsets[o].add(hits[o] / static_cast<double>(rows[o]));
  sums.give(to);
}

void add_repeats(const MapOfText& m, HeadSums& to) {
  const auto n = static_cast<Index>(m.tokens.size());
  RowSums sums;
  for (Index i = 0; i < n; ++i) {
    if (m.tokens[at(i)].special()) continue;
    double same = 0, behind = 0;
    bool there = false;
    for (Index j = 0; j < i; ++j) {
      if (m.tokens[at(j)].special() || m.tokens[at(j)].id != m.tokens[at(i)].id) continue;
      there = true, same += m.at(i, j);
      if (j + 1 < i) behind += m.at(i, j + 1);
    }
    sums.add("duplicate", same, there), sums.add("induction", behind, there);
  }
  sums.give(to);
}

std::vector<double> matrix_figures(const HeadMatrices& m, const SmallMatrix& vocabulary) {
  std::vector<double> all(kMatrixFigureCount, 0);
  if (m.q.rows == 0) return all;
  const SmallMatrix q = product(m.q, transposed(m.q)), k = product(m.k, transposed(m.k)),
                    v = product(m.v, transposed(m.v)), out = product(transposed(m.out), m.out);
  all[0] = std::sqrt(inner(m.out, m.out));
  all[1] = stable_rank(q, k), all[2] = largest_singular(q, k);
  all[3] = stable_rank(v, out), all[4] = largest_singular(v, out);
  if (vocabulary.rows == 0) return all;
  double sum = 0, sizes = 0;
  for (const auto& x : eigenvalues(product(m.v, product(vocabulary, m.out))))
    sum += x.real(), sizes += std::abs(x);
  all[5] = sizes > 0 ? sum / sizes : 0;
  return all;
}

}  // namespace headwise
