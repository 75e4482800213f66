#include "headwise/view/deep/pyramid.h"

#include "headwise/base/context.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

namespace headwise {
namespace {

constexpr Index kTop = 64;  // the last level has at most so many rows and columns
constexpr float kToSum = static_cast<float>(std::int64_t{1} << 40);

Index cells(Index tokens, Index block) { return (tokens + block - 1) / block; }
std::size_t at(Index i) { return static_cast<std::size_t>(i); }

/// Two by two cells of [rows columns] into one; `sum` adds, `max` takes the largest.
struct Cells {
  Index rows = 0, columns = 0;
  std::vector<float> sum, max, open;

  Cells halved() const {
    Cells h{.rows = cells(rows, 2), .columns = cells(columns, 2), .sum = {}, .max = {}, .open = {}};
    h.sum.assign(at(h.rows * h.columns), 0), h.max = h.sum, h.open = h.sum;
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) {
        const std::size_t from = at(i * columns + j), to = at(i / 2 * h.columns + j / 2);
        h.sum[to] += sum[from], h.open[to] += open[from], h.max[to] = std::max(h.max[to], max[from]);
      }
    return h;
  }
};

}  // namespace

unsigned char quick_code(float weight) {
  // Steps of the code within one octave, by the first 12 bits behind the point.
  static const auto table = [] {
    std::array<float, 4096> t{};
    for (std::size_t i = 0; i < t.size(); ++i)
      t[i] = static_cast<float>(std::log2(1 + (static_cast<double>(i) + 0.5) / 4096) * 254 / 24);
    return t;
  }();
  if (!(weight >= 0x1p-24f)) return 0;
  if (weight >= 1) return 255;
  const auto bits = std::bit_cast<std::uint32_t>(weight);
  const int exponent = static_cast<int>(bits >> 23u) - 127;
  const float place = 254.0f + static_cast<float>(exponent) * (254.0f / 24.0f) + table[(bits >> 11u) & 4095u];
  return static_cast<unsigned char>(1 + static_cast<int>(place + 0.5f));
}

MapPyramid::MapPyramid(const QkSource& s)
    : rows_(s.q_tokens), columns_(s.kv_tokens), done_(at(cells(s.q_tokens, kBand))) {
  for (Index block = kBase;; block *= 2) {
    PyramidLevel l{.block = block,
                   .rows = cells(rows_, block),
                   .columns = cells(columns_, block),
                   .max = {},
                   .mean = {}};
    l.max.assign(at(l.rows * l.columns), 0), l.mean = l.max;
    levels_.push_back(std::move(l));
    if (block >= kBand && levels_.back().rows <= kTop && levels_.back().columns <= kTop) break;
  }
  const PyramidLevel& coarse = levels_[kBandLevels - 1];
  coarse_sum_.assign(at(coarse.rows * coarse.columns), 0);
  coarse_max_ = coarse_sum_, coarse_open_ = coarse_sum_;
  diagonals_.assign(at(rows_ + columns_), 0), column_sums_.assign(at(columns_), 0);
}

MapPyramid::Scratch::Scratch(const MapPyramid& of) {
  const Index wide = cells(of.columns_, kBase);
  sum.assign(at(kBand / kBase * wide), 0), max = sum, open = sum;
  column.assign(at(of.columns_), 0), diagonal.assign(at(of.columns_ + HeadRows::kRows), 0);
  diagonals.assign(of.diagonals_.size(), 0), columns.assign(of.column_sums_.size(), 0);
}

void MapPyramid::put(std::size_t level, Index cell, float max, float sum, float open) {
  PyramidLevel& l = levels_[level];
  l.max[at(cell)] = quick_code(max);
  l.mean[at(cell)] = open > 0 ? quick_code(sum / open) : 0;
}

/// Adds up a strip of at most 64 rows by 16 rows at a time, down the columns first.
void MapPyramid::add_strip(const WeightStrip& strip, const HeadRows& rows, Index band, Scratch& to) const {
  const Index width = strip.end - strip.begin, columns = cells(columns_, kBase);
  float sum[HeadRows::kKeys], max[HeadRows::kKeys];
  for (Index r0 = 0; r0 < strip.rows.count; r0 += kBase) {
    const Index r1 = std::min(strip.rows.count, r0 + kBase);
    std::fill(sum, sum + width, 0.0f), std::fill(max, max + width, 0.0f);
    for (Index r = r0; r < r1; ++r) {
      const float* w = strip.row(r);
      // Behind the strip's first row: key j of row r stands r places further back.
      float* diagonal = to.diagonal.data() + strip.begin + (HeadRows::kRows - 1 - r);
      for (Index j = 0; j < width; ++j) {
        sum[j] += w[j], max[j] = w[j] > max[j] ? w[j] : max[j];
        diagonal[j] += w[j];
      }
    }
    float* column = to.column.data() + strip.begin;
    for (Index j = 0; j < width; ++j) column[j] += sum[j];
    const Index cell_row = (strip.rows.first + r0 - band * kBand) / kBase;
    for (Index j0 = 0; j0 < width; j0 += kBase) {
      const Index j1 = std::min(width, j0 + kBase);
      float s = 0, m = 0;
      for (Index j = j0; j < j1; ++j) s += sum[j], m = max[j] > m ? max[j] : m;
      const std::size_t cell = at(cell_row * columns + (strip.begin + j0) / kBase);
      to.sum[cell] = s, to.max[cell] = m;
      to.open[cell] = static_cast<float>(strip.open(
          rows.source(), strip.rows.first + r0, strip.rows.first + r1, strip.begin + j0, strip.begin + j1));
    }
  }
}

