// headwise train: a recogniser from labelled utterances; stopped in any way, the same command goes on.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "headwise/cli/args.h"
#include "headwise/cli/corpora.h"
#include "headwise/heads/any_head.h"
#include "headwise/intent/model_folder.h"
#include "headwise/intent/pretrained.h"
#include "headwise/intent/report.h"
#include "headwise/model/file.h"
#include "headwise/text/roles.h"

namespace headwise::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
constexpr const char* kSettings = "settings.json";  // what a run was asked, in its folder and in the model's

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
  } else {
    require(!r.heads_given && r.norm.empty() && !r.norm_after, ErrorKind::bad_argument, "train",
            "--from brings heads and norms of its own; leave out --heads, --norm and --norm-after");
  }
  // Refused here, before anything is written.
  ParamSet unused = ParamSet::blank();
  make_head(c.encoder.heads, unused, {0, c.encoder.depth, c.encoder.model_dim});
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

std::string settings_in(const std::string& folder) {
  const std::string path = folder + "/" + kSettings;
  return fs::exists(path) ? read_text(path, Index{1} << 20, "train") : "";
}

/// The words the run in this folder was begun with; "": there is none. A folder of anything else is refused,
/// because a run's folder is deleted when it is done.
std::string words_of(const std::string& run) {
  if (!fs::exists(run)) return "";
  std::string words;
  if (fs::is_directory(run)) {
    try {
      words = settings_in(run);
    } catch (const Error&) {
      // Unreadable is as none.
    }
    const Json json = Json::parse(words, nullptr, false);
    if (json.is_object() && json.contains("model_dim")) return words;
  }
  bool empty = fs::is_directory(run);
  for (const auto& file : empty ? fs::directory_iterator(run) : fs::directory_iterator())
    empty = empty && file.path().filename().string().find(kSettings) != std::string::npos;
  require(empty, ErrorKind::bad_argument, "train", run,
          " is there and holds no run of headwise; give another --out or move it away");
  return "";
}

/// True: the model is there and these words made it. A folder of anything else is refused before any work.
bool is_done(const Request& r, const std::string& run, const std::string& settings) {
  const std::string begun = words_of(run);
  require(!fs::exists(r.out) || fs::is_empty(r.out) || fs::exists(r.out + "/config.json"),
          ErrorKind::bad_argument, "train", r.out,
          " is there and is no model folder; choose another name or move it away");
  if (r.replace) return false;
  if (fs::exists(r.out + "/config.json")) {
    require(settings_in(r.out) == settings, ErrorKind::bad_argument, "train", r.out,
            " is a model trained with other words; give another --out, or --replace to train in its place");
    return true;
  }
  require(begun.empty() || begun == settings, ErrorKind::bad_argument, "train", run,
          " holds a run begun with other words; give those again to go on, another --out, or --replace to "
          "begin anew");
  return false;
}

/// The folder of this run, with its words in it; what a run of other words left goes.
void begin(const std::string& run, const std::string& settings) {
  if (words_of(run) == settings) return;
  fs::remove_all(run);
  std::error_code code;
  fs::create_directories(run, code);
  if (code) file_failed("train", run, "make this folder", code.value());
  Replacement words(run + "/" + kSettings, "train");
  words.file().write(settings);
  words.commit();
}

/// A run that fails before its first checkpoint leaves nothing: its words would refuse the next ones.
void end_without_steps(const std::string& run) {
  std::error_code code;
  for (const auto& file : fs::directory_iterator(run, code))
    if (file.path().filename().string().starts_with("step-")) return;
  fs::remove_all(run, code);
}

int train(Request& r) {
  Corpora all = read_corpora_of(r.data, "train");
  if (!r.dev.empty()) all.dev = read_corpora(r.dev);
  if (!r.test.empty()) all.test = read_corpora(r.test);
  require_trainable(all.train);
  if (all.dev.rows.empty()) all.dev = hold_out(all.train, r.training.held_out, r.training.seed);
  for (const Corpus* judged : {&all.dev, &all.test}) require_seen_labels(all.train, *judged);

  while (r.out.size() > 1 && r.out.back() == '/') r.out.pop_back();
  const std::string run = r.out + ".run", settings = settings_of(r).dump(2) + "\n";
  r.training.compute = parse_dtype(r.dtype);
  std::optional<Pretrained> pretrained;
  if (!r.from.empty()) pretrained.emplace(read_pretrained(r.from));
  const RecognizerConfig config = config_of(r, pretrained ? &*pretrained : nullptr);
  if (is_done(r, run, settings)) {
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
  r.training.run_folder = run;
  r.training.out = r.quiet ? nullptr : &std::cout;
  const Start start =
      pretrained ? from_encoder(config, pretrained->vocabulary, pretrained->encoder, all.train, r.training)
                 : from_scratch(config, all.train, r.training);
  check(start.config);
  begin(run, settings);
  const TrainedRecognizer made = [&] {
    try {
      return train_recognizer(start, all.train, all.dev, r.training, session);
    } catch (...) {
      end_without_steps(run);
      throw;
    }
  }();
  if (made.ending == Ending::interrupted) {
    fmt::print(stderr, "headwise: train: stopped at step {}, nothing is lost; the same command goes on\n",
               made.step);
    return kFailed;
  }
  const FolderFile files[] = {{"metrics.json", made.metrics}, {"card.md", made.card}, {kSettings, settings}};
  made.model.save(r.out, files);
  fs::remove_all(run);
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
