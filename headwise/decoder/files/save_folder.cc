#include "headwise/decoder/files/save_folder.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include "headwise/base/buffer.h"
#include "headwise/base/words.h"
#include "headwise/model/safetensors.h"

namespace headwise {
namespace {

constexpr std::string_view kOp = "save decoder";

void need(bool fits, const char* setting, const char* words) {
  require(fits, ErrorKind::unsupported, kOp, setting, " is one that such a folder has no place for; ", words);
}

/// Written beside its name, then given it.
void write_whole(const std::string& path, std::string_view content) {
  const std::string part = path + ".part";
  std::ofstream out(part, std::ios::binary);
  out << content;
  out.close();
  std::error_code code;
  if (out.good()) std::filesystem::rename(part, path, code);
  require(out.good() && !code, ErrorKind::bad_argument, kOp, path,
          " cannot be written; is there room, may you write there?");
}

class Saver {
 public:
  Saver(const Transformer& model, ParamSet& params)
      : c_(model.config()),
        params_(params),
        block_(model.stack().block(0)),
        llama_(c_.positions == Positions::rope) {
    check();
    const HeadSpec spec = head().spec();
    head_dim_ = spec.q.dim;
    heads_ = head().widths().q / head_dim_, kv_heads_ = head().widths().k / head_dim_;
    if (!llama_)
      need(heads_ * head_dim_ == c_.model_dim && kv_heads_ == heads_, "heads",
           "gpt2 has mha of model_dim columns");
  }

  std::vector<NamedTensor> tensors() {
    if (llama_) return llama_tensors();
    return gpt2_tensors();
  }
  std::string config(const std::vector<Index>& ends) const {
    std::string list;
    for (const Index id : ends) list += (list.empty() ? "" : ", ") + std::to_string(id);
    const std::string end = ends.empty() ? "null" : "[" + list + "]";
    const NormOptions& norm = c_.norm;
    if (!llama_) {
      const char* act = c_.feed == FeedKind::relu ? "relu" : c_.feed == FeedKind::gelu ? "gelu" : "gelu_new";
      return text("{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": ",
                  c_.vocabulary, ", \"n_positions\": ", c_.max_tokens, ", \"n_embd\": ", c_.model_dim,
                  ", \"n_layer\": ", c_.depth, ", \"n_head\": ", heads_, ", \"n_inner\": ", c_.feed_dim,
                  ", \"activation_function\": \"", act, "\", \"layer_norm_epsilon\": ", norm.eps,
                  ", \"tie_word_embeddings\": ", word(c_.tied),
                  ", \"bos_token_id\": null, \"eos_token_id\": ", end, "}\n");
    }
    return text("{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], \"vocab_size\": ",
                c_.vocabulary, ", \"hidden_size\": ", c_.model_dim, ", \"intermediate_size\": ", c_.feed_dim,
                ", \"num_hidden_layers\": ", c_.depth, ", \"num_attention_heads\": ", heads_,
                ", \"num_key_value_heads\": ", kv_heads_, ", \"head_dim\": ", head_dim_,
                ", \"max_position_embeddings\": ", c_.max_tokens, ", \"rms_norm_eps\": ", norm.eps,
                ", \"hidden_act\": \"silu\", \"rope_theta\": ", block_.options().rope.base,
                ", \"attention_bias\": ", word(c_.bias), ", \"mlp_bias\": ", word(c_.bias),
                ", \"tie_word_embeddings\": ", word(c_.tied),
                ", \"bos_token_id\": null, \"eos_token_id\": ", end, "}\n");
  }

 private:
  static const char* word(bool b) { return b ? "true" : "false"; }
  const AnyHead& head() const { return block_.self_attention()->head(); }

  void check() const {
    need(c_.kind == ModelKind::decoder, "the kind", "only a decoder writes texts");
    need(llama_ || c_.positions == Positions::learned, "positions",
         "learned (gpt2) and rope (llama) are known");
    need(c_.norm_first && c_.final_norm && !c_.embed_norm, "a norm's place",
         "norms stand first, and one at the end");
    need(c_.share_layers == 1 && c_.token_types == 0 && !c_.scaled_embedding,
         "share_layers, token_types or scaled_embedding", "leave them out");
    const std::string name(head().name());
    need(name == "mha" || (llama_ && name == "gqa"), "heads", "mha, and with rope gqa, are known");
    need(head().widths().out == head().widths().q, "value_dim", "values as wide as queries are known");
    if (llama_) {
      need(c_.norm.kind == NormKind::rms && c_.feed == FeedKind::swiglu, "norm or feed",
           "with rope give rms norms and swiglu");
      need(block_.options().rope == RopeOptions{.base = block_.options().rope.base}, "rope",
           "whole heads turn, unscaled");
    } else {
      need(c_.norm.kind == NormKind::layer && c_.norm.bias && c_.bias && c_.feed != FeedKind::swiglu,
           "norm, bias or feed", "with learned positions give layer norms, biases and relu or gelu");
    }
  }

