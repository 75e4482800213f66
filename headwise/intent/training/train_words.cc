#include "headwise/intent/training/train_words.h"

#include <charconv>
#include <utility>

#include "headwise/heads/any_head.h"
#include "headwise/heads/scales.h"
#include "headwise/model/json_reader.h"
#include "headwise/text/roles.h"

namespace headwise {
namespace {

constexpr const char* kOp = "train";

template <class Kind, std::size_t n>
Kind kind_named(const char* option, const std::string& name, const std::string_view (&names)[n]) {
  for (std::size_t i = 0; i < n; ++i)
    if (names[i] == name) return static_cast<Kind>(i);
  std::string all;
  for (const std::string_view known : names) all += text(all.empty() ? "" : ", ", known);
  throw Error(ErrorKind::bad_argument, text(option, ": got \"", name, "\"; give one of ", all));
}

/// A recipe in the place of every word that was not given.
void take_recipe(TrainWords& r, TrainingOptions recipe) {
  const TrainingOptions& given = r.training;
  recipe.seed = given.seed, recipe.minutes = given.minutes, recipe.may_lose = given.may_lose;
  recipe.strangers = given.strangers;
  recipe.connectors = given.connectors;
  if (r.said.contains("epochs")) recipe.epochs = given.epochs;
  if (r.said.contains("batch")) recipe.batch = given.batch;
  if (r.said.contains("rate")) recipe.rate = given.rate;
  if (r.said.contains("encoder-rate")) recipe.encoder_rate = given.encoder_rate;
  if (r.said.contains("vocabulary")) recipe.pieces = given.pieces;
  r.training = std::move(recipe);
}

/// What cuts texts, and its recipe.
void take_cutting(TrainWords& r) {
  constexpr std::string_view ways[] = {"pooled", "cut", "labels", "auto"};
  const std::string_view way = ways[kind_named<int>("--compound", r.compound, ways)];
  r.config.cuts.on = way == "cut";
  require(way == "pooled" || way == "cut" || r.pooling.empty(), ErrorKind::bad_argument, "train",
          "--compound ", way, " asks by label, which is a pooling of its own; leave out --pooling");
  if (way == "labels") r.pooling = "labels";
  require(r.config.cuts.on || way == "auto" || r.training.connectors.empty(), ErrorKind::bad_argument,
          "train", "--connectors are given but texts are not cut; give --compound cut too");
  require((way != "cut" && way != "auto") || r.gates.empty(), ErrorKind::unsupported, "train",
          "--gates and --compound ", way, " were never tried together; leave out one");
  if (!r.config.cuts.on || !r.from.empty()) return;
  take_recipe(r, compound_training());
  if (!r.said.contains("ngrams")) r.config.ngrams.buckets = 7000, r.config.ngrams.columns = 64;
  if (!r.said.contains("max-tokens")) r.config.encoder.max_tokens = 256;
}

/// Calls f(name, place) for every option, in the order of the command line.
template <class F>
void each_word(TrainWords& w, F&& f) {
  TransformerConfig& e = w.config.encoder;
  TrainingOptions& t = w.training;
  f("heads", e.heads), f("from", w.from);
  f("epochs", t.epochs), f("minutes", t.minutes), f("batch", t.batch), f("rate", t.rate);
  f("encoder-rate", t.encoder_rate), f("seed", t.seed), f("dtype", w.dtype);
  f("model-dim", e.model_dim), f("depth", e.depth), f("feed-dim", e.feed_dim), f("max-tokens", e.max_tokens);
  f("vocabulary", t.pieces), f("ngrams", w.config.ngrams.buckets);
  f("norm", w.norm), f("norm-after", w.norm_after), f("dropout", w.dropout), f("pooling", w.pooling);
  f("compound", w.compound), f("connectors", t.connectors), f("may-lose", t.may_lose), f("plant", w.plant);
  f("strangers", t.strangers);
  f("chunk-tokens", w.config.chunk_tokens), f("long-text", w.long_text), f("scales", w.scales);
  f("positions", w.positions);
}

void read_word(std::string_view, const std::string& value, std::string& to) { to = value; }
void read_word(std::string_view, const std::string& value, std::vector<std::string>& to) {
  to.push_back(value);
}
void read_word(std::string_view name, const std::string& value, bool& to) {
  require(value == "true" || value == "false", ErrorKind::bad_argument, kOp, name, " is ", quoted(value),
          "; give true or false");
  to = value == "true";
}
template <class Number>
void read_word(std::string_view name, const std::string& value, Number& to) {
  const char* end = value.data() + value.size();
  const auto read = std::from_chars(value.data(), end, to);
  require(read.ec == std::errc() && read.ptr == end, ErrorKind::bad_argument, kOp, name, " is ",
          quoted(value), "; give a number");
}

/// A pretrained encoder has its form; words that ask for another one are not passed over.
void refuse_sizes(const TrainWords& r) {
  std::string own;
  for (const char* word : {"heads", "model-dim", "depth", "feed-dim", "max-tokens", "vocabulary", "ngrams",
                           "norm", "norm-after", "positions"})
    if (r.said.contains(word)) own += text(own.empty() ? "--" : ", --", word);
  require(own.empty(), ErrorKind::bad_argument, "train",
          "--from brings heads, sizes, words, norms and positions of its own; leave out ", own);
}

}  // namespace

void say(TrainWords& words, std::string_view option, const std::string& value) {
  bool known = false;
  std::string all;
  each_word(words, [&](std::string_view name, auto& place) {
    all += text(all.empty() ? "" : ", ", name);
    if (name != option) return;
    known = true;
    read_word(name, value, place);
  });
  require(known, ErrorKind::bad_argument, kOp, "there is no option ", quoted(option), "; give one of ", all);
  words.said.emplace(option);
}

void take_recipes(TrainWords& r) {
  if (!r.from.empty()) {
    take_recipe(r, fine_tuning());
    if (!r.said.contains("dtype")) r.dtype = text(r.training.compute);
  }
  if (!r.compound.empty() || !r.training.connectors.empty()) take_cutting(r);
}

RecognizerConfig config_of(const TrainWords& r, const Pretrained* pretrained) {
  RecognizerConfig c = pretrained ? pretrained->config : r.config;
  c.learn_gates = !r.gates.empty();
  c.cuts = r.config.cuts;
  if (!r.plant.empty()) c.planted = planted_text(r.plant, RoleBook::builtin());
  constexpr std::string_view norms[] = {"layer", "rms"};
  if (!pretrained) {
    if (!r.norm.empty()) c.encoder.norm.kind = kind_named<NormKind>("--norm", r.norm, norms);
    c.encoder.norm_first = !r.norm_after;
    c.encoder.final_norm = c.encoder.norm_first;
  } else {
    refuse_sizes(r);
    if (r.said.contains("chunk-tokens")) c.chunk_tokens = r.config.chunk_tokens;
  }
  c.chunk_tokens = min_of(c.chunk_tokens, c.encoder.max_tokens);
  // Short chunks overlap by an eighth, not by more than they have.
  c.chunk_overlap = min_of(c.chunk_overlap, c.chunk_tokens / 8);
  if (!r.scales.empty()) c.encoder.heads = with_scales(c.encoder.heads, r.scales);
  // Refused here, before anything is written.
  ParamSet unused = ParamSet::blank();
  const Index layers = c.encoder.depth / max_of(1, c.encoder.share_layers);
  for (Index i = 0; i < max_of(1, layers); ++i) {
    const auto scope = unused.scope(text(i));
    make_head(heads_of_layer(c.encoder.heads, i, max_of(1, layers)), unused,
              {i, c.encoder.depth, c.encoder.model_dim});
  }
  if (r.said.contains("dropout")) c.encoder.dropout = r.dropout;
  if (!r.pooling.empty()) c.pooling = kind_named<Pooling>("--pooling", r.pooling, kPoolingNames);
  if (!r.positions.empty())
    c.encoder.positions = kind_named<Positions>("--positions", r.positions, kPositionNames);
  if (!r.long_text.empty()) c.long_text = kind_named<LongText>("--long-text", r.long_text, kLongTextNames);
  return c;
}

}  // namespace headwise
