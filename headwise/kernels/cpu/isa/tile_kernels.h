// TileKernels: the table of tile and row functions one ISA level brings; plain types only, since every
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

/// One panel against one granule, for `Core::stripes`: nothing but the mask stands between its scores and its
/// weights.
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
struct RowPart {
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

/// Heads of a tile of pairs on their way through a mix, y_h = sum_m M[m h] x_m: M is `matrix`, packed
/// [outs / mix_rows][ins][mix_rows], plus, where `query` is given, diag(query gate + key gate) + sum_r
/// first_r second_r^T of query and of key. y is not x.
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

/// How one ISA level multiplies: scores and outputs of a panel of queries against a granule of keys.
/// Layouts of packed operands are private to the core. Every value is one chain in a fixed order; no decision
/// looks at a neighbour lane.
struct Core {
  const char* name;
  int panel;    // queries in the lanes
  int granule;  // keys between two looks at the running max, counted from key 0
  /// Query rows for which keys and values are packed once, unless that leaves threads without work. f32,
  /// head_dim 128: packing takes 6 % of the time at 256 rows, 1.5 % at 1024; beyond, panels leave L2.
  int task_rows = 1024;
  /// Packed keys that `scores` takes as they lie: [key / group][dim / columns][group][columns], dim padded to
  /// a multiple of pad. group 0: none; packed keys lie [key / 16][dim][16] and are packed again for scores.
  int key_group, key_columns, key_pad;
  float value_low = 0, value_high = __builtin_inff();  // magnitudes of values it multiplies, besides 0
  void (*begin)();  // around the tiles of one task: matrix registers that need a shape get it here
  void (*end)();
  Index (*query_bytes)(Index dim);        // one panel
  Index (*key_bytes)(Index dim);          // one granule
  Index (*value_bytes)(Index value_dim);  // one granule
  Index (*weight_bytes)();                // operand of weigh; 0: S itself
  /// rows[lane] with row numbers row[lane]; lanes from `count` on become 0. scratch: panel * round_up(dim,
  /// 16) floats.
  void (*pack_queries)(const Rows* rows, const Index* row, int count, Index dim, void* out, float* scratch);
  void (*pack_keys)(const Rows& rows, Index first, Index count, Index dim, void* out);
  /// Values outside [value_low, value_high) that are not 0, and what is not finite, are packed as 0; true
  /// when there was none.
  bool (*pack_values)(const Rows& rows, Index first, Index count, Index value_dim, void* out);
  void (*scores)(const void* queries, const void* keys, Index from, Index to, Index dim, float* s);
  /// Operand of weigh = exp2((s - top) * factor), and its sum; exactly +0 for s = -inf, NaN stays NaN.
  void (*weights)(const Tile&);
  /// The same, with the numbers left in S as f32 besides, for passes that look at them; `operand` makes the
  /// operand of weigh again when S has changed.
  void (*weights_plain)(const Tile&);
  /// weights_plain with row statistics; q_distance[lane] = query position - key0.
  void (*weights_stats)(const Tile&, const RowStats&, const float* q_distance, Index key0);
  void (*operand)(const Tile&);
  /// o [value_dim][panel] = o * shrink + sum over keys of v * p, one chain over keys from 0.
  void (*weigh)(const Tile&, const void* values, Index value_dim, const float* shrink, float* o);

  /// The running max meets a tile's: top becomes the larger, used is top or 0 where nothing is open yet, and
  /// shrink = exp2((old - used) * factor), exactly 1 where top did not move.
  void (*advance)(float* top, const float* tile_top, const float* factor, float* used, float* shrink);

  /// Many panels against one granule at once: the bits of scores, select, row_max, advance, weights and weigh
  /// one after the other, with the products of one panel beside the exponentials of another. Null: this core
  /// has no such way. `next` may be asked for meanwhile.
  void (*stripes)(const Stripe* list, Index count, const void* keys, const void* values, Index dim,
                  Index value_dim, const Next& next, float* s, void* p);

  /// sum = sum * shrink + tile_sum, as one output column is weighed.
  void (*add_sum)(float* sum, const float* shrink, const float* tile_sum);

