// AttentionProblem: what a plan is made for, and AttentionArgs: the addresses of one run.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "headwise/spec/head.h"
#include "headwise/spec/mask.h"
#include "headwise/spec/packed_keys.h"
#include "headwise/spec/pages.h"
#include "headwise/spec/probe.h"
#include "headwise/spec/run_facts.h"
#include "headwise/spec/score.h"

namespace headwise {

/// How k lies: the user's strided view, packed by pack_keys, or, v too, in pages.
enum class KeyForm : std::uint8_t { plain, packed, paged };

/// What keys and values may be of beside q's dtype, with a scale for each token and kv head.
constexpr bool is_eight_bit_kv(DType t) { return t == DType::i8 || t == DType::e4m3; }

/// Sizes, kinds and dtypes: no address, comparable, the whole key of a plan.
struct AttentionProblem {
  HeadSpec heads = {};
  DType dtype = DType::f32;                      // of q, k, v and out (8-bit KV: of q and out)
  Index batch = 0, q_tokens = 0, kv_tokens = 0;  // ragged: the longest sequence's tokens
  bool ragged = false;                           // q, k, v hold [1 tokens ...] with offsets
  Index q_total = 0, kv_total = 0;               // ragged: rows of q and of k, v
  bool lse = false;
  ProbeSpec probe = {};
  KeyForm keys = KeyForm::plain;
  std::optional<DType> kv = {};    // of k and v where it is another: i8 or e4m3
  Index pages = 0, page_size = 0;  // paged: of k and v; kv_tokens is the longest sequence's
  Device device = {};              // where q, k, v and out lie
  RunFacts run = {};               // a CUDA device: what its kernels choose by besides
  constexpr DType kv_dtype() const { return kv.value_or(dtype); }
  constexpr bool eight_bit_kv() const { return is_eight_bit_kv(kv_dtype()); }
  friend constexpr bool operator==(const AttentionProblem&, const AttentionProblem&) = default;
};

/// One run. q, k, v, out are [batch tokens slots dim], or [batch tokens row] where the layout has a row;
/// ragged: batch is 1 and sequence b owns rows offsets[b]..offsets[b + 1].
struct AttentionArgs {
  InputView q = {}, k = {}, v = {};
  AnyView out = {};
  AnyView lse = {};  // [batch heads q] f32 (f64 for f64), ln, sink included; heads: normal_heads(); ragged:
                     // [1 heads tokens]; entmax: tau of w = max(0, (alpha - 1) s - tau)^(1 / (alpha - 1))
  HeadInputs inputs = {};
  MaskSet mask = {};
  InputView q_start = {};                     // [1] or [batch] i64: position of the first query; empty: 0
  InputView q_offsets = {}, kv_offsets = {};  // [batch + 1] i64, ragged only
  ProbeOut probe = {};
  InputView k_scale = {},
            v_scale = {};     // [batch kv_tokens kv_heads] f32: k = k_scale * its numbers; 8-bit KV only
  PageTable page_table = {};  // given: k and v are [pages page_size kv_heads dim], scales without dim
  PackedKeys packed = {};     // given: k is [batch kv_heads room] in this order, kv_tokens = its tokens
};

/// A q_start of this value is bottom-right: the last query meets the last key, kv_tokens - q_tokens.
inline constexpr Index kStartEnd = std::numeric_limits<Index>::min();

/// Where sequence b lies: its batch index in the tensors (0 when ragged), first rows, counts, position of its
/// first query.
struct SequenceLocation {
  Index tensor_batch, q_row, kv_row, q_tokens, kv_tokens, q_start;
  Index sequence = 0;
};
/// Of a numerics class: " kv i8" where k and v are not of q's dtype.
constexpr const char* kv_words(const AttentionProblem& p) {
  return p.kv_dtype() == DType::i8 ? " kv i8" : p.kv_dtype() == DType::e4m3 ? " kv e4m3" : "";
}
inline SequenceLocation place_of(const AttentionProblem& p, const AttentionArgs& a, Index b) {
  const auto at = [](const AnyView& v, Index i) { return static_cast<const Index*>(v.data)[i * v.step[0]]; };
  SequenceLocation s{b, 0, 0, p.q_tokens, p.kv_tokens, 0};
  if (p.ragged) {
    s = {0, at(a.q_offsets, b), at(a.kv_offsets, b), 0, 0, 0};
    s.q_tokens = at(a.q_offsets, b + 1) - s.q_row;
    s.kv_tokens = at(a.kv_offsets, b + 1) - s.kv_row;
  }
  if (p.keys == KeyForm::paged) s.kv_tokens = a.page_table.length(b);
  if (a.q_start.given()) s.q_start = at(a.q_start, a.q_start.size[0] == 1 ? 0 : b);
  if (s.q_start == kStartEnd) s.q_start = s.kv_tokens - s.q_tokens;
  s.sequence = b;
  return s;
}

}  // namespace headwise
