// What the Hopper kernels ask of a problem alike, and how they put it into parameters.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <initializer_list>

#include "headwise/kernels/cuda/device/number.cuh"
#include "headwise/kernels/cuda/device/stream_state.h"
#include "headwise/kernels/cuda/hopper/forward_params.h"
#include "headwise/kernels/cuda/inputs/copies.h"
#include "headwise/kernels/cuda/table/backend.h"

namespace headwise::cuda::hopper {

/// What some of the Hopper kernels take and others do not.
struct HopperTakes {
  bool pairs = false, eight_bits = false, blocks = false;  // a bias and dropout; KV of 8 bits; block masks
};
/// Writes the first reason against Hopper's tiles, if there is one.
void hopper_refuses(const AttentionProblem& p, char (&why)[kSentenceBytes], HopperTakes takes = {});

struct NamedView {
  const char* name;
  RunFacts::View view;
};
/// Writes the first of `views` that bulk copies cannot read or write, if there is one.
void say_unfit(const AttentionProblem& p, std::initializer_list<NamedView> views,
               char (&why)[kSentenceBytes]);

/// The one scale of a run.
double scale_of(const AttentionProblem& p, const AttentionArgs& a);

/// Beyond this many rows a kv head the tiles of cuda/hopper are better filled.
inline constexpr Index kMostDecodeRows = 64;
/// Chunks of queries that have the bits of all at once.
inline constexpr Index kDecodeChunk = 64;
/// Queries that fill the tiles of cuda/hopper better than splits of so few keys do. On an H200, time of
/// decode over that of cuda/hopper. 256 sequences of 24 tokens 2.0, of 48 3.9, one sequence 0.8 to 1.1. 48
/// queries and 1,024 keys 1.4 (32 sequences), 0.9 (one); and 8,192 keys 1.5 (8), 0.5 (one).
constexpr bool tiles_suit(Index q_tokens, Index kv_tokens) {
  return q_tokens >= kDecodeChunk || (q_tokens > 32 && kv_tokens <= 1024) ||
         (q_tokens > 16 && kv_tokens <= 256);
}
/// Whether a sequence alone takes cuda/decode, of what both kernels take.
constexpr bool decode_suits(Index q_tokens, Index kv_tokens, Index group) {
  return q_tokens * group <= kMostDecodeRows && !tiles_suit(q_tokens, kv_tokens);
}

/// Sequences of a ragged batch that a kernel works on: all, or those that alone would take cuda/decode or
/// cuda/hopper. The others count as ones without queries.
enum class Sequences { all, decode, tiles };
namespace decode {
Status run_sequences(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream,
                     Sequences which);
}  // namespace decode
namespace forward {
Status run_sequences(const AttentionProblem& p, const AttentionArgs& a, int device, void* stream,
                     Sequences which);
}  // namespace forward

/// What a run reserves beside the table of places, and the sequences that keep their queries in it.
struct PlaceTable {
  Index counters = 0;
  std::size_t scratch_before = 0;
  Sequences which = Sequences::all;
};
/// Puts each sequence's place on the device, behind `scratch_before` bytes of scratch, where sequences
/// differ; else `place` serves all. Reserves `counters` and the scratch.
Status sequence_places(const AttentionProblem& p, const AttentionArgs& a, StreamState& state,
                       const PlaceTable& room, Place& place, const Place*& places);

inline PerHead per_head(bool used, const AnyView& v) {
  return used ? PerHead{v.data, v.dtype, v.step[0]} : PerHead{};
}

/// 8 bits travel two by two.
inline MapSpec map_spec(const AttentionProblem& p, const AnyView& v, int box_rows, int box_panels,
                        bool whole_rows = false) {
  const Index pair = size_of(v.dtype) == 1 ? 2 : 1;
  return {v.data,
          p.dtype == DType::bf16 ? Number<bf16>::kMapType : Number<f16>::kMapType,
          v.size[0],
          v.size[1],
          v.size[2],
          v.size[3] / pair,
          {v.step[0] / pair, v.step[1] / pair, v.step[2] / pair},
          box_rows,
          box_panels,
          whole_rows};
}

/// Sends the ids of dropout's rule to the device, as launch arguments.
Status send_ids(const AnyView& ids, Index count, Index* to, cudaStream_t stream);

/// The map of a bias [batch heads q kv], or of its gradient, for boxes of rows of queries. False: bulk copies
/// cannot read it as numbers of the run's format.
bool bias_map(const AttentionProblem& p, const AnyView& bias, int box_rows, MapSpec& spec);

/// A bias as kernels read it.
inline PairBias pair_bias(const AnyView& v) {
  return {v.data, v.dtype, {v.step[0], v.step[1], v.step[2], v.step[3]}};
}

/// Scale, softcap, slopes, sinks and gate of either kernel's parameters.
template <class Params>
void set_terms(const AttentionProblem& p, const AttentionArgs& a, Params& f) {
  constexpr double kLog2e = 1.4426950408889634074;
  const double scale = scale_of(p, a);
  f.scale_log2 = static_cast<float>(scale * kLog2e);
  if (p.heads.terms.softcap) {
    f.inverse_cap = static_cast<float>(scale / a.inputs.softcap);
    f.cap = static_cast<float>(a.inputs.softcap * kLog2e);
  }
  f.slopes = per_head(p.heads.terms.alibi, a.inputs.slopes);
  f.sinks = per_head(p.heads.terms.sinks, a.inputs.sinks);
  if (p.heads.terms.gate) {
    const AnyView& gate = a.inputs.gate;
    f.gate = {gate.data, gate.dtype, {gate.step[0], gate.step[1], gate.step[2]}};
  }
}
template <class Params>
void set_outputs(const AttentionProblem& p, const AttentionArgs& a, Params& f) {
  f.out = a.out.data;
  for (int axis = 0; axis < 3; ++axis) f.out_step[axis] = a.out.step[axis];
  if (!p.lse) return;
  f.lse = static_cast<float*>(a.lse.data);
  for (int axis = 0; axis < 3; ++axis) f.lse_step[axis] = a.lse.step[axis];
}

}  // namespace headwise::cuda::hopper
