// RowLists: which query rows each head works on, the lists of all (sequence, head) one after the other.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/view.h"

namespace headwise {

/// List n = sequence * heads + head holds index[offsets[n]] .. index[offsets[n + 1]]: query rows inside the
/// sequence, ascending. A row that is not listed gives out = 0 and lse = -inf, costs no work, and gets and
/// sends no gradient.
struct RowLists {
  InputView offsets = {};  // [batch * heads + 1] i64, from 0 to the size of index
  InputView index = {};    // [listed] i64, where offsets lie: on the CPU, or where q does

  bool on_device() const { return !offsets.on_cpu(); }
  bool given() const { return offsets.given(); }
  Index begin(Index list) const { return number(offsets, list); }
  Index row(Index n) const { return number(index, n); }
  bool lists(Index list, Index row_asked) const {
    Index low = begin(list), high = begin(list + 1);
    while (low < high) {
      const Index middle = low + (high - low) / 2;
      if (row(middle) < row_asked)
        low = middle + 1;
      else
        high = middle;
    }
    return low < begin(list + 1) && row(low) == row_asked;
  }

 private:
  static Index number(const AnyView& v, Index n) { return static_cast<const Index*>(v.data)[n * v.step[0]]; }
};

}  // namespace headwise
