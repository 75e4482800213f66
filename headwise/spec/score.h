// Score terms as formulas, shared by every kernel. Order: scale, softcap, mix, bias, ALiBi, relative.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cmath>

#include "headwise/base/view.h"
#include "headwise/spec/row_lists.h"

namespace headwise {

/// ALiBi, bidirectional form: -slope * |q - k|; under a causal mask this is the usual slope * (k - q).
template <class T>
T alibi_term(T slope, Index q, Index k) {
  return -slope * static_cast<T>(q < k ? k - q : q - k);
}

/// T5's relative position bucket of key k seen from query q.
struct RelativeBuckets {
  Index buckets = 0, max_distance = 0;
  bool bidirectional = false;

  Index bucket(Index q, Index k) const {
    Index n = buckets, at = 0, distance = q - k;
    if (bidirectional) {
      n /= 2;
      if (distance < 0) at = n, distance = -distance;
    } else if (distance < 0) {
      distance = 0;
    }
    const Index exact = n / 2;
    if (distance < exact) return at + distance;
    const double ratio = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                         std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
    const Index wide = exact + static_cast<Index>(ratio * static_cast<double>(n - exact));
    return at + (wide < n - 1 ? wide : n - 1);
  }
};

/// Everything with an address that belongs to the heads; an empty view = not used. Float views may hold any
/// float dtype, of their own, unless said.
struct HeadInputs {
  InputView scale = {};   // [1] or [heads], f32 or f64; empty: 1 / sqrt(head_dim)
  double softcap = 0;     // cap * tanh(s / cap), from 1e-30 to 1e30; 0: off
  InputView slopes = {};  // [heads]: ALiBi
  InputView bias = {};    // [batch heads q kv], any step may be 0, a size of 1 repeats; ragged: sizes of the
                          // longest sequence
  InputView relative = {};  // [buckets heads]: T5 table
  RelativeBuckets buckets = {};
  InputView sinks = {};  // [heads]: one logit each, in the denominator only
  InputView gate = {};   // [batch q heads], multiplies the head's output; ragged: [1 tokens heads]
  double dropout = 0;    // probability of dropping a weight
  std::uint64_t seed = 0;
  InputView alpha = {};         // [heads]: entmax; 1, or from 1.01 to 2
  RowLists rows = {};           // the query rows each head works on; not given: all
  InputView sequence_ids = {};  // [batch] i64 for dropout; empty: the batch index
  // Mixing: scale has q's heads; slopes, bias, relative, sinks and masks those between the mixes; gate and
  // dropout v's.
  InputView mix_before = {};  // [q_heads heads]: M of a fixed mix, W of a dynamic one (empty: 0)
  InputView mix_after = {};   // [heads v_heads], the same
  InputView mix_q = {};  // [batch q_tokens mix_rows heads]; empty: queries add nothing; ragged: [1 tokens ..]
  InputView mix_k = {};  // [batch kv_tokens mix_rows heads]; empty: keys add nothing
};

}  // namespace headwise
