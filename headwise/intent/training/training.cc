#include "headwise/intent/training/training.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "headwise/base/words.h"
#include "headwise/intent/compound/connectors.h"
#include "headwise/intent/corpus/report.h"
#include "headwise/intent/recognizer/cut_recognizer.h"
#include "headwise/intent/recognizer/model_folder.h"
#include "headwise/intent/training/compound_learner.h"
#include "headwise/intent/training/learner.h"
#include "headwise/intent/training/model_card.h"
#include "headwise/intent/training/option_checks.h"
#include "headwise/intent/training/scope/cut_calibration.h"
#include "headwise/model/file.h"
#include "headwise/model/json_object.h"
#include "headwise/train/checkpoints/crc32c.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;
constexpr const char* kOp = "train";

std::string number(double x) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, x).ptr);
}

void copy_values(const ParamSet& from, ParamSet& to) {
  require(from.all().size() == to.all().size() && from.count() == to.count(), ErrorKind::bad_shape, kOp,
          "got ", from.count(), " numbers for a model of ", to.count(), "; give those of the same config");
  for (std::size_t i = 0; i < from.all().size(); ++i) {
    const AnyView &a = from.all()[i].value, &b = to.all()[i].value;
    for (Index k = 0; k < b.count(); ++k) store_double(b.data, b.dtype, k, load_double(a.data, a.dtype, k));
  }
}

/// Rows that are out of scope are left out, or stay as rows without a label.
Corpus learnt_rows(const RecognizerConfig& c, const Corpus& train, const TrainingOptions& o) {
  Corpus rows{.name = train.name, .rows = {}};
  for (const Utterance& row : train.rows) {
    const bool outside = is_out_of_scope(row, c.multi_label, o.out_of_scope);
    if (outside && !o.learn_out_of_scope) continue;
    rows.rows.push_back(row);
    if (outside) rows.rows.back().labels.clear();
  }
  return rows;
}

/// Refuses a label that the model has not before it is learnt from.
void require_known_labels(const RecognizerConfig& c, const Corpus& train) {
  for (const Utterance& row : train.rows)
    for (const std::string& label : row.labels)
      require(std::find(c.labels.begin(), c.labels.end(), label) != c.labels.end(), ErrorKind::bad_argument,
              kOp, train.name, ": has the label ", label,
              ", which the model has not; give rows of its labels");
}

/// Gates learn faster than weights, a given encoder slower, its lower blocks slower still.
void set_rates(const Start& start, const TrainingOptions& o, ParamSet& params) {
  // Adam moves a number by about the rate a step, and a gate that shuts goes from 2 past 0.
  params.set_rate("gates.", 10);
  if (!start.encoder) return;
  params.set_rate("embed.", o.learn_embedding ? o.encoder_rate : 0);
  params.set_rate("stack.", o.encoder_rate);
  for (Index i = 0; i < start.config.encoder.depth; ++i)
    params.set_rate(
        text("stack.layers.", i, '.'),
        o.encoder_rate * std::pow(o.layer_decay, static_cast<double>(start.config.encoder.depth - 1 - i)));
}

Index open_heads(const LearntGates& gates) {
  Index open = 0;
  for (const Index heads : gates.heads()) open += heads;
  for (const auto& shut : gates.shut()) open -= static_cast<Index>(shut.size());
  return open;
}

std::span<const std::string> connectors_of(const TrainingOptions& o) {
  return o.connectors.empty() ? std::span<const std::string>(default_connectors()) : o.connectors;
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
  if (o.gate_price > 0) settings += text(" gate_price=", o.gate_price);
  if (!o.device.is_cpu()) settings += text(" device=", o.device);  // its sums have other bits
  if (start.all) settings += " weights=given";
  // The default is not told apart from runs of before that had none: learning is the same.
  if (o.may_lose != kMayLose) settings += text(" may_lose=", o.may_lose);
  if (start.config.cuts.on) {
    settings += text(" compound_dropout=", o.compound_dropout, " connectors=");
    for (const std::string& c : connectors_of(o)) settings += json_string(c);
  }
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
      set_decisions(model);
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
    set_decisions(model);
  }

 private:
  void set_decisions(Recognizer& model) const {
    model.set_thresholds(config_.threshold, config_.out_of_scope);
    model.set_cuts(config_.cuts);
  }
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

