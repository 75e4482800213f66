// Pretrained encoders: their settings, names and rows; what does not fit is refused by name.
// SPDX-License-Identifier: Apache-2.0
#include "headwise/model/hf_bert.h"

#include <gtest/gtest.h>

#include <limits>

#include "headwise/base/context.h"
#include "headwise/layers/basic/module.h"
#include "headwise/model/hf_config.h"
#include "tests/base/sentence.h"
#include "tests/model/tiny_bert.h"

namespace headwise {
namespace {

/// The tiny settings with `key` set to `value`, a JSON text; an empty one takes the key out.
std::string with(std::string_view key, std::string_view value) {
  const JsonObject whole(TinyBert::kConfig, "test");
  std::string out = "{";
  const auto put = [&](std::string_view k, std::string_view v) {
    out += text(out.size() > 1 ? "," : "", '"', k, "\":", v);
  };
  const std::string all = TinyBert::kConfig;
  for (const std::string& k : whole.keys()) {
    if (k == key) continue;
    const std::size_t at = all.find('"' + k + "\":") + k.size() + 3;
    put(k, all.substr(
               at, all.find_first_of(k == "architectures" ? "]" : ",}", at) - at + (k == "architectures")));
  }
  if (!value.empty()) put(key, value);
  return out + "}";
}
std::string refusal(std::string_view key, std::string_view value) {
  return sentence_of(ErrorKind::bad_argument, [&] { bert_config(JsonObject(with(key, value), "c")); });
}

TEST(HfConfig, ReadsWhatABertIs) {
  const TransformerConfig c = bert_config(JsonObject(TinyBert::kConfig, "c"));
  EXPECT_EQ(c.kind, ModelKind::encoder);
  EXPECT_EQ(c.heads, "mha:heads=2,dim=4");
  EXPECT_EQ(c.vocabulary, 12);
  EXPECT_EQ(c.model_dim, 8);
  EXPECT_EQ(c.feed_dim, 12);
  EXPECT_EQ(c.depth, 2);
  EXPECT_EQ(c.max_tokens, 7);
  EXPECT_EQ(c.token_types, 2);
  EXPECT_EQ(c.norm.eps, 1e-12);
  EXPECT_EQ(c.dropout, 0.1);
  EXPECT_EQ(c.feed, FeedKind::gelu);
  EXPECT_TRUE(c.embed_norm && !c.norm_first && !c.final_norm);
  EXPECT_EQ(bert_config(JsonObject(with("hidden_act", "\"gelu_new\""), "c")).feed, FeedKind::gelu_tanh);
  EXPECT_EQ(bert_config(JsonObject(with("model_type", ""), "c")).depth, 2);  // architectures says it
  EXPECT_EQ(bert_config(JsonObject(with("type_vocab_size", "null"), "c")).token_types, 2);
  const auto heads = [](const char* key, const char* value) {
    return bert_config(JsonObject(with(key, value), "c")).heads;
  };
  EXPECT_EQ(heads("pruned_heads", "{\"0\":[1]}"), "mha:heads=1,dim=4; mha:heads=2,dim=4");
  EXPECT_EQ(heads("pruned_heads", "{}"), "mha:heads=2,dim=4");
  EXPECT_EQ(heads("num_key_value_heads", "1"), "gqa:heads=2,kv_heads=1,dim=4");
}

TEST(HfConfig, RefusesByKeyAndValue) {
  EXPECT_EQ(refusal("model_type", "\"roberta\""),
            "c: \"model_type\" is \"roberta\"; encoders of model_type \"bert\" are read");
  EXPECT_EQ(refusal("architectures", "[\"GPT2LMHeadModel\"]"),
            "c: \"architectures\" is [\"GPT2LMHeadModel\"]; encoders of model_type \"bert\" are read, and "
            "GPT2LMHeadModel is none");
  EXPECT_EQ(refusal("architectures", "\"BertModel\""),
            "c: \"architectures\" is \"BertModel\"; a list of texts is needed");
  EXPECT_EQ(refusal("hidden_act", "\"swish\""),
            "c: \"hidden_act\" is \"swish\"; gelu, gelu_new, gelu_pytorch_tanh and relu are computed");
  EXPECT_EQ(refusal("position_embedding_type", "\"relative_key\""),
            "c: \"position_embedding_type\" is \"relative_key\"; only \"absolute\" positions are computed");
  EXPECT_EQ(refusal("is_decoder", "true"), "c: \"is_decoder\" is true; only an encoder is read");
  EXPECT_EQ(refusal("is_decoder", "1"), "c: \"is_decoder\" is 1; true or false is needed");
  EXPECT_EQ(refusal("pruned_heads", "{\"0\":[2]}"),
            "c: \"pruned_heads\" is {\"0\":[2]}; layer 0 has heads 0 to 1");
  EXPECT_EQ(refusal("pruned_heads", "{\"1\":[0,1]}"),
            "c: \"pruned_heads\" is {\"1\":[0,1]}; layer 1 keeps no head; at least one is computed");
  EXPECT_EQ(refusal("pruned_heads", "{\"2\":[0]}"),
            "c: \"pruned_heads\" is {\"2\":[0]}; its keys are the numbers of layers, 0 to 1");
  EXPECT_EQ(refusal("num_key_value_heads", "3"),
            "c: \"num_key_value_heads\" is 3; a whole number from 1 to 2 is needed");
  EXPECT_EQ(refusal("headwise_heads", "\"mha:heads=2,dim=4; moh:heads=2\""),
            "c: \"headwise_heads\" is \"mha:heads=2,dim=4; moh:heads=2\"; mha, gqa and collaborative are "
            "what such a folder "
            "holds");
  EXPECT_EQ(refusal("headwise_heads", "\"collaborative:heads=2,dim=4,shared=99999999999\""),
            "c: \"headwise_heads\" is \"collaborative:heads=2,dim=4,shared=99999999999\"; collaborative "
            "layers have at "
            "most 2 heads and share 1 to 8 columns");
  EXPECT_EQ(refusal("quantization_config", "{}"),
            "c: \"quantization_config\" is {}; give the weights in f32, bf16 or f16");
  EXPECT_EQ(refusal("num_attention_heads", "3"),
            "c: \"num_attention_heads\" is 3; hidden_size (8) must be a multiple of it");
  for (const char* bad :
       {"0", "-8", "8.5", "85e-1", "8e9", "1e99", "\"8\"", "[8]", "18446744073709551624", "65537"})
    EXPECT_EQ(refusal("hidden_size", bad),
              text("c: \"hidden_size\" is ", bad, "; a whole number from 1 to 65536 is needed"));
  for (const char* whole : {"8.0", "8e0", "80e-1"})
    EXPECT_EQ(refusal("hidden_size", whole), "(nothing was thrown)") << whole;
  EXPECT_EQ(refusal("hidden_size", ""), "c: has no \"hidden_size\"; the file needs it");
  EXPECT_EQ(refusal("vocab_size", "null"), "c: has no \"vocab_size\"; the file needs it");
  EXPECT_EQ(refusal("layer_norm_eps", "-1"), "c: \"layer_norm_eps\" is -1; a number from 0 to 1 is needed");
  EXPECT_EQ(refusal("hidden_dropout_prob", "1e999"),
            "c: \"hidden_dropout_prob\" is 1e999; a number from 0 to 0.999 is needed");
  EXPECT_EQ(sentence_of(ErrorKind::bad_argument, [] { bert_config(JsonObject("{}", "c")); }),
            "c: \"model_type\" is absent; encoders of model_type \"bert\" are read");
}

TEST(HfConfig, TokenizerSettings) {
  const auto read = [](std::string_view json) { return bert_tokenizer_config(JsonObject(json, "t")); };
  BertTokenizerConfig c = read(R"({"do_lower_case":true,"strip_accents":null,"model_max_length":512,)"
                               R"("unk_token":{"content":"[UNK]","lstrip":false},"cls_token":"[CLS]"})");
  EXPECT_TRUE(c.words.lower_case && c.words.strip_accents && c.words.chinese_apart);
  EXPECT_EQ(c.max_tokens, 512);
  c = read(R"({"do_lower_case":false,"model_max_length":1000000000000000019884624838656})");
  EXPECT_FALSE(c.words.lower_case || c.words.strip_accents);
  EXPECT_EQ(c.max_tokens, 0);
  const auto refused = [&](std::string_view json) {
    return sentence_of(ErrorKind::bad_argument, [&] { read(json); });
  };
  EXPECT_EQ(refused(R"({"tokenizer_class":"RobertaTokenizer"})"),
            "t: \"tokenizer_class\" is \"RobertaTokenizer\"; BertTokenizer is the one known");
  EXPECT_EQ(refused(R"({"sep_token":"</s>"})"), "t: \"sep_token\" is \"</s>\"; [SEP] is the one known");
  EXPECT_EQ(refused(R"({"do_basic_tokenize":false})"),
            "t: \"do_basic_tokenize\" is false; words are always split before pieces");
  EXPECT_EQ(refused(R"({"never_split":["a"]})"), "t: \"never_split\" is [\"a\"]; no word is left whole");
}

/// Rows of [CLS] my card [SEP] through the library.
Matrix rows_of(const TinyBert& tiny, DType dtype) {
  BertWeights weights(tiny.folder.path());
  ParamSet params = ParamSet::blank(dtype);
  std::optional<Transformer> model;
  {
    const auto scope = params.scope("encoder");
    model.emplace(params, weights.config());
  }
  weights.load(params, "encoder");
  Context ctx;
  StepMemory memory;
  Call call{.ctx = ctx, .memory = memory};
  std::int32_t ids[] = {2, 4, 5, 3};
  const AnyView y = model->forward({.ids = AnyView::packed(ids, DType::i32, {4}), .sequences = {.tokens = 4}},
                                   call, nullptr);
  Matrix out(4, std::vector<double>(TinyBert::kWidth));
  for (Index i = 0; i < y.count(); ++i)
    out[static_cast<std::size_t>(i / TinyBert::kWidth)][static_cast<std::size_t>(i % TinyBert::kWidth)] =
        load_double(y.data, y.dtype, i);
  return out;
}
double distance(const Matrix& a, const Matrix& b) {
  double most = 0;
  for (std::size_t r = 0; r < a.size(); ++r)
    for (std::size_t i = 0; i < a[r].size(); ++i) most = std::max(most, std::abs(a[r][i] - b[r][i]));
  return most;
}

TEST(HfBert, RowsAreThoseOfPlainLoops) {
  const TinyBert tiny;
  const Matrix want = tiny.rows({2, 4, 5, 3});
  EXPECT_LT(distance(rows_of(tiny, DType::f64), want), 1e-12);
  EXPECT_LT(distance(rows_of(tiny, DType::f32), want), 1e-5);
  tiny.write([](const std::string& name) { return "bert." + name; });
  EXPECT_LT(distance(rows_of(tiny, DType::f64), want), 1e-12);
  tiny.write([](std::string name) {  // as of 2018
    if (name.ends_with("LayerNorm.weight")) return name.substr(0, name.size() - 6) + "gamma";
    if (name.ends_with("LayerNorm.bias")) return name.substr(0, name.size() - 4) + "beta";
    return name;
  });
  EXPECT_LT(distance(rows_of(tiny, DType::f64), want), 1e-12);
}

TEST(HfBert, ReadsShards) {
  const TinyBert tiny;
  std::vector<NamedTensor> parts[2];
  std::string map;
  for (const auto& [name, t] : tiny.tensors) {
    const std::size_t shard = name.size() % 2;
    parts[shard].push_back({name, t.view()});
    map += text(map.empty() ? "" : ",", '"', name, R"(":"m-)", shard, R"(.safetensors")");
  }
  write_safetensors(tiny.folder / "m-0.safetensors", parts[0]);
  write_safetensors(tiny.folder / "m-1.safetensors", parts[1]);
  std::filesystem::remove(tiny.folder / "model.safetensors");
  tiny.folder.file("model.safetensors.index.json", R"({"weight_map":{)" + map + "}}");
  EXPECT_LT(distance(rows_of(tiny, DType::f64), tiny.rows({2, 4, 5, 3})), 1e-12);
}

TEST(HfBert, WhatDoesNotFitIsNamed) {
  const TinyBert tiny;
  const std::string where = "pretrained: " + tiny.folder.path() + ": ";
  const auto refusal_of = [&] {
    return sentence_of(ErrorKind::bad_argument, [&] {
      BertWeights weights(tiny.folder.path());
      ParamSet params = ParamSet::blank();
      const Transformer model(params, weights.config());
      weights.load(params);
    });
  };
  tiny.write([](const std::string& name) { return name == "encoder.layer.1.output.dense.bias" ? "" : name; });
  EXPECT_EQ(refusal_of(), where + "has no \"encoder.layer.1.output.dense.bias\"; config.json asks for it");
  Tensor odd(DType::f32, {3}), whole(DType::i64, {1, 7});
  tiny.write({}, {"encoder.layer.2.output.dense.bias", odd.view()});
  EXPECT_EQ(refusal_of(), where +
                              "holds \"encoder.layer.2.output.dense.bias\", which config.json does not "
                              "ask for; they are of different models");
  tiny.write([](const std::string& n) { return n == "embeddings.LayerNorm.bias" ? "" : n; },
             {"embeddings.LayerNorm.bias", odd.view()});
  EXPECT_EQ(refusal_of(), where + "\"embeddings.LayerNorm.bias\" is [3] but config.json makes it [8]");
  Tensor words(DType::i32, {8});
  tiny.write([](const std::string& n) { return n == "embeddings.LayerNorm.bias" ? "" : n; },
             {"embeddings.LayerNorm.bias", words.view()});
  EXPECT_EQ(refusal_of(), where + "\"embeddings.LayerNorm.bias\" is I32; F32, F64, BF16 and F16 are read");
  Tensor holes(DType::f32, {8});
  holes.values<float>()[3] = std::numeric_limits<float>::quiet_NaN();
  holes.values<float>()[5] = std::numeric_limits<float>::infinity();
  tiny.write([](const std::string& n) { return n == "embeddings.LayerNorm.bias" ? "" : n; },
             {"embeddings.LayerNorm.bias", holes.view()});
  EXPECT_EQ(refusal_of(), where + "\"embeddings.LayerNorm.bias\" holds 2 numbers that are not finite");
  tiny.write({}, {"embeddings.position_ids", whole.view()});
  EXPECT_EQ(refusal_of(), "(nothing was thrown)");
  tiny.write({}, {"pooler.dense.bias", odd.view()});
  EXPECT_EQ(BertWeights(tiny.folder.path()).unused(), std::vector<std::string>{"pooler.dense.bias"});
  // A configuration far larger than its file is refused before anything is made of its sizes.
  tiny.folder.file("config.json", with("vocab_size", "2000000"));
  EXPECT_EQ(refusal_of(),
            where + "\"embeddings.word_embeddings.weight\" is [12 8] but config.json makes it [2000000 8]");
  tiny.folder.file("config.json", "[]");
  EXPECT_EQ(refusal_of(), "pretrained: " + (tiny.folder / "config.json") +
                              ": a settings file needs a '{', got \"[\" (byte 0 of the JSON)");
}

}  // namespace
}  // namespace headwise
