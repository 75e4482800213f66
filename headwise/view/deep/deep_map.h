// DeepMap: heads of any length as pictures: a sample at once, tiles on demand, then the exact pyramid.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <condition_variable>
#include <list>
#include <thread>

#include "headwise/base/context.h"
#include "headwise/view/deep/pyramid.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Which tile: cells of `block` queries by `block` keys, kTile x kTile of them.
struct TilePlace {
  Index block = 1, row = 0, column = 0;  // a power of two; row and column count tiles
};

struct DeepTile {
  static constexpr Index kTile = 256;
  /// none: too dear now, look at larger blocks meanwhile.
  enum class State : std::uint8_t { none, exact, sampled };
  State state = State::none;
  std::vector<unsigned char> max, mean;  // codes of cells, kTile x kTile
};

/// One row over all keys, or one column over all queries.
struct DeepLine {
  bool ready = false;                        // false: the log-sum-exp of its rows is not known yet
  std::vector<float> bins;                   // the largest weight of each stretch
  std::vector<std::pair<Index, float>> top;  // the heaviest, first
  double sum = 0;
};

class DeepMap {
 public:
  /// `building` threads make pyramids (0: none are made until asked for by `build`).
  DeepMap(QkSource source, int threads);
  DeepMap(const DeepMap&) = delete;
  DeepMap& operator=(const DeepMap&) = delete;
  ~DeepMap();

  const QkSource& source() const;
  /// Blocks from 1 up, each twice the last.
  Index largest_block() const;
  /// The picture of a head is sampled, and its exact pyramid begun on threads of lower priority. The heads
  /// looked at last are kept; one that falls out is computed anew.
  void open(Index layer, Index head);
  struct Progress {
    Index bands = 0, done = 0;
    double seconds = 0;  // since the pyramid was begun, or that it took
    bool exact = false;
  };
  Progress progress(Index layer, Index head);
  /// Waits until the pyramid is whole.
  void finish(Index layer, Index head);
  DeepTile tile(Index layer, Index head, const TilePlace& place);
  /// Exact weights [rows columns].
  std::vector<float> weights(Index layer, Index head, const RowSet& rows, Index begin, Index end);
  DeepLine row_line(Index layer, Index head, Index row, Index bins, Index top);
  DeepLine column_line(Index layer, Index head, Index column, Index bins, Index top);
  /// Mean weight by distance back, 0 and up, of those queries that have it; empty until the pyramid is whole.
  std::vector<float> by_distance(Index layer, Index head);
  /// Sums by key; empty until the pyramid is whole.
  std::vector<float> column_sums(Index layer, Index head);

 private:
  struct Head;
  std::shared_ptr<Head> head_of(Index layer, Index head);
  DeepTile computed_tile(Head& head, const TilePlace& place);
  DeepTile kept_tile(Head& head, const TilePlace& place) const;
  void build();
  /// What `sums` makes of a pyramid that is whole; else nothing.
  template <class Sums>
  std::vector<float> whole_sums(Index layer, Index head, const Sums& sums);

  QkSource source_;
  Context ctx_;      // of the caller's own thread
  std::mutex lock_;  // of the lists below
  std::mutex work_;  // one caller at a time works in ctx_
  std::condition_variable changed_;
  std::list<std::shared_ptr<Head>> heads_;  // looked at last, first
  bool ending_ = false;
  std::vector<std::thread> builders_;
};

}  // namespace headwise
#pragma GCC visibility pop
