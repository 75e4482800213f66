// Folders of Hugging Face: every family's names and settings, tokenizer.json, shards, refusals by key.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>

#include "headwise/base/context.h"
#include "headwise/decoder/files/hf_config.h"
#include "headwise/decoder/files/weight_names.h"
#include "headwise/decoder/forward/decoder.h"
#include "headwise/model/safetensors.h"
#include "tests/base/sentence.h"
#include "tests/decoder/tiny_model.h"
#include "tests/model/scratch_folder.h"

namespace headwise {
namespace {

const std::string kSizes =
    R"("hidden_size":24,"intermediate_size":40,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,)"
    R"("head_dim":6,"vocab_size":50,"max_position_embeddings":128,"rms_norm_eps":1e-5,"tie_word_embeddings":false)";

std::string config_of(const std::string& type, const std::string& more = "") {
  return R"({"model_type":")" + type + "\"," + kSizes + (more.empty() ? "" : "," + more) + "}";
}
DecoderConfig read(const std::string& json) { return hf_decoder_config(JsonObject(json, "config")); }

struct Family {
  const char* name;
  std::string json;
};
std::vector<Family> families() {
  const std::string gemma = R"("query_pre_attn_scalar":11,"hidden_activation":"gelu_pytorch_tanh")";
  return {
      {"llama", config_of("llama", R"("rope_theta":500000)")},
      {"llama 3, newer keys",
       config_of("llama",
                 R"("rope_parameters":{"rope_type":"llama3","rope_theta":300,"factor":8,"low_freq_factor":1,)"
                 R"("high_freq_factor":4,"original_max_position_embeddings":16})")},
      {"mistral", config_of("mistral", R"("sliding_window":5)")},
      {"qwen2", config_of("qwen2", R"("use_sliding_window":true,"max_window_layers":1,"sliding_window":4)")},
      {"qwen3", config_of("qwen3")},
      {"gemma", config_of("gemma")},
      {"gemma2", config_of("gemma2", gemma + R"(,"sliding_window":6)")},
      {"gemma3",
       config_of("gemma3_text",
                 gemma + R"(,"sliding_window":6,"layer_types":["sliding_attention","full_attention"])")},
      {"gpt2",
       R"({"model_type":"gpt2","n_embd":24,"n_layer":2,"n_head":4,"n_positions":64,"vocab_size":50})"},
  };
}

/// Every weight of a model, by our names with sizes: what a Decoder asks for.
class Listing final : public DecoderSource {
 public:
  explicit Listing(const DecoderConfig& c) : tiny(c) { config_ = tiny.config(); }
  void check(const std::string& name, Index rows, Index columns) override {
    tiny.check(name, rows, columns);
    sizes[name] = {rows, columns};
  }
  void read(const std::string& name, Index rows, Index columns, float* to) override {
    tiny.read(name, rows, columns, to);
  }
  void check_nothing_left() const override {}
  Tensor tensor(const std::string& name) {
    const auto [rows, columns] = sizes.at(name);
    Tensor t = rows > 0 ? Tensor(DType::f32, {rows, columns}) : Tensor(DType::f32, {columns});
    tiny.read(name, rows, columns, t.values<float>().data());
    return t;
  }
  TinySource tiny;
  std::map<std::string, std::pair<Index, Index>> sizes;
};

/// The folder such a model is saved as; GPT-2's matrices lie as [in out], with q, k and v side by side.
void save(Listing& model, const ScratchFolder& folder, const std::string& json) {
  std::vector<Tensor> held;
  std::vector<std::string> names;
  const auto keep = [&](const std::string& name, Tensor t) {
    names.push_back(name);
    held.push_back(std::move(t));
  };
  const bool gpt2 = model.config().family == "gpt2";
  for (const auto& [name, size] : model.sizes) {
    if (!gpt2) {
      keep(hf_weight_name(name, model.config().norms_behind), model.tensor(name));
      continue;
    }
    if (name == "embed") keep("transformer.wte.weight", model.tensor(name));
    if (name == "positions") keep("transformer.wpe.weight", model.tensor(name));
    if (name.starts_with("norm.")) keep("transformer.ln_f" + name.substr(4), model.tensor(name));
    if (!name.starts_with("layers.")) continue;
    const std::string at = "transformer.h." + name.substr(7, 2), part = name.substr(9, name.rfind('.') - 9);
    const std::string tail = name.substr(name.rfind('.'));
    const std::pair<const char*, const char*> plain[] = {{"norm_1", "ln_1"}, {"norm_2", "ln_2"}};
    for (const auto& [ours, theirs] : plain)
      if (part == ours) keep(at + theirs + tail, model.tensor(name));
    const auto turned = [&](const std::vector<std::string>& parts, const std::string& theirs) {
      if (tail == ".bias") {
        Tensor all(DType::f32, {std::ssize(parts) * size.second});
        Index to = 0;
        for (const std::string& p : parts) {
          Tensor t = model.tensor(name.substr(0, 9) + p + tail);
          for (const float x : t.values<float>()) all.values<float>()[static_cast<std::size_t>(to++)] = x;
        }
        return keep(at + theirs + tail, std::move(all));
      }
      const Index rows = size.first, columns = size.second, wide = rows * std::ssize(parts);
      Tensor all(DType::f32, {columns, wide});
      for (std::size_t p = 0; p < parts.size(); ++p) {
        Tensor t = model.tensor(name.substr(0, 9) + parts[p] + tail);
        for (Index r = 0; r < rows; ++r)
          for (Index c = 0; c < columns; ++c)
            all.values<float>()[static_cast<std::size_t>(c * wide + static_cast<Index>(p) * rows + r)] =
                t.values<float>()[static_cast<std::size_t>(r * columns + c)];
      }
      keep(at + theirs + tail, std::move(all));
    };
    if (part == "q") turned({"q", "k", "v"}, "attn.c_attn");
    if (part == "o") turned({"o"}, "attn.c_proj");
    if (part == "up") turned({"up"}, "mlp.c_fc");
    if (part == "down") turned({"down"}, "mlp.c_proj");
  }
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < held.size(); ++i) tensors.push_back({names[i], held[i].view()});
  write_safetensors(folder / "model.safetensors", tensors);
  folder.file("config.json", json);
}

