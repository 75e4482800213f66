// MultiHead: projections to queries, keys and values, any head's attention between them, and W_O.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <vector>

#include "headwise/heads/run.h"
#include "headwise/layers/basic/linear.h"
#include "headwise/layers/multi_head/cut_head.h"
#include "headwise/layers/multi_head/taps.h"
#include "headwise/spec/rope.h"

#pragma GCC visibility push(default)
namespace headwise {

struct MultiHeadOptions {
  Index model_dim = 0;
  Index key_model_dim = 0,
        value_model_dim = 0;             // columns of what keys and values are made from; 0: model_dim
  bool bias = true, out_bias = true;     // of W_Q, W_K, W_V; of W_O
  double dropout = 0;                    // of attention weights
  std::optional<RopeOptions> rope = {};  // turns q and k of self-attention
  bool alibi = false;
  double init_scale = 1;
  Index layer = 0, depth = 1;
  const Teams* teams = nullptr;  // heads are cut over its tensor ranks, rows over its context; outlives it
};

/// Keys and values a head reads, projected once for many runs: the memory of a decoder.
struct KvMemory {
  AnyView k = {}, v = {};  // [rows widths.k], [rows widths.v]
  AnyView rows = {};       // what they were made from; heads with a router read it
  Sequences sequences = {};
};

/// One run. Keys and values are made from `keys` and `values`; both empty: from x, self-attention.
struct MultiHeadArgs {
  InputView x = {}, keys = {}, values = {};  // [tokens model_dim], [kv_tokens key_model_dim], ...
  const KvMemory* memory = nullptr;          // projected before, instead of keys and values; no gradient
  Sequences sequences = {}, kv_sequences = {};
  MaskSet mask = {};
  InputView bias = {};
  AnyView dbias = {};  // score bias, [batch heads q kv], 1 repeats; its gradient, where wanted
  AnyView weights =
      {};  // [batch heads q kv], f32 (f64 for f64): written where given, by the reference kernel
  Taps* taps = nullptr;  // weights are copied there, with their bits, as call.block's
  InputView gates = {};
  AnyView dgates = {};             // [heads] and [rows heads], of head_count() heads: see Call
  const HeadEdit* edit = nullptr;  // see Call
  Tail tail = {};
};

/// Gradients by what they belong to; dkeys is empty in self-attention, dvalues where values are the keys'
/// rows.
struct MultiHeadGrads {
  AnyView dx = {}, dkeys = {}, dvalues = {};
};

class LeafHeads;

class MultiHead {
 public:
  /// head: `gqa:heads=8,kv_heads=2,dim=64`, or one made in the scope of `name`. Declares q, k, v and out with
  /// weight [width model_dim] and bias, and what the head learns, under `name`.
  MultiHead(ParamSet& params, std::string_view name, std::string_view head, const MultiHeadOptions& options);

  struct Saved {
    std::optional<HeadRun> run;
    MultiHeadArgs args;  // as the run read them: keys and values are given
    Linear::Saved out;
    AnyView y;  // what W_O reads before the gates
    DropoutOptions tail;
    std::vector<Saved> leaves = {};  // where heads run leaf by leaf, over ranks
  };
  AnyView forward(const MultiHeadArgs& args, Call& call, Saved* saved) const;
  /// What the call asks of this attention, which runs: gates, score biases, edits.
  MultiHeadArgs asked(const Call& call) const;
  /// Self-attention in the call's sequences under its mask, with its taps and gates.
  AnyView forward(const InputView& x, Call& call, Saved* saved, const Tail& tail = {}) const;
  /// residual is added to dx.
  MultiHeadGrads backward(const InputView& dy, Call& call, Saved& saved,
                          const InputView& residual = {}) const;

  /// All but W_O: run.call.y [tokens widths.out]; and back to the rows from dy, its gradient.
  void attend(MultiHeadArgs args, Call& call, std::optional<HeadRun>& run, bool keep) const;
  MultiHeadGrads attend_backward(const AnyView& dy, const MultiHeadArgs& args, Call& call, HeadRun& run,
                                 const AnyView& residual) const;