/// The first rank of every team it is in writes.
bool writes_files(const TrainingOptions& o) {
  return (!o.data || o.data->rank() == 0) &&
         (!o.tensor ||
          (o.tensor->tensor_rank() == 0 && (!o.tensor->context || o.tensor->context->rank() == 0)));
}

/// Answers of the learning weights on dev; of a recogniser that cuts, after its cuts were calibrated there.
std::vector<Prediction> answers_on(const Corpus& dev, std::span<const std::string> texts,
                                   const Recognizer& computing, Recognizer& model, Session& session) {
  if (!model.config().cuts.on) return computing.predict(texts, session);
  const std::vector<TextReading> readings = computing.read_cuts(texts, session);
  model.set_cuts(calibrate_cuts(model, dev, readings));
  std::vector<Prediction> given;
  for (const TextReading& reading : readings) given.push_back(model.answer(reading));
  return given;
}

/// What compounds are drawn from, and how many rows could be cut.
JoinedTexts joined_texts(const Start& start, const Corpus& train, const TrainingOptions& o) {
  const RecognizerConfig& c = start.config;
  check(c);
  const std::span<const std::string> connectors = connectors_of(o);
  const CutRows rows = cut_rows(train, c.labels, connectors);
  require(rows.cut > 0, ErrorKind::bad_argument, kOp, train.name, ": none of the ", rows.whole.size(),
          " rows with several labels could be cut at a connector into pieces of one label each; give ",
          "--connectors, or leave out --compound cut");
  if (o.out)
    *o.out << text("compounds: ", rows.cut, " of ", rows.cut + static_cast<Index>(rows.whole.size()),
                   " rows were cut, ", rows.by_words, " of them by their words; ", rows.pieces.size(),
                   " pieces to join afresh\n");
  const WordPiece tokenizer(start.vocabulary, {.words = c.words});
  return {rows, static_cast<Index>(c.labels.size()), connectors,
          [&](const std::string& words) { return tokenizer.encode(words).ids; }};
}

Start with_cuts(Start start, const JoinedTexts& joined) {
  start.config.cuts.most_intents = max_of(2, joined.most_intents());
  start.config.cuts.connector_tokens = joined.connector_tokens();
  return start;
}

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

/// Does all of it learn on the device? Else its encoder alone runs there, in f32.
bool learns_there(const RecognizerConfig& c, const TrainingOptions& o) {
  const bool pools = c.pooling != Pooling::peak && c.pooling != Pooling::labels;
  return !o.device.is_cpu() && pools && !c.learn_gates && c.planted.empty() && !c.cuts.on;
}

/// The weights of a training. `computing` and `learning` are `whole`, or stand beside it.
struct LearntWeights {
  LearntWeights(const Start& start, const TrainingOptions& o, Context& ctx)
      : whole(start.encoder ? Recognizer(start.config, start.vocabulary, *start.encoder, o.seed)
                            : Recognizer(start.config, start.vocabulary, o.seed)) {
    if (start.all) copy_values(*start.all, whole.params());
    set_rates(start, o, whole.params());
    there = learns_there(start.config, o);
    if (o.compute == DType::bf16 || there) {
      image.emplace(start.config, start.vocabulary, o.seed, o.compute);
      set_rates(start, o, image->params());
      copy_values(whole.params(), image->params());
    }
    if (o.compute == DType::bf16) {
      masters.emplace(image->params());
      copy_values(whole.params(), masters->params());
    }
    if (o.tensor) {
      own.emplace(cut_over(whole, *o.tensor));
      set_rates(start, o, own->params());
      cut.emplace(whole.params(), own->params(), o.tensor->tensor ? *o.tensor->tensor : alone);
    }
    if (!there) whole.to(o.device, ctx);
  }
  LearntWeights(const LearntWeights&) = delete;
  LearntWeights& operator=(const LearntWeights&) = delete;

  const Recognizer& computing() const { return own ? *own : image ? *image : whole; }
  ParamSet& learning() {
    return own ? own->params() : masters ? masters->params() : there ? image->params() : whole.params();
  }
  /// What was learnt beside `whole` goes there.
  void join(const Optimizer& optimizer) {
    if (masters || there) {
      optimizer.fetch();
      for (std::size_t i = 0; i < whole.params().all().size(); ++i)
        copy_rows(optimizer.home_value(learning().all()[i]), whole.params().all()[i].value);
    }
    if (cut) cut->join();
  }

