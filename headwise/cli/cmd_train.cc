// headwise train: a recogniser from labelled utterances; stopped in any way, the same command goes on.
#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "headwise/cli/args.h"
#include "headwise/cli/corpora.h"
#include "headwise/cli/run_folder.h"
#include "headwise/heads/any_head.h"
#include "headwise/intent/corpus/report.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/intent/training/pretrained.h"
#include "headwise/text/roles.h"
#include "headwise/train/crc32c.h"

namespace headwise::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Request {
  CorpusChoice data;
  std::vector<std::string> dev, test;
  std::string out, from;
  RecognizerConfig config;
  TrainingOptions training;
  std::string pooling, norm, long_text, plant, dtype = "f32";
  double dropout = -1;
  bool norm_after = false, replace = false, quiet = false, heads_given = false, dropout_given = false;
  int threads = 0;
};

/// Of the rows and the encoder a training reads: a changed file under the same name is another training.
std::uint32_t crc_of(const Corpora& data, const Pretrained* pretrained) {
  Crc32c crc;
  for (const Corpus* corpus : {&data.train, &data.dev}) {
    crc.add(text(corpus->rows.size(), '\n'));
    for (const Utterance& row : corpus->rows) {
      crc.add(row.text);
      for (const std::string& label : row.labels) crc.add("\t" + label);
      crc.add("\n");
    }
  }
  if (pretrained)
    for (const Param& p : pretrained->encoder.all())
      crc.add(std::span(static_cast<const std::byte*>(p.value.data), p.bytes()));
  return crc.value();
}

/// What must be the same for the same command: everything that changes the model, nothing else.
Json settings_of(const Request& r) {
  const TransformerConfig& e = r.config.encoder;
  const TrainingOptions& t = r.training;
  Json all = {{"data", r.data.files},
              {"builtin", r.data.builtin},
              {"dev", r.dev},
              {"from", r.from},
              {"heads", e.heads},
              {"model_dim", e.model_dim},
              {"depth", e.depth},
              {"feed_dim", e.feed_dim},
              {"max_tokens", e.max_tokens},
              {"norm", r.norm},
              {"norm_after", r.norm_after},
              {"dropout", r.dropout},
              {"pooling", r.pooling},
              {"ngrams", r.config.ngrams.buckets},
              {"long_text", r.long_text},
              {"chunk_tokens", r.config.chunk_tokens},
              {"vocabulary", t.pieces},
              {"epochs", t.epochs},
              {"minutes", t.minutes},
              {"batch", t.batch},
              {"rate", t.rate},
              {"encoder_rate", t.encoder_rate},
              {"dtype", r.dtype},
              {"seed", t.seed}};
  if (!r.plant.empty()) all["plant"] = r.plant;
  return all;
}

template <class Kind, std::size_t n>
Kind kind_named(const char* option, const std::string& name, const std::string_view (&names)[n]) {
  for (std::size_t i = 0; i < n; ++i)
    if (names[i] == name) return static_cast<Kind>(i);
  std::string all;
  for (const std::string_view known : names) all += text(all.empty() ? "" : ", ", known);
  throw Error(ErrorKind::bad_argument, text(option, ": got \"", name, "\"; give one of ", all));
}

/// The request's own words into the config; the pretrained encoder's sizes where one is given.
RecognizerConfig config_of(const Request& r, const Pretrained* pretrained) {
  RecognizerConfig c = pretrained ? pretrained->config : r.config;
  if (!r.plant.empty()) c.planted = planted_text(r.plant, RoleBook::builtin());
  constexpr std::string_view norms[] = {"layer", "rms"};
  if (!pretrained) {
    if (!r.norm.empty()) c.encoder.norm.kind = kind_named<NormKind>("--norm", r.norm, norms);
    c.encoder.norm_first = !r.norm_after;
    c.encoder.final_norm = c.encoder.norm_first;
    c.chunk_tokens = min_of(c.chunk_tokens, c.encoder.max_tokens);
    // As for a given encoder: short chunks overlap by an eighth, not by more than they have.
    c.chunk_overlap = min_of(c.chunk_overlap, c.chunk_tokens / 8);
  } else {
    require(!r.heads_given && r.norm.empty() && !r.norm_after, ErrorKind::bad_argument, "train",
            "--from brings heads and norms of its own; leave out --heads, --norm and --norm-after");
  }
  // Refused here, before anything is written.
  ParamSet unused = ParamSet::blank();
  const Index layers = c.encoder.depth / max_of(1, c.encoder.share_layers);
  for (Index i = 0; i < max_of(1, layers); ++i) {
    const auto scope = unused.scope(text(i));
    make_head(heads_of_layer(c.encoder.heads, i, max_of(1, layers)), unused,
              {i, c.encoder.depth, c.encoder.model_dim});
  }
  if (r.dropout_given) c.encoder.dropout = r.dropout;
  if (!r.pooling.empty()) c.pooling = kind_named<Pooling>("--pooling", r.pooling, kPoolingNames);
  if (!r.long_text.empty()) c.long_text = kind_named<LongText>("--long-text", r.long_text, kLongTextNames);
  return c;
}

