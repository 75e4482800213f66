// rope: turns pairs of dimensions of every head by position times frequency, so that q.k depends on
// distance alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/buffer.h"
#include "headwise/base/view.h"
#include "headwise/spec/rope.h"

#pragma GCC visibility push(default)
namespace headwise {

class Context;

/// Positions of tokens: a tensor of i64, [tokens] or [batch tokens], or the position of token 0.
struct RopePositions {
  InputView tensor;  // empty: token t stands at start + t
  Index start = 0;

  RopePositions(Index start_at) : start(start_at) {}               // NOLINT: a number is a start
  RopePositions(const InputView& each) : tensor(each), start(0) {  // NOLINT: a tensor is positions
    require(each.given(), ErrorKind::bad_argument, "rope",
            "positions are empty; give i64 [tokens] or [batch tokens], or a start");
  }
  RopePositions(const ConstView& each) : RopePositions(InputView(each)) {}  // NOLINT
  RopePositions(const AnyView& each) : RopePositions(InputView(each)) {}    // NOLINT
};

/// x, out [batch tokens heads dim], any steps; out is x itself or apart from it. Computed in double, rounded
/// once; a token's bits do not depend on batch, tokens, layout, threads, or on whether a table is used.
/// Allocates nothing once the context's workspace holds rotary_dim * 4 bytes.
void rope(const InputView& x, const RopePositions& positions, const AnyView& out, const RopeOptions& options,
          Context& ctx);

/// dx from dout, the gradient of rope()'s out: every pair turns back by its angle, times the attention
/// factor. As rope() in all else; dx is dout itself or apart from it.
void rope_backward(const InputView& dout, const RopePositions& positions, const AnyView& dx,
                   const RopeOptions& options, Context& ctx);

/// cos and sin of positions 0..positions-1, for many calls with the same options: rotary_dim * 8 bytes a
/// position.
class RopeTable {
 public:
  RopeTable(const RopeOptions& options, Index head_dim, Index positions, Context& ctx);
  const RopeOptions& options() const noexcept { return options_; }
  Index head_dim() const noexcept { return head_dim_; }
  Index positions() const noexcept { return positions_; }
  std::size_t bytes() const noexcept { return turns_.size(); }
  const double* cos(Index position) const noexcept { return turns(position); }
  const double* sin(Index position) const noexcept { return turns(position) + rotary_dim_ / 2; }
  Index rotary_dim() const noexcept { return rotary_dim_; }

 private:
  double* turns(Index position) const noexcept {
    return reinterpret_cast<double*>(turns_.data()) + position * rotary_dim_;
  }
  RopeOptions options_;
  Index head_dim_, rotary_dim_, positions_;
  Buffer turns_;  // [positions 2 pairs]
};

/// The same bits from a table; a position outside it is an error. `inverse` replaces that of the table's
/// options.
void rope(const InputView& x, const RopePositions& positions, const AnyView& out, const RopeTable& table,
          bool inverse, Context& ctx);
inline void rope(const InputView& x, const RopePositions& positions, const AnyView& out,
                 const RopeTable& table, Context& ctx) {
  rope(x, positions, out, table, table.options().inverse, ctx);
}

void rope_backward(const InputView& dout, const RopePositions& positions, const AnyView& dx,
                   const RopeTable& table, Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
