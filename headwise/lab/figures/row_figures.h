// Row figures: what the rows of one map of weights do, several rows side by side in lanes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/lab/figures/figures.h"

namespace headwise {

/// Rows of a block; what lies behind the last row of a map counts as rows of zeros.
inline constexpr Index kRowLanes = 8;

class RowFigures {
 public:
  explicit RowFigures(const MapOfText& map);
  /// Looks at rows first .. first + kRowLanes - 1.
  void look(Index first);

  float entropy[kRowLanes], distance[kRowLanes], cls[kRowLanes], sep[kRowLanes], punctuation[kRowLanes];
  float top[kRowLanes];                         // the largest weight, [SEP] left out; -1: there is no key
  std::int32_t argmax[kRowLanes];               // its key, the first of several; -1: none
  float sep_top[kRowLanes];                     // the largest weight of [SEP]; -1: none
  float sparsity[kRowLanes];                    // keys that take 90 % of the mass
  float valued[kRowLanes], special[kRowLanes];  // mass times value_norm: of all keys, of special ones

 private:
  void load(Index first);
  void add_masses(Index first);
  void find_tops();
  void count_keys();

  const MapOfText& map_;
  Index rows_, keys_;
  std::vector<Index> cls_, sep_, punctuation_, special_, others_;  // keys; others: all but [SEP]
  std::vector<float> norm_;                                        // [keys]
  std::vector<float> tile_, room_;                                 // [keys kRowLanes], rows in lanes
};

}  // namespace headwise