  AnyView value(const std::string& name) { return params_.find(name).value(); }
  void add(std::string name, const std::string& ours) { out_.push_back({std::move(name), value(ours)}); }

  std::vector<NamedTensor> llama_tensors() {
    add("model.embed_tokens.weight", "embed.table"), add("model.norm.weight", "stack.norm.weight");
    if (!c_.tied) add("lm_head.weight", "out.weight");
    for (Index i = 0; i < c_.depth; ++i) {
      const std::string theirs = text("model.layers.", i, "."), ours = text("stack.layers.", i, ".");
      const auto both = [&](const char* to, const char* from) {
        for (const char* kind : {".weight", ".bias"})
          if (params_.has(ours + from + kind)) add(theirs + to + kind, ours + from + kind);
      };
      both("self_attn.q_proj", "attention.q"), both("self_attn.k_proj", "attention.k");
      both("self_attn.v_proj", "attention.v"), both("self_attn.o_proj", "attention.out");
      both("mlp.gate_proj", "feed.gate"), both("mlp.up_proj", "feed.in"), both("mlp.down_proj", "feed.out");
      both("input_layernorm", "norm1"), both("post_attention_layernorm", "norm2");
    }
    return std::move(out_);
  }

  std::vector<NamedTensor> gpt2_tensors() {
    add("transformer.wte.weight", "embed.table"), add("transformer.wpe.weight", "embed.positions");
    if (!c_.tied) add("lm_head.weight", "out.weight");
    for (const char* kind : {".weight", ".bias"})
      add(text("transformer.ln_f", kind), text("stack.norm", kind));
    for (Index i = 0; i < c_.depth; ++i) {
      const std::string theirs = text("transformer.h.", i, "."), ours = text("stack.layers.", i, ".");
      for (const char* kind : {".weight", ".bias"}) {
        add(theirs + "ln_1" + kind, ours + "norm1" + kind),
            add(theirs + "ln_2" + kind, ours + "norm2" + kind);
        const auto join = [&](const char* to, std::vector<std::string> from) {
          for (std::string& f : from) f = ours + f + kind;
          joined(theirs + to + kind, from);
        };
        join("attn.c_attn", {"attention.q", "attention.k", "attention.v"}),
            join("attn.c_proj", {"attention.out"});
        join("mlp.c_fc", {"feed.in"}), join("mlp.c_proj", {"feed.out"});
      }
    }
    return std::move(out_);
  }
  /// [out in] matrices turned and side by side, as GPT-2 has them; biases one after another.
  void joined(std::string name, const std::vector<std::string>& parts) {
    const AnyView first = value(parts[0]);
    const Index in = first.rank == 2 ? first.size[1] : 1, n = std::ssize(parts), out = first.size[0];
    const auto bytes = static_cast<std::size_t>(size_of(first.dtype));
    held_.push_back(first.rank == 2 ? Tensor(first.dtype, {in, n * out}) : Tensor(first.dtype, {n * out}));
    auto* to = static_cast<char*>(held_.back().view().data);
    for (Index p = 0; p < n; ++p) {
      const auto* from = static_cast<const char*>(value(parts[static_cast<std::size_t>(p)]).data);
      for (Index r = 0; r < out; ++r)
        for (Index i = 0; i < in; ++i)
          std::memcpy(to + static_cast<std::size_t>(i * n * out + p * out + r) * bytes,
                      from + static_cast<std::size_t>(r * in + i) * bytes, bytes);
    }
    out_.push_back({std::move(name), held_.back().view()});
  }

  const TransformerConfig& c_;
  ParamSet& params_;
  const Block& block_;
  bool llama_;
  Index heads_ = 0, kv_heads_ = 0, head_dim_ = 0;
  std::vector<NamedTensor> out_;
  std::vector<Tensor> held_;
};

}  // namespace

void save_decoder(const std::string& folder, const Transformer& model, ParamSet& params,
                  const DecoderSaveOptions& options) {
  Saver saver(model, params);
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  require(!code, ErrorKind::bad_argument, kOp, folder, " cannot be made: ", code.message());
  std::filesystem::remove(folder + "/config.json", code);
  write_safetensors(folder + "/model.safetensors", saver.tensors());
  if (!options.tokenizer_json.empty()) write_whole(folder + "/tokenizer.json", options.tokenizer_json);
  write_whole(folder + "/config.json", saver.config(options.ends));
}

}  // namespace headwise
