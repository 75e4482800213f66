// QkSource: queries and keys of every layer and head in a file, with all that turns them into weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <optional>

#include "headwise/masks/mask.h"
#include "headwise/view/array_file.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Vectors of one layer: q [heads q_tokens head_dim], k [kv_heads kv_tokens head_dim]; lse [heads q_tokens].
struct QkLayer {
  Index number = 0;  // as the model counts it
  FileArray q, k;
  std::optional<FileArray> lse;
};

/// How weights come from them: exp(score - lse) of scale * q.k, capped, where the mask is open.
struct QkTerms {
  float scale = 0;    // 0: 1 / sqrt(head_dim)
  float softcap = 0;  // 0: none
  Mask mask;
  Index q_start = 0;  // position of the first query
};

struct QkSource {
  std::shared_ptr<const void> file;  // what the arrays lie in
  std::string name;
  std::vector<QkLayer> layers;
  QkTerms terms;
  Index heads = 0, kv_heads = 0, q_tokens = 0, kv_tokens = 0, head_dim = 0;
  /// Texts of tokens by place; empty: their numbers are shown.
  std::function<std::string(Index)> query_token, key_token;

  Index kv_head(Index head) const { return head / (heads / kv_heads); }
};

/// Row i of [tokens head_dim] of one head as f32.
void read_vector(const FileArray& a, Index row, std::span<float> to);

/// Of a .atnv, .npz or .safetensors file; arrays are q and k, [heads tokens head_dim] or with layers in
/// front, and lse [heads tokens] where it is known. `terms` are for files that do not say them. Null: the
/// file is another kind.
std::optional<QkSource> open_qk(const std::string& path, const QkTerms& terms);
/// Sizes that agree, and are not absurd; `where` begins the sentence. Fills in the scale.
void check_qk(QkSource& source, const std::string& where);

}  // namespace headwise
#pragma GCC visibility pop
