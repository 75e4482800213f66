// Training of recognisers: vocabulary, recipe, thresholds and folder from labelled utterances; stops lose
// nothing.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <optional>
#include <ostream>

#include "headwise/intent/training/evaluation.h"
#include "headwise/train/trainer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What refusing unknown texts may cost where no rows say what is unknown: a little less than 2 points.
inline constexpr double kMayLose = 0.018;

/// The recipe. Its numbers were chosen on dev splits of small corpora of short utterances.
struct TrainingOptions {
  Index epochs = 12, batch = 64;
  double rate = 2e-3, warm_up = 0.1;  // peak; share of the steps before it, a cosine to 0 behind it
  double encoder_rate = 1;            // of a given encoder, as a part of `rate`; 0: it stays as it is
  double layer_decay = 1;             // times it for every block that stands above one
  bool learn_embedding = true;        // false: the tables of a given encoder stay as they are
  double weight_decay = 0.05, clip = 1;
  double label_smoothing = 0.1;
  double token_dropout = 0.1;                // tokens read as [MASK]
  double compound_dropout = 0.25;            // the same of texts that are joined, where the config has cuts
  std::vector<std::string> connectors = {};  // between intents, where it has; none: default_connectors()
  double average = 0.99;                     // the kept weights are a running mean of the last steps'
  double gate_price = 0;  // of an open head in the loss, where the config has learn_gates (L0)
  double minutes = 0;     // of one call before it stops and keeps the best; 0: when the epochs are done
  Index patience = 0;     // epochs without a better dev score before it stops; 0: never
  Index micro_batches =
      0;  // a step's batch in so many parts, their gradients added as a tree; 0: in one, no tree
  const Communicator* data =
      nullptr;  // ranks that share the parts; every one trains the same model, rank 0 writes
  /// Blocks are cut over its tensor team, in order tree; ranks of it learn from the same rows. Outlives the
  /// call.
  const Teams* tensor = nullptr;
  bool slices = false;         // its ranks write their slices of a checkpoint, each into a file of its own
  DType compute = DType::f32;  // bf16: products in bf16, f32 masters learn
  Device device = {};          // where it learns: all of it, or of some configs the encoder alone
  std::uint64_t seed = 1;

  Index pieces = 4000;               // of the vocabulary, where it is learnt from the texts
  double held_out = 0.05;            // share of the rows that become dev where none is given
  std::string out_of_scope = "oos";  // rows of this label calibrate and are not learnt,
  bool learn_out_of_scope = false;   // unless asked: then as texts of no label
  std::string about_scope = {};      // a sentence for the card; add_strangers gives it
  double may_lose = kMayLose;  // share of dev that may be right answers refused, where dev has no such rows
  std::string strangers = "auto";        // what add_strangers does: auto, none or built-in
  std::optional<bool> multi_label = {};  // unset: as the labels are

  /// Called after every epoch with its number, from 1, and the weights that were judged; changes nothing.
  std::function<void(Index epoch, const Recognizer& model)> each_epoch = {};
  std::string run_folder = {};  // checkpoints, best model so far and log; "": nothing is kept
  std::ostream* out = nullptr;  // progress and reports
  Screen screen = Screen::automatic;
};

struct TrainedRecognizer {
  Recognizer model;
  Ending ending = Ending::finished;
  Evaluation dev;
  Index step = 0, epochs = 0;
  double seconds = 0;        // of this run, without what was done before a resume
  std::string metrics = {};  // metrics.json: settings, curve and figures
  std::string card = {};     // card.md: the same for people
};

/// The recipe of recognisers that cut: fewer and larger steps, less decay, a longer running mean.
TrainingOptions compound_training();

/// What a training begins with; from_scratch() and from_encoder() make it.
struct Start {
  RecognizerConfig config;
  Vocabulary vocabulary;
  const ParamSet* encoder = nullptr;  // filled; null: weights start from the seed
  const ParamSet* all = nullptr;      // those of a whole recogniser of this config: it goes on learning
};

/// Goes on from a recogniser, which must outlive it; rows may have its labels alone.
Start from_recognizer(const Recognizer& model);

/// Rows taken out of `corpus` by a draw from their text and the seed: equal texts stay together, and the last
/// row of a label stays.
Corpus hold_out(Corpus& corpus, double share, std::uint64_t seed);

/// Labels of the config from the data, one or several a text; the vocabulary learnt from the texts.
Start from_scratch(RecognizerConfig config, const Corpus& train, const TrainingOptions& options);
/// The same around a given vocabulary and a filled encoder, whose settings the config holds.
Start from_encoder(RecognizerConfig config, Vocabulary vocabulary, const ParamSet& encoder,
                   const Corpus& train, const TrainingOptions& options);

/// Refuses what cannot be learnt or judged before anything is written. Interrupted or killed, the same call
/// goes on from the newest checkpoint of the run folder and gives the same bits as a run that never stopped.
/// An interrupted run returns with its ending and must not be kept as a model.
TrainedRecognizer train_recognizer(const Start& start, const Corpus& train, const Corpus& dev,
                                   const TrainingOptions& options, Session& session);

/// The best probabilities to give labels from (multi-label) and to claim anything at all, on dev. What is
/// refused is judged as if one text in five were out of scope. Without out-of-scope rows the threshold is the
/// largest that refuses at most `may_lose` of dev's right answers. It is no larger than what refuses nine in
/// ten of dev's rows with their own labels held out. 0: nothing is refused.
struct Thresholds {
  double threshold = 0.5, out_of_scope = 0;
};
Thresholds calibrate(const RecognizerConfig& config, const Corpus& dev, std::span<const Prediction> given,
                     const std::string& out_of_scope, double may_lose = 0);

/// Confidence the others would have if the row's labels were unknown ones.
double held_out_confidence(const RecognizerConfig& config, const Utterance& row, const Prediction& given);
/// What the scope's threshold does on dev, in a sentence or two.
std::string scope_words(const RecognizerConfig& config, const Corpus& dev, std::span<const Prediction> given,
                        const std::string& out_of_scope);

}  // namespace headwise
#pragma GCC visibility pop
