// MapPyramid: one head as a picture at every size: the largest and the mean weight of square blocks of pairs.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>
#include <mutex>

#include "headwise/view/deep/head_rows.h"

namespace headwise {

/// Cells of one size, row by row; weights as bytes (weight_code).
struct PyramidLevel {
  Index block = 0, rows = 0, columns = 0;
  std::vector<unsigned char> max, mean;
};

/// Sums of weights in whole steps of 2^-40: they do not depend on the order of adding.
using WeightSums = std::vector<std::int64_t>;
constexpr double kSumStep = 1.0 / (std::int64_t{1} << 40);

class MapPyramid {
 public:
  static constexpr Index kBase = 16, kBand = 256;  // pairs of the smallest block; rows filled at a time
  static constexpr Index kSampled = 64;
  static constexpr int kBandLevels = 5;  // blocks of 16, 32, 64, 128, 256

  explicit MapPyramid(const QkSource& source);

  Index bands() const { return (rows_ + kBand - 1) / kBand; }
  bool done(Index band) const {
    return done_[static_cast<std::size_t>(band)].load(std::memory_order_acquire) != 0;
  }
  Index bands_done() const { return count_.load(); }
  bool whole() const { return bands_done() == bands(); }

  /// What one thread keeps between bands.
  struct Scratch {
    explicit Scratch(const MapPyramid& of);
    std::vector<float> sum, max, open;    // of the base blocks of one band
    std::vector<float> diagonal, column;  // of 64 rows
    WeightSums diagonals, columns;
  };
  /// Exact blocks of one band; from any thread, each band once.
  void fill_band(Index band, HeadRows& rows, HeadRows::Worker& worker, Scratch& scratch);
  /// A thread is done: its sums join the others.
  void join(const Scratch& scratch);
  /// A first picture, before any band is filled: blocks of 256 from one row in kSampled.
  void sample(HeadRows& rows, Context& ctx);
  /// Blocks above 256 from what is there.
  void raise();

  /// While it is held no cell changes.
  std::unique_lock<std::mutex> hold() const { return std::unique_lock(lock_); }
  /// Level 0 has blocks of 16; the last has at most 64 x 64.
  const std::vector<PyramidLevel>& levels() const { return levels_; }
  /// By i - j + (kv_tokens - 1), position of the query minus that of the key; and by key. Whole when whole().
  const WeightSums& diagonals() const { return diagonals_; }
  const WeightSums& columns() const { return column_sums_; }

 private:
  void add_strip(const WeightStrip& strip, const HeadRows& rows, Index band, Scratch& scratch) const;
  void flush(Index row, Index rows, Scratch& scratch) const;
  void write_band(Index band, Scratch& scratch);
  void put(std::size_t level, Index cell, float max, float sum, float open);

  Index rows_, columns_;
  std::vector<PyramidLevel> levels_;
  std::vector<float> coarse_sum_, coarse_max_, coarse_open_;  // of the blocks of 256
  std::vector<std::atomic<unsigned char>> done_;
  std::atomic<Index> count_{0};
  mutable std::mutex lock_;  // of cells and sums
  WeightSums diagonals_, column_sums_;
};

/// weight_code of packed_maps.h by a table: the same, or its neighbour where the two meet.
unsigned char quick_code(float weight);

}  // namespace headwise
