// Head: what a variant must say about itself, and HeadCall: the tensors of one run around its attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>

#include "headwise/base/arena.h"
#include "headwise/base/param.h"
#include "headwise/spec/terms.h"

namespace headwise {

/// Where a head stands: layer 0..depth-1 of a model whose rows have model_dim columns.
struct Place {
  Index layer = 0, depth = 1, model_dim = 0;
  Index key_model_dim = 0;  // width of the rows keys are made of; 0: model_dim

  constexpr Index key_dim() const { return key_model_dim ? key_model_dim : model_dim; }
};

/// Rows of W_Q, W_K, W_V ([width model_dim]) and columns of W_O ([model_dim width]). out 0: finish gives the
/// layer's output itself, and there is no W_O.
struct Widths {
  Index q = 0, k = 0, v = 0, out = 0;
  static constexpr Widths same(Index n) { return {n, n, n, n}; }
  friend constexpr bool operator==(const Widths&, const Widths&) = default;
};

/// One setting: the word of the command line, Python, config files and docs; its member; a sentence. Members
/// are Index, double, bool, or an enum whose names_of(E{}) lists its words from 0 on.
template <class Config, class T>
struct Field {
  using Value = T;
  std::string_view name, help;
  T Config::*member;
  constexpr Field(std::string_view word, T Config::*m, std::string_view sentence)
      : name(word), help(sentence), member(m) {}
};

/// The settings of one head, in their order: a list of Field, and each(visit). std::tuple would do, at half a
/// second for all heads wherever they are included.
template <class... F>
struct Fields {
  static constexpr std::size_t count = 0;
  template <class Visit>
  constexpr void each(Visit&&) const {}
};
template <class F, class... Rest>
struct Fields<F, Rest...> {
  static constexpr std::size_t count = 1 + sizeof...(Rest);
  F first;
  Fields<Rest...> rest;
  constexpr explicit Fields(F one, Rest... others) : first(one), rest(others...) {}
  template <class Visit>
  constexpr void each(Visit&& visit) const {
    visit(first);
    rest.each(visit);
  }
};
template <class... F>
Fields(F...) -> Fields<F...>;

/// Gradients of HeadInputs under the same names. bind gives where each is added to; empty: not wanted.
struct HeadGrads : HeadInputs {};
/// Pairs every term with its place in BackwardArgs: visit(name, to be added to, written by the run).
template <class F>
void each_pair(HeadGrads& g, BackwardArgs& b, F&& visit) {
  for (const ScoreTerm& t : kScoreTerms)
    if (t.gradient != nullptr) visit(t.word, g.*t.input, b.*t.gradient);
}

/// One run of a head: rows x to W_O's input y, and back. `outer` is batch (ragged: 1), `tokens` a sequence's
/// (ragged: all sequences'), so every tensor here is [outer tokens columns], row-major but for x.
struct HeadCall {
  AttentionProblem problem = {};  // sizes, dtype, the head's spec with the caller's terms
  InputView x = {}, x_kv = {};    // rows of the queries' side and of the keys' side; equal in self-attention
  InputView q = {}, k = {}, v = {};  // x W_Q^T, x_kv W_K^T, x_kv W_V^T
  AnyView o = {}, d_o = {};          // what finish reads: rows of run.forward.out, or of the head below
  AnyView y = {};  // [outer q_tokens widths.out], what W_O reads; o where there is no finish
  AnyView dy = {}, dq = {}, dk = {}, dv = {};  // dy is read; dq, dk, dv are written
  AnyView dx = {}, dx_kv = {};                 // added to: what prepare and finish read of x and x_kv
  /// What attention reads and writes. prepare may put other tensors in forward.q, .k, .v and .inputs;
  /// book_backward then asks for their gradients in dq, dk, dv, dgate, ...; the run overwrites these.
  BackwardArgs run = {};
  Index head_budget = 0;     // routed heads a token may use; 0: what the head was made with
  double loss = 0;           // forward adds the head's own loss to it (routing balance, its weight included)
  bool has_loss = false;     // forward found one, be it 0
  double loss_gradient = 1;  // d(total loss) / d(loss): 0 leaves the own loss out of backward

