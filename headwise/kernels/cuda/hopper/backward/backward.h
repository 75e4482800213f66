// The gradients on Hopper as their host code sees them: tile shapes, parameters, instances by number format.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/kernels/cuda/hopper/forward_params.h"

namespace headwise::cuda::hopper::backward {

/// A Place, and where its rows begin in the run's own buffers: each sequence begins at a multiple of 128.
struct BackwardPlace : Place {
  int q_padded, kv_padded;
};
inline constexpr int kBackwardKeys = 128;

/// The width of the instance that takes these, its further columns being 0: of both, a multiple of 8. There
/// is none of 96: two sweeps of 96 columns took 1.2 times as long as 128 columns at once.
HW_FN constexpr int backward_width(Index head_dim, Index value_dim) {
  const Index both = head_dim < value_dim ? value_dim : head_dim;
  return both <= 64 ? 64 : both <= 128 ? 128 : both <= 192 ? 192 : 256;
}
/// Widths whose gradients are made in two sweeps, one for dk and dv, one for dq, over tiles of so many keys
/// and queries; 64 and 128 have one kernel for all three.
HW_FN constexpr bool backward_sweeps(int width) { return width > 128; }
inline constexpr int kSweepRows = 64;
/// Queries in a tile.
HW_FN constexpr int backward_queries(int width) { return width == 64 ? 128 : 64; }
/// A group of heads that share k and v may be cut into parts; a sequence of fewer queries never is.
inline constexpr int kSplitQueries = 1024;

/// What a tile of scores meets between the products; one instance each.
enum class BackwardPasses {
  band,   // causal, window and the end of keys
  terms,  // band, a softcap and slopes
  pairs   // band, slopes, a bias and dropout; gradients of the bias leave
};

struct BackwardParams {
  float scale_log2 = 0;            // scale * log2(e): scores to exponents of 2
  float scale = 0;                 // of dk
  float inverse_cap = 0, cap = 0;  // terms: scale / softcap, softcap * log2(e); cap 0: none
  PerHead slopes = {};
  PairBias bias = {};       // pairs
  bool bias_tiles = false;  // it comes by bulk copies; else its numbers are read one by one
  bool dbias = false;       // gradients of scores leave for maps.dbias
  bool drops = false;       // pairs: weights of pairs the rule names are 0, the others times `kept`
  DropoutRule rule = {};
  float kept = 1, inverse_kept = 1;     // gradients of scores leave without `kept`
  const Index* sequence_ids = nullptr;  // of the rule; or null: 0, 1, ...
  // The run's own buffers, rows padded: log2(e) * lse, +inf where a row has no key; rows of dout * out; sums
  // of dq.
  const float *lse = nullptr, *delta = nullptr;  // [heads padded]
  float* dq = nullptr;   // [heads padded width], fragments by 64 rows; null: two sweeps
  int* turns = nullptr;  // [heads padded / rows]: tiles of keys that have added; null: they add in any order
  float *dk_parts = nullptr, *dv_parts = nullptr;  // [parts kv_heads kv_padded width], where parts > 1
  void *dk = nullptr, *dv = nullptr;               // null: not asked
  Index dk_step[3] = {}, dv_step[3] = {};          // batch, row, head
  void* dq_out = nullptr;                          // two sweeps: dq leaves its tile as it is
  Index dq_step[3] = {};
  int head_chunks = 0, value_chunks = 0;  // store_rows: of 8 columns in a row of dq and dk, of dv
  bool store_rows = false;                // tiles at the end of a sequence may not touch the rows below them
  bool clear_tail = false;                // rows past a sequence's end hold anything: they must read as 0
  bool down = false;                      // queries from last to first
  bool keys_outside = false;              // order: tiles of keys outside, heads inside
  int* counter = nullptr;                 // next tile; zero before and after every launch
  const BackwardPlace* places = nullptr;  // one a sequence, or null: all lie like `place`
  BackwardPlace place = {};               // its q_padded, kv_padded: those of one sequence
  int batch = 0, kv_heads = 0;
  int first = 0, pieces = 1;  // sequences before those of this launch; of a sequence: batch counts them
  int parts = 0, group = 0;   // heads that share a kv head are cut into `parts` of `group`, see parts_at
  int back = 0, ahead = 0;
  int q_padded = 0, kv_padded = 0;  // rows of all sequences; times heads below 2^31
  int unit_tiles = 0, tiles = 0;    // of the longest sequence; in all
  int section = 0, sections = 0;    // as in the forward, of units: (batch, kv head, part)

  /// Parts of a group in a sequence: its own length decides, or its bits would depend on its neighbours.
  HW_FN int parts_at(const BackwardPlace& at) const { return at.q_tokens < kSplitQueries ? 1 : parts; }
  HW_FN BackwardPlace place_of(int b) const {
    if (places) return places[b];
    BackwardPlace at = place;
    at.batch = b, at.q_padded *= b, at.kv_padded *= b;
    return at;
  }
};

struct BackwardMaps {
  CUtensorMap q, dout, k, v, dk, dv, dq, bias, dbias;
};

/// Where a launch goes.
struct LaunchPlace {
  int device, processors;
  cudaStream_t stream;
};

/// Starts the instance for (width, passes).
template <class T>
Status backward(int width, BackwardPasses passes, const BackwardMaps& maps, const BackwardParams& params,
                const LaunchPlace& place);
/// Two sweeps: starts the kernel for dk and dv, whose units are (batch, kv head), or the one for dq, whose
/// units are (batch, head) and whose tiles have 128 queries.
enum class SweepGradient { keys, queries };
struct SweepInstance {
  SweepGradient what;
  int width;
  bool terms;
};
template <class T>
Status sweep_backward(const SweepInstance& instance, const BackwardMaps& maps, const BackwardParams& params,
                      const LaunchPlace& place);
extern template Status sweep_backward<bf16>(const SweepInstance&, const BackwardMaps&, const BackwardParams&,
                                            const LaunchPlace&);
extern template Status sweep_backward<f16>(const SweepInstance&, const BackwardMaps&, const BackwardParams&,
                                           const LaunchPlace&);
extern template Status backward<bf16>(int, BackwardPasses, const BackwardMaps&, const BackwardParams&,
                                      const LaunchPlace&);
extern template Status backward<f16>(int, BackwardPasses, const BackwardMaps&, const BackwardParams&,
                                     const LaunchPlace&);

}  // namespace headwise::cuda::hopper::backward