std::vector<float> logits_of(DecoderSource& source, Context& ctx) {
  const Decoder model(source, {}, ctx);
  KvCache cache(model.kv_shape(), {.bytes = 1 << 20, .page_tokens = 8});
  const SequenceId id = cache.open();
  std::vector<DecoderRow> rows;
  for (const TokenId t : {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5}) rows.push_back({id, t, true});
  EXPECT_TRUE(cache.reserve(id, std::ssize(rows)));
  DecoderStep step;
  model.forward(rows, cache, step, ctx);
  std::vector<float> all;
  for (Index i = 0; i < std::ssize(rows); ++i)
    all.insert(all.end(), step.logits(i).begin(), step.logits(i).end());
  return all;
}

TEST(HfFolder, EveryFamilysNamesAndSettingsGiveTheModelBack) {
  Context ctx({.threads = 1});
  for (const Family& f : families()) {
    Listing model(read(f.json));
    const std::vector<float> want = logits_of(model, ctx);
    const ScratchFolder folder;
    save(model, folder, f.json);
    const auto source = open_decoder(folder.path());
    for (const auto& [name, size] : model.sizes) {
      Tensor own = model.tensor(name);
      const std::span<const float> numbers = own.values<const float>();
      std::vector<float> read_back(numbers.size());
      source->check(name, size.first, size.second);
      source->read(name, size.first, size.second, read_back.data());
      EXPECT_TRUE(std::equal(numbers.begin(), numbers.end(), read_back.begin())) << f.name << " " << name;
    }
    const std::vector<float> got = logits_of(*source, ctx);
    ASSERT_EQ(got.size(), want.size());
    EXPECT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0) << f.name;
  }
}