  Index outer() const { return problem.ragged ? 1 : problem.batch; }
  Index q_tokens() const { return problem.ragged ? problem.q_total : problem.q_tokens; }
  Index kv_tokens() const { return problem.ragged ? problem.kv_total : problem.kv_tokens; }
  HeadInputs& inputs() { return run.forward.inputs; }
};

inline Terms either(Terms a, const Terms& b) {
  each_flag([&](bool Terms::*flag) { a.*flag |= b.*flag; });
  return a;
}

/// The head that one made with it lies over.
struct Below {
  HeadSpec spec;
  Widths widths;
};

/// A head variant, one file each. The concept asks for what is required; optional, identity by default:
/// - bind(HeadInputs&, HeadGrads&): learned values in, the places their gradients are added to
/// - Work, book(call, arena): views kept from forward to backward: all memory of the forward
/// - prepare(call, work, ctx): before attention; fills call.inputs(), may replace run.forward.q, .k, .v
/// - finish(call, work, ctx): after attention; fills call.y, which book took and set, from call.o. Where book
///   leaves call.y empty, finish is not called
/// - book_backward(call, work, arena): memory of the backward; points call.run.dgate, .dq, ... at it
/// - finish_backward(call, work, ctx): call.d_o from call.dy
/// - prepare_backward(call, work, ctx): call.dq, dk, dv where replaced; adds to dx, dx_kv and parameters
/// - says(config, key): whether a setting stands in the head's text
/// - become_mha(): learned values at which as_mha's settings are MHA, where they do not start there
/// - flops(problem): of prepare and finish; 2 a token and own parameter where it is left out
/// - window(): keys on each side of a query that prepare joins with the mask; -1: all
/// - head_share(): heads a token is worked on by, of all, where the others are left out
/// - on_devices: true where prepare, finish and their backwards call ops alone, and so run where tensors lie;
///   it is true without one of these
/// - small(heads, dim): settings for tests of few heads, where the defaults need more
/// - H(config, params, place, below): lies over another head, `moh:heads=8+gated`
/// book and book_backward see null tensors while an arena measures: they take memory and compute nothing.
template <class H>
concept Head = requires(const H head, ParamSet& params, typename H::Config config, Place place, Index n) {
  { H::name } -> std::convertible_to<std::string_view>;   // the word
  { H::meets } -> std::convertible_to<std::string_view>;  // where heads exchange information, a phrase
  { H::fields.count } -> std::convertible_to<std::size_t>;
  { H::as_mha(n, n) } -> std::same_as<typename H::Config>;  // of heads, head_dim: the law's setting
  {H(config, params, place)};
  { head.config() } -> std::convertible_to<typename H::Config>;
  { head.widths() } -> std::same_as<Widths>;
  { head.spec() } -> std::same_as<HeadSpec>;
};

template <class... Hs>
struct HeadList {
  static constexpr std::size_t count = sizeof...(Hs);
  /// f(Type<H>{}) for every head of the list.
  template <class F>
  static void each(F&& f) {
    (f(Type<Hs>{}), ...);
  }
};

/// A row-major tensor out of an arena; its data is null while the arena measures.
inline AnyView take(Arena& arena, std::string_view name, DType dtype, std::initializer_list<Index> sizes) {
  Checked bytes(size_of(dtype));
  for (const Index n : sizes) bytes = bytes * Checked(n);
  require(bytes.ok, ErrorKind::out_of_memory, name, "needs more bytes than any address space holds");
  return AnyView::packed(arena.take<std::byte>(name, bytes.value), dtype, sizes).on(arena.device());
}
inline AnyView take_like(Arena& arena, std::string_view name, const AnyView& like) {
  AnyView v = like;
  v.data = take(arena, name, like.dtype, {like.count()}).data, v.device = arena.device().byte();
  Index step = 1;
  for (int axis = v.rank - 1; axis >= 0; --axis) v.step[axis] = step, step *= v.size[axis];
  return v;
}

/// Rows [outer tokens columns] as attention reads them under a layout: [outer tokens slots dim] or as they
/// are.
inline AnyView heads_of(const AnyView& rows, const HeadLayout& layout) {
  if (layout.row > 0) return rows;
  return AnyView::packed(rows.data, rows.dtype, {rows.size[0], rows.size[1], layout.slots(), layout.dim})
      .on(rows.where());
}
/// [outer tokens heads dim] as rows.
inline AnyView rows_of_heads(const AnyView& v) {
  return AnyView::packed(v.data, v.dtype, {v.size[0], v.size[1], v.size[2] * v.size[3]}).on(v.where());
}

/// The width of one head; 0 stands for model_dim / heads.
inline Index dim_of(std::string_view head, Index heads, Index dim, const Place& place) {
  require(heads > 0 && dim >= 0, ErrorKind::bad_shape, head, "got ", heads, " heads of dim ", dim,
          "; heads start at 1, and dim 0 stands for model_dim / heads");
  if (dim > 0) return dim;
  require(place.model_dim > 0 && place.model_dim % heads == 0, ErrorKind::bad_shape, head, "model_dim (",
          place.model_dim, ") must be a multiple of heads (", heads, "); change one of them or give dim");
  return place.model_dim / heads;
}
/// The width of one head's values; 0 stands for dim.
inline Index value_dim_of(std::string_view head, Index dim, Index value_dim) {
  require(value_dim >= 0, ErrorKind::bad_shape, head, "value_dim is ", value_dim,
          "; it starts at 1, and 0 stands for dim");
  return value_dim > 0 ? value_dim : dim;
}
/// kv_heads of a config, 0 standing for as many as heads.
inline Index kv_heads_of(std::string_view head, Index heads, Index kv_heads) {
  require(kv_heads >= 0 && (kv_heads == 0 || heads % kv_heads == 0), ErrorKind::bad_shape, head, "heads (",
          heads, ") must be a multiple of kv_heads (", kv_heads, "); change one of them");
  return kv_heads ? kv_heads : heads;
}

}  // namespace headwise
