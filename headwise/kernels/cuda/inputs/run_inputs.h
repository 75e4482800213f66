// RunInputs: everything one run of attention brings, as a kernel for every mask, term and layout reads it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/base/random.h"
#include "headwise/kernels/cuda/device/stream_state.h"
#include "headwise/kernels/cuda/inputs/places.h"
#include "headwise/kernels/cuda/inputs/term_views.h"
#include "headwise/kernels/cuda/table/backend.h"

namespace headwise::cuda {

/// A tensor of heads as a kernel reads it.
struct HeadsView {
  void* data;
  Index step[4];
  HeadLayout layout;
};

/// What the numbers of each token count, [batch tokens kv_heads] or [pages page_size kv_heads].
struct ScalesView {
  const float* data;
  Index step[3];
};

struct RunInputs {
  Index batch, heads, q_tokens;
  HeadsView q, k, v, out;
  DType kv_dtype;
  ScalesView k_scale, v_scale;  // 8 bits alone
  float* lse;
  double* lse_double;
  Index lse_step[3];
  const std::int32_t* pages;  // [batch pages_each], or null: keys lie in one piece
  Index pages_step[2], page_size, page_count;
  const SequenceLocation* places;
  const MaskView* masks;
  Index mask_count;
  const double* scales;  // one, or one a head
  Index scale_count;
  double softcap;
  PerHead slopes, sinks;
  const void* bias;
  DType bias_dtype;
  Index bias_step[4];
  const void* relative;  // [buckets heads]; buckets by distance, keys behind the query, then keys ahead
  DType relative_dtype;
  Index relative_step[2];
  const std::uint16_t* buckets;
  Index bucket_count;
  const void* gate;
  DType gate_dtype;
  Index gate_step[3];
  double dropout;
  DropoutRule rule;
  const Index* sequence_ids;
  RowProbes probes;
};

/// Where the statistics of rows go; not asked where the problem asks for none.
RowProbes probes_of(const AttentionProblem& p, const AttentionArgs& a);

inline constexpr const char* kEightRefused = "keys and values are %s; cuda/decode and cuda/plain read them";

/// Writes what no kernel of RunInputs can read: a device that is not there, arrays too large to travel.
/// `eight_bits`: the kernel reads int8 and e4m3 KV.
void inputs_refused(const AttentionProblem& p, char (&why)[kSentenceBytes], bool eight_bits = false);

/// What only kernels of their own compute, or null. Gradients need no word of rows: those that are not listed
/// have an lse of -inf.
const char* special_heads(const AttentionProblem& p, bool rows_too = true);

/// Reserves scratch and `counters`, sends places, scales, ids, buckets and masks with launches on the stream,
/// behind the first `own_bytes` of scratch, and fills `f`.
Status gather_inputs(const AttentionProblem& p, const AttentionArgs& a, StreamState& state, Index counters,
                     RunInputs& f, std::size_t own_bytes = 0);

}  // namespace headwise::cuda
