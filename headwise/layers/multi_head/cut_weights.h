// Weights of heads over ranks that have some of the heads each: a rank's part of them, and all of them again.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/distributed/communicator.h"
#include "headwise/layers/multi_head/cut_head.h"
#include "headwise/layers/multi_head/taps.h"

namespace headwise {

/// One map of weights a head, those of a rank beside each other: they are joined as they lie.
inline bool has_plain_weights(const HeadCut& cut) {
  const std::string_view words = cut.words, kind = words.substr(0, words.find(':'));
  return words.find('+') == words.npos && (kind == "mha" || kind == "gqa" || kind == "entmax");
}

/// Room for this rank's part of `whole` [batch heads q kv]; nothing where that is not given.
inline AnyView own_weights(const AnyView& whole, int ranks, Call& call) {
  if (!whole.given() || ranks == 1) return whole;
  return call.memory.take(whole.dtype, {whole.size[0], whole.size[1] / ranks, whole.size[2], whole.size[3]});
}

/// The newest taps, one a sequence, become those of all heads.
inline void join_taps(const Communicator& team, Index sequences, Taps& taps) {
  for (auto tap = taps.all.end() - sequences; tap != taps.all.end(); ++tap) {
    const Index own = tap->heads, each = tap->q_tokens * tap->kv_tokens;
    tap->heads *= team.ranks();
    std::vector<float> all(static_cast<std::size_t>(tap->heads * each));
    team.gather(AnyView::packed(tap->weights.data(), DType::f32, {own, each}),
                AnyView::packed(all.data(), DType::f32, {tap->heads, each}), 0, "weights of heads");
    tap->weights = std::move(all);
  }
}

}  // namespace headwise
