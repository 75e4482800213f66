// Recognizer: the intents of a text: an encoder over any heads, pooling, and one or several labels.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "headwise/base/context.h"
#include "headwise/intent/compound/cuts.h"
#include "headwise/intent/recognizer/chunks.h"
#include "headwise/intent/recognizer/label_scores.h"
#include "headwise/intent/recognizer/learnt_gates.h"
#include "headwise/intent/recognizer/ngrams.h"
#include "headwise/intent/recognizer/planted_head.h"
#include "headwise/layers/basic/linear.h"
#include "headwise/layers/basic/packed_weights.h"
#include "headwise/layers/transformer/mirror.h"

#pragma GCC visibility push(default)
namespace headwise {

/// attention: a few learned queries. labels: a query and a vector for every label, so that each looks where
/// it likes. mean: of all tokens. first: the [CLS] token. peak: every token scores the labels, and a label
/// has nearly the largest of its scores.
enum class Pooling : std::uint8_t { attention, labels, mean, first, peak };
inline constexpr std::string_view kPoolingNames[] = {"attention", "labels", "mean", "first", "peak"};
constexpr std::string_view name_of(Pooling p) { return kPoolingNames[static_cast<int>(p)]; }

/// What happens to a text above chunk_tokens. chunks: overlapping ones, encoded apart, pooled together.
/// sparse: one piece of at most encoder.max_tokens, in which blocks of 64 tokens see their neighbours up to
/// half a chunk away and the text's first block. whole: such a piece in which heads see what their reach is.
enum class LongText : std::uint8_t { chunks, sparse, whole };
inline constexpr std::string_view kLongTextNames[] = {"chunks", "sparse", "whole"};
constexpr std::string_view name_of(LongText l) { return kLongTextNames[static_cast<int>(l)]; }

/// What config.json of a model folder holds.
struct RecognizerConfig {
  /// kind and vocabulary are set by the recogniser; dropout acts in training alone.
  TransformerConfig encoder = {.kind = ModelKind::encoder,
                               .model_dim = 192,
                               .feed_dim = 384,
                               .depth = 2,
                               .heads = "mha:heads=8+gated:source=input,act=silu",
                               .feed = FeedKind::swiglu,
                               .norm = {.kind = NormKind::rms},
                               .dropout = 0.2};
  NgramOptions ngrams = {.buckets = 20000};  // rows added to the tokens'; buckets 0: none
  Pooling pooling = Pooling::attention;
  Index pool_queries = 4;  // of Pooling::attention
  double pool_dropout = 0.3;
  WordRules words = {};
  std::string planted = {};  // a designed head: see planted_text; "": none
  bool learn_gates = false;  // every head has a learnt gate: models in training alone, see LearntGates

  bool multi_label = false;              // several labels may hold at once, or none
  std::vector<std::string> labels = {};  // labels.txt
  double threshold = 0.5;                // multi_label: probability from which a label is given
  bool at_least_one = true;  // multi_label: the best label is given where none reaches the threshold
  double out_of_scope = 0;   // confidence below which nothing is claimed
  CutOptions cuts = {};      // multi_label: a text is cut into spans, each read as a text of one label

  LongText long_text = LongText::chunks;
  Index chunk_tokens = 512, chunk_overlap = 64;

  /// The logits of a text, or of a span, say which one class it has; else every label is judged by itself.
  bool one_class() const { return !multi_label || cuts.on; }
  /// Columns of the logits: a recogniser that cuts has one class more, "several intents or half of one".
  Index classes() const { return static_cast<Index>(labels.size()) + (cuts.on ? 1 : 0); }
};

/// What one thread needs to run a recogniser; many may share the recogniser itself.
struct Session {
  explicit Session(const ContextOptions& options = {}) : ctx(options) {}
  Context ctx;
  StepMemory memory;
};

/// The words of a text that said one of its intents.
struct IntentSpan {
  Index label = 0;
  TextSpan span = {};     // bytes of the text
  float probability = 0;  // of the label, of this span read alone
};

struct Prediction {
  /// Of every label: softmax, or a sigmoid each. Of a text that was cut: the largest among its spans.
  std::vector<float> probability = {};
  std::vector<Index> labels = {};      // given, best first; none where it is out of scope
  double confidence = 0;               // the largest probability
  bool out_of_scope = false;           // confidence is below config.out_of_scope
  std::vector<IntentSpan> spans = {};  // of recognisers that cut: in the text's order
};

/// What a recogniser that cuts has read of a text, before it chooses: enough to choose again with other
/// settings.
struct TextReading {
  CutReading cuts;
  std::vector<TextSpan> bytes;  // of each span
};

/// A file of a model folder that is written along: metrics.json, card.md.
struct FolderFile {
  std::string name, content;
};

class Recognizer {
 public:
  /// Weights start from the seed. f32 learns and predicts; f64 and bf16 are for checks and for training with
  /// MasterWeights.
  Recognizer(RecognizerConfig config, Vocabulary vocabulary, std::uint64_t seed, DType dtype = DType::f32);
  /// The same over a filled encoder: its parameters (embed..., stack...) are copied, the rest starts from the
  /// seed. Every one of the encoder's own must be there with its size.
  Recognizer(RecognizerConfig config, Vocabulary vocabulary, const ParamSet& encoder, std::uint64_t seed,
             DType dtype = DType::f32);
  Recognizer(Recognizer&&) = default;
  Recognizer& operator=(Recognizer&&) = default;