  // Passes over S [keys][panel], in place.
  void (*row_max)(const float* s, Index from, Index to, float* top);
  void (*scale)(float* s, Index from, Index to, const float* scale);
  /// s[key][lane] *= scale of the key; where `open` is given, closed pairs become 0 whatever it is.
  void (*scale_rows)(float* s, Index from, Index to, const RowScales& scales, const std::uint64_t* open);
  void (*softcap)(float* s, Index from, Index to, float cap);
  /// out = 1 - (s / cap)^2, the slope of a softcap whose result is s.
  void (*cap_slope)(const float* s, Index from, Index to, float cap, float* out);
  void (*alibi)(float* s, Index from, Index to, const float* slope, const float* q_distance);
  void (*select)(float* s, Index from, Index to,
                 const std::uint64_t* open);  // open[key]: bit per lane; closed: -inf
  void (*add)(float* s, Index from, Index to, const float* term, Index term_step);  // term [lane][key]
  void (*dropout)(float* s, Index from, Index to, const std::uint32_t* head, const std::uint32_t* query,
                  Index key0, std::uint32_t sequence, std::uint64_t seed, std::uint32_t threshold,
                  float keep_scale);
  void (*shrink)(float* o, Index rows, const float* factor);  // o[row][lane] *= factor[lane]
  /// o = o * a + other * b
  void (*join)(float* o, const float* other, Index rows, const float* a, const float* b);
  /// out[lane][column] = o[column][lane] / sum[lane] * gate[lane], f32 rows of out_step; exact when o == sum.
  void (*finish)(const float* o, Index value_dim, const float* sum, const float* gate, float* out,
                 Index out_step);
  /// p = exp2((s - top) * factor) * weight for a second look, exactly +0 where s is -inf; p may be s.
  void (*place_weights)(const float* s, Index from, Index to, const float* factor, const float* top,
                        const float* weight, float* p);
  /// The sum of `weights` alone: S stays.
  void (*sum_weights)(const Tile&);

  /// Keys in the lanes, for the first `count` queries of a panel: the bits of scores and weigh on rows as
  /// they lie, for up to few_rows rows of a kv head. Null: this core has no such way. Scores of keys first +
  /// from .. first + to; scratch: key_bytes; ahead: a row for each key.
  int few_rows;
  void (*few_scores)(const void* queries, int count, const Rows& rows, Index first, Index from, Index to,
                     Index dim, const Ahead& ahead, void* scratch, float* s);
  /// o [count][value_dim] = o * shrink + sum over keys of v * p; value_dim is a multiple of 16 and columns
  /// lie side by side. sums: room for panel * value_dim. False, and o as it was, when some sum is not finite:
  /// then a value, a weight or the sum itself was not.
  bool (*weigh_few)(const Tile&, int count, const Rows& values, Index first, Index value_dim,
                    const float* shrink, const Ahead& ahead, float* sums, float* o);
  /// few_scores, select, row_max, advance, weights and weigh_few at once, where nothing but the mask stands
  /// between scores and weights; t.o is [count][value_dim]. Null: this core has no such way. False, and all
  /// as it was, as above.
  bool (*few_stripe)(const Stripe& t, int count, const Rows& keys, const Rows& values, Index first, Index dim,
                     Index value_dim, const Ahead& to_values, const Ahead& to_keys, void* scratch,
                     float* sums);

  // Mixed heads.
  int mix_rows;  // heads of y a tile of MixTile::matrix
  void (*mix)(const MixTile&);