  Recognizer whole;
  bool there = false;               // all of it learns on the device
  std::optional<Recognizer> image;  // in bf16, or on the device
  std::optional<MasterWeights> masters;
  std::optional<Recognizer> own;  // this rank's part; over a context team alone, all of it
  const Communicator alone;
  std::optional<CutParams> cut;
};

/// What a training is made of; all of it outlives the training.
struct Material {
  const Start& start;
  const Corpus &train, &dev;
  const JoinedTexts* joined;  // what compounds are drawn from, or null
  const TrainingOptions& options;
  Session& session;
};

class Training {
 public:
  explicit Training(const Material& material);
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  TrainResult run();
  /// The best weights, judged once more; to be called last.
  TrainedRecognizer take(const TrainResult& run, std::chrono::steady_clock::time_point begun);

 private:
  TrainerOptions trainer_options();
  double judge();
  void swap_averages();

  const Material m_;
  const TrainingOptions& o_;
  LearntWeights weights_;
  Optimizer optimizer_;
  std::string identity_;
  bool writes_;
  std::string log_;
  Best best_;
  std::vector<std::string> texts_;     // of dev
  Index rows_, per_epoch_, done_ = 0;  // of train; steps
};

Training::Training(const Material& m)
    : m_(m),
      o_(m.options),
      weights_(m.start, o_, m.session.ctx),
      optimizer_(weights_.learning(), AdamWOptions{.beta2 = 0.98,
                                                   .weight_decay = o_.weight_decay,
                                                   .decay = Decay::matrices,
                                                   .average = o_.average}),
      identity_(identity_of(m.start, m.train, m.dev, o_)),
      writes_(writes_files(o_)),
      log_(o_.run_folder.empty() || !writes_ ? "" : o_.run_folder + "/log.jsonl"),
      best_(o_.run_folder.empty() ? "" : o_.run_folder + "/best", identity_),
      rows_(static_cast<Index>(m.train.rows.size())),
      per_epoch_(max_of(1, (rows_ + o_.batch / 2) / o_.batch)) {
  if (!o_.run_folder.empty()) {
    std::error_code code;
    fs::create_directories(o_.run_folder, code);
    if (code) file_failed(kOp, o_.run_folder, "make this folder", code.value());
  }
  if (weights_.there)
    optimizer_.to(o_.device, m.session.ctx, weights_.masters ? &weights_.image->params() : nullptr);
  best_.resume(weights_.whole);
  if (!writes_) best_.keep_in_memory();
  for (const Utterance& row : m.dev.rows) texts_.push_back(row.text);
}

/// Running means take the weights' place, or give it back.
void Training::swap_averages() {
  if (o_.average > 0) optimizer_.swap_averages();
  if (weights_.masters && !weights_.there) weights_.masters->publish(m_.session.ctx);
}

double Training::judge() {
  swap_averages();
  Recognizer& model = weights_.whole;
  const std::vector<Prediction> given = answers_on(m_.dev, texts_, weights_.computing(), model, m_.session);
  const Thresholds t = calibrate(model.config(), m_.dev, given, o_.out_of_scope, o_.may_lose);
  model.set_thresholds(t.threshold, t.out_of_scope);
  std::vector<Prediction> decided = given;
  for (Prediction& p : decided) decide(model.config(), p);
  const Evaluation e =
      evaluate(model.config(), m_.dev, decided, {.out_of_scope = o_.out_of_scope, .bad_cases = 0});
  weights_.join(optimizer_);
  double judged = 1 - e.exact.value() + 1e-4 * mean_loss(model.config(), m_.dev, given);
  if (model.gates()) judged += o_.gate_price * static_cast<double>(open_heads(*model.gates()));
  best_.offer(model, judged);
  if (o_.each_epoch && writes_) o_.each_epoch((done_ + per_epoch_ - 1) / per_epoch_, model);
  swap_averages();
  return judged;
}

