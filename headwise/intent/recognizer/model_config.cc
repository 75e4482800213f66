#include <charconv>
#include <set>

#include "headwise/base/words.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/model/json_object.h"
#include "headwise/model/json_reader.h"

namespace headwise {
namespace {

constexpr std::string_view kArchitecture = "headwise_intent";
constexpr std::string_view kNormNames[] = {"layer", "rms"};

std::string number_text(double x) {  // the shortest text that reads back as x
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
}

/// Calls f(key, member) for every setting of config.json, in its order; an enum comes with its names.
template <class Config, class F>
void each_setting(Config& c, F&& f) {
  auto& e = c.encoder;
  f("heads", e.heads);
  f("model_dim", e.model_dim);
  f("feed_dim", e.feed_dim);
  f("depth", e.depth);
  f("feed", e.feed, kFeedNames);
  f("positions", e.positions, kPositionNames);
  f("max_tokens", e.max_tokens);
  f("scaled_embedding", e.scaled_embedding);
  f("token_types", e.token_types);
  f("embed_norm", e.embed_norm);
  f("norm", e.norm.kind, kNormNames);
  f("norm_eps", e.norm.eps);
  f("norm_bias", e.norm.bias);
  f("norm_first", e.norm_first);
  f("final_norm", e.final_norm);
  f("bias", e.bias);
  f("dropout", e.dropout);
  f("attention_dropout", e.attention_dropout);
  f("share_layers", e.share_layers);
  f("ngram_buckets", c.ngrams.buckets);
  f("ngram_pieces", c.ngrams.pieces);
  f("ngram_chars_least", c.ngrams.chars_least);
  f("ngram_chars_most", c.ngrams.chars_most);
  f("ngram_dropout", c.ngrams.dropout);
  f("pooling", c.pooling, kPoolingNames);
  f("pool_queries", c.pool_queries);
  f("pool_dropout", c.pool_dropout);
  f("lower_case", c.words.lower_case);
  f("strip_accents", c.words.strip_accents);
  f("chinese_apart", c.words.chinese_apart);
  f("word_chars", c.words.word_chars);
  f("multi_label", c.multi_label);
  f("threshold", c.threshold);
  f("at_least_one", c.at_least_one);
  f("out_of_scope", c.out_of_scope);
  f("long_text", c.long_text, kLongTextNames);
  f("chunk_tokens", c.chunk_tokens);
  f("chunk_overlap", c.chunk_overlap);
}

struct Printer {
  std::string out;
  void line(std::string_view key, std::string_view value) {
    out += text(out.empty() ? "{\n" : ",\n", "  \"", key, "\": ", value);
  }
  void operator()(std::string_view key, const std::string& x) { line(key, json_string(x)); }
  void operator()(std::string_view key, Index x) { line(key, text(x)); }
  void operator()(std::string_view key, bool x) { line(key, x ? "true" : "false"); }
  void operator()(std::string_view key, double x) { line(key, number_text(x)); }
  template <class E>
  void operator()(std::string_view key, E x, std::span<const std::string_view> names) {
    line(key, json_string(names[static_cast<std::size_t>(x)]));
  }
};

struct Reader {
  const JsonObject& json;
  std::set<std::string, std::less<>> known;
  void operator()(std::string_view key, std::string& x) { known.emplace(key), x = json.word(key); }
  void operator()(std::string_view key, Index& x) {
    known.emplace(key), x = json.integer(key, 0, Index{1} << 31);
  }
  void operator()(std::string_view key, bool& x) { known.emplace(key), x = json.boolean(key); }
  void operator()(std::string_view key, double& x) { known.emplace(key), x = json.number(key, 0, 1); }
  template <class E>
  void operator()(std::string_view key, E& x, std::span<const std::string_view> names) {
    known.emplace(key);
    const std::string word = json.word(key);
    std::string all;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (names[i] == word) return x = static_cast<E>(i), void();
      all += text(i ? ", " : "", names[i]);
    }
    json.refuse(key, "it must be one of ", all);
  }
};

/// Folders without "compound" are those of recognisers that do not cut.
void read_cuts(const JsonObject& json, CutOptions& cuts, std::set<std::string, std::less<>>& known) {
  if (!json.has("compound")) return;
  known.insert({"compound", "cut_shift", "cut_weight", "most_intents", "connector_tokens"});
  if (json.word("compound") != "cut") json.refuse("compound", "it must be cut, or not be there");
  cuts.on = true;
  cuts.shift = json.number("cut_shift", -100, 100);
  cuts.weight = json.number("cut_weight", 0, 1000);
  cuts.most_intents = json.integer("most_intents", 2, 64);
  cuts.connector_tokens = json.integer("connector_tokens", 0, 1024);
}

}  // namespace

std::string config_text(const RecognizerConfig& config) {
  Printer print;
  print("architecture", std::string(kArchitecture));
  print("version", kModelVersion);
  each_setting(config, print);
  if (!config.planted.empty()) print("planted", config.planted);
  if (config.learn_gates) print("learn_gates", true);
  if (config.ngrams.columns > 0) print("ngram_columns", config.ngrams.columns);
  if (config.cuts.on) {
    print("compound", std::string("cut"));
    print("cut_shift", config.cuts.shift);
    print("cut_weight", config.cuts.weight);
    print("most_intents", config.cuts.most_intents);
    print("connector_tokens", config.cuts.connector_tokens);
  }
  return print.out + "\n}\n";
}

RecognizerConfig parse_config(std::string_view json_text, std::string_view where) {
  const JsonObject json(json_text, where);
  const std::string architecture = json.word("architecture");
  if (architecture != kArchitecture)
    json.refuse("architecture", "only ", kArchitecture, " is a recogniser's folder");
  const Index version = json.integer("version", 1, Index{1} << 31);
  require(version <= kModelVersion, ErrorKind::unsupported, where, "the model is of version ", version,
          " but this headwise reads up to ", kModelVersion, "; update headwise");
  RecognizerConfig config;
  Reader read{json, {"architecture", "version", "planted", "learn_gates", "ngram_columns"}};
  each_setting(config, read);
  config.planted = json.word("planted", "");
  config.learn_gates = json.has("learn_gates") && json.boolean("learn_gates");
  if (json.has("ngram_columns")) config.ngrams.columns = json.integer("ngram_columns", 1, Index{1} << 20);
  read_cuts(json, config.cuts, read.known);
  for (const std::string& key : json.keys())
    require(read.known.count(key) == 1, ErrorKind::bad_argument, where, "there is no setting ", quoted(key),
            "; remove it, or use the headwise that wrote it");
  return config;
}

}  // namespace headwise
