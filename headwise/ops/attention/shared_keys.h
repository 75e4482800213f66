// SharedKeys: attention whose keys in pages are shared out over ranks, in the bits of one.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>

#include "headwise/ops/attention/attention.h"
#include "headwise/spec/key_share.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One run. Keys lie in pages on the CPU; those of other ranks' splits are not read, whatever the table says
/// of them. Probes are refused. It lives no longer than what args point to.
class SharedKeys {
 public:
  SharedKeys(const AttentionArgs& args, Context& ctx);
  /// Splits of the longest sequence, and f32 numbers of the states of one.
  Index splits() const { return ceil_div(problem_.kv_tokens, kSplitKeys); }
  Index state_numbers() const;
  /// Of the share's splits, one behind the other.
  void own_states(const KeyShare& share, std::span<float> states) const;
  /// out = the rows that the states of all splits make, in their order.
  void join(std::span<const float* const> states) const;

 private:
  std::span<std::byte> workspace() const;

  AttentionProblem problem_;
  AttentionArgs args_;
  std::vector<std::int32_t> pages_;
  Context& ctx_;
};

}  // namespace headwise
#pragma GCC visibility pop
