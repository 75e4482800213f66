// The list of score terms: where the values of each lie, what a plan knows of it, its shape, its gradient.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>

#include "headwise/spec/backward.h"

namespace headwise {

/// What the sizes of a term's tensor are counted in; tensors and q_rows: batch and q_tokens, ragged 1 and
/// all.
enum class TermAxis : std::uint8_t {
  none,
  batch,
  heads,
  v_heads,
  q_tokens,
  kv_tokens,
  buckets,
  tensors,
  q_rows
};

/// Where on its way from q.k to out a term does its work; none: in the scale, or in the head's own kind.
enum class TermStage : std::uint8_t { none, scores, weights, dropped, out };

/// One term: a tensor or a number of HeadInputs. Checks, plans, C, Python, gradients and explain read this
/// list; a term that is not in it does not exist. Kernels name those they compute
/// (kernels/takes.h) and refuse the others.
struct ScoreTerm {
  const char* word;            // in lists: "slopes"
  const char* name;            // in sentences: "alibi slopes"
  const char* part;            // what a plan made without it lacks: "ALiBi"
  const char* help = nullptr;  // what it brings, for a user who chooses
  const char* call = nullptr;  // its argument in Python and option of the program; null: word
  // Where a run brings it; or the head spec says whether it comes; neither: it always may.
  bool Terms::*planned = nullptr;
  bool (*by_spec)(const HeadSpec&) = nullptr;
  InputView HeadInputs::*input = nullptr;
  double HeadInputs::*number = nullptr;  // instead of a tensor; 0: off
  TermAxis shape[4] = {};                // none first: checked where the head spec is
  const char* axes = nullptr;
  bool repeats = false;          // a size of 1 stands for any size
  const char* source = nullptr;  // what the forward lacks where its gradient is asked in vain; null: name
  bool GradientSpec::*wanted = nullptr;
  AnyView BackwardArgs::*gradient = nullptr;
  const char* gradient_name = nullptr;
  const char* gradient_axes = nullptr;  // null: axes
  bool wide = false;                    // its gradient is f32 or f64; else any float
  bool of_tokens = false;               // [batch tokens ..]
  bool of_head = false;                 // belongs to a head variant: one of Python's `coefficients`
  TermStage stage = TermStage::none;
  const char* shown = nullptr;  // there, in a drawing: "+ bias"
};

namespace term_list {

using enum TermAxis;

inline constexpr ScoreTerm kScoreTerms[] = {
    {.word = "softcap",
     .name = "softcap",
     .part = "it",
     .help = "cap * tanh(s / cap) on the scores",
     .planned = &Terms::softcap,
     .number = &HeadInputs::softcap,
     .stage = TermStage::scores,
     .shown = "softcap"},
    {.word = "dropout",
     .name = "dropout",
     .part = "it",
     .help = "Probability of dropping a weight",
     .planned = &Terms::dropout,
     .number = &HeadInputs::dropout,
     .stage = TermStage::dropped,
     .shown = "dropout"},
    {.word = "bias",
     .name = "bias",
     .part = "a bias",
     .help = "A dense bias [batch heads q kv]",
     .planned = &Terms::bias,
     .input = &HeadInputs::bias,
     .shape = {batch, heads, q_tokens, kv_tokens},
     .axes = "[batch heads q_tokens kv_tokens]",
     .repeats = true,
     .wanted = &GradientSpec::bias,
     .gradient = &BackwardArgs::dbias,
     .gradient_name = "dbias",
     .gradient_axes = "the sizes of bias",
     .stage = TermStage::scores,
     .shown = "+ bias"},
    {.word = "slopes",
     .name = "alibi slopes",
     .part = "ALiBi",
     .help = "A slope per head",
     .call = "alibi",
     .planned = &Terms::alibi,
     .input = &HeadInputs::slopes,
     .shape = {heads},
     .axes = "[heads]",
     .wanted = &GradientSpec::slopes,
     .gradient = &BackwardArgs::dslopes,
     .gradient_name = "dslopes",
     .stage = TermStage::scores,
     .shown = "+ ALiBi"},
    {.word = "relative",
     .name = "relative table",
     .part = "relative positions",
     .help = "T5's relative buckets",
     .planned = &Terms::relative,
     .input = &HeadInputs::relative,
     .shape = {buckets, heads},
     .axes = "[buckets heads]",
     .wanted = &GradientSpec::relative,
     .gradient = &BackwardArgs::drelative,
     .gradient_name = "drelative",
     .stage = TermStage::scores,
     .shown = "+ relative"},
    {.word = "sinks",
     .name = "sinks",
     .part = "sinks",
     .help = "A sink logit per head",
     .planned = &Terms::sinks,
     .input = &HeadInputs::sinks,
     .shape = {heads},
     .axes = "[heads]",
     .wanted = &GradientSpec::sinks,
     .gradient = &BackwardArgs::dsinks,
     .gradient_name = "dsinks",
     .stage = TermStage::weights,
     .shown = "sink"},
    {.word = "scale",
     .name = "scale",
     .part = "it",
     .input = &HeadInputs::scale,
     .repeats = true,
     .wanted = &GradientSpec::scale,
     .gradient = &BackwardArgs::dscale,
     .gradient_name = "dscale",
     .gradient_axes = "the size of scale",
     .wide = true},
    {.word = "gate",
     .name = "gate",
     .part = "a gate",
     .help = "A gate per token and head",
     .planned = &Terms::gate,
     .input = &HeadInputs::gate,
     .shape = {tensors, q_rows, v_heads},
     .axes = "[batch q_tokens heads]",
     .wanted = &GradientSpec::gate,
     .gradient = &BackwardArgs::dgate,
     .gradient_name = "dgate",
     .of_tokens = true,
     .stage = TermStage::out,
     .shown = "gate"},
    {.word = "mix_before",
     .name = "mix_before",
     .part = "this mix",
     .by_spec = [](const HeadSpec& h) { return h.before != Mix::none; },
     .input = &HeadInputs::mix_before,
     .source = "mix before the normalizer",
     .wanted = &GradientSpec::mix_before,
     .gradient = &BackwardArgs::dmix_before,
     .gradient_name = "dmix_before",
     .gradient_axes = "the sizes of mix_before",
     .of_head = true},
    {.word = "mix_after",
     .name = "mix_after",
     .part = "this mix",
     .by_spec = [](const HeadSpec& h) { return h.after != Mix::none; },
     .input = &HeadInputs::mix_after,
     .source = "mix after the normalizer",
     .wanted = &GradientSpec::mix_after,
     .gradient = &BackwardArgs::dmix_after,
     .gradient_name = "dmix_after",
     .gradient_axes = "the sizes of mix_after",
     .of_head = true},
    {.word = "mix_q",
     .name = "mix_q",
     .part = "a dynamic mix",
     .by_spec = [](const HeadSpec& h) { return h.mix_stages() > 0; },
     .input = &HeadInputs::mix_q,
     .source = "dynamic mix",
     .wanted = &GradientSpec::mix_q,
     .gradient = &BackwardArgs::dmix_q,
     .gradient_name = "dmix_q",
     .gradient_axes = "the sizes of mix_q",
     .of_tokens = true,
     .of_head = true},
    {.word = "mix_k",
     .name = "mix_k",
     .part = "a dynamic mix",
     .by_spec = [](const HeadSpec& h) { return h.mix_stages() > 0; },
     .input = &HeadInputs::mix_k,
     .source = "dynamic mix",
     .wanted = &GradientSpec::mix_k,
     .gradient = &BackwardArgs::dmix_k,
     .gradient_name = "dmix_k",
     .gradient_axes = "the sizes of mix_k",
     .of_tokens = true,
     .of_head = true},
    {.word = "alpha",
     .name = "alpha",
     .part = "entmax",
     .by_spec = [](const HeadSpec& h) { return h.norm == Norm::entmax; },
     .input = &HeadInputs::alpha,
     .axes = "[heads]",
     .wanted = &GradientSpec::alpha,
     .gradient = &BackwardArgs::dalpha,
     .gradient_name = "dalpha",
     .of_head = true},
};

}  // namespace term_list
using term_list::kScoreTerms;

constexpr const char* call_word(const ScoreTerm& t) { return t.call != nullptr ? t.call : t.word; }
constexpr bool in_plan(const ScoreTerm& t, const HeadSpec& heads) {
  return t.planned != nullptr ? heads.terms.*t.planned : t.by_spec == nullptr || t.by_spec(heads);
}
constexpr bool brings(const HeadInputs& in, const ScoreTerm& t) {
  return t.number != nullptr ? in.*t.number != 0 : (in.*t.input).given();
}
/// Every flag of Terms: the terms' own, and row lists.
template <class F>
constexpr void each_flag(F&& visit) {
  for (const ScoreTerm& t : kScoreTerms)
    if (t.planned != nullptr) visit(t.planned);
  visit(&Terms::rows);
}

static_assert(
    [] {
      std::size_t n = 0;
      each_flag([&](bool Terms::*) { ++n; });
      return n == sizeof(Terms);
    }(),
    "every flag of Terms stands in the list");

/// Everything that has a gradient: q, k and v, then the terms that have one, in the order of the list.
struct Gradient {
  const char *word, *name;  // "bias", "dbias"
  bool GradientSpec::*wanted;
  AnyView BackwardArgs::*view;
  const ScoreTerm* term;  // null: q, k or v
};
inline constexpr std::size_t kGradientCount = [] {
  std::size_t n = 3;
  for (const ScoreTerm& t : kScoreTerms) n += t.gradient != nullptr;
  return n;
}();
inline constexpr std::array<Gradient, kGradientCount> kGradients = [] {
  std::array<Gradient, kGradientCount> all = {{{"q", "dq", &GradientSpec::q, &BackwardArgs::dq, nullptr},
                                               {"k", "dk", &GradientSpec::k, &BackwardArgs::dk, nullptr},
                                               {"v", "dv", &GradientSpec::v, &BackwardArgs::dv, nullptr}}};
  std::size_t n = 3;
  for (const ScoreTerm& t : kScoreTerms)
    if (t.gradient != nullptr) all[n++] = {t.word, t.gradient_name, t.wanted, t.gradient, &t};
  return all;
}();
static_assert(sizeof(GradientSpec) == kGradientCount, "every flag of GradientSpec stands in the list");

/// Where a gradient stands in kGradients.
constexpr std::size_t place_of(bool GradientSpec::*wanted) {
  std::size_t i = 0;
  while (kGradients[i].wanted != wanted) ++i;
  return i;
}

}  // namespace headwise
