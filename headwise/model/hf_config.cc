#include "headwise/model/hf_config.h"

#include <filesystem>

namespace headwise {
namespace {

constexpr std::string_view kOp = "pretrained";
/// No encoder is near these; a file that asks for more is damaged or hostile.
constexpr Index kMostWidth = 65'536, kMostDepth = 1'000, kMostTokens = 1'000'000, kMostPieces = 2'000'000;

void check_architecture(const JsonObject& json) {
  const std::string way_out = "encoders of model_type \"bert\" are read";
  if (json.has("model_type")) {
    if (json.word("model_type") != "bert") json.refuse("model_type", way_out);
  } else if (!json.has("architectures")) {
    json.refuse("model_type", way_out);
  }
  for (const std::string& name : json.words("architectures"))
    if (!name.starts_with("Bert") || name == "BertLMHeadModel")
      json.refuse("architectures", way_out, ", and ", name, " is none");
}

/// Settings that would make another model of the same weights.
void check_plain(const JsonObject& json) {
  if (json.word("position_embedding_type", "absolute") != "absolute")
    json.refuse("position_embedding_type", "only \"absolute\" positions are computed");
  for (const char* key : {"is_decoder", "add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder"})
    if (json.boolean(key, false)) json.refuse(key, "only an encoder is read");
  if (json.has("pruned_heads") && !json.object("pruned_heads").keys().empty())
    json.refuse("pruned_heads", "layers with different numbers of heads are not read");
  if (json.has("quantization_config"))
    json.refuse("quantization_config", "give the weights in f32, bf16 or f16");
  if (json.has("embedding_size") &&
      json.integer("embedding_size", 1, kMostWidth) != json.integer("hidden_size", 1, kMostWidth))
    json.refuse("embedding_size", "embeddings narrower than hidden_size are not read");
}

FeedKind feed_of(const JsonObject& json) {
  const std::string act = json.word("hidden_act", "gelu");
  if (act == "gelu") return FeedKind::gelu;
  if (act == "gelu_new" || act == "gelu_pytorch_tanh") return FeedKind::gelu_tanh;
  if (act == "relu") return FeedKind::relu;
  json.refuse("hidden_act", "gelu, gelu_new, gelu_pytorch_tanh and relu are computed");
}

/// A special token: a text, or an object with its text in "content".
void check_token(const JsonObject& json, const char* key, const char* want) {
  if (!json.has(key)) return;
  const std::string got = json.is_object(key) ? json.object(key).word("content") : json.word(key);
  if (got != want) json.refuse(key, want, " is the one known");
}

}  // namespace

TransformerConfig bert_config(const JsonObject& json) {
  check_architecture(json);
  check_plain(json);
  const Index heads = json.integer("num_attention_heads", 1, kMostWidth),
              width = json.integer("hidden_size", 1, kMostWidth);
  if (width % heads != 0)
    json.refuse("num_attention_heads", "hidden_size (", width, ") must be a multiple of it");
  TransformerConfig c;
  c.kind = ModelKind::encoder;
  c.vocabulary = json.integer("vocab_size", 1, kMostPieces);
  c.model_dim = width;
  c.feed_dim = json.integer("intermediate_size", 1, kMostWidth * 16);
  c.depth = json.integer("num_hidden_layers", 1, kMostDepth);
  c.heads = text("mha:heads=", heads, ",dim=", width / heads);
  c.positions = Positions::learned;
  c.max_tokens = json.integer("max_position_embeddings", 1, kMostTokens);
  c.token_types = json.integer("type_vocab_size", 0, kMostTokens, 2);
  c.embed_norm = true;
  c.feed = feed_of(json);
  c.norm = {.kind = NormKind::layer, .eps = json.number("layer_norm_eps", 0, 1, 1e-12)};
  c.norm_first = c.final_norm = false;
  c.dropout = json.number("hidden_dropout_prob", 0, 0.999, 0.1);
  c.attention_dropout = json.number("attention_probs_dropout_prob", 0, 0.999, 0.1);
  return c;
}

TransformerConfig read_bert_config(const std::string& path) {
  return bert_config(JsonObject::read(path, kOp));
}

BertTokenizerConfig bert_tokenizer_config(const JsonObject& json) {
  const std::string kind = json.word("tokenizer_class", "BertTokenizer");
  if (kind != "BertTokenizer" && kind != "BertTokenizerFast")
    json.refuse("tokenizer_class", "BertTokenizer is the one known");
  if (!json.boolean("do_basic_tokenize", true))
    json.refuse("do_basic_tokenize", "words are always split before pieces");
  if (!json.words("never_split").empty()) json.refuse("never_split", "no word is left whole");
  check_token(json, "unk_token", "[UNK]");
  check_token(json, "cls_token", "[CLS]");
  check_token(json, "sep_token", "[SEP]");
  BertTokenizerConfig c;
  c.words.lower_case = json.boolean("do_lower_case", true);
  c.words.strip_accents = json.boolean("strip_accents", c.words.lower_case);
  c.words.chinese_apart = json.boolean("tokenize_chinese_chars", true);
  // "No limit" is written as 1e30.
  const double most = json.number("model_max_length", 3, 1e40, 1e30);
  if (most < static_cast<double>(kMostTokens)) c.max_tokens = static_cast<Index>(most);
  return c;
}

BertTokenizerConfig read_bert_tokenizer_config(const std::string& path) {
  if (!std::filesystem::exists(path)) return {};
  return bert_tokenizer_config(JsonObject::read(path, kOp));
}

}  // namespace headwise
