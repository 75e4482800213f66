#include "headwise/decoder/files/hf_config.h"

#include <algorithm>
#include <cmath>

namespace headwise {
namespace {

constexpr Index kMost = Index{1} << 26;

/// Keys of other models' mathematics; they may stand there with the value that changes nothing.
void check_plain(const JsonObject& json) {
  for (const char* key :
       {"clip_qkv", "residual_multiplier", "embedding_multiplier", "attention_multiplier", "logits_scaling",
        "num_experts", "num_local_experts", "n_routed_experts", "quantization_config", "alibi",
        "layer_norm_type", "attention_chunk_size", "no_rope_layers"})
    if (json.has(key)) json.refuse(key, "this is not computed");
  for (const char* key :
       {"qk_layernorm", "use_qk_norm", "parallel_attn", "add_cross_attention", "is_encoder_decoder",
        "scale_attn_by_inverse_layer_idx", "use_bidirectional_attention"})
    if (json.boolean(key, false)) json.refuse(key, "this is not computed");
  if (json.number("partial_rotary_factor", 0, 1, 1.0) != 1)
    json.refuse("partial_rotary_factor", "whole heads are turned");
}

Activation activation_of(const JsonObject& json, const char* key, const char* otherwise) {
  const std::string name = json.word(key, otherwise);
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu;
  if (name == "relu") return Activation::relu;
  json.refuse(key, "silu, gelu, gelu_new, gelu_pytorch_tanh and relu are computed");
}

/// One object of RoPE's settings: type, base, factors.
RopeOptions rope_of(const JsonObject& json, double base, Index positions) {
  RopeOptions o;
  o.base = json.number("rope_theta", 1e-3, 1e12, base);
  if (json.number("partial_rotary_factor", 0, 1, 1.0) != 1)
    json.refuse("partial_rotary_factor", "whole heads are turned");
  const char* key = json.has("rope_type") ? "rope_type" : "type";
  const std::string kind = json.word(key, "default");
  if (kind == "default") return o;
  const double factor = json.number("factor", 1, 1e6);
  const Index length = json.integer("original_max_position_embeddings", 1, kMost, positions);
  if (kind == "linear") {
    o.scaling = RopeScaling::linear(factor);
  } else if (kind == "llama3") {
    o.scaling = RopeScaling::llama3(factor, json.number("low_freq_factor", 0, 1e6),
                                    json.number("high_freq_factor", 0, 1e6), length);
  } else if (kind == "yarn") {
    for (const char* other : {"mscale", "mscale_all_dim"})
      if (json.has(other)) json.refuse(other, "this is not computed");
    o.scaling = RopeScaling::yarn(factor, length);
    o.scaling.beta_fast = json.number("beta_fast", 0, 1e6, 32.0);
    o.scaling.beta_slow = json.number("beta_slow", 0, 1e6, 1.0);
    o.scaling.truncate = json.boolean("truncate", true);
    o.scaling.attention_factor = json.number("attention_factor", 0, 1e6, 0.0);
  } else {
    json.refuse(key, "default, linear, llama3 and yarn are computed");
  }
  return o;
}

void read_rope(const JsonObject& json, DecoderConfig& c) {
  const bool gemma3 = c.family == "gemma3";
  const double base = json.number("rope_theta", 1e-3, 1e12, gemma3 ? 1e6 : 10000.0);
  const double local = json.number("rope_local_base_freq", 1e-3, 1e12, 10000.0);
  // Newer files have one object, maybe one for each kind of layer; older ones a base and a scaling beside it.
  const char* key = json.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const JsonObject rope = json.object(key);
  if (rope.is_object("full_attention") || rope.is_object("sliding_attention")) {
    c.rope = rope_of(rope.object("full_attention"), base, c.positions);
    c.sliding_rope = rope_of(rope.object("sliding_attention"), gemma3 ? local : base, c.positions);
    return;
  }
  c.rope = rope_of(rope, base, c.positions);
  c.sliding_rope = c.rope;
  if (gemma3) c.sliding_rope = {.base = local};
}

/// Which layers look at a window alone: by name, or by the family's rule.
void read_windows(const JsonObject& json, DecoderConfig& c) {
  c.windows.assign(static_cast<std::size_t>(c.layers), 0);
  const bool qwen = c.family == "qwen2" || c.family == "qwen3",
             gemma = c.family == "gemma2" || c.family == "gemma3";
  const bool may = c.family == "mistral" || gemma || (qwen && json.boolean("use_sliding_window", false));
  if (!may || !json.has("sliding_window")) {
    for (const std::string& kind : json.words("layer_types"))
      if (kind != "full_attention") json.refuse("layer_types", "without a window all layers see all tokens");
    return;
  }
  const Index window = json.integer("sliding_window", 1, kMost);
  const std::vector<std::string> kinds = json.words("layer_types");
  if (!kinds.empty() && kinds.size() != c.windows.size())
    json.refuse("layer_types", "there are ", c.layers, " layers");
  const Index from = qwen ? json.integer("max_window_layers", 0, kMost, 28) : 0;
  const Index each = c.family == "gemma2" ? 2 : json.integer("sliding_window_pattern", 1, kMost, 6);
  for (Index i = 0; i < c.layers; ++i) {
    bool sliding = gemma ? (i + 1) % each != 0 : i >= from;
    if (!kinds.empty()) {
      const std::string& kind = kinds[static_cast<std::size_t>(i)];
      if (kind != "sliding_attention" && kind != "full_attention")
        json.refuse("layer_types", "full_attention and sliding_attention are computed");
      sliding = kind == "sliding_attention";
    }
    if (sliding) c.windows[static_cast<std::size_t>(i)] = window;
  }
}

void read_gemma(const JsonObject& json, DecoderConfig& c) {
  c.norm_weight = WeightForm::one_plus;
  c.activation = activation_of(json, "hidden_activation", "gelu_pytorch_tanh");
  // The model's own code rounds the factor to the dtype it runs in: here f32.
  c.embed_scale = static_cast<double>(std::sqrt(static_cast<float>(c.model_dim)));
  c.norms_behind = c.family != "gemma", c.head_norms = c.family == "gemma3";
  if (c.family == "gemma") return;
  c.scale = 1 / std::sqrt(json.number("query_pre_attn_scalar", 1e-3, 1e6, 256.0));
  // Gemma 2 has both where the file says nothing; null says none.
  const std::vector<std::string> keys = json.keys();
  const auto cap = [&](const char* key, double otherwise) {
    const bool named = std::find(keys.begin(), keys.end(), key) != keys.end();
    return json.number(key, 0, 1e6, named || c.family != "gemma2" ? 0.0 : otherwise);
  };
  c.attention_softcap = cap("attn_logit_softcapping", 50),
  c.logit_softcap = cap("final_logit_softcapping", 30);
}

DecoderConfig read_gpt2(const JsonObject& json) {
  DecoderConfig c;
  c.family = "gpt2";
  c.layers = json.integer("n_layer", 1, 1000), c.model_dim = json.integer("n_embd", 1, 65'536);
  c.heads = c.kv_heads = json.integer("n_head", 1, 4096);
  if (c.model_dim % c.heads != 0)
    json.refuse("n_head", "n_embd (", c.model_dim, ") must be a multiple of it");
  c.head_dim = c.model_dim / c.heads;
  c.feed_dim = json.integer("n_inner", 1, kMost, 4 * c.model_dim);
  c.positions = json.integer("n_positions", 1, kMost),
  c.vocabulary = json.integer("vocab_size", 1, 2'000'000);
  c.norm = NormKind::layer, c.eps = json.number("layer_norm_epsilon", 0, 1, 1e-5);
  c.activation = activation_of(json, "activation_function", "gelu_new");
  c.gated = false, c.qkv_bias = c.out_bias = c.feed_bias = c.learned_positions = true;
  c.tied = json.boolean("tie_word_embeddings", true);
  if (!json.boolean("scale_attn_weights", true)) json.refuse("scale_attn_weights", "scores are scaled");
  c.windows.assign(static_cast<std::size_t>(c.layers), 0);
  return c;
}

}  // namespace

DecoderConfig hf_decoder_config(const JsonObject& json) {
  std::string family = json.word("model_type");
  constexpr const char* kFamilies[] = {"gpt2",  "llama", "mistral", "qwen2",
                                       "qwen3", "gemma", "gemma2",  "gemma3_text"};
  if (std::find(std::begin(kFamilies), std::end(kFamilies), family) == std::end(kFamilies))
    json.refuse("model_type", "gpt2, llama, mistral, qwen2, qwen3, gemma, gemma2 and gemma3_text are read");
  check_plain(json);
  if (family == "gpt2") return read_gpt2(json);
  DecoderConfig c;
  c.family = family == "gemma3_text" ? "gemma3" : family;
  const bool gemma = family.starts_with("gemma");
  if (!gemma)
    for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"})
      if (json.has(key)) json.refuse(key, "only gemma's are computed");
  c.layers = json.integer("num_hidden_layers", 1, 1000), c.model_dim = json.integer("hidden_size", 1, 65'536);
  c.feed_dim = json.integer("intermediate_size", 1, kMost),
  c.heads = json.integer("num_attention_heads", 1, 4096);
  c.kv_heads = json.integer("num_key_value_heads", 1, 4096, c.heads);
  c.head_dim = json.integer("head_dim", 1, 4096, gemma ? 256 : c.model_dim / c.heads);
  c.vocabulary = json.integer("vocab_size", 1, 2'000'000);
  c.positions = json.integer("max_position_embeddings", 1, kMost, 2048);
  c.eps = json.number("rms_norm_eps", 0, 1, 1e-6);
  c.tied = json.boolean("tie_word_embeddings", gemma);
  if (!gemma) c.activation = activation_of(json, "hidden_act", "silu");
  const bool biased = json.boolean("attention_bias", false);
  c.qkv_bias = biased || family == "qwen2", c.out_bias = biased && family != "qwen2";
  c.feed_bias = json.boolean("mlp_bias", false);
  c.head_norms = family == "qwen3";
  if (gemma) read_gemma(json, c);
  read_rope(json, c);
  read_windows(json, c);
  return c;
}

}  // namespace headwise