  /// A folder that is missing, damaged or of a newer version is refused in one sentence.
  static Recognizer load(const std::string& folder, DType dtype = DType::f32);
  /// The whole folder or nothing: written beside its name, brought to the disk, renamed. A model folder of
  /// that name is replaced, anything else is left alone and refused.
  void save(const std::string& folder, std::span<const FolderFile> files = {}) const;

  /// Any texts, also none and empty ones. The bits are those of one text at a time.
  std::vector<Prediction> predict(std::span<const std::string> texts, Session& session) const;
  Prediction predict(const std::string& text, Session& session) const;

  /// Of a recogniser that cuts: candidates and spans of each text, every span read.
  std::vector<TextReading> read_cuts(std::span<const std::string> texts, Session& session) const;
  /// The answer a reading gives by the config's cuts and thresholds.
  Prediction answer(const TextReading& reading) const;

  /// Tokens of one text, [CLS] and [SEP] around it, as predict reads it.
  Encoding encode(std::string_view text) const;
  /// Texts side by side, cut into chunks where they are long.
  TextBatch batch(std::span<const std::string> texts) const;
  void add_to(TextBatch& batch, const Encoding& encoding) const;

  struct Saved {
    Transformer::Saved encoder;
    Ngrams::Saved ngrams;
    PlantedHead::Saved planted;
    TextPooling::Saved pooling;
    TextPeaks::Saved peaks;
    DropoutOptions dropout;
    LabelScores::Saved scores;
    Linear::Saved tags;
    AnyView rows;                      // the encoder's, [tokens model_dim]
    const TextBatch* batch = nullptr;  // what forward read
    bool there = false;                // the encoder ran on its device
  };
  /// Logits [texts classes]; the batch must live until backward. The call's taps and head gates act in the
  /// encoder, whose sequences are the batch's chunks. `tags`, where asked of a recogniser that cuts: logits
  /// [tokens 2] of "an intent begins here" and "connector".
  AnyView forward(const TextBatch& batch, Call& call, Saved* saved, AnyView* tags = nullptr) const;
  /// Adds the parameters' gradients; returns that of the rows the first block reads, [tokens model_dim].
  /// dtags: where forward was asked for tags.
  AnyView backward(const AnyView& dlogits, Call& call, Saved& saved, const AnyView& dtags = {}) const;
  /// What the logits of one text say, by the config's thresholds; of a recogniser that cuts: read as one
  /// span.
  Prediction judge(const AnyView& logits, Index text) const;

  /// From now on the encoder runs on that device, on copies of its parameters. What stands around it,
  /// n-grams, pooling and labels, runs on the CPU, where all parameters stay. Throws where the device or what
  /// this model asks of it is not there.
  /// A call that looks at single heads, or changes them, runs on the CPU all the same.
  /// dtype: of its computing there, f32 or bf16; only f32 learns.
  void to(Device device, Context& ctx, DType dtype = DType::f32);
  Device device() const { return mirror_ ? mirror_->device() : Device(); }

  const RecognizerConfig& config() const { return config_; }
  /// What is decided after training: see RecognizerConfig.
  void set_thresholds(double threshold, double out_of_scope);
  void set_cuts(const CutOptions& cuts);
  const WordPiece& tokenizer() const { return tokenizer_; }
  const Transformer& encoder() const { return *encoder_; }
  /// Null where the config has none. A call without head gates runs with theirs, open or shut.
  const LearntGates* gates() const { return gates_ ? &*gates_ : nullptr; }
  /// To change them: weights are read as they lie from now on.
  ParamSet& params() {
    packed_ = nullptr;
    return params_;
  }
  const ParamSet& params() const { return params_; }
  /// From now on products read packed weights, each packed when it is first read: the same bits sooner, for
  /// the memory of the weights once more. A loaded recogniser does.
  void pack_weights();
  /// Null where weights are read as they lie.
  const PackedWeights* packed_weights() const { return packed_.get(); }

 private:
  /// The layers are declared in `params`.
  Recognizer(RecognizerConfig config, Vocabulary vocabulary, ParamSet params);

  RecognizerConfig config_;
  WordPiece tokenizer_;
  ParamSet params_;
  std::optional<Transformer> encoder_;
  std::unique_ptr<TransformerMirror> mirror_;  // where the encoder runs on a device
  std::optional<Ngrams> ngrams_;
  std::optional<PlantedHead> planted_;
  std::optional<LearntGates> gates_;
  std::optional<TextPooling> pooling_;
  std::optional<LabelScores> scores_;
  std::optional<Linear> tags_;  // of recognisers that cut
  Mask sparse_;                 // of LongText::sparse
  std::shared_ptr<PackedWeights> packed_;
};

/// Refuses, in one sentence, settings that cannot work.
void check(const RecognizerConfig& config);
/// Labels, confidence and scope from the probabilities, by the config's thresholds.
void decide(const RecognizerConfig& config, Prediction& prediction);

}  // namespace headwise
#pragma GCC visibility pop
