// Checks of attention: what a problem must be to plan, what views must be to run; each refusal a sentence.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <initializer_list>
#include <string_view>

#include "headwise/spec/terms.h"

namespace headwise {

/// The largest matrix a `scores` probe writes out.
inline constexpr Index kMaxScoreEntries = Index{64} << 20;
/// Widths of heads and of probe rows: what a panel needs of them stays an Index on any number of threads.
inline constexpr Index kMaxWidth = Index{1} << 31;
/// Positions of queries and keys stay inside +-2^62, so that sums and differences of two stay inside Index.
inline constexpr Index kMaxPosition = Index{1} << 62;

/// Kernels divide by the cap in f32: both it and its inverse stay far from the ends of f32.
constexpr bool is_softcap(double x) { return 1e-30 <= x && x <= 1e30; }
inline constexpr const char* kSoftcapWayOut = "; give a number from 1e-30 to 1e30, or 0 for none";

constexpr unsigned only(DType t) { return 1u << static_cast<unsigned>(t); }
inline constexpr unsigned kAnyFloat =
    only(DType::f32) | only(DType::bf16) | only(DType::f16) | only(DType::f64);
inline constexpr unsigned kWide = only(DType::f32) | only(DType::f64);

/// What a view must be. `axes` names the sizes in brackets.
struct Need {
  unsigned dtypes;
  std::initializer_list<Index> sizes;
  const char* axes;
  bool repeats = false;  // a size of 1 stands for any size
};
/// The sizes of a term, as many as it has axes.
struct TermSizes {
  Index size[4];
  int rank;
};
TermSizes sizes_of(const ScoreTerm& term, const AttentionProblem& p, const HeadInputs& in);

/// What forward and backward check alike, each in its own name: `op` is what the user called.
struct ArgChecks {
  std::string_view op;

  void check_problem(const AttentionProblem& p) const;
  void check_view(const char* name, const AnyView& v, const Need& need) const;
  /// `need` without its sizes.
  void check_view(const char* name, const AnyView& v, const TermSizes& n, const Need& need) const;
  /// A view the plan knows of must come, another must not.
  bool check_asked(const char* name, const AnyView& v, bool asked, const char* part) const;
  /// Every view lies where the problem does, but those whose numbers are read on the CPU; row lists may lie
  /// in either place.
  void check_places(const AttentionProblem& p, const AttentionArgs& args) const;
  void check_place(const char* name, const AnyView& v, Device there) const;
  /// Memory of one view: sizes, steps, address; a written one has a place for each element.
  void check_memory(const char* name, const AnyView& v, bool written) const;
  /// Throws when the two may share memory; a view is apart from itself.
  void check_apart(const char* written_name, const AnyView& written, const char* name,
                   const AnyView& v) const;

  /// Forms of q, k, v.
  void check_tensors(const AttentionProblem& p, const AttentionArgs& args) const;
  /// The form of what heads read by `layout`, one of the problem's own three.
  void check_heads(const char* name, const AnyView& v, const AttentionProblem& p,
                   const HeadLayout& layout) const;
  void check_out(const char* name, const AnyView& v, const AttentionProblem& p) const;
  void check_lse(const AnyView& v, const AttentionProblem& p) const;
  /// Offsets, pages and starts: their values too, so after check_memory.
  void check_sequences(const AttentionProblem& p, const AttentionArgs& args) const;
  /// Terms, row lists and mask; they read where sequences lie, so after check_sequences.
  void check_inputs(const AttentionProblem& p, const AttentionArgs& args) const;
  /// Kernels index the bias by all four axes: a repeated axis gets its full size, with step 0.
  static void spread_bias(const AttentionProblem& p, AnyView& bias);

