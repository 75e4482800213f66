// What tile kernels take: rows, tiles, stripes and the other arguments; plain types only, since every ISA
// level includes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace headwise::cpu {

using Index = std::int64_t;

enum class RowType : std::uint8_t { f32, bf16, f16, i8, e4m3 };
constexpr bool is_eight_bits(RowType t) { return t == RowType::i8 || t == RowType::e4m3; }
constexpr Index bytes_of(RowType t) { return t == RowType::f32 ? 4 : is_eight_bits(t) ? 1 : 2; }

/// Rows of one head: element (row, column) at data[row * row_step + column * column_step]; columns outside
/// [begin, end) do not exist and count as 0. block > 0: packed keys, rows in blocks [row / 16][column][16] of
/// `block` elements, column_step 16. 8 bits: row r counts scale[r * scale_step] times its numbers; null: its
/// numbers as they are.
struct Rows {
  const void* data = nullptr;
  Index row_step = 0, column_step = 1, begin = 0, end = 0;
  RowType type = RowType::f32;
  Index block = 0;
  const float* scale = nullptr;
  Index scale_step = 0;
};
/// The numbers of 8 bits without what they count.
inline Rows numbers_of(Rows rows) {
  rows.scale = nullptr;
  return rows;
}
/// What each row counts, at[i * step] for row i; null: 1.
struct RowScales {
  const float* at = nullptr;
  Index step = 0;
};
inline RowScales scales_from(const Rows& rows, Index first) {
  return {rows.scale ? rows.scale + first * rows.scale_step : nullptr, rows.scale_step};
}

/// Statistics of one panel, [panel] each, gathered while the weights of a tile are made; d = s - top in score
/// units.
struct RowStats {
  float* weighted_score;  // sum of p * d * scale, relative to the running top
  float* square;          // sum of p^2
  float* distance;        // sum of p * |q - k|
  float* best;            // largest score seen
  Index* best_key;        // its key, -1 before the first
};

/// One tile of scores S [keys][panel]: keys key0 + from .. key0 + to of one granule.
struct Tile {
  float* s;             // scores, then weights
  void* p;              // weights as the operand of `weigh`; the f32 core uses s itself
  Index from, to;       // rows of S in use; `from` is a multiple of 32
  const float* top;     // [panel] running max, finite
  const float* factor;  // [panel] scale * log2(e) (or log2(e) when scores are already scaled)
  float* sum;           // [panel] sum of this tile's weights
  int lanes = 64;       // that hold queries: `weights` may leave vectors of others, as sums and weights of 0
};

/// One panel against one granule, for `TileProducts::stripes`: nothing but the mask stands between its scores
/// and its weights.
struct Stripe {
  const void* queries;
  Index from, to;             // as in Tile
  const std::uint64_t* open;  // as in `select`; null: everything is open
  const float* factor;
  float *top, *sum, *o;   // state, as `advance`, fma(sum, shrink, tile's sum) and `weigh` leave it
  const RowStats* stats;  // as `weights_stats` leaves them after a rebase; null: nobody asks
  const float* q_distance;
  Index key0;
  RowScales key_scales = {}, value_scales = {};  // as in `scale_rows`, of scores and of weights
};

/// One panel's part of `add_rows`: a [keys][panel], of which `count` lanes count, and its packed rows b.
struct PanelRows {
  const void *a, *b;
  Index count;
};

/// A tile of logits and one of dP = dout . v, both [keys][panel], on their way to weights and dS.
struct GradientTile {
  float *s, *dp;  // become gate * drop * p and dS = p * (gate * drop * dP - delta); both +0 where s is -inf
  Index from, to;
  const float *factor, *top, *delta;  // [panel] p = exp2((s - top) * factor)
  const float* gate;                  // [panel]; null: 1
  const float* drop;                  // [keys][panel], 0 or 1 / (1 - dropout); null: nothing is dropped
  float* gate_sum;                    // [panel] += drop * p * dP over keys; null: nobody asks
};