void MapPyramid::flush(Index row, Index rows, Scratch& s) const {
  for (Index j = 0; j < columns_; ++j)
    s.columns[at(j)] += static_cast<std::int64_t>(s.column[at(j)] * kToSum);
  // Place x of `diagonal` is key j of the strip's row r with j - r = x - 63.
  for (Index x = HeadRows::kRows - rows; x < columns_ + HeadRows::kRows - 1; ++x) {
    const Index back = row - (x - (HeadRows::kRows - 1));
    s.diagonals[at(back + columns_ - 1)] += static_cast<std::int64_t>(s.diagonal[at(x)] * kToSum);
  }
  std::fill(s.column.begin(), s.column.end(), 0.0f), std::fill(s.diagonal.begin(), s.diagonal.end(), 0.0f);
}

void MapPyramid::fill_band(Index band, HeadRows& rows, HeadRows::Worker& worker, Scratch& s) {
  std::fill(s.sum.begin(), s.sum.end(), 0.0f), std::fill(s.max.begin(), s.max.end(), 0.0f);
  std::fill(s.open.begin(), s.open.end(), 0.0f);
  const Index first = band * kBand, end = std::min(rows_, first + kBand);
  rows.fill_lse({first, end - first}, worker);
  for (Index row = first; row < end; row += HeadRows::kRows) {
    const Index n = std::min(HeadRows::kRows, end - row);
    rows.each_strip({row, n}, 0, columns_, worker,
                    [&](const WeightStrip& strip) { add_strip(strip, rows, band, s); });
    flush(row, n, s);
  }
  write_band(band, s);
  done_[at(band)].store(1, std::memory_order_release);
  ++count_;
}

void MapPyramid::write_band(Index band, Scratch& s) {
  const std::lock_guard guard(lock_);
  Cells c{
      .rows = kBand / kBase, .columns = cells(columns_, kBase), .sum = s.sum, .max = s.max, .open = s.open};
  for (int level = 0; level < kBandLevels; ++level) {
    const PyramidLevel& l = levels_[static_cast<std::size_t>(level)];
    const Index first = band * kBand / l.block;
    for (Index i = 0; i < c.rows && first + i < l.rows; ++i)
      for (Index j = 0; j < c.columns; ++j) {
        const std::size_t from = at(i * c.columns + j);
        put(static_cast<std::size_t>(level), (first + i) * l.columns + j, c.max[from], c.sum[from],
            c.open[from]);
      }
    if (level + 1 < kBandLevels) c = c.halved();
  }
  const std::size_t to = at(band * levels_[kBandLevels - 1].columns);
  std::copy(c.sum.begin(), c.sum.end(), coarse_sum_.begin() + static_cast<std::ptrdiff_t>(to));
  std::copy(c.max.begin(), c.max.end(), coarse_max_.begin() + static_cast<std::ptrdiff_t>(to));
  std::copy(c.open.begin(), c.open.end(), coarse_open_.begin() + static_cast<std::ptrdiff_t>(to));
}

void MapPyramid::join(const Scratch& s) {
  const std::lock_guard guard(lock_);
  for (std::size_t i = 0; i < diagonals_.size(); ++i) diagonals_[i] += s.diagonals[i];
  for (std::size_t i = 0; i < column_sums_.size(); ++i) column_sums_[i] += s.columns[i];
}

void MapPyramid::sample(HeadRows& rows, Context& ctx) {
  const Index columns = levels_[kBandLevels - 1].columns, taken = cells(rows_ - kSampled / 2, kSampled);
  std::vector<HeadRows::Worker> workers;
  for (int t = 0; t < ctx.threads(); ++t) workers.emplace_back(rows.source().head_dim);
  // A task takes whole bands, so that no two of them add to one cell.
  ctx.pool().parallel_for(cells(taken, HeadRows::kRows), [&](Index task, int t) {
    HeadRows::Worker& worker = workers[static_cast<std::size_t>(t)];
    const Index from = task * HeadRows::kRows;
    const RowSet set{from * kSampled + kSampled / 2, std::min(HeadRows::kRows, taken - from), kSampled};
    rows.fill_lse(set, worker);
    rows.each_strip(set, 0, columns_, worker, [&](const WeightStrip& w) {
      for (Index i = 0; i < set.count; ++i)
        for (Index j0 = w.begin; j0 < w.end; j0 += kBand) {
          const Index row = set.at(i), j1 = std::min(w.end, j0 + kBand);
          const std::size_t cell = at(row / kBand * columns + j0 / kBand);
          const float* x = w.row(i) - w.begin;
          float sum = 0, max = coarse_max_[cell];
          for (Index j = j0; j < j1; ++j) sum += x[j], max = x[j] > max ? x[j] : max;
          coarse_sum_[cell] += sum, coarse_max_[cell] = max;
          coarse_open_[cell] += static_cast<float>(w.open(rows.source(), row, row + 1, j0, j1));
        }
    });
  });
  for (Index cell = 0; cell < static_cast<Index>(coarse_sum_.size()); ++cell)
    put(kBandLevels - 1, cell, coarse_max_[at(cell)], coarse_sum_[at(cell)], coarse_open_[at(cell)]);
}

void MapPyramid::raise() {
  const std::lock_guard guard(lock_);
  const PyramidLevel& coarse = levels_[kBandLevels - 1];
  Cells c{.rows = coarse.rows,
          .columns = coarse.columns,
          .sum = coarse_sum_,
          .max = coarse_max_,
          .open = coarse_open_};
  for (std::size_t level = kBandLevels; level < levels_.size(); ++level) {
    c = c.halved();
    for (Index cell = 0; cell < c.rows * c.columns; ++cell)
      put(level, cell, c.max[at(cell)], c.sum[at(cell)], c.open[at(cell)]);
  }
}

}  // namespace headwise
