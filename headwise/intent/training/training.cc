#include "headwise/intent/training/training.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "headwise/base/words.h"
#include "headwise/intent/corpus/report.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/intent/training/learner.h"
#include "headwise/model/file.h"
#include "headwise/model/json_object.h"
#include "headwise/train/crc32c.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
constexpr const char* kOp = "train";

std::string number(double x) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
}

void copy_values(const ParamSet& from, ParamSet& to) {
  for (std::size_t i = 0; i < from.all().size(); ++i) {
    const AnyView &a = from.all()[i].value, &b = to.all()[i].value;
    for (Index k = 0; k < b.count(); ++k) store_double(b.data, b.dtype, k, load_double(a.data, a.dtype, k));
  }
}

Corpus learnt_rows(const RecognizerConfig& c, const Corpus& train, const std::string& out_of_scope) {
  Corpus rows{.name = train.name, .rows = {}};
  for (const Utterance& row : train.rows)
    if (!is_out_of_scope(row, c.multi_label, out_of_scope)) rows.rows.push_back(row);
  return rows;
}

/// What two runs must share to be one: settings, vocabulary, labels and data.
std::string identity_of(const Start& start, const Corpus& train, const Corpus& dev,
                        const TrainingOptions& o) {
  Crc32c crc;
  for (const Corpus* corpus : {&train, &dev})
    for (const Utterance& row : corpus->rows) {
      crc.add(row.text);
      for (const std::string& label : row.labels) crc.add("\t" + label);
      crc.add("\n");
    }
  for (Index i = 0; i < start.vocabulary.size(); ++i)
    crc.add(start.vocabulary.piece(static_cast<TokenId>(i)) + '\n');
  std::string settings = config_text(start.config);
  std::replace(settings.begin(), settings.end(), '\n', ' ');
  return text(settings, " epochs=", o.epochs, " label_smoothing=", o.label_smoothing,
              " token_dropout=", o.token_dropout, " encoder_rate=", o.encoder_rate,
              " layer_decay=", o.layer_decay, " learn_embedding=", o.learn_embedding, " compute=", o.compute,
              " out_of_scope=", o.out_of_scope, " patience=", o.patience,
              " encoder=", start.encoder ? "given" : "none", " data=", crc.value());
}

/// The weights that judged best so far, in memory and, for whoever resumes, in the run folder.
class Best {
 public:
  Best(std::string folder, std::string identity)
      : folder_(std::move(folder)), identity_(std::move(identity)) {}

  /// What an earlier part of the same run left.
  void resume(Recognizer& model) {
    if (folder_.empty() || !fs::exists(folder_ + "/judged.json")) return;
    try {
      const JsonObject judged = JsonObject::read(folder_ + "/judged.json", kOp);
      if (judged.word("run") != identity_) return;
      const Recognizer kept = Recognizer::load(folder_);
      take(kept.params(), judged.number("judged", -1e300, 1e300), kept.config());
      model.set_thresholds(config_.threshold, config_.out_of_scope);
    } catch (const Error& e) {
      damage_ = e.what();
    }
  }
  bool none() const { return values_.empty(); }
  /// Refuses to go on at `step`, behind judgements, without what was best in them: it is not made again.
  void require_kept(Index step) const {
    require(!none() || offered_, ErrorKind::bad_argument, kOp, folder_, " holds the best before step ", step,
            " and is ", damage_.empty() ? "gone" : text("damaged (", damage_, ')'), "; delete ",
            fs::path(folder_).parent_path().string(), " and train again");
  }
  /// What is offered from now on stays out of the run folder.
  void keep_in_memory() { folder_.clear(); }
  void offer(const Recognizer& model, double judged) {
    offered_ = true;
    if (judged >= judged_) return;
    take(model.params(), judged, model.config());
    if (folder_.empty()) return;
    const FolderFile file{
        "judged.json", text("{\"judged\": ", number(judged), ", \"run\": ", json_string(identity_), "}\n")};
    model.save(folder_, std::span(&file, 1));
  }
  void give(Recognizer& model) const {
    if (values_.empty()) return;
    for (std::size_t i = 0; i < values_.size(); ++i)
      copy_rows(values_[i].view(), model.params().all()[i].value);
    model.set_thresholds(config_.threshold, config_.out_of_scope);
  }

