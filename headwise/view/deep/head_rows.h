// HeadRows: weights of one head; any rectangle is recomputed from queries and keys when asked for.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <atomic>

#include "headwise/base/context.h"
#include "headwise/ops/projection/projection.h"
#include "headwise/view/deep/qk_source.h"

namespace headwise {

/// Queries first, first + step, and so on.
struct RowSet {
  Index first = 0, count = 0, step = 1;
  Index at(Index i) const { return first + i * step; }
  Index end() const { return count > 0 ? at(count - 1) + 1 : first; }
};

/// Weights of a set of queries over the keys [begin, end), row by row.
struct WeightStrip {
  RowSet rows = {};
  Index begin = 0, end = 0;
  const float* weights = nullptr;
  const float* row(Index i) const { return weights + i * (end - begin); }
  /// How many pairs of [q0, q1) x [k0, k1) may attend.
  Index open(const QkSource& source, Index q0, Index q1, Index k0, Index k1) const;
};

class HeadRows {
 public:
  static constexpr Index kRows = 64, kKeys = 2048;  // of one strip

  /// What one thread works with.
  class Worker {
   public:
    explicit Worker(Index head_dim);

   private:
    friend class HeadRows;
    Context ctx_;
    std::vector<float> queries_, scores_;
    std::optional<ProjectionPlan> plan_;
  };

  /// Reads the head's keys and packs them. The source must outlive this.
  HeadRows(const QkSource& source, Index layer, Index head);

  const QkSource& source() const { return source_; }
  Index head() const { return head_; }
  /// No number where it is not known yet.
  float lse(Index row) const { return lse_[static_cast<std::size_t>(row)].load(std::memory_order_relaxed); }
  Index rows_without_lse(const RowSet& rows) const;
  /// The log-sum-exp of rows that have none yet: one walk over all keys. Rows without an open key: -infinity.
  void fill_lse(const RowSet& rows, Worker& worker);
  /// Calls each(WeightStrip) for every strip of the rows, at most kRows of them, that has an open pair in the
  /// keys [begin, end). Their log-sum-exp must be known.
  template <class Each>
  void each_strip(const RowSet& rows, Index begin, Index end, Worker& worker, const Each& each) const {
    for (Index at = begin / kKeys * kKeys; at < end; at += kKeys)
      if (const WeightStrip strip = strip_of(rows, at, worker); strip.weights != nullptr) each(strip);
  }

 private:
  WeightStrip strip_of(const RowSet& rows, Index keys, Worker& worker) const;
  bool scores_of(const RowSet& rows, Index keys, Worker& worker) const;
  void close_pairs(const RowSet& rows, Index keys, std::span<float> scores) const;
  void fill_some(const RowSet& rows, Worker& worker);

  const QkSource& source_;
  Index layer_, head_;
  std::vector<PackedMatrix> keys_;
  std::vector<std::atomic<float>> lse_;
};

/// exp, good to 1e-6 of itself, of a number that is at most 80; 0 below -80, and of what is no number.
float weight_exp(float x);

}  // namespace headwise
