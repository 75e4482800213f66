// LabModel: a model folder the lab looks into and changes: a recogniser, or a BERT-style encoder.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "headwise/intent/recognizer/recognizer.h"
#include "headwise/lab/model/head_plan.h"
#include "headwise/layers/basic/packed_weights.h"
#include "headwise/layers/multi_head/taps.h"
#include "headwise/model/json_object.h"
#include "headwise/text/text_encoder.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What becomes of a model: its new settings of heads, and parameters that are new, by name.
struct EditedModel {
  std::string heads;
  std::map<std::string, Tensor> values;
  std::vector<std::vector<Index>> pruned = {};  // by layer, where heads were cut and nothing else was done
  std::set<std::string> dropped = {};           // parameters that the new heads have not
};

/// One text as the model reads it, and what its heads did: one tap a layer.
struct SeenText {
  const Encoding& encoding;
  std::vector<Tap>& taps;
};

class LabModel {
 public:
  /// config.json says which it is; what is neither is refused.
  explicit LabModel(const std::string& folder);
  /// A recogniser that is in no folder.
  explicit LabModel(Recognizer recognizer) : recognizer_(std::move(recognizer)) {}

  const std::string& folder() const { return folder_; }
  bool labels() const { return recognizer_.has_value(); }
  const Recognizer& recognizer() const { return *recognizer_; }
  const TextEncoder& encoder() const { return *encoder_; }
  const Transformer& transformer() const;
  const ParamSet& params() const;
  Index layers() const { return transformer().config().depth; }
  const MultiHead& attention(Index layer) const;
  /// Heads whose outputs can be told apart, by layer. Models whose heads cannot, or whose layers share
  /// weights, are refused with `op`.
  std::vector<Index> heads(std::string_view op) const;

  /// Packs weights for many forwards, which keep their bits; from here on no weight may change.
  void pack_weights() { packed_ = std::make_shared<PackedWeights>(); }

  /// What the heads did on texts that are read already, in one forward: by layer, then by text.
  Taps taps_of(std::span<const Encoding> texts, Session& session, bool rows) const;
  /// The same, text by text; see each_text.
  void run(std::span<const Encoding> texts, Session& session, bool rows,
           const std::function<void(const SeenText&)>& look) const;
  /// One text forth and back: its taps hold v and, of self-attention, the gradients of what it gave. The loss
  /// is SurveySubject::run_slopes's.
  void run_slopes(const Encoding& text, const Encoding& other, Session& session,
                  const std::function<void(const SeenText&)>& look) const;
  /// One text through blocks that lack some parts; `look` sees the rows between them.
  void run_parts(const Encoding& text, Session& session, BlockParts parts, const RowLook& look) const;
  /// Runs texts one by one; of a long one the first tokens that fit at once. rows: taps hold q, k and v too.
  /// Weights of mixed heads are parts of their row.
  void each_text(std::span<const std::string> texts, Session& session, bool rows,
                 const std::function<void(const SeenText&)>& look) const;
  /// The pieces of a text are read in this vocabulary.
  const WordPiece& tokenizer() const;

  /// Sets gates of all heads: 1, and 0 for those the plan cuts. The tensor must outlive the call.
  static Tensor gates_of(const HeadPlan& plan);

  /// The whole folder `out` or nothing; the model's own folder is refused. Files beside the weights are
  /// copied from it.
  /// `look` sees the new model before it takes its name.
  void save(const EditedModel& edited, const std::string& out, std::string_view op,
            const std::function<void(const LabModel&)>& look = {}) const;
  /// A recogniser after the edit, without learnt gates.
  Recognizer edited(const EditedModel& edited, std::string_view op) const;
  /// Numbers in all parameters after the edit.
  Index count_after(const EditedModel& edited) const;

 private:
  void forward(std::span<const Encoding> texts, Call& call) const;
  void save_encoder(const EditedModel& edited, const std::string& part, std::string_view op) const;

  std::string folder_;
  std::optional<Recognizer> recognizer_;
  std::optional<TextEncoder> encoder_;
  std::shared_ptr<PackedWeights> packed_;
};

/// Settings of every layer as one text: one where all are alike, else with semicolons between.
std::string joined_heads(const std::vector<std::string>& by_layer);

/// The keys of a config.json with some of them new; those with an empty value are left out.
std::string with_keys(const JsonObject& json, const std::map<std::string, std::string>& edited);

/// "stack.layers.3.attention"
std::string attention_name(Index layer);

}  // namespace headwise
#pragma GCC visibility pop