 private:
  void take(const ParamSet& params, double judged, const RecognizerConfig& config) {
    values_.clear();
    for (const Param& p : params.all()) {
      Tensor& t = values_.emplace_back(DType::f32, std::initializer_list<Index>{p.value.count()});
      copy_rows(AnyView::packed(p.value.data, p.value.dtype, {p.value.count()}), t.view());
    }
    judged_ = judged, config_ = config;
  }
  std::string folder_, identity_, damage_;
  bool offered_ = false;
  std::vector<Tensor> values_;
  double judged_ = std::numeric_limits<double>::infinity();
  RecognizerConfig config_;
};

/// Rows of the log that were judged: one an epoch.
std::string curve_of(const std::string& log) {
  std::string curve;
  if (log.empty() || !fs::exists(log)) return "[]";
  const std::string lines = read_text(log, Index{1} << 30, kOp);
  for (std::size_t at = 0; at < lines.size();) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string line = lines.substr(at, end - at);
    at = end + 1;
    if (line.find("\"judged\"") != std::string::npos)
      curve += text(curve.empty() ? "\n    " : ",\n    ", line);
  }
  return text('[', curve, "]");
}

}  // namespace

TrainedRecognizer train_recognizer(const Start& start, const Corpus& all, const Corpus& dev,
                                   const TrainingOptions& o, Session& session) {
  const auto begun = std::chrono::steady_clock::now();
  constexpr Index kMost = Index{1} << 20;  // so that steps and examples of a run can be counted
  require(o.epochs > 0 && o.batch > 0, ErrorKind::bad_argument, kOp, "epochs is ", o.epochs, " and batch ",
          o.batch, "; give 1 or more of each");
  require(o.epochs <= kMost && o.batch <= kMost, ErrorKind::bad_argument, kOp, "epochs is ", o.epochs,
          " and batch ", o.batch, "; give at most ", kMost, " of each");
  require(o.layer_decay > 0 && o.layer_decay <= 1, ErrorKind::bad_argument, kOp, "layer_decay is ",
          o.layer_decay, "; give a factor above 0 and up to 1");
  require(o.compute == DType::f32 || o.compute == DType::bf16, ErrorKind::bad_dtype, kOp, "compute is ",
          o.compute, "; give f32 or bf16");
  const Corpus train = learnt_rows(start.config, all, o.out_of_scope);
  require(!train.rows.empty() && !dev.rows.empty(), ErrorKind::bad_argument, kOp, "there are ",
          train.rows.size(), " rows to learn from and ", dev.rows.size(), " to judge by; give some of both");
  require_seen_labels(all, dev, o.out_of_scope);

  const std::uint64_t seed = o.seed;
  Recognizer model = start.encoder ? Recognizer(start.config, start.vocabulary, *start.encoder, seed)
                                   : Recognizer(start.config, start.vocabulary, seed);
  const auto slow_encoder = [&](ParamSet& params) {
    if (!start.encoder) return;
    params.set_rate("embed.", o.learn_embedding ? o.encoder_rate : 0);
    params.set_rate("stack.", o.encoder_rate);
    for (Index i = 0; i < start.config.encoder.depth; ++i)
      params.set_rate(
          text("stack.layers.", i, '.'),
          o.encoder_rate * std::pow(o.layer_decay, static_cast<double>(start.config.encoder.depth - 1 - i)));
  };
  slow_encoder(model.params());
  std::optional<Recognizer> image;
  std::optional<MasterWeights> masters;
  if (o.compute == DType::bf16) {
    image.emplace(start.config, start.vocabulary, seed, DType::bf16);
    slow_encoder(image->params());
    copy_values(model.params(), image->params());
    masters.emplace(image->params());
    copy_values(model.params(), masters->params());
  }
  const Recognizer& computing = image ? *image : model;
  ParamSet& learning = masters ? masters->params() : model.params();
  Optimizer optimizer(
      learning,
      AdamWOptions{
          .beta2 = 0.98, .weight_decay = o.weight_decay, .decay = Decay::matrices, .average = o.average});

  const std::string identity = identity_of(start, train, dev, o);
  const std::string log = o.run_folder.empty() ? "" : o.run_folder + "/log.jsonl";
  Best best(o.run_folder.empty() ? "" : o.run_folder + "/best", identity);
  if (!o.run_folder.empty()) {
    std::error_code code;
    fs::create_directories(o.run_folder, code);
    if (code) file_failed(kOp, o.run_folder, "make this folder", code.value());
  }
  best.resume(model);

  std::vector<std::string> texts;
  for (const Utterance& row : dev.rows) texts.push_back(row.text);
  const auto judge = [&] {
    const auto swap = [&] {
      if (o.average > 0) optimizer.swap_averages();
      if (masters) masters->publish(session.ctx);
    };
    swap();
    const std::vector<Prediction> given = computing.predict(texts, session);
    const Thresholds t = calibrate(model.config(), dev, given, o.out_of_scope);
    model.set_thresholds(t.threshold, t.out_of_scope);
    std::vector<Prediction> decided = given;
    for (Prediction& p : decided) decide(model.config(), p);
    const Evaluation e =
        evaluate(model.config(), dev, decided, {.out_of_scope = o.out_of_scope, .bad_cases = 0});
    const double judged = 1 - e.exact.value() + 1e-4 * mean_loss(model.config(), dev, given);
    if (masters) copy_values(masters->params(), model.params());
    best.offer(model, judged);
    swap();
    return judged;
  };

  const auto rows = static_cast<Index>(train.rows.size());
  const Index per_epoch = max_of(1, (rows + o.batch / 2) / o.batch), steps = per_epoch * o.epochs;
  Learner learner(computing, train, o, session);
  Trainer trainer(
      optimizer, rows,
      {.steps = steps,
       .micro_rows = o.batch,
       .rate = Schedule::cosine(o.rate, static_cast<Index>(o.warm_up * static_cast<double>(steps)), steps),
       .clip = o.clip,
       .seed = seed,
       .config = identity,
       .folder = o.run_folder,
       .save_every = o.run_folder.empty() ? 0 : per_epoch,
       .judge_every = per_epoch,
       .patience = o.patience,
       .seconds = 60 * o.minutes,
       .log = log,
       .out = o.out,
       .screen = o.screen},
      session.ctx, masters ? &*masters : nullptr);
  const TrainResult run = trainer.run(
      [&](const MicroBatch& m) {
        if (m.step >= per_epoch) best.require_kept(m.step);
        return learner.learn(m);
      },
      judge);
  if (run.step >= per_epoch) best.require_kept(run.step);
  // Its time was up within the first epoch: what was learnt is judged now, or the first weights were kept.
  // Not in the run folder, where a run that goes on would find a judgement it never makes.
  if (run.ending != Ending::interrupted && run.step > 0 && best.none()) best.keep_in_memory(), judge();
  best.give(model);

  TrainedRecognizer result{.model = std::move(model),
                           .ending = run.ending,
                           .dev = {},
                           .step = run.step,
                           .epochs = run.step / per_epoch};
  result.dev = evaluate(result.model, dev, session, {.out_of_scope = o.out_of_scope});
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  const RecognizerConfig& c = result.model.config();
  std::string figures = result.dev.json();
  result.metrics = text(
      "{\n  \"train\": ", json_string(train.name), ",\n  \"rows\": ", rows,
      ",\n  \"labels\": ", c.labels.size(), ",\n  \"parameters\": ", result.model.params().count(),
      ",\n  \"seed\": ", seed, ",\n  \"epochs\": ", result.epochs, ",\n  \"batch\": ", o.batch,
      ",\n  \"rate\": ", number(o.rate), ",\n  \"encoder_rate\": ", number(o.encoder_rate),
      ",\n  \"layer_decay\": ", number(o.layer_decay),
      ",\n  \"learn_embedding\": ", o.learn_embedding ? "true" : "false",
      ",\n  \"weight_decay\": ", number(o.weight_decay),
      ",\n  \"label_smoothing\": ", number(o.label_smoothing),
      ",\n  \"token_dropout\": ", number(o.token_dropout), ",\n  \"average\": ", number(o.average),
      ",\n  \"compute\": \"", o.compute, "\",\n  \"encoder\": \"", start.encoder ? "given" : "from scratch",
      "\",\n  \"numerics\": ", json_string(numerics_id(session.ctx)),
      ",\n  \"seconds\": ", number(result.seconds), ",\n  \"curve\": ", curve_of(log),
      ",\n  \"dev\": ", figures, "}\n");
  result.card = text("# An intent recogniser made with headwise\n\nLearnt from ", rows, " utterances of ",
                     train.name, ", ", c.labels.size(), " labels, ", c.multi_label ? "several" : "one",
                     " a text; heads `", c.encoder.heads, "`, ", result.model.params().count(),
                     " numbers. Judged on ", dev.name, ":\n\n```\n", result.dev.print(),
                     "```\n\nIt knows these labels and this kind of text alone; a confidence below ",
                     number(c.out_of_scope), " is answered as out of scope.\n");
  return result;
}

}  // namespace headwise
