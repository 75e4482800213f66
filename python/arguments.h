// The arguments of hw.attention, once: signatures, reading and forwarding are made from this list.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/eval.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "python/call.h"

namespace headwise::python {

struct Argument {
  const char *name, *type;
  const char* value;  // its default as Python writes it; null: it must be given
  nb::handle AttentionWords::*word;
  bool of_backward = true;  // attention_backward takes it too
};

inline constexpr Argument kArguments[] = {
    {"q", "ArrayT", nullptr, &AttentionWords::q},
    {"k", "ArrayT | PackedKeys", nullptr, &AttentionWords::k},
    {"v", "ArrayT", nullptr, &AttentionWords::v},
    {"mask", "Mask | Sequence[Mask] | None", "None", &AttentionWords::mask},
    {"scale", "float | Array | None", "None", &AttentionWords::scale},
    {"softcap", "float | None", "None", &AttentionWords::softcap},
    {"bias", "Array | None", "None", &AttentionWords::bias},
    {"alibi", "bool | Array | None", "None", &AttentionWords::alibi},
    {"relative", "T5 | None", "None", &AttentionWords::relative},
    {"sinks", "Array | None", "None", &AttentionWords::sinks},
    {"gate", "Array | None", "None", &AttentionWords::gate},
    {"dropout", "float", "0.0", &AttentionWords::dropout},
    {"seed", "int", "0", &AttentionWords::seed},
    {"q_start", "int | Sequence[int] | Array", "0", &AttentionWords::q_start},
    {"q_offsets", "Sequence[int] | Array | None", "None", &AttentionWords::q_offsets},
    {"kv_offsets", "Sequence[int] | Array | None", "None", &AttentionWords::kv_offsets},
    {"k_scale", "Array | None", "None", &AttentionWords::k_scale, false},
    {"v_scale", "Array | None", "None", &AttentionWords::v_scale, false},
    {"layout", "str", "'bshd'", &AttentionWords::layout},
    {"out", "ArrayT | None", "None", &AttentionWords::out, false},
    {"return_lse", "bool", "False", &AttentionWords::return_lse, false},
    {"probe", "Probe | Scores | None", "None", &AttentionWords::probe, false},
    {"kernels", "str | Sequence[str] | None", "None", &AttentionWords::kernels},
    {"ctx", "Context | None", "None", &AttentionWords::ctx},
    {"head", "Head | str | None", "None", &AttentionWords::head},
    {"coefficients", "dict[str, Array] | None", "None", &AttentionWords::coefficients},
    {"pages", "Pages | None", "None", &AttentionWords::pages, false},
};
/// q, k, v and mask may come by their place, the rest by name alone.
inline constexpr std::size_t kByPlace = 4, kArgumentCount = std::size(kArguments);
static_assert(sizeof(AttentionWords) == kArgumentCount * sizeof(nb::handle), "every word is an argument");

/// The word of each score term, in the order of kScoreTerms; null: one of the coefficients.
inline constexpr auto kTermWords = [] {
  std::array<nb::handle AttentionWords::*, std::size(kScoreTerms)> all{};
  for (std::size_t i = 0; i < all.size(); ++i)
    for (const Argument& a : kArguments)
      if (std::string_view(a.name) == call_word(kScoreTerms[i])) all[i] = a.word;
  return all;
}();
constexpr nb::handle AttentionWords::*word_of(const ScoreTerm& t) {
  return kTermWords[static_cast<std::size_t>(&t - kScoreTerms)];
}

/// "name: type = value"
inline std::string spelled(const Argument& a) {
  return std::string(a.name) + ": " + a.type + (a.value != nullptr ? std::string(" = ") + a.value : "");
}
/// The default as an object.
inline nb::object default_of(const Argument& a) { return nb::eval(nb::str(a.value)); }

template <const Argument& kArgument>
auto declared() {
  if constexpr (kArgument.value == nullptr)
    return nb::arg(kArgument.name).none();
  else if constexpr (std::string_view(kArgument.value) == "None")
    return nb::arg(kArgument.name) = nb::none();  // None itself may be passed too
  else
    return nb::arg(kArgument.name) = default_of(kArgument);
}

}  // namespace headwise::python