TEST(HfFolder, SettingsOfEveryFamilyAreRead) {
  const auto all = families();
  DecoderConfig c = read(all[0].json);
  EXPECT_EQ(c.rope.base, 500000);
  EXPECT_EQ(c.windows, (std::vector<Index>{0, 0}));
  c = read(all[1].json);
  EXPECT_EQ(c.rope.base, 300);
  EXPECT_EQ(c.rope.scaling, RopeScaling::llama3(8, 1, 4, 16));
  EXPECT_EQ(read(all[2].json).windows, (std::vector<Index>{5, 5}));
  c = read(all[3].json);
  EXPECT_EQ(c.windows, (std::vector<Index>{0, 4}));
  EXPECT_TRUE(c.qkv_bias && !c.out_bias);
  EXPECT_TRUE(read(all[4].json).head_norms);
  c = read(all[6].json);
  EXPECT_EQ(c.windows, (std::vector<Index>{6, 0}));
  EXPECT_EQ(c.attention_softcap, 50);
  EXPECT_EQ(c.logit_softcap, 30);
  EXPECT_NEAR(c.scale, 1 / std::sqrt(11.0), 1e-12);
  c = read(all[7].json);
  EXPECT_EQ(c.windows, (std::vector<Index>{6, 0}));
  EXPECT_EQ(c.rope.base, 1e6);
  EXPECT_EQ(c.sliding_rope.base, 1e4);
  c = read(all[8].json);
  EXPECT_EQ(c.feed_dim, 96);
  EXPECT_TRUE(c.learned_positions && c.tied && !c.gated);
}

TEST(HfFolder, KeysThatChangeTheMathematicsAreRefusedByName) {
  const auto say = [](const std::string& type, const std::string& more) {
    return sentence_of(ErrorKind::bad_argument, [&] { read(config_of(type, more)); });
  };
  EXPECT_EQ(say("mamba", ""),
            "config: \"model_type\" is \"mamba\"; gpt2, llama, mistral, qwen2, qwen3, gemma, gemma2 and "
            "gemma3_text are read");
  for (const char* key : {"clip_qkv", "residual_multiplier", "embedding_multiplier", "attention_multiplier",
                          "logits_scaling", "num_experts", "num_local_experts"})
    EXPECT_EQ(say("llama", text('"', key, "\":2")), text("config: \"", key, "\" is 2; this is not computed"));
  EXPECT_EQ(say("llama", R"("qk_layernorm":true)"), "config: \"qk_layernorm\" is true; this is not computed");
  EXPECT_EQ(say("llama", R"("final_logit_softcapping":30.0)"),
            "config: \"final_logit_softcapping\" is 30.0; only gemma's are computed");
  EXPECT_EQ(say("llama", R"("rope_scaling":{"rope_type":"longrope","factor":2})"),
            "config: \"rope_scaling\": \"rope_type\" is \"longrope\"; default, linear, llama3 and yarn are "
            "computed");
  EXPECT_EQ(
      say("llama", R"("rope_scaling":{"type":"dynamic","factor":2})"),
      "config: \"rope_scaling\": \"type\" is \"dynamic\"; default, linear, llama3 and yarn are computed");
  EXPECT_EQ(say("llama", R"("partial_rotary_factor":0.5)"),
            "config: \"partial_rotary_factor\" is 0.5; whole heads are turned");
}

