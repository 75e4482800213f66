// TileKernels: the tables of tile and row functions one ISA level brings; plain types only, since every
// level includes it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cpu/isa/tile_tasks.h"

namespace headwise::cpu {

/// Products of one panel of queries with one granule of keys and their values, and the operands they take.
/// Layouts of packed operands are private to the core.
struct TileProducts {
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
  void (*operand)(const Tile&);  // makes the operand of weigh again when S has changed
  /// o [value_dim][panel] = o * shrink + sum over keys of v * p, one chain over keys from 0.
  void (*weigh)(const Tile&, const void* values, Index value_dim, const float* shrink, float* o);
  /// Many panels against one granule at once: the bits of scores, select, row_max, advance, weights and weigh
  /// one after the other, with the products of one panel beside the exponentials of another. Null: this core
  /// has no such way.
  void (*stripes)(const StripeTask&) = nullptr;
};

/// Passes over a tile of scores S [keys][panel], in place, and over the state of its panel.
struct ScorePasses {
  /// Operand of weigh = exp2((s - top) * factor), and its sum; exactly +0 for s = -inf, NaN stays NaN.
  void (*weights)(const Tile&);
  /// The same, with the numbers left in S as f32 besides, for passes that look at them.
  void (*weights_plain)(const Tile&);
  /// weights_plain with row statistics; q_distance[lane] = query position - key0.
  void (*weights_stats)(const Tile&, const RowStats&, const float* q_distance, Index key0);
  void (*sum_weights)(const Tile&);  // the sum of `weights` alone: S stays
  /// p = exp2((s - top) * factor) * weight for a second look, exactly +0 where s is -inf; p may be s.
  void (*place_weights)(const float* s, Index from, Index to, const float* factor, const float* top,
                        const float* weight, float* p);

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
  void (*dropout)(float* s, Index from, Index to, const TileDropout&);
  int mix_rows = 0;  // heads of y a tile of MixTile::matrix
  void (*mix)(const MixTile&) = nullptr;

  /// The running max meets a tile's: top becomes the larger, used is top or 0 where nothing is open yet, and
  /// shrink = exp2((old - used) * factor), exactly 1 where top did not move.
  void (*advance)(float* top, const float* tile_top, const float* factor, float* used, float* shrink);
  /// sum = sum * shrink + tile_sum, as one output column is weighed.
  void (*add_sum)(float* sum, const float* shrink, const float* tile_sum);
  void (*shrink)(float* o, Index rows, const float* factor);  // o[row][lane] *= factor[lane]
  /// o = o * a + other * b
  void (*join)(float* o, const float* other, Index rows, const float* a, const float* b);
  /// out[lane][column] = o[column][lane] / sum[lane] * gate[lane], f32 rows of out_step; exact when o == sum.
  void (*finish)(const float* o, Index value_dim, const float* sum, const float* gate, float* out,
                 Index out_step);
};

/// Keys in the lanes, for the first `count` queries of a panel: the bits of scores and weigh on rows as they
/// lie, for up to `rows` query rows of a kv head. Null: this core has no such way.
struct FewProducts {
  int rows;
  void (*scores)(const FewScoresTask&, float* s);
  /// o [count][value_dim] = o * shrink + sum over keys of v * p; value_dim is a multiple of 16 and columns
  /// lie side by side. False, and o as it was, when some sum is not finite: then a value, a weight or the sum
  /// itself was not.
  bool (*weigh)(const Tile&, const FewWeighTask&);
  /// scores, select, row_max, advance, weights and weigh at once, where nothing but the mask stands between
  /// scores and weights; t.o is [count][value_dim]. Null: this core has no such way. False, and all as it
  /// was, as above.
  bool (*stripe)(const Stripe& t, const FewStripeTask&);
};

/// Gradients, in the cores that TileKernels names for them.
struct GradientPasses {
  int step_keys, step_rows;       // keys and queries of one step of the backward
  Index (*columns)(Index dim);    // floats from row to row of c, and rows of an o that weigh_on adds to
  Index (*row_bytes)(Index dim);  // one panel of packed rows
  /// rows[lane] times factor[lane] (f32 cores; others take it where dS is rounded) as b of add_rows; values
  /// outside [value_low, value_high) that are not 0, and what is not finite, become 0: then false.
  bool (*pack_rows)(const Rows* rows, const Index* row, int count, Index dim, const float* factor, void* out);
  /// c [keys][columns(dim)] += over panels and their lanes, ascending, a[key][lane] * b[lane][column]: one
  /// chain from the c that lies there. Rows of a and c up to 32 past the whole of `to` exist; those of a are
  /// 0.
  void (*add_rows)(const PanelRows* panels, Index count, Index from, Index to, Index dim, float* c);
  /// What a tile of weights and one of dS become for the products, in the order: weights as a of add_rows, dS
  /// (times row_factor[lane]) likewise, dS as p of weigh_on. Null: f32 tiles are operands as they are.
  void (*operands)(const GradientOperands&);
  Index (*operand_bytes)();  // of each of the three
  /// Many panels at once: the bits of scores, select, sweep, operands and weigh_on one after the other, with
  /// the products of one panel beside the exponentials of another. Null: this core has no such way.
  void (*stripes)(const GradientStripe* list, Index count, const void* keys, const void* values,
                  const void* key_values, Index dim, Index value_dim);
  /// o [columns(value_dim)][panel] += over keys, ascending, v * s (v * p where there are operands): one chain
  /// from the o that lies there.
  void (*weigh_on)(const Tile&, const void* values, Index value_dim, float* o);
  /// sum[lane] = over columns, ascending, o * d of two panels of packed queries: the chain of `scores`, so a
  /// row of one key gives its dP to the last bit. An o of 0 counts for nothing whatever d is.
  void (*dots)(const void* o, const void* d, Index dim, float* sum);
  void (*sweep)(const GradientTile&);  // scores and dP become weights and dS
  /// s *= by; an s of 0 stays 0 whatever `by` is.
  void (*multiply)(float* s, Index from, Index to, const float* by);
  /// sum[lane] -= s * |q_distance - key|
  void (*alibi_sum)(const float* s, Index from, Index to, const float* q_distance, float* sum);
  /// out[lane][column] = o[column][lane] * factor[lane], -0 as +0.
  void (*unpanel)(const float* o, Index columns, const float* factor, float* out, Index out_step);

  // Mixed heads.
  void (*mix_slopes)(const MixSlopes&);
  void (*add_dots)(const float* a, const float* b, Index from, Index to, float* sum);  // sum[lane] += a * b
  /// dl = p * (dp - delta), and 0 where p is 0 whatever dp is; dl may be dp.
  void (*logit_slopes)(const float* p, const float* dp, Index from, Index to, const float* delta, float* dl);
  /// Like `select`, but closed pairs become 0.
  void (*close)(float* s, Index from, Index to, const std::uint64_t* open);
};

/// How one ISA level works on tiles: what a tile is, and four tables of functions over it. Every value is one
/// chain in a fixed order; no decision looks at a neighbour lane.
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
  TileProducts products;
  ScorePasses passes;
  FewProducts few;
  GradientPasses gradients;
};

struct SparseKernels;

struct TileKernels {
  const char* isa;
  Core f32;                              // computes f32, and f16 and bf16 converted while packing
  const Core* narrow = nullptr;          // the same bits with a smaller panel, for few query rows; null: none
  const Core* few = nullptr;             // the same with a panel of one vector and `few`; null: none
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
