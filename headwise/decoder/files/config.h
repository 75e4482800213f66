// DecoderConfig: everything that tells one decoder model from another: sizes, norms, positions, windows.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/layers/basic/norm_layer.h"
#include "headwise/ops/norm/norm.h"
#include "headwise/spec/gemm.h"
#include "headwise/spec/rope.h"

#pragma GCC visibility push(default)
namespace headwise {

/// One head of cross-attention.
struct CrossHead {
  Index layer = 0, head = 0;
};

struct DecoderConfig {
  std::string family;  // llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3, gpt2, whisper
  Index layers = 0, model_dim = 0, feed_dim = 0, heads = 0, kv_heads = 0, head_dim = 0;
  Index vocabulary = 0, positions = 0;  // positions: the longest text

  NormKind norm = NormKind::rms;
  double eps = 1e-5;
  WeightForm norm_weight = WeightForm::plain;
  bool norms_behind = false;  // norms on what attention and feed-forward give, too
  bool head_norms = false;    // RMS of every head of q and k, before RoPE

  Activation activation = Activation::silu;
  bool gated = true;  // act(x gate) * (x up); else act(x up)
  bool qkv_bias = false, out_bias = false, feed_bias = false;
  bool tied = false;               // logits by the embedding
  bool learned_positions = false;  // else RoPE
  double embed_scale = 1;
  double scale = 0;  // of scores; 0: 1 / sqrt(head_dim)
  double attention_softcap = 0, logit_softcap = 0;

  RopeOptions rope = {}, sliding_rope = {};  // sliding: of layers with a window
  std::vector<Index> windows = {};           // by layer, the own token counted; 0: all tokens

  bool cross = false;  // every layer looks at an encoder's states too, between attention and feed-forward
  std::vector<CrossHead> alignment = {};  // cross heads that go through the states in order, as the file says

  Index window(Index layer) const { return windows[static_cast<std::size_t>(layer)]; }
  /// Throws with `where` and the key when sizes do not fit together or are beyond all reason.
  void check(std::string_view where) const;
};

}  // namespace headwise
#pragma GCC visibility pop