 private:
  void check_scales(const char* name, const AnyView& v, const AttentionProblem& p,
                    const HeadLayout& layout) const;
  /// Pages: what goes with them; the table and the lengths of a run.
  void check_pages(const AttentionProblem& p) const;
  void check_gone_pages(const AttentionProblem& p, const AttentionArgs& a) const;
  void check_page_table(const AttentionProblem& p, const AttentionArgs& args) const;
  /// Packed keys: the description is what the problem needs and what this level reads, the buffer is as
  /// described.
  void check_packed(const AttentionProblem& p, const AttentionArgs& args) const;
  void check_layout(const char* name, const HeadLayout& l, Index heads) const;
  /// Kinds and head counts of mixes; their tensors.
  void check_mix(const AttentionProblem& p) const;
  void check_mix_inputs(const AttentionProblem& p, const HeadInputs& in) const;
  void check_mask(const AttentionProblem& p, const MaskSet& mask) const;
  void check_offsets(const char* name, const AnyView& v, Index batch, Index rows, Index longest) const;
  void check_starts(const AttentionProblem& p, const AnyView& v) const;
  /// alpha of entmax: one number a head, 1 or from 1.01 to 2.
  void check_alpha(const AttentionProblem& p, const AttentionArgs& args) const;
  /// Lists of query rows: one for each sequence and head, ascending, inside their sequence.
  void check_rows(const AttentionProblem& p, const AttentionArgs& args) const;
  void check_terms(const AttentionProblem& p, const HeadInputs& in) const;
  void check_numbers(const AttentionProblem& p, const HeadInputs& in) const;
};

/// Every view of a run with its name; written ones last. `visit(name, view, written)`.
template <class Args, class F>
void each_view(Args& a, F&& visit) {
  visit("q", a.q, false), visit("k", a.k, false), visit("v", a.v, false);
  visit("k_scale", a.k_scale, false), visit("v_scale", a.v_scale, false);
  for (const ScoreTerm& t : kScoreTerms)
    if (t.input != nullptr) visit(t.name, a.inputs.*t.input, false);
  visit("sequence_ids", a.inputs.sequence_ids, false), visit("q_start", a.q_start, false);
  visit("rows.offsets", a.inputs.rows.offsets, false), visit("rows.index", a.inputs.rows.index, false);
  visit("page table", a.page_table.table, false), visit("page lengths", a.page_table.lengths, false);
  visit("q_offsets", a.q_offsets, false), visit("kv_offsets", a.kv_offsets, false);
  visit("probe class_of", a.probe.class_of, false), visit("probe picks", a.probe.picks, false);
  visit("out", a.out, true), visit("lse", a.lse, true);
  visit("probe entropy", a.probe.entropy, true), visit("probe top_weight", a.probe.top_weight, true);
  visit("probe second_moment", a.probe.second_moment, true),
      visit("probe mean_distance", a.probe.mean_distance, true);
  visit("probe sink_mass", a.probe.sink_mass, true), visit("probe top_position", a.probe.top_position, true);
  visit("probe top_keys", a.probe.top_keys, true), visit("probe top_weights", a.probe.top_weights, true);
  visit("probe class_mass", a.probe.class_mass, true), visit("probe column_sums", a.probe.column_sums, true);
  visit("probe picked_weights", a.probe.picked_weights, true), visit("probe scores", a.probe.scores, true);
}

/// Fills what a spec without mixes leaves to the views: matrices alone are fixed mixes, coefficients of 2 (2
/// R
/// + 1) rows are dynamic ones before and after. Returns the number of v's heads.
Index read_mix(std::string_view op, const HeadInputs& in, HeadSpec& heads);

/// problem_of in the name of `op`.
AttentionProblem problem_in(std::string_view op, const AttentionArgs& args, const ProbeSpec& probe,
                            const HeadSpec& heads);

void check_problem(const AttentionProblem& problem);

/// Throws unless `args` fit the problem. Returns them as kernels get them: axes of size 1 have step 0 (the
/// last axis: 1), a bias repeated over an axis has that axis' full size with step 0.
AttentionArgs check_args(const AttentionProblem& problem, const AttentionArgs& args);

}  // namespace headwise
