// weight_names: our names of a decoder's weights in the words of each file format.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace headwise {

/// "layers.3.q.weight" -> "blk.3.attn_q.weight".
std::string gguf_weight_name(const std::string& ours);
/// "layers.3.q.weight" -> "model.layers.3.self_attn.q_proj.weight"; `behind`: a family whose attention and
/// feed-forward have norms behind them (Gemma 2 and 3).
std::string hf_weight_name(const std::string& ours, bool behind);

}  // namespace headwise
