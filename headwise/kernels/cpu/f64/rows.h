// Rows: rows of attention in double with the bits of ref; neighbours in a loop share a register.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "headwise/base/arena.h"
#include "headwise/kernels/candidate.h"
#include "headwise/kernels/cpu/isa/f64_kernels.h"

namespace headwise::cpu::f64 {

/// Each score is one chain of sums over dims, each output one over keys, as in ref: keys, or columns, that
/// lie side by side are summed side by side.
inline constexpr Index kKeys = kF64Lanes, kColumns = kF64Lanes;

/// The functions of the chosen ISA level.
const F64Core& f64_core();

/// Rows of one head and sequence that are worked on together.
struct Block {
  SequenceLocation at;
  Index head, first, rows;  // queries first .. first + rows - 1 of the sequence
};

struct Rows {
  const AttentionProblem& p;
  const AttentionArgs& a;
  Index most;         // rows of a block
  bool keeps_scaled;  // scale * q.k is kept beside the logits
  const F64Core& core = f64_core();
  double* q = nullptr;                                              // [most][wide(head_dim)]
  double *logits = nullptr, *weights = nullptr, *scaled = nullptr;  // [most][pitch]
  std::uint64_t *open = nullptr, *keep = nullptr;                   // [most][words]: a bit a key
  double *lse = nullptr, *empty = nullptr;                          // [most]; empty: 1 where no key is open

  /// Rows of a block: few enough that their logits stay near.
  static Index most_of(const AttentionProblem& p) {
    return max_of(1, min_of(16, 65536 / max_of(p.kv_tokens, 1)));
  }
  static Index tiles_of(Index kv_tokens) { return ceil_div(kv_tokens, kKeys); }
  static Index wide(Index dim) { return round_up(dim, kColumns); }
  Index pitch() const { return round_up(p.kv_tokens, 64); }
  Index words() const { return pitch() / 64; }
  double scale_of(Index head) const;

  void book(Arena& arena);
  /// Queries and open keys of a block; every logit is unknown.
  void begin(const Block& block);
  /// to[r] = x[r] . keys of tile `number`, [dim][kKeys], from the first to the last row that may see one.
  void dot_tile(const Block& block, const F64Dots& task, Index number) const;
  /// s = scale * q.k of the keys of a tile likewise.
  void score_tile(const Block& block, const double* tile, Index number, double* to) const;
  /// Softcap, terms, weights, log-sum-exp, dropout: `keep` and, in weights, w before dropout.
  void finish(const Block& block);

  bool sees(Index row, Index number) const {  // keys of a tile of kKeys
    return (open[row * words() + number / 4] >> (number % 4 * kKeys) & 0xffff) != 0;
  }
  template <class Body>
  static void each_bit(const std::uint64_t* bits, Index words, Body&& body) {
    for (Index w = 0; w < words; ++w) {
      if (bits[w] == ~std::uint64_t{0}) {
        for (Index j = 64 * w; j < 64 * w + 64; ++j) body(j);
        continue;
      }
      for (std::uint64_t left = bits[w]; left != 0; left &= left - 1) body(64 * w + __builtin_ctzll(left));
    }
  }
};

/// What up to 64 rows count in a sum, in order.
struct Shares {
  double factor[64];
  Index row[64];
  Index count = 0;
  void add(Index from, double by) { factor[count] = by, row[count++] = from; }
};

/// What head h reads of tokens row0 .. of a tensor: turned, [tiles][dim][kKeys], or as rows
/// [tokens][wide(dim)]; 0 behind the last.
void pack_turned(const AnyView& x, const HeadLayout& layout, Index batch, Index row0, Index tokens, Index h,
                 double* to);
void pack_rows(const AnyView& x, const HeadLayout& layout, Index batch, Index row0, Index tokens, Index h,
               double* to);

/// Why neither direction takes a problem; empty: it may.
std::string refuse_both(const AttentionProblem& p);

}  // namespace headwise::cpu::f64
