// TextPooling: rows of a text to its evidence, by learned queries or their mean; TextPeaks: scores of rows to
// those of their text.
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

/// m[t, l] = mean of s[u, l] over rows u of the text at most kReach from t;
/// y[b, l] = ln(sum over rows t of text b of exp(kSharpness m[t, l])) / kSharpness: nearly the largest score
/// that a stretch of words gives the label, however many words say nothing. A text's bits depend on its own
/// rows alone.
class TextPeaks {
 public:
  static constexpr double kSharpness = 4;
  static constexpr Index kReach = 3;

  struct Saved {
    AnyView means, y;
    PooledRows rows;
    Index all_rows = 0;
  };
  /// Scores [rows labels] to [texts labels].
  static AnyView forward(const AnyView& scores, const PooledRows& rows, Call& call, Saved* saved);
  /// Slopes like the scores; rows that belong to no text get 0.
  static AnyView backward(const AnyView& dy, Call& call, const Saved& saved);
};

}  // namespace headwise
#pragma GCC visibility pop
