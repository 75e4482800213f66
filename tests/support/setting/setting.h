// Setting: one attention call, every option chosen by number; posed, run, and judged against ref in double.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <string>
#include <vector>

#include "headwise/masks/mask.h"
#include "headwise/ops/attention/attention.h"

namespace headwise::test {

enum Option {
  kDtype,
  kHeads,
  kHeadDim,
  kValueDim,
  kQTokens,
  kKvTokens,
  kBatch,
  kStart,
  kRagged,
  kMask,
  kScale,
  kSoftcap,
  kAlibi,
  kBias,
  kRelative,
  kSinks,
  kDropout,
  kGate,
  kLayout,
  kOutLayout,
  kHeadKind,
  kLse,
  kRowProbe,
  kTopK,
  kClasses,
  kColumns,
  kPicked,
  kStage,
  kThreads,
  kKernels,
  kKeysValues,
  kRows,
  kOptions
};
using Choice = std::array<int, kOptions>;

/// How many values an option has; value 0 is the plainest.
int values_of(int option);
const char* name_of(int option);
/// "3.0.12...": what a failing test prints and HEADWISE_CASE takes back.
std::string to_text(const Choice& c);
Choice choice_of(const std::string& text);
/// "dtype bf16, heads 12:4, ...": options that are not plain.
std::string describe(const Choice& c);

/// How k and v come: `eight` is i8 or e4m3, or f32 for the dtype of q; pages of 0 tokens: in one piece.
struct KeysValues {
  const char* name;
  DType eight = DType::f32;
  bool packed = false;
  Index page = 0;
  bool by_head = false;
  bool quantized() const { return eight != DType::f32; }
};
inline constexpr KeysValues kKeyForms[] = {
    {"plain"},
    {"packed", DType::f32, true},
    {"int8", DType::i8},
    {"int8 packed", DType::i8, true},
    {"pages of 16", DType::f32, false, 16},
    {"pages of 64, tokens in heads", DType::f32, false, 64, true},
    {"int8 pages of 16", DType::i8, false, 16},
    {"int8 pages of 64, tokens in heads", DType::i8, false, 64, true},
    {"e4m3", DType::e4m3},
    {"e4m3 packed", DType::e4m3, true},
    {"e4m3 pages of 16", DType::e4m3, false, 16},
};
inline const KeysValues& keys_values(const Choice& c) {
  return kKeyForms[static_cast<std::size_t>(c[kKeysValues])];
}

/// What the numbers stand for.
struct Sizes {
  DType dtype;
  Index batch, q_tokens, kv_tokens, heads, kv_heads, head_dim, value_dim;
};
Sizes sizes_of(const Choice& c);
/// Multiplications of the reference: what a test budgets.
double work_of(const Choice& c);

/// A mask of the kind an option names, for these sizes. Kinds: see setting_masks.cc.
int mask_kinds();
const char* mask_kind_name(int kind);
Mask make_mask(int kind, const Sizes& s, std::uint64_t seed);
/// A random expression: codes below mask_kinds() push a term, higher ones join the last two by & or |.
Mask mask_of_codes(const std::vector<int>& codes, const Sizes& s, std::uint64_t seed);

struct Verdict {
  std::string fault;  // empty: the run matched or was refused as it must be
  bool refused = false;
  double error = 0;  // largest |out - truth|
};

struct SettingOptions {
  std::uint64_t seed = 1;
  const Sizes* sizes = nullptr;  // in place of those the choice names
  const Mask* mask = nullptr;    // likewise
  bool every_isa = true;         // else the chosen level alone
};
/// Runs the choice and compares everything it returns with ref in double on contiguous copies of the same
/// numbers.
Verdict judge(const Choice& c, const SettingOptions& options = {});

}  // namespace headwise::test