TEST(HfFolder, WeightsThatDoNotFitAreRefusedInWords) {
  Context ctx({.threads = 1});
  const std::string json = config_of("llama");
  Listing model(read(json));
  logits_of(model, ctx);
  const ScratchFolder folder;
  save(model, folder, json);
  const auto say = [&](const std::string& config) {
    folder.file("config.json", config);
    return sentence_of(ErrorKind::bad_argument,
                       [&] { const Decoder d(*open_decoder(folder.path()), {}, ctx); });
  };
  const std::string at = "decoder: " + folder.path() + ": ";
  EXPECT_EQ(say(config_of("qwen3")),
            at + "has no \"model.layers.0.self_attn.q_norm.weight\"; config.json asks for it");
  std::string other = json;
  other.replace(other.find("\"num_hidden_layers\":2"), 21, "\"num_hidden_layers\":1");
  EXPECT_NE(say(other).find("which config.json does not ask for; they are of different models"),
            std::string::npos);
  other = json;
  other.replace(other.find("\"vocab_size\":50"), 15, "\"vocab_size\":51");
  EXPECT_EQ(say(other),
            at + "\"model.embed_tokens.weight\" has other sizes than config.json asks for, [51 24]");
  other = json;
  other.replace(other.find("embeddings\":false"), 17, "embeddings\":true ");
  EXPECT_EQ(say(other), at + "has an lm_head.weight of its own, but config.json ties it to the embedding");
}

const char* const kTokenizer =
    R"({"version":"1.0","added_tokens":[{"id":6,"content":"<|e|>","special":true,"lstrip":false,
"rstrip":false,"normalized":false,"single_word":false}],"normalizer":null,
"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":true},
{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}]},
"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|e|>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}]},
"model":{"type":"BPE","vocab":{"a":0,"b":1,"c":2,"ab":3,"bc":4,"abc":5},"merges":["b c",["a","b"],"a bc"]}})";

TEST(HfFolder, TokenizerJsonIsReadOrRefusedByWhatItAsksFor) {
  Context ctx({.threads = 1});
  const std::string json = config_of("llama", R"("eos_token_id":[6,2])");
  Listing model(read(json));
  logits_of(model, ctx);
  const ScratchFolder folder;
  save(model, folder, json);
  folder.file("tokenizer.json", kTokenizer);
  const auto source = open_decoder(folder.path());
  ASSERT_NE(source->tokenizer(), nullptr);
  EXPECT_EQ(source->tokenizer()->encode("abcab<|e|>c"), (std::vector<TokenId>{6, 5, 3, 6, 2}));
  EXPECT_EQ(source->tokenizer()->end_tokens(), (std::vector<TokenId>{6, 2}));
  folder.file("generation_config.json", R"({"eos_token_id":3})");
  EXPECT_EQ(open_decoder(folder.path())->tokenizer()->end_tokens(), (std::vector<TokenId>{3}));
  const auto say = [&](std::string from, const std::string& to) {
    std::string file = kTokenizer;
    file.replace(file.find(from), from.size(), to);
    folder.file("tokenizer.json", file);
    return sentence_of(ErrorKind::bad_argument, [&] { open_decoder(folder.path()); });
  };
  EXPECT_NE(say("\"BPE\"", "\"Unigram\"").find("\"type\" is \"Unigram\"; BPE is read"), std::string::npos);
  EXPECT_NE(say("\"normalizer\":null", R"("normalizer":{"type":"NFKC"})").find("\"type\" is \"NFKC\""),
            std::string::npos);
  EXPECT_NE(say("\"Digits\"", "\"Whitespace\"").find("is not gpt2's"), std::string::npos);
  EXPECT_NE(say("\"lstrip\":false", "\"lstrip\":true").find("special tokens are found as they are spelt"),
            std::string::npos);
  EXPECT_NE(say("\"abc\":5", "\"abc\":77").find("a token has the id 77; the model has 50 rows"),
            std::string::npos);
  EXPECT_NE(say("\"abc\":5", "\"abd\":5").find("both and what they make must be tokens"), std::string::npos);
  EXPECT_NE(say("add_prefix_space\":false", "add_prefix_space\":true").find("\"add_prefix_space\" is true"),
            std::string::npos);
}

}  // namespace
}  // namespace headwise
