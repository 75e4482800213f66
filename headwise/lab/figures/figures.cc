#include "headwise/lab/figures/figures.h"

#include <algorithm>
#include <cmath>

#include "headwise/lab/figures/row_figures.h"
#include "headwise/lab/figures/score_rank.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

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
  const Index n = m.rows(), keys = m.wide();
  if (n < kFewestTokens || keys < kFewestTokens) return;
  RowSums sums;
  double hits[2 * kMostOffset + 1] = {};
  RowFigures rows(m);
  for (Index i = 0, l = 0; i < n; ++i, l = i % kRowLanes) {
    if (l == 0) rows.look(i);
    const Index end = m.causal ? i + 1 : keys;
    if (i == 0) sums.add("first_row_entropy", rows.entropy[l], !m.causal);
    if (end < 2) continue;  // nothing to choose
    const auto at_key = [&](Index j) { return j >= 0 && j < keys ? m.at(i, j) : 0; };
    sums.add("self", at_key(i), i < end);
    sums.add("previous", at_key(i - 1), i > 0 && i - 1 < end);
    sums.add("next", at_key(i + 1), i + 1 < end);
    sums.add("first", at_key(0), i > 0 || m.keys);
    sums.add("cls", rows.cls[l]), sums.add("sep", rows.sep[l]);
    sums.add("punctuation", rows.punctuation[l]);
    sums.add("entropy", rows.entropy[l]);
    sums.add("broad", static_cast<double>(rows.entropy[l]) / std::log(static_cast<double>(end)));
    sums.add("confidence", std::max(rows.top[l], 0.0f)), sums.add("distance", rows.distance[l]);
    sums.add("sparsity", rows.sparsity[l]);
    if (m.value_norm) sums.add("value_special", rows.valued[l] > 0 ? rows.special[l] / rows.valued[l] : 0);
    const Index argmax = rows.argmax[l];
    // A row that lies on [SEP] chooses no token, whatever is left for the others.
    sums.add("rare", argmax == m.rarest && rows.sep_top[l] < rows.top[l],
             m.rarest >= 0 && m.rarest < end && (m.rarest != i || m.keys));
    if (argmax >= 0 && std::abs(argmax - i) <= kMostOffset) hits[argmax - i + kMostOffset] += 1;
  }
  if (m.score_rank >= 0) to.figures[figure_at("score_rank")].add(m.score_rank);
  // An offset that few rows have says little: it must be open to half of them.
  for (Index o = -kMostOffset; o <= kMostOffset; ++o) {
    const Index open = m.causal ? (o > 0 ? 0 : n - max_of(1, -o)) : min_of(n, keys - o) - max_of(0, -o);
    if (open * 2 >= n) to.offsets[o + kMostOffset].add(hits[o + kMostOffset] / static_cast<double>(open));
  }
  sums.give(to);
}

void add_slopes(const MapOfText& m, HeadSums& to) {
  const auto n = static_cast<Index>(m.tokens.size());
  double all = 0, sep = 0;
  Index pairs = 0, on_sep = 0;
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < (m.causal ? i + 1 : n); ++j) {
      const double size = std::abs(static_cast<double>(m.slopes[i * n + j]));
      ++pairs, all += size;
      if (m.tokens[at(j)].sep) ++on_sep, sep += size;
    }
  to.figures[figure_at("gradient")].add(all / static_cast<double>(pairs));
  if (on_sep > 0) to.figures[figure_at("gradient_sep")].add(sep / static_cast<double>(on_sep));
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
