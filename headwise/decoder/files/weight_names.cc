#include "headwise/decoder/files/weight_names.h"

#include <string_view>

namespace headwise {
namespace {

struct Part {
  std::string_view ours, gguf, hf;
  std::string_view hf_behind = hf;  // in families with norms behind attention and feed-forward
};
constexpr Part kParts[] = {
    {"norm_1", "attn_norm", "input_layernorm"},
    {"q", "attn_q", "self_attn.q_proj"},
    {"k", "attn_k", "self_attn.k_proj"},
    {"v", "attn_v", "self_attn.v_proj"},
    {"o", "attn_output", "self_attn.o_proj"},
    {"q_norm", "attn_q_norm", "self_attn.q_norm"},
    {"k_norm", "attn_k_norm", "self_attn.k_norm"},
    {"behind_1", "post_attention_norm", "post_attention_layernorm"},
    {"norm_2", "ffn_norm", "post_attention_layernorm", "pre_feedforward_layernorm"},
    {"behind_2", "post_ffw_norm", "post_feedforward_layernorm"},
    {"gate", "ffn_gate", "mlp.gate_proj"},
    {"up", "ffn_up", "mlp.up_proj"},
    {"down", "ffn_down", "mlp.down_proj"},
};
constexpr Part kWhole[] = {
    {"embed", "token_embd.weight", "model.embed_tokens.weight"},
    {"head", "output.weight", "lm_head.weight"},
    {"norm.weight", "output_norm.weight", "model.norm.weight"},
};

std::string renamed(const std::string& ours, std::string_view Part::*theirs, std::string_view layers) {
  for (const Part& p : kWhole)
    if (p.ours == ours) return std::string(p.*theirs);
  const std::size_t number = ours.find('.') + 1, part = ours.find('.', number) + 1, kind = ours.rfind('.');
  const std::string_view name = std::string_view(ours).substr(part, kind - part);
  for (const Part& p : kParts)
    if (p.ours == name)
      return std::string(layers) + ours.substr(number, part - number) + std::string(p.*theirs) +
             ours.substr(kind);
  return ours;
}

}  // namespace

std::string gguf_weight_name(const std::string& ours) { return renamed(ours, &Part::gguf, "blk."); }

std::string hf_weight_name(const std::string& ours, bool behind) {
  return renamed(ours, behind ? &Part::hf_behind : &Part::hf, "model.layers.");
}

}  // namespace headwise
