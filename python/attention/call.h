// AttentionCall: the arguments of one hw.attention call, read, planned, given their outputs, run.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <vector>

#include "headwise/masks/mask.h"
#include "headwise/spec/terms.h"
#include "python/arrays/array.h"
#include "python/arrays/contexts.h"
#include "python/attention/arguments.h"
#include "python/attention/heads.h"

namespace headwise::python {

/// Where a tensor of the caller keeps its axes; dim is always the last.
struct AxisOrder {
  int batch, tokens, heads;         // of four axes
  int ragged_tokens, ragged_heads;  // of three
  const char *axes, *ragged_axes;
};

/// The order a layout's name stands for; `op` is what the user called.
const AxisOrder& layout_named(const char* op, nb::handle name);
/// A view of four axes (ragged: three) in a caller's order as [batch tokens heads dim]; without the last axis
/// where `scales` says so.
AnyView as_bshd(const char* op, const char* name, const AnyView& v, const AxisOrder& order, bool ragged,
                bool scales = false);

/// Packed keys as Python holds them: the buffer, and how they lie in it (bind_kv.cc).
struct PackedCache {
  PackedKeys about;
  nb::object buffer;
  AnyView view;  // of the buffer, [batch kv_heads room]
  ArrayKind kind;
};

class AttentionCall {
 public:
  explicit AttentionCall(const AttentionWords& words);
  AttentionCall(const AttentionCall&) = delete;  // views point into it
  AttentionCall& operator=(const AttentionCall&) = delete;

  /// Runs and returns `out`, or the named tuple of out, lse and probe.
  nb::object run();
  /// A fresh output holds [batch tokens heads dim] whatever order q, k and v have; before run().
  void put_tokens_first();
  /// The same without a result; then out() and lse() hold it.
  void compute();
  /// Seconds of this thread that a run takes once its tensors are read, the mean of `count`: for benchmarks.
  double seconds(int count);
  const nb::object& out() const { return out_; }
  const nb::object& lse() const { return lse_; }
  /// The plan of this call on its context; valid while the context is.
  const AttentionPlan& plan();
  const AttentionArgs& args() const { return args_; }
  CallContext& context() { return *context_; }
  const ArrayKind& kind() const { return kind_; }
  bool on_cuda() const { return kind_.device.kind == Device::Kind::cuda; }
  bool ragged() const { return ragged_; }
  /// Where the caller's tensors keep these.
  int tokens_axis() const { return ragged_ ? order_->ragged_tokens : order_->tokens; }
  int heads_axis() const { return ragged_ ? order_->ragged_heads : order_->heads; }
  /// The kernels of this call: its own list, else its context's.
  const std::string& kernels();
  /// The caller's tensor in the library's order of axes.
  AnyView as_bshd(const char* name, const AnyView& v) const {
    return python::as_bshd("attention", name, v, *order_, ragged_);
  }
  /// Right-aligned to [batch heads q kv] as in NumPy; also from [batch * heads q kv].
  AnyView spread_bias(const AnyView& bias) const;
  /// The layouts and kinds of the head that was named; empty layouts: plain ones.
  const HeadSpec& spec() const { return spec_; }
  /// What a row layout reads: [batch tokens heads dim] with its last axes as one.
  AnyView as_rows(const char* name, const AnyView& v, const HeadLayout& layout) const;
  /// A tensor of the tokens, ragged: without batch too, so that it gets one of 1.
  AnyView with_batch(const AnyView& v, int rank) const;
  /// [batch q heads]; ragged: from [tokens heads] too.
  AnyView as_gate(const AnyView& gate) const;

 private:
  void read_keys_and_values(const AttentionWords& words);
  void read_scores(const AttentionWords& words);
  void read_places(const AttentionWords& words);
  void read_pages(nb::handle pages);
  void read_mask(nb::handle mask);
  void read_head(const AttentionWords& words);
  void complete_head();
  void read_alpha();
  void read_coefficients(nb::handle coefficients);
  void make_outputs();
  const AttentionPlan& plan_with_outputs();
  /// A term: it lies where q does.
  AnyView read_term(const char* name, nb::handle h) const;

  const AxisOrder *order_, *out_order_ = order_;
  nb::handle like_, given_out_, probe_words_;
  ArrayKind kind_;
  bool ragged_ = false, want_lse_ = false;
  Index heads_ = 0;  // with a softmax: what terms of scores are counted by
  AttentionArgs args_;
  ProbeSpec probe_;
  unsigned probe_rows_ = 0;
  CallContext* context_ = nullptr;
  std::string kernels_;
  bool own_kernels_ = false;
  AttentionProblem problem_;
  HeadSpec spec_;
  Mask heads_mask_;  // where a list was given
  double scale_ = 0, alpha_ = 0;
  const NamedHead* head_ = nullptr;  // where one was named
  Tensor slopes_;
  std::vector<Index> q_offsets_, kv_offsets_, q_start_, picks_, row_offsets_, row_index_, page_lengths_;
  std::vector<std::int32_t> class_of_;
  nb::object out_, lse_, probe_result_, slopes_there_, alpha_there_;
};

/// Part of AttentionCall that knows hw.Probe and hw.Scores (probes.cc).
struct ProbeRequest {
  ProbeSpec spec;
  unsigned rows = 0;         // a bit for each statistic of rows, in the order of probes.cc
  std::vector<Index> picks;  // [picked 3]
  std::vector<std::int32_t> class_of;
  Index class_rows = 0, class_columns = 0;  // as given: rows 1 repeats over the batch
};
ProbeRequest read_probe(nb::handle probe);
/// Allocates what the problem asks for, of statistics of rows those of the request, as views in `out` and as
/// attributes of the returned hw.ProbeResult.
nb::object make_probe_result(const AttentionProblem& problem, unsigned rows, const ArrayKind& kind,
                             nb::handle like, ProbeOut& out);

}  // namespace headwise::python