  // Gradients, in the cores that TileKernels names for them.
  int step_keys, step_rows;       // keys and queries of one step of the backward
  Index (*columns)(Index dim);    // floats from row to row of c, and rows of an o that weigh_on adds to
  Index (*row_bytes)(Index dim);  // one panel of packed rows
  /// rows[lane] times factor[lane] (f32 cores; others take it where dS is rounded) as b of add_rows; values
  /// outside [value_low, value_high) that are not 0, and what is not finite, become 0: then false.
  bool (*pack_rows)(const Rows* rows, const Index* row, int count, Index dim, const float* factor, void* out);
  /// c [keys][columns(dim)] += over parts and their lanes, ascending, a[key][lane] * b[lane][column]: one
  /// chain from the c that lies there. Rows of a and c up to 32 past the whole of `to` exist; those of a are
  /// 0.
  void (*add_rows)(const RowPart* parts, Index count, Index from, Index to, Index dim, float* c);
  /// What a tile of weights and one of dS become for the products, in the order: weights as a of add_rows, dS
  /// (times row_factor[lane]) likewise, dS as p of weigh_on; lanes from `count` on and rows outside [from,
  /// to) up to `keys` as 0. Null: f32 tiles are operands as they are.
  void (*gradient_operands)(const float* s, const float* ds, Index from, Index to, Index keys, int count,
                            const float* row_factor, void* out);
  Index (*operand_bytes)();  // of each of the three
  /// Many panels at once: the bits of scores, select, gradients, gradient_operands and weigh_on one after the
  /// other, with the products of one panel beside the exponentials of another. Null: this core has no such
  /// way.
  void (*gradient_stripes)(const GradientStripe* list, Index count, const void* keys, const void* values,
                           const void* key_values, Index dim, Index value_dim);
  /// o [columns(value_dim)][panel] += over keys, ascending, v * s (v * p where there are operands): one chain
  /// from the o that lies there.
  void (*weigh_on)(const Tile&, const void* values, Index value_dim, float* o);
  /// sum[lane] = over columns, ascending, o * d of two panels of packed queries: the chain of `scores`, so a
  /// row of one key gives its dP to the last bit. An o of 0 counts for nothing whatever d is.
  void (*dots)(const void* o, const void* d, Index dim, float* sum);
  void (*gradients)(const GradientTile&);
  // Mixed heads.
  void (*mix_slopes)(const MixSlopes&);
  void (*add_dots)(const float* a, const float* b, Index from, Index to, float* sum);  // sum[lane] += a * b
  /// dl = p * (dp - delta), and 0 where p is 0 whatever dp is; dl may be dp.
  void (*logit_slopes)(const float* p, const float* dp, Index from, Index to, const float* delta, float* dl);
  /// Like `select`, but closed pairs become 0.
  void (*close)(float* s, Index from, Index to, const std::uint64_t* open);
  /// s *= by; an s of 0 stays 0 whatever `by` is.
  void (*multiply)(float* s, Index from, Index to, const float* by);
  /// sum[lane] -= s * |q_distance - key|
  void (*alibi_sum)(const float* s, Index from, Index to, const float* q_distance, float* sum);
  /// out[lane][column] = o[column][lane] * factor[lane], -0 as +0.
  void (*unpanel)(const float* o, Index columns, const float* factor, float* out, Index out_step);
};

struct SparseKernels;

struct TileKernels {
  const char* isa;
  Core f32;                              // computes f32, and f16 and bf16 converted while packing
  const Core* narrow = nullptr;          // the same bits with a smaller panel, for few query rows; null: none
  const Core* few = nullptr;             // the same with a panel of one vector and few_scores; null: none
  const Core* bf16 = nullptr;            // matrix core for bf16 with f32 sums; null: the f32 core takes bf16
  const Core* f32_parts = nullptr;       // f32 with outputs in parts of bf16, a class of its own; null: none
  Index parts_from = 0;                  // value_dim from which f32_parts takes f32
  const Core* f32_columns = nullptr;     // f32_parts with scores in parts too, for column sums; null: none
  const Core* gradients;                 // the f32 core of the backward
  const Core* bf16_gradients = nullptr;  // the same on bf16 with f32 sums; null: the f32 core takes bf16
  const Core* f32_parts_gradients = nullptr;  // the same on f32 in parts of bf16; null: none
  Index parts_gradients_from = 0;             // head_dim and value_dim from which it takes f32
  const SparseKernels* sparse;                // lists of the keys a row keeps
  /// Columns 0..count of one row as f32.
  void (*load_row)(const Rows& rows, Index row, Index count, float* out);
  /// f32 row -> a row of the output type with the given column step.
  void (*store_row)(const float* row, Index count, RowType type, void* out, Index column_step);
  /// GFLOP of an FMA loop that never leaves the registers: the measured roof of `explain` and benchmarks.
  double (*spin_fma)(Index rounds);
};

}  // namespace headwise::cpu
