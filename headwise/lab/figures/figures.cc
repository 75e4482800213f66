#include "headwise/lab/figures/figures.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "headwise/lab/figures/score_rank.h"

namespace headwise {
namespace {

std::size_t at(Index i) { return static_cast<std::size_t>(i); }

constexpr Index kLanes = 8;

/// -w ln w, 0 at 0, to 2e-7 of its size: ln is the exponent, and a series in (m - 1) / (m + 1) of the rest.
inline float entropy_term(float w) {
  const auto bits = std::bit_cast<std::uint32_t>(std::max(w, 1e-30f));
  const auto shifted = static_cast<std::int32_t>(bits - 0x3f3504f3u) >> 23;
  const float m = std::bit_cast<float>(bits - (static_cast<std::uint32_t>(shifted) << 23));
  const float r = (m - 1) / (m + 1), s = r * r;
  const float ln = static_cast<float>(shifted) * 0.69314718f +
                   r * (2 + s * (0.66666669f + s * (0.40000000f + s * (0.28571430f + s * 0.22390900f))));
  return -w * ln;
}

/// The sum of f(j) for j < end, in lanes that the compiler makes a vector of.
template <class F>
inline double sum_of(Index end, F&& f) {
  float lane[kLanes] = {};
  Index j = 0;
  for (; j + kLanes <= end; j += kLanes)
    for (Index l = 0; l < kLanes; ++l) lane[l] += f(j + l);
  for (Index l = 0; j < end; ++j, ++l) lane[l] += f(j);
  double sum = 0;
  for (const float x : lane) sum += static_cast<double>(x);
  return sum;
}

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

/// How many of the largest weights take `share` of a row, which is put in another order: halves in which the
/// answer cannot lie are left unsorted.
Index keys_for(float* first, float* end, double share) {
  constexpr std::ptrdiff_t kFew = 12;
  Index keys = 0;
  while (end - first > kFew) {
    const float a = *first, b = first[(end - first) / 2], c = end[-1];
    const float pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    float* const middle = std::partition(first, end, [pivot](float w) { return w > pivot; });
    double sum = 0;
    for (const float* w = first; w < middle; ++w) sum += static_cast<double>(*w);
    if (sum >= share) {
      end = middle;
      continue;
    }
    keys += middle - first, share -= sum, first = middle;
    // Weights like the pivot come next: they are taken without looking at the rest.
    float* const others = std::partition(first, end, [pivot](float w) { return w == pivot; });
    for (; first < others && share > 0; ++first) share -= static_cast<double>(pivot), ++keys;
    if (share <= 0) return keys;
  }
  std::sort(first, end, std::greater<>());
  for (; first < end && share > 0; ++first) share -= static_cast<double>(*first), ++keys;
  return keys;
}

/// Where the tokens of a text are that figures ask for, and room for one row.
struct TextPlaces {
  std::vector<Index> cls, sep, punctuation, special;
  std::vector<float> far, row;  // |i - j| from i = n - 1 on; a row without [SEP]
  explicit TextPlaces(const MapOfText& m) : row(m.tokens.size()) {
    const auto n = static_cast<Index>(m.tokens.size());
    for (Index j = 0; j < n; ++j) {
      const SurveyToken& t = m.tokens[at(j)];
      if (t.cls) cls.push_back(j);
      if (t.sep) sep.push_back(j);
      if (t.punctuation) punctuation.push_back(j);
      if (t.cls || t.sep || (j == 0 && m.causal)) special.push_back(j);
    }
    for (Index j = 0; j < 2 * n; ++j) far.push_back(std::abs(static_cast<float>(n - 1 - j)));
  }
};

struct RowFigures {
  double entropy = 0, distance = 0, cls = 0, sep = 0, punctuation = 0, top = 0, valued = 0, special = 0;
  Index sparsity = 0, argmax = -1;  // [SEP] left out
  bool sep_most = false;            // no key has more than [SEP]
};

RowFigures row_of(const MapOfText& m, Index i, Index end, TextPlaces& p) {
  RowFigures r;
  const auto n = static_cast<Index>(m.tokens.size());
  const float *w = m.weights + i * n, *far = p.far.data() + (n - 1 - i);
  const auto mass = [&](const std::vector<Index>& places) {
    double sum = 0;
    for (const Index j : places)
      if (j < end) sum += static_cast<double>(w[j]);
    return sum;
  };
  r.entropy = sum_of(end, [w](Index j) { return entropy_term(w[j]); });
  r.distance = sum_of(end, [w, far](Index j) { return w[j] * far[j]; });
  r.cls = mass(p.cls), r.sep = mass(p.sep), r.punctuation = mass(p.punctuation);
  float* const row = p.row.data();
  std::copy_n(w, end, row);
  float most_sep = -1;
  for (const Index j : p.sep)
    if (j < end) most_sep = std::max(most_sep, w[j]), row[j] = -1;
  const float top = *std::max_element(row, row + end);
  if (top >= 0) r.top = static_cast<double>(top), r.argmax = std::find(row, row + end, top) - row;
  r.sep_most = most_sep >= top;
  for (const Index j : p.sep)
    if (j < end) row[j] = w[j];
  r.sparsity = keys_for(row, row + end, 0.9 * sum_of(end, [w](Index j) { return w[j]; }));
  if (m.value_norm) {
    const double* norm = m.value_norm->data();
    for (Index j = 0; j < end; ++j) r.valued += static_cast<double>(w[j]) * norm[j];
    for (const Index j : p.special)
      if (j < end) r.special += static_cast<double>(w[j]) * norm[j];
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
  TextPlaces places(m);
  for (Index i = 0; i < n; ++i) {
    const Index end = m.causal ? i + 1 : n;
    const RowFigures r = row_of(m, i, end, places);
    if (i == 0) sums.add("first_row_entropy", r.entropy, !m.causal);
    if (end < 2) continue;  // nothing to choose
    sums.add("self", m.at(i, i));
    sums.add("previous", i > 0 ? m.at(i, i - 1) : 0, i > 0);
    sums.add("next", i + 1 < n ? m.at(i, i + 1) : 0, i + 1 < end);
    sums.add("first", m.at(i, 0), i > 0);
    sums.add("cls", r.cls), sums.add("sep", r.sep), sums.add("punctuation", r.punctuation);
    sums.add("entropy", r.entropy), sums.add("broad", r.entropy / std::log(static_cast<double>(end)));
    sums.add("confidence", r.top), sums.add("distance", r.distance);
    sums.add("sparsity", static_cast<double>(r.sparsity));
    sums.add("value_special", r.valued > 0 ? r.special / r.valued : 0, m.value_norm != nullptr);
    // A row that lies on [SEP] chooses no token, whatever is left for the others.
    sums.add("rare", r.argmax == m.rarest && !r.sep_most, m.rarest >= 0 && m.rarest < end && m.rarest != i);
    if (r.argmax >= 0 && std::abs(r.argmax - i) <= kMostOffset) hits[r.argmax - i + kMostOffset] += 1;
  }
  if (m.score_rank >= 0) to.figures[figure_at("score_rank")].add(m.score_rank);
  // An offset that few rows have says little: it must be open to half of them.
  for (Index o = -kMostOffset; o <= kMostOffset; ++o) {
    const Index rows = m.causal ? (o > 0 ? 0 : n - max_of(1, -o)) : n - std::abs(o);
    if (rows * 2 >= n) to.offsets[o + kMostOffset].add(hits[o + kMostOffset] / static_cast<double>(rows));
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
