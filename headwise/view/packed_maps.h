// PackedMaps: the largest weights of every row in some 13 bits each, with the mass that was left out.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <vector>

#include "headwise/view/attention_maps.h"

namespace headwise {

/// A weight as a byte: 0 is none, 1 to 255 are 2^-24 to 1 in equal steps of the logarithm (3.4 % at worst).
unsigned char weight_code(float weight);
float weight_of_code(unsigned char code);

/// Means over the rows of one head, from its whole rows.
struct MapFigures {
  double entropy = 0, largest = 0, distance = 0, first = 0, self = 0, previous = 0, next = 0;
};

struct PackedLayer {
  std::vector<unsigned char> counts;  // [heads queries], two bytes each: how many weights are kept
  /// Half bytes, the low one first. Of each weight: keys skipped (15: 15 of them, and more follow), then the
  /// code, its low half first.
  std::vector<unsigned char> halves;
  std::vector<unsigned char> rest;  // [heads queries]: mass left out, of 255
  bool half_open = false;           // the last byte of halves has room
  std::vector<MapFigures> figures;  // by head
};

struct PackedMaps {
  std::vector<PackedLayer> layers;
  double left_out = 0;          // mean over rows
  Index rows = 0, unusual = 0;  // rows in all; rows that do not sum to 1
  Index not_numbers = 0;        // weights that are not finite or below 0, shown as 0
};

/// The smallest code that fits when about `bytes` may be spent on all of these; 1: everything fits.
int least_code_that_fits(std::span<const AttentionMaps> all, Index bytes);
PackedMaps pack_maps(const AttentionMaps& maps, int least_code);

}  // namespace headwise