/// A panel against a block of keys on its way to the operands of its gradients, where nothing but the mask
/// stands between scores and weights.
struct GradientStripe {
  const void *queries, *douts;                     // packed
  const std::uint64_t* open;                       // [keys] bit per lane; null: all
  Index from, to, keys;                            // keys outside [from, to) weigh nothing
  int count;                                       // lanes in use
  const float *factor, *top, *delta, *row_factor;  // [panel]
  float *s, *ds;                                   // [keys][panel], two sets used in turn
  void* operands;
  float* dq;  // null: not asked
};

/// Heads of a tile of pairs on their way through a mix, y_h = sum_m M[m h] x_m. M is `matrix`, packed [outs /
/// mix_rows][ins][mix_rows]. Where `query` is given, add diag(query gate + key gate) + sum_r first_r
/// second_r^T of query and of key. y is not x.
struct MixTile {
  const float* x;  // [ins] tiles [keys][panel], x_step floats from head to head
  Index x_step;
  float* y;  // [outs] tiles, likewise
  Index y_step;
  Index from, to;  // keys
  Index ins, outs;
  const float* matrix;   // null: none
  const float* query;    // [2 rank + 1][ins][panel], the gate last; null: M is the matrix alone
  const float* key;      // [keys][2 rank + 1][ins], key_step floats from key to key
  Index key_step, rank;  // rank is even
  Index first, second;   // rows at which the two factors begin: 0 and rank, or the other way for M^T
};

/// The gradients of a mix's coefficients over a tile of pairs, from x and dy; each is added to, null: not
/// asked.
struct MixSlopes {
  const float* x;
  Index x_step;
  const float* dy;
  Index dy_step;
  Index from, to, ins, outs;
  const float *query, *key;  // as in MixTile
  Index key_step, rank;
  float *dquery, *dkey;  // like query (its gate the gate's own) and key
  double* dmatrix;       // [ins][outs]
};

/// Rows that will be read soon: row i of `rows` at data + i * step, `bytes` of it. Fetched between the
/// products of others, where the level says that this pays.
struct Ahead {
  const void* data = nullptr;
  Index step = 0, bytes = 0, rows = 0;
};

/// Keys and values of the granule that is packed after the one at hand.
struct Next {
  Ahead keys, values;
};

/// `count` panels against one granule of packed keys and values, for `TileProducts::stripes`.
struct StripeTask {
  const Stripe* list;
  Index count;
  const void *keys, *values;
  Index dim, value_dim;
  Next next;  // may be fetched meanwhile
  float* s;   // room for a tile of scores
  void* p;    // and for an operand of weigh
};

/// The first `count` queries of a panel against keys first + from .. first + to as they lie.
struct FewScoresTask {
  const void* queries;
  int count;
  const Rows& keys;
  Index first, from, to, dim;
  Ahead ahead;    // a row for each key
  void* scratch;  // key_bytes
};
/// Values first + from .. first + to of a tile as they lie, onto the sums of `count` rows.
struct FewWeighTask {
  int count;
  const Rows& values;
  Index first, value_dim;
  const float* shrink;
  Ahead ahead;
  float *sums, *o;  // room for panel * value_dim; [count][value_dim]
};
/// What a stripe of `count` rows reads beside its state.
struct FewStripeTask {
  int count;
  const Rows &keys, &values;
  Index first, dim, value_dim;
  Ahead to_values, to_keys;
  void* scratch;  // key_bytes
  float* sums;    // room for panel * value_dim
};

/// Which pairs of a tile dropout leaves, and what those are multiplied by.
struct TileDropout {
  const std::uint32_t *head, *query;  // [panel]
  Index key0;
  std::uint64_t seed;
  std::uint32_t sequence, threshold;
  float keep_scale;
};

/// A tile of weights and one of dS on their way to operands of products, for `GradientPasses::operands`.
struct GradientOperands {
  const float *s, *ds;
  Index from, to, keys;     // rows outside [from, to) up to `keys` become 0
  int count;                // and so do lanes from here on
  const float* row_factor;  // [panel]
  void* out;
};

}  // namespace headwise::cpu
