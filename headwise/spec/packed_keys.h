// PackedKeys: how the keys of a cache lie when they are packed; the buffer has no header, so this goes beside
// it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/dtype.h"

namespace headwise {

/// Keys of one head as [token / group][dim / columns][group][columns], dim padded to a multiple of pad: what
/// the class of the dtype at an ISA level multiplies without packing. group 0: no order at all.
struct KeyOrder {
  Index group = 0, columns = 1, pad = 1;
  /// Room is counted in tokens of this many, a multiple of every group.
  static constexpr Index kUnit = 32;

  constexpr Index width(Index dim) const { return round_up(dim, pad); }
  constexpr Index at(Index token, Index d, Index dim) const {
    return ((token / group * (width(dim) / columns) + d / columns) * group + token % group) * columns +
           d % columns;
  }
  friend constexpr bool operator==(const KeyOrder&, const KeyOrder&) = default;
};
/// "[kv/8][dim/2][8][2]"
std::ostream& operator<<(std::ostream& out, const KeyOrder& o);

/// The description of a buffer [batch kv_heads room], room = elements a head.
struct PackedKeys {
  KeyOrder order = {};
  DType dtype = DType::f32;
  Index kv_heads = 0, dim = 0;
  Index capacity = 0, tokens = 0;  // tokens a sequence has room for, and has

  constexpr bool given() const { return order.group > 0; }
  constexpr Index room() const { return round_up(capacity, KeyOrder::kUnit) * order.width(dim); }
  friend constexpr bool operator==(const PackedKeys&, const PackedKeys&) = default;
};

}  // namespace headwise
