// TextPooling: rows of a text to its evidence: weighted by learned queries, or their mean.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/basic/module.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Which rows belong to each text: rows[offsets[b]..offsets[b + 1]) are row numbers, at least one a text.
struct PooledRows {
  InputView rows = {}, offsets = {};  // i64 [pooled], i64 [texts + 1]
  Index texts() const { return offsets.size[0] - 1; }
  Index at(Index i) const { return static_cast<const Index*>(rows.data)[i]; }
  Index first(Index b) const { return static_cast<const Index*>(offsets.data)[b]; }
};

/// p[b, i] = sum over rows t of text b of softmax_t(u_i . x_t / sqrt(dim)) x_t; without queries the mean of
/// x_t. A text's bits depend on its own rows alone.
class TextPooling {
 public:
  /// Declares query [queries dim] under `name`; 0 queries: the mean, nothing is learned.
  TextPooling(ParamSet& params, std::string_view name, Index queries, Index dim);

  struct Saved {
    AnyView x;
    PooledRows rows;
    AnyView weights;  // text by text [queries rows of it], f32 (f64 for f64)
  };
  /// x [rows dim] to [texts outputs() * dim].
  AnyView forward(const AnyView& x, const PooledRows& rows, Call& call, Saved* saved) const;
  /// dx like x; rows that belong to no text get 0.
  AnyView backward(const AnyView& dy, Call& call, const Saved& saved) const;

  /// Vectors a text gets: its queries, or the mean.
  Index outputs() const { return outputs_; }

 private:
  Index outputs_, dim_;
  Learned query_;
};

}  // namespace headwise
#pragma GCC visibility pop
