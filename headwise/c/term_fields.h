// The score terms of headwise/spec/terms.h in the C interface: bit and field of each, and of its gradient.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/c/headwise.h"
#include "headwise/spec/terms.h"

namespace headwise::c {

/// One row for each of kScoreTerms, in its order.
struct TermField {
  std::string_view word;
  std::uint32_t bit = 0;  // HW_TERM_*; 0: the head spec says whether it comes
  const hw_tensor* hw_attention_args::*input = nullptr;
  double hw_attention_args::*number = nullptr;
  std::uint32_t gradient_bit = 0;
  const hw_tensor* hw_backward_args::*gradient = nullptr;
};

inline constexpr TermField kTermFields[] = {
    {.word = "softcap", .bit = HW_TERM_SOFTCAP, .number = &hw_attention_args::softcap},
    {.word = "dropout", .bit = HW_TERM_DROPOUT, .number = &hw_attention_args::dropout},
    {"bias", HW_TERM_BIAS, &hw_attention_args::bias, nullptr, HW_GRAD_BIAS, &hw_backward_args::dbias},
    {"slopes", HW_TERM_ALIBI, &hw_attention_args::slopes, nullptr, HW_GRAD_SLOPES,
     &hw_backward_args::dslopes},
    {"relative", HW_TERM_RELATIVE, &hw_attention_args::relative, nullptr, HW_GRAD_RELATIVE,
     &hw_backward_args::drelative},
    {"sinks", HW_TERM_SINKS, &hw_attention_args::sinks, nullptr, HW_GRAD_SINKS, &hw_backward_args::dsinks},
    {"scale", 0, &hw_attention_args::scale, nullptr, HW_GRAD_SCALE, &hw_backward_args::dscale},
    {"gate", HW_TERM_GATE, &hw_attention_args::gate, nullptr, HW_GRAD_GATE, &hw_backward_args::dgate},
    {"mix_before", 0, &hw_attention_args::mix_before, nullptr, HW_GRAD_MIX_BEFORE,
     &hw_backward_args::dmix_before},
    {"mix_after", 0, &hw_attention_args::mix_after, nullptr, HW_GRAD_MIX_AFTER,
     &hw_backward_args::dmix_after},
    {"mix_q", 0, &hw_attention_args::mix_q, nullptr, HW_GRAD_MIX_Q, &hw_backward_args::dmix_q},
    {"mix_k", 0, &hw_attention_args::mix_k, nullptr, HW_GRAD_MIX_K, &hw_backward_args::dmix_k},
    {"alpha", 0, &hw_attention_args::alpha, nullptr, HW_GRAD_ALPHA, &hw_backward_args::dalpha},
};
static_assert(
    [] {
      if (std::size(kTermFields) != std::size(kScoreTerms)) return false;
      for (std::size_t i = 0; i < std::size(kTermFields); ++i) {
        const TermField& f = kTermFields[i];
        const ScoreTerm& t = kScoreTerms[i];
        if (f.word != t.word || (f.bit != 0) != (t.planned != nullptr)) return false;
        if ((f.input != nullptr) != (t.input != nullptr) || (f.number != nullptr) != (t.number != nullptr))
          return false;
        if ((f.gradient != nullptr) != (t.gradient != nullptr)) return false;
      }
      return true;
    }(),
    "the C interface has every term, in the order of kScoreTerms");

/// visit(term, its field)
template <class F>
void each_term(F&& visit) {
  for (std::size_t i = 0; i < std::size(kTermFields); ++i) visit(kScoreTerms[i], kTermFields[i]);
}
/// visit(HW_TERM_*, its flag)
template <class F>
void each_term_bit(F&& visit) {
  each_term([&](const ScoreTerm& t, const TermField& f) {
    if (t.planned != nullptr) visit(f.bit, t.planned);
  });
  visit(std::uint32_t{HW_TERM_ROWS}, &Terms::rows);
}
/// visit(HW_GRAD_*, its flag)
template <class F>
void each_gradient_bit(F&& visit) {
  visit(std::uint32_t{HW_GRAD_Q}, &GradientSpec::q), visit(std::uint32_t{HW_GRAD_K}, &GradientSpec::k);
  visit(std::uint32_t{HW_GRAD_V}, &GradientSpec::v);
  each_term([&](const ScoreTerm& t, const TermField& f) {
    if (t.gradient != nullptr) visit(f.gradient_bit, t.wanted);
  });
}

}  // namespace headwise::c
