// Setup: one attention call as a value; makes its tensors, runs it, and keeps what came out.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstring>
#include <string>

#include "headwise/masks/mask.h"
#include "headwise/ops/attention/attention.h"

namespace headwise::selftest {

/// How the same numbers lie in memory. spread: last axis with step 2, from an odd element on.
enum class Layout { bshd, bhsd, packed, spread };
/// overlapped: rows of heads * dim with a rim of 2; shared_key: one key head for all, a value head each.
enum class HeadKind { plain, overlapped, shared_key };

struct Setup {
  DType dtype = DType::f32;
  Index batch = 1, q_tokens = 8, kv_tokens = 8, heads = 2, kv_heads = 2, head_dim = 16, value_dim = 16;
  std::string mask =
      "all";  // parse_mask's text, "dense" (random) or "per head" (causal, window and all in turn)
  Terms terms = {};
  bool head_scales = false;  // one scale per head
  Layout layout = Layout::bshd;
  HeadKind kind = HeadKind::plain;
  bool ragged = false;  // sequences of different lengths up to q_tokens and kv_tokens, one of them empty
  Index q_start = 0;
  bool lse = true;
  ProbeSpec probe = {};
  std::uint64_t seed = 1;
};
std::string describe(const Setup& setup);

struct Inputs {
  Setup setup;
  HeadSpec heads;  // layouts with rows; heads 0 where tensors say it all
  Tensor q_store, k_store, v_store;
  AnyView q, k, v;
  Tensor scale, slopes, bias, relative, sinks, gate, q_start, q_offsets, kv_offsets, class_of, picks;
  RelativeBuckets buckets;
  Mask mask;

  /// The arguments of a run without its outputs.
  AttentionArgs args() const;
  AttentionProblem problem() const;
};
Inputs make_inputs(const Setup& setup);
/// The same numbers, q, k and v in f64: `ref` then computes and answers in double.
Inputs in_double(const Inputs& inputs);

struct Outputs {
  Tensor out, lse;
  Tensor entropy, top_weight, second_moment, mean_distance, sink_mass, top_position;
  Tensor top_keys, top_weights, class_mass, column_sums, picked_weights, scores;
};
/// Runs with the named kernels; contexts are kept between calls.
Outputs run(const Inputs& inputs, const std::string& kernels = "", int threads = 2);
Context& context(const std::string& kernels, int threads);

/// Element (b, t, h, d) of q, k or v as the head sees it; ragged: b is 0.
inline double element(const InputView& v, const HeadLayout& l, Index b, Index t, Index h, Index d) {
  if (l.row > 0) {
    const Index column = l.column(h) + d;
    return column < 0 || column >= l.row
               ? 0
               : load_double(v.data, v.dtype, b * v.step[0] + t * v.step[1] + column * v.step[2]);
  }
  return load_double(v.data, v.dtype, b * v.step[0] + t * v.step[1] + l.slot(h) * v.step[2] + d * v.step[3]);
}
inline double at(const InputView& v, Index i0, Index i1 = 0, Index i2 = 0, Index i3 = 0) {
  return load_double(v.data, v.dtype, i0 * v.step[0] + i1 * v.step[1] + i2 * v.step[2] + i3 * v.step[3]);
}
inline void put(const InputView& v, double x, Index i0, Index i1 = 0, Index i2 = 0, Index i3 = 0) {
  store_double(v.data, v.dtype, i0 * v.step[0] + i1 * v.step[1] + i2 * v.step[2] + i3 * v.step[3], x);
}
inline bool same_bits(const Tensor& a, const Tensor& b) {
  const auto bytes = [](const Tensor& t) {
    return static_cast<std::size_t>(t.view().count() * size_of(t.dtype()));
  };
  return a.dtype() == b.dtype() && bytes(a) == bytes(b) &&
         (bytes(a) == 0 || std::memcmp(a.view().data, b.view().data, bytes(a)) == 0);
}

}  // namespace headwise::selftest
