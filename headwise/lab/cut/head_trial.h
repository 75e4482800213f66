// HeadTrial: how much worse a model answers when heads are off, scaled or edited, on texts kept for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/intent/corpus/corpus.h"
#include "headwise/lab/model/lab_model.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What one head of one layer gives instead of its output.
struct Intervention {
  enum class Kind : std::uint8_t { off, scaled, noised, mean, patched };
  Kind kind = Kind::off;
  HeadName head = {};
  AttentionPart part = AttentionPart::own;
  double factor = 0;       // scaled: of the output; noised: of its standard deviation over all rows
  std::uint64_t seed = 0;  // noised
  const float* rows = {};  // patched: [rows value_dim] of another run over texts of the same lengths
};
inline constexpr std::string_view kInterventionNames[] = {"off", "scaled", "noised", "mean", "patched"};

/// Columns first .. first + dim - 1 of the rows W_O reads, [rows columns], as the intervention has them.
void change_head(const AnyView& y, Index first, Index dim, const Intervention& intervention);
/// A change of heads' outputs before W_O: pass it as Call::edit_heads. Means are over all rows of a forward.
/// The model and the interventions must outlive it.
HeadEdit edit_of(const LabModel& model, const std::vector<Intervention>& all);

/// How Michel et al. 2019 sum |dL / dgate|: over texts (the paper), over tokens (their code), over batches
/// (bertology of Hugging Face).
enum class MichelSum : std::uint8_t { text, token, batch };
inline constexpr std::string_view kMichelNames[] = {"text", "token", "batch"};

/// What heads are ranked by: how much worse a model is without some of them.
class CutTrial {
 public:
  virtual ~CutTrial() = default;
  /// Of the whole model, by layer.
  virtual const std::vector<Index>& heads() const = 0;
  virtual double whole_loss() = 0;
  virtual double loss_without(const HeadPlan& plan) = 0;
  /// Scores by slopes, [layers][heads]; refused where there are none.
  virtual std::vector<std::vector<double>> michel(MichelSum sum, bool by_layer) = 0;
};

/// The loss of a recogniser is that of the true labels (see text_loss). Of an encoder it is 1 - cosine
/// between what it gives and what the whole model gives, so 0 to begin with.
class HeadTrial : public CutTrial {
 public:
  /// At most `most` rows of the corpus, evenly chosen. Rows of labels the recogniser has not are left out.
  HeadTrial(const LabModel& model, const Corpus& corpus, Index most, Session& session);

  Index texts() const { return texts_; }
  const std::vector<Index>& heads() const override { return heads_; }
  /// Mean over texts, by gates [layers heads] or an edit; nothing given: the whole model.
  double loss(const AnyView& gates = {}, const HeadEdit* edit = nullptr);
  double whole_loss() override { return loss(); }
  double loss_without(const HeadPlan& plan) override;
  /// [layers][heads], each layer divided by its length where `by_layer`. Encoders are refused: their loss is
  /// least at gates of 1, so its slope says nothing.
  std::vector<std::vector<double>> michel(MichelSum sum, bool by_layer) override;
  /// What the model gives: probabilities [texts labels] or vectors [texts model_dim].
  std::vector<std::vector<float>> answers(const AnyView& gates = {}, const HeadEdit* edit = nullptr);

 private:
  struct Group {
    TextBatch batch;
    std::vector<std::vector<Index>> labels;
  };
  const LabModel& model_;
  Session& session_;
  std::vector<Index> heads_;
  Index texts_ = 0;
  std::vector<Group> groups_;            // of a recogniser
  std::vector<std::string> plain_;       // of an encoder
  std::vector<std::vector<float>> own_;  // what the whole encoder gives
};

}  // namespace headwise
#pragma GCC visibility pop
