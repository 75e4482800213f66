#include "headwise/model/hf_config.h"

#include <charconv>
#include <filesystem>
#include <set>

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

/// Heads that pruned_heads leaves layer `layer`; layers it does not name keep all.
Index heads_left(const JsonObject& json, Index layer, Index heads) {
  if (!json.has("pruned_heads")) return heads;
  std::set<Index> gone;
  for (const Index h : json.object("pruned_heads").integers(text(layer))) {
    if (h < 0 || h >= heads) json.refuse("pruned_heads", "layer ", layer, " has heads 0 to ", heads - 1);
    gone.insert(h);
  }
  const Index left = heads - static_cast<Index>(gone.size());
  if (left == 0) json.refuse("pruned_heads", "layer ", layer, " keeps no head; at least one is computed");
  return left;
}

/// The number behind `,key=` in a text of heads; 0: none stands there, or one too long to be right.
Index number_of(std::string_view heads, std::string_view key) {
  const std::size_t found = heads.find(key);
  if (found == heads.npos) return 0;
  Index n = 0;
  const char* first = heads.data() + found + key.size();
  std::from_chars(first, heads.data() + heads.size(), n);
  return n;
}

/// One text for all layers, or one a layer. headwise_heads, which `headwise cut` and `convert` write where no
/// other key can say it, comes before the others.
std::string heads_of(const JsonObject& json, const TransformerConfig& c, Index heads) {
  if (json.has("headwise_heads")) {
    const std::string own = json.word("headwise_heads");
    for (std::size_t at = 0; at < own.size();
         at = own.find(';', at) == own.npos ? own.size() : own.find(';', at) + 1) {
      const std::string_view one = std::string_view(own).substr(own.find_first_not_of(' ', at));
      if (!one.starts_with("mha:") && !one.starts_with("gqa:") && !one.starts_with("collaborative:"))
        json.refuse("headwise_heads", "mha, gqa and collaborative are what such a folder holds");
      // Their mixing rows are made before the weights are looked at.
      const std::string_view own_text = one.substr(0, one.find(';'));
      const Index shared = number_of(own_text, "shared=");
      if (one.starts_with("collaborative:") &&
          (number_of(own_text, "heads=") > heads || shared < 1 || shared > c.model_dim))
        json.refuse("headwise_heads", "collaborative layers have at most ", heads, " heads and share 1 to ",
                    c.model_dim, " columns");
    }
    return own;
  }
  const Index dim = c.model_dim / heads, kv = json.integer("num_key_value_heads", 1, heads, heads);
  if (heads % kv != 0)
    json.refuse("num_key_value_heads", "num_attention_heads (", heads, ") must be a multiple of it");
  if (json.has("pruned_heads"))
    for (const std::string& key : json.object("pruned_heads").keys())
      if (key.empty() || key.size() > 4 || key.find_first_not_of("0123456789") != key.npos ||
          std::stol(key) >= c.depth)
        json.refuse("pruned_heads", "its keys are the numbers of layers, 0 to ", c.depth - 1);
  std::string all;
  bool even = true;
  for (Index layer = 0; layer < c.depth; ++layer) {
    const Index left = heads_left(json, layer, heads);
    even &= left == heads;
    if (left != heads && kv != heads)
      json.refuse("pruned_heads", "heads that share keys are named in headwise_heads");
    all += text(layer ? "; " : "", "mha:heads=", left, ",dim=", dim);
  }
  if (kv != heads) return text("gqa:heads=", heads, ",kv_heads=", kv, ",dim=", dim);
  return even ? text("mha:heads=", heads, ",dim=", dim) : all;
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
  c.heads = heads_of(json, c, heads);
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