TrainerOptions Training::trainer_options() {
  const Index steps = per_epoch_ * o_.epochs;
  return {
      .steps = steps,
      .micro_rows = o_.batch / max_of(1, o_.micro_batches),
      .micro_batches = max_of(1, o_.micro_batches),
      .rate = Schedule::cosine(o_.rate, static_cast<Index>(o_.warm_up * static_cast<double>(steps)), steps),
      .tree = o_.micro_batches > 0 && !weights_.there,
      .data = o_.data,
      .cut = o_.tensor && o_.tensor->tensor ? &*weights_.cut : nullptr,
      .context = o_.tensor ? o_.tensor->context : nullptr,
      .clip = o_.clip,
      .seed = o_.seed,
      .config = identity_,
      .folder = o_.run_folder,
      .save_every = o_.run_folder.empty() ? 0 : per_epoch_,
      .checkpoints = {.slices = o_.slices},
      .judge_every = per_epoch_,
      .patience = o_.patience,
      .seconds = 60 * o_.minutes,
      .log = log_,
      .out = o_.out,
      .screen = o_.screen};
}

TrainResult Training::run() {
  std::optional<Learner> learner;
  std::optional<CompoundLearner> compounds;
  if (m_.joined)
    compounds.emplace(weights_.computing(), *m_.joined, o_, m_.session);
  else
    learner.emplace(weights_.computing(), m_.train, o_, m_.session);
  Trainer trainer(optimizer_, rows_, trainer_options(), m_.session.ctx,
                  weights_.masters ? &*weights_.masters : nullptr);
  const TrainResult run = trainer.run(
      [&](const MicroBatch& m) {
        if (m.step >= per_epoch_) best_.require_kept(m.step);
        done_ = m.step + 1;
        return compounds ? compounds->learn(m) : learner->learn(m);
      },
      [&] { return judge(); });
  if (run.step >= per_epoch_) best_.require_kept(run.step);
  // Its time was up within the first epoch: what was learnt is judged now, or the first weights were kept.
  // Not in the run folder, where a run that goes on would find a judgement it never makes.
  if (run.ending != Ending::interrupted && run.step > 0 && best_.none()) best_.keep_in_memory(), judge();
  return run;
}

TrainedRecognizer Training::take(const TrainResult& run, std::chrono::steady_clock::time_point begun) {
  best_.give(weights_.whole);
  if (weights_.there) weights_.whole.to(o_.device, m_.session.ctx);
  TrainedRecognizer result{.model = std::move(weights_.whole),
                           .ending = run.ending,
                           .dev = {},
                           .step = run.step,
                           .epochs = run.step / per_epoch_};
  const std::vector<Prediction> given = result.model.predict(texts_, m_.session);
  result.dev = evaluate(result.model.config(), m_.dev, given, {.out_of_scope = o_.out_of_scope});
  std::string scope = scope_words(result.model.config(), m_.dev, given, o_.out_of_scope);
  if (!o_.about_scope.empty()) scope += ' ' + o_.about_scope;
  if (o_.out) *o_.out << "scope: " << scope << '\n';
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  describe(result, {m_.train, m_.dev, o_, curve_of(log_), numerics_id(m_.session.ctx), scope,
                    m_.start.encoder != nullptr});
  result.model.to(Device::cpu(), m_.session.ctx);
  return result;
}

}  // namespace

TrainedRecognizer train_recognizer(const Start& asked, const Corpus& all, const Corpus& dev,
                                   const TrainingOptions& o, Session& session) {
  const auto begun = std::chrono::steady_clock::now();
  check_options(o);
  require(o.device.is_cpu() || o.compute == DType::f32 || learns_there(asked.config, o),
          ErrorKind::unsupported, kOp, "the device is ", o.device,
          ", where this recogniser learns in f32: its pooling is ", name_of(asked.config.pooling),
          ", or it has gates, a planted head or cuts; leave out dtype or the device");
  if (o.tensor) check_cut(asked.config, *o.tensor);
  const Corpus train = learnt_rows(asked.config, all, o);
  require(!train.rows.empty() && !dev.rows.empty(), ErrorKind::bad_argument, kOp, "there are ",
          train.rows.size(), " rows to learn from and ", dev.rows.size(), " to judge by; give some of both");
  require_seen_labels(all, dev, o.out_of_scope);
  if (asked.all) require_known_labels(asked.config, train);

  std::optional<JoinedTexts> joined;
  if (asked.config.cuts.on) joined.emplace(joined_texts(asked, train, o));
  const Start start = joined ? with_cuts(asked, *joined) : asked;
  Training training({start, train, dev, joined ? &*joined : nullptr, o, session});
  const TrainResult run = training.run();
  return training.take(run, begun);
}

}  // namespace headwise