  /// Keys and values of `rows`, in the call's memory, for MultiHeadArgs::memory.
  KvMemory remember(const InputView& rows, const Sequences& sequences, Call& call) const;

  const AnyHead& head() const { return *head_; }
  /// Heads in the rows that W_O reads; 0 where the head gives the layer's output itself.
  Index head_count() const { return head().widths().out / head().spec().v.dim; }
  const MultiHeadOptions& options() const { return options_; }
  /// Of q, k, v, out.
  const Linear& part(int i) const { return *parts_[i]; }

 private:
  /// Where the parts of q, k, v end that one product makes together with `first`: one width, weights side by
  /// side.
  int end_of_product(int first, int last) const;
  /// parts[i] = from W_i^T + b_i for first <= i < last, and the gradient of `from` plus `residual` from
  /// theirs.
  void project(int first, int last, const AnyView& from, Call& call, AnyView* parts) const;
  AnyView project_backward(int first, int last, const AnyView* slopes, const AnyView& from, Call& call,
                           AnyView residual) const;
  /// The same where heads are cut: one sum over leaves and ranks.
  AnyView cut_backward(int first, int last, const AnyView* slopes, const AnyView& from, Call& call,
                       const AnyView& residual) const;
  /// Columns of one head of k (part 1) or v (part 2).
  Index kv_dim(int part) const { return part == 1 ? head().spec().k.dim : head().spec().v.dim; }
  bool sums() const { return options_.teams != nullptr && options_.teams->order != Order::one_rank; }
  void check_cut_args(const MultiHeadArgs& args, const Call& call, bool backward) const;
  /// Memory of parts, [rows width] each; those of one product lie in one piece.
  void take_parts(int first, int last, DType dtype, Index rows, Call& call, AnyView* parts) const;
  /// Over a context team x has the rows sequences.held alone. context.cc.
  bool in_context() const { return options_.teams != nullptr && options_.teams->context_ranks() > 1; }
  void make_context_head();
  void check_context(const MultiHeadArgs& args, const Call& call, bool keeps) const;
  AnyView attend_in_context(const MultiHeadArgs& args, Call& call, Saved* saved) const;
  bool exchanges_heads(const MultiHeadArgs& args, bool self) const;
  AnyView context_by_heads(const MultiHeadArgs& args, const AnyView* parts, Call& call, Saved* saved) const;
  AnyView context_by_keys(const MultiHeadArgs& args, const AnyView* parts, Call& call) const;
  /// Where a backward follows and heads are not exchanged, every rank attends with all rows.
  /// context_backward.cc.
  AnyView context_whole(const MultiHeadArgs& args, const AnyView* parts, Call& call, Saved& saved) const;
  MultiHeadGrads backward_in_context(const AnyView& dy, Call& call, Saved& saved,
                                     const AnyView& residual) const;
  void backward_by_heads(const AnyView& dy, Call& call, HeadRun& run, const AnyView* slopes) const;
  void turn_held(const AnyView& rows, const HeadLayout& layout, const Sequences& s, bool back,
                 Call& call) const;
  void run_head(HeadRun& run, Call& call) const;
  void run_head_backward(HeadRun& run, Call& call) const;
  InputView own_slopes() const;
  MultiHeadArgs completed(const MultiHeadArgs& args) const;
  AttentionProblem sizes_of(const MultiHeadArgs& args) const;
  void check_gates(const MultiHeadArgs& args) const;
  void turn(const AnyView& rows, const HeadLayout& layout, const Sequences& s, bool back, Call& call) const;

  MultiHeadOptions options_;
  HeadCut cut_;
  std::optional<Linear> parts_[4];  // q, k, v, out
  std::optional<AnyHead> head_;
  Tensor slopes_;
  std::optional<AnyHead> context_head_;      // of the tokens of all ranks; none: keys are gathered
  std::shared_ptr<const LeafHeads> leaves_;  // null: all heads of this rank run at once
};

}  // namespace headwise
#pragma GCC visibility pop