/// The recipe of fine-tuning in the place of every word that was not given.
void take_recipe(Request& r, const CLI::App& word) {
  const TrainingOptions given = r.training;
  const auto said = [&](const char* option) { return word.count(option) > 0; };
  TrainingOptions& t = r.training;
  t = fine_tuning();
  t.seed = given.seed, t.minutes = given.minutes;
  if (said("--epochs")) t.epochs = given.epochs;
  if (said("--batch")) t.batch = given.batch;
  if (said("--rate")) t.rate = given.rate;
  if (said("--encoder-rate")) t.encoder_rate = given.encoder_rate;
  if (!said("--dtype")) r.dtype = text(t.compute);
}

int train(Request& r) {
  Corpora all = read_corpora_of(r.data, "train");
  if (!r.dev.empty()) all.dev = read_corpora(r.dev);
  if (!r.test.empty()) all.test = read_corpora(r.test);
  require_trainable(all.train);
  if (all.dev.rows.empty()) all.dev = hold_out(all.train, r.training.held_out, r.training.seed);
  for (const Corpus* judged : {&all.dev, &all.test}) require_seen_labels(all.train, *judged);

  while (r.out.size() > 1 && r.out.back() == '/') r.out.pop_back();
  r.training.compute = parse_dtype(r.dtype);
  std::optional<Pretrained> pretrained;
  if (!r.from.empty()) pretrained.emplace(read_pretrained(r.from));
  const RecognizerConfig config = config_of(r, pretrained ? &*pretrained : nullptr);
  Json words = settings_of(r);
  words["crc32c"] = crc_of(all, pretrained ? &*pretrained : nullptr);
  const std::string settings = words.dump(2) + "\n";
  const RunFolder run(r.out, settings, r.replace);
  const TrainingLock lock(r.out);
  if (run.is_done()) {
    fmt::print(
        "{} was trained with these words before; headwise eval and headwise predict use it, --replace trains "
        "anew\n",
        r.out);
    return kDone;
  }
  fmt::print("{}", examine(all.train).print(all.train));
  for (const Corpus* judged : {&all.dev, &all.test})
    if (!judged->rows.empty()) fmt::print("{}", compare_splits(all.train, *judged).print(all.train, *judged));
  std::fflush(stdout);

  Session session({.threads = r.threads});
  r.training.run_folder = run.path();
  r.training.out = r.quiet ? nullptr : &std::cout;
  const Start start =
      pretrained ? from_encoder(config, pretrained->vocabulary, pretrained->encoder, all.train, r.training)
                 : from_scratch(config, all.train, r.training);
  check(start.config);
  run.begin();
  const TrainedRecognizer made = [&] {
    try {
      return train_recognizer(start, all.train, all.dev, r.training, session);
    } catch (...) {
      run.end_without_steps();
      throw;
    }
  }();
  if (made.ending == Ending::interrupted) {
    fmt::print(stderr, "headwise: train: stopped at step {}, nothing is lost; the same command goes on\n",
               made.step);
    return kFailed;
  }
  const FolderFile files[] = {
      {"metrics.json", made.metrics}, {"card.md", made.card}, {RunFolder::kSettings, settings}};
  made.model.save(r.out, files);
  run.end();
  fmt::print("{}", made.dev.print());
  if (!all.test.rows.empty()) fmt::print("{}", evaluate(made.model, all.test, session).print());
  fmt::print(
      "{}: {} labels, {} parameters, {} of training; try headwise predict {} \"a sentence\" --explain\n",
      r.out, made.model.config().labels.size(), made.model.params().count(), clock_text(made.seconds), r.out);
  return kDone;
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("train", "A recogniser from labelled texts; the same command again goes on");
  word->footer(
      "Example: headwise train bank.tsv --dev dev.tsv --out model\n"
      "         headwise train --builtin --out model --heads gqa:heads=8,kv_heads=2\n"
      "         headwise train bank.tsv --out model --from all-MiniLM-L6-v2\n"
      "Data: text<TAB>a#b, CSV, JSON lines, gzip; several intents a text are learnt as such. Ctrl-C stops "
      "after a step.");
  const auto r = std::make_shared<Request>();
  TransformerConfig& e = r->config.encoder;
  TrainingOptions& t = r->training;
  word->add_option("data", r->data.files, "Files of labelled texts to learn from");
  word->add_flag("--builtin", r->data.builtin,
                 "The built-in corpus: 38 financial intents, English and Chinese");
  word->add_option("--out", r->out,
                   "Folder of the model; while it learns, OUT.run holds checkpoints and a log")
      ->required();
  word->add_option("--dev", r->dev, "Judged every epoch: the best one is kept; none: 1 in 20 of the data");
  word->add_option("--test", r->test, "Judged once, at the end");
  const CLI::Option* heads =
      word->add_option("--heads", e.heads, "Any head, as `headwise heads` names them")->capture_default_str();
  word->add_option(
      "--from", r->from,
      "Folder of a pretrained BERT-style encoder: config.json, model.safetensors, vocab.txt; epochs, "
      "batch, rates and dtype are then those of fine-tuning unless given");
  word->add_option("--epochs", t.epochs, "Passes over the data")->capture_default_str();
  word->add_option("--minutes", t.minutes,
                   "Stops after so many and keeps the best; 0: when the epochs are done")
      ->capture_default_str();
  word->add_option("--batch", t.batch, "Texts of a step")->capture_default_str();
  word->add_option("--rate", t.rate, "The highest learning rate")->capture_default_str();
  word->add_option("--encoder-rate", t.encoder_rate, "Of the encoder --from brings, as a part of --rate");
  word->add_option("--seed", t.seed, "Of weights, order and dropout")->capture_default_str();
  word->add_option("--dtype", r->dtype, "f32, or bf16 with f32 masters")->capture_default_str();
  word->add_option("--model-dim", e.model_dim, "Width of a token")->capture_default_str();
  word->add_option("--depth", e.depth, "Layers")->capture_default_str();
  word->add_option("--feed-dim", e.feed_dim, "Width inside the feed-forward layers")->capture_default_str();
  word->add_option("--max-tokens", e.max_tokens, "Positions there are")->capture_default_str();
  word->add_option("--vocabulary", t.pieces, "Pieces of the vocabulary it learns")->capture_default_str();
  word->add_option("--ngrams", r->config.ngrams.buckets, "Rows of a table of hashed n-grams; 0: none")
      ->capture_default_str();
  word->add_option("--norm", r->norm, "rms (the default) or layer");
  word->add_flag("--norm-after", r->norm_after, "Norms behind the residual sums, not before the layers");
  word->add_option("--dropout", r->dropout, "Of rows; the default is the recipe's");
  word->add_option("--pooling", r->pooling, "attention (the default), labels, mean (behind --from) or first");
  word->add_option("--plant", r->plant,
                   "A designed head, CLASS:HEAD or CLASS:LAYER.HEAD, as number:0; see docs/report.md");
  word->add_option("--chunk-tokens", r->config.chunk_tokens, "Longer texts are read in chunks of so many")
      ->capture_default_str();
  word->add_option("--long-text", r->long_text,
                   "chunks (the default), or sparse: one piece of at most --max-tokens");
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->add_flag("--replace", r->replace,
                 "In the place of a model of that name, when this one is done, or of a run of other words");
  word->add_flag("--quiet", r->quiet, "No progress");
  word->callback([r, heads, word, &exit_code] {
    r->heads_given = heads->count() > 0;
    r->dropout_given = word->count("--dropout") > 0;
    if (!r->from.empty()) take_recipe(*r, *word);
    exit_code = train(*r);
  });
}

}  // namespace headwise::cli
