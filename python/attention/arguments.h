// The arguments of hw.attention, once: signatures, reading and forwarding are made from this list.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <nanobind/eval.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "headwise/base/context.h"
#include "headwise/spec/terms.h"
#include "python/arrays/array.h"

namespace headwise::python {

/// As they came from Python; None stands for "not given".
struct AttentionWords {
  nb::handle q, k, v, mask, scale, softcap, bias, alibi, relative, sinks, gate, dropout, seed, q_start,
      q_offsets, kv_offsets, k_scale, v_scale, layout, out, return_lse, probe, kernels, ctx, head,
      coefficients, pages;
};

struct Argument {
  const char *name, *type;
  const char* value = nullptr;  // its default as Python writes it; null: it must be given
  nb::handle AttentionWords::*word;
  bool of_backward = true;     // attention_backward takes it too
  const char* help = nullptr;  // its row in docs/python.md; null: it stands in the row before
};

inline constexpr Argument kArguments[] = {
    {.name = "q", .type = "ArrayT", .word = &AttentionWords::q},
    {.name = "k", .type = "ArrayT | PackedKeys", .word = &AttentionWords::k},
    {.name = "v", .type = "ArrayT", .word = &AttentionWords::v},
    {.name = "mask",
     .type = "Mask | Sequence[Mask] | None",
     .value = "None",
     .word = &AttentionWords::mask,
     .help =
         "a `Mask`, or a list of one per head; True always means *may attend* ([masks.md](masks.md)). A raw "
         "bool array is a `TypeError`: `Mask.dense(x)` and `Mask.from_blocked(x)` say which way round it is"},
    {.name = "scale",
     .type = "float | Array | None",
     .value = "None",
     .word = &AttentionWords::scale,
     .help = "a number or `[heads]`; default 1 / sqrt(head_dim)"},
    {.name = "softcap",
     .type = "float | None",
     .value = "None",
     .word = &AttentionWords::softcap,
     .help = "cap * tanh(s / cap) on the scaled scores; from 1e-30 to 1e30"},
    {.name = "bias",
     .type = "Array | None",
     .value = "None",
     .word = &AttentionWords::bias,
     .help =
         "added to the scores; broadcast from the right to `[batch heads q kv]`, also `[batch*heads q kv]`"},
    {.name = "alibi",
     .type = "bool | Array | None",
     .value = "None",
     .word = &AttentionWords::alibi,
     .help = "True for the published slopes, or slopes `[heads]`"},
    {.name = "relative",
     .type = "T5 | None",
     .value = "None",
     .word = &AttentionWords::relative,
     .help = "`hw.T5(table, bidirectional, max_distance)`, table `[buckets heads]`"},
    {.name = "sinks",
     .type = "Array | None",
     .value = "None",
     .word = &AttentionWords::sinks,
     .help = "`[heads]`: one logit each, in the denominator only"},
    {.name = "gate",
     .type = "Array | None",
     .value = "None",
     .word = &AttentionWords::gate,
     .help = "`[batch q heads]` (ragged `[tokens heads]`), multiplies the head's output"},
    {.name = "dropout",
     .type = "float",
     .value = "0.0",
     .word = &AttentionWords::dropout,
     .help =
         "probability from 0 up to but not including 1; the same seed drops the same pairs on every machine"},
    {.name = "seed", .type = "int", .value = "0", .word = &AttentionWords::seed},
    {.name = "q_start",
     .type = "int | Sequence[int] | Array",
     .value = "0",
     .word = &AttentionWords::q_start,
     .help = "position of the first query: an integer or `[batch]`, may be negative. `hw.end` puts the last "
             "query at the last key (bottom-right); the default 0 is top-left"},
    {.name = "q_offsets",
     .type = "Sequence[int] | Array | None",
     .value = "None",
     .word = &AttentionWords::q_offsets,
     .help = "ragged batches: `[sequences + 1]`, int32 or int64, lists too"},
    {.name = "kv_offsets",
     .type = "Sequence[int] | Array | None",
     .value = "None",
     .word = &AttentionWords::kv_offsets},
    {.name = "k_scale",
     .type = "Array | None",
     .value = "None",
     .word = &AttentionWords::k_scale,
     .of_backward = false,
     .help = "f32 [batch kv_tokens kv_heads], with `pages` [pages page_size kv_heads], in the order of "
             "`layout`: belong to int8 and e4m3 `k` and `v`, as `hw.quantize_kv` gives them"},
    {.name = "v_scale",
     .type = "Array | None",
     .value = "None",
     .word = &AttentionWords::v_scale,
     .of_backward = false},
    {.name = "layout",
     .type = "str",
     .value = "'bshd'",
     .word = &AttentionWords::layout,
     .help = "see below"},
    {.name = "out",
     .type = "ArrayT | None",
     .value = "None",
     .word = &AttentionWords::out,
     .of_backward = false,
     .help = "where to write; returned. It may overlap no input"},
    {.name = "return_lse",
     .type = "bool",
     .value = "False",
     .word = &AttentionWords::return_lse,
     .of_backward = false,
     .help = "also the log-sum-exp: f32 (f64 for f64) `[batch heads q]`, natural log, sink included"},
    {.name = "probe",
     .type = "Probe | Scores | None",
     .value = "None",
     .word = &AttentionWords::probe,
     .of_backward = false,
     .help = "`hw.Probe(...)` or `hw.Scores(stage)`, see below"},
    {.name = "kernels",
     .type = "str | Sequence[str] | None",
     .value = "None",
     .word = &AttentionWords::kernels,
     .help = "`\"cpu/online,ref\"` or a list: the kernels allowed, best first. Without `ref` it is strict: "
             "when all refuse, the error holds every reason"},
    {.name = "ctx",
     .type = "Context | None",
     .value = "None",
     .word = &AttentionWords::ctx,
     .help = "an `hw.Context(threads=, kernels=, device=)` instead of this thread's own; a `device` such as "
             "`\"cuda:0\"` refuses tensors that lie elsewhere"},
    {.name = "head",
     .type = "Head | str | None",
     .value = "None",
     .word = &AttentionWords::head,
     .help = "a head such as `hw.Gqa(heads=8, kv_heads=2)`, see below"},
    {.name = "coefficients",
     .type = "dict[str, Array] | None",
     .value = "None",
     .word = &AttentionWords::coefficients},
    {.name = "pages",
     .type = "Pages | None",
     .value = "None",
     .word = &AttentionWords::pages,
     .of_backward = false,
     .help = "`hw.Pages(table, lengths)`: `k` and `v` are pools of pages ([pages.md](pages.md))"},
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
