// SeenHeads: queries and keys of one text in every layer of a decoder, and their weights by the row probes.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <span>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/base/view.h"
#include "headwise/decoder/files/config.h"

namespace headwise {

class SeenHeads {
 public:
  SeenHeads(const DecoderConfig& config, Index tokens);
  /// The next rows of a layer: q [1 rows heads head_dim], k [1 rows kv_heads head_dim], turned.
  void add(Index layer, const AnyView& q, const AnyView& k);
  /// The weights of one query; those of a whole head are computed at once and kept until another is asked.
  void row(Index layer, Index head, Index query, std::span<float> weights);
  /// [heads tokens head_dim]. Queries carry the scale times sqrt(head_dim), so that sums divided by that root
  /// are scores; heads of a group have equal keys.
  std::vector<float> queries(Index layer) const;
  std::vector<float> keys(Index layer) const;

 private:
  void compute(Index layer, Index head);
  std::vector<float> by_head(const std::vector<float>& rows, Index from_heads, float factor) const;

  DecoderConfig config_;
  Index tokens_;
  std::vector<std::vector<float>> q_, k_;  // [tokens heads head_dim] of each layer
  Index layer_ = -1, head_ = -1;           // whose weights are held
  std::vector<float> weights_;             // [tokens tokens]
  Context ctx_;
};

}  // namespace headwise
