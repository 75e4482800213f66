// Translator: an encoder-decoder over one byte-pair encoding, its folder, its loss, its greedy words and its
// cross-attention.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headwise/intent/recognizer/recognizer.h"
#include "headwise/layers/multi_head/taps.h"
#include "headwise/layers/transformer/transformer.h"
#include "headwise/ops/row/cross_entropy.h"
#include "headwise/text/bpe.h"
#include "headwise/train/trainer.h"

#pragma GCC visibility push(default)
namespace headwise {

/// Sizes of the model. Everything else is the plain recipe: sinusoidal positions, norms first, logits by the
/// target's embedding table.
struct TranslatorConfig {
  std::string heads = "mha:heads=4,dim=32", cross_heads = {};  // cross_heads empty: as heads
  Index model_dim = 128, feed_dim = 512;
  Index depth = 3, source_depth = 0;  // of the decoder and of the encoder; source_depth 0: as depth
  Index max_tokens = 96;              // of a sentence, with its begin or end
  double dropout = 0.1;
};

/// A sentence and its translation in tokens, without begin and end.
struct PairTokens {
  std::vector<std::int32_t> source, target;
};

class Translator {
 public:
  /// One with drawn parameters.
  Translator(Bpe bpe, const TranslatorConfig& config, std::uint64_t seed);
  /// A folder of config.json, bpe.txt and model.safetensors, which appears whole or not at all.
  void save(const std::string& folder) const;
  static Translator load(const std::string& folder);

  const Bpe& bpe() const { return bpe_; }
  const TranslatorConfig& config() const { return config_; }
  const Transformer& model() const { return *model_; }
  ParamSet& params() { return *params_; }

  /// Refuses sentences that are longer than the model reads.
  PairTokens encode(std::string_view source, std::string_view target) const;
  /// Whether both sentences, with begin and end, are no longer than that.
  bool fits(const PairTokens& pair) const;

  /// Something asked of single heads: it sees the call of every forward first.
  using Before = std::function<void(Call&)>;
  /// Mean cross-entropy of some pairs, smoothed by `smoothing`; gradients are added.
  double learn(std::span<const PairTokens* const> pairs, const MicroBatch& micro, double smoothing,
               Session& session, const Before& before = {}) const;
  /// Mean cross-entropy of some pairs, and over how many tokens it goes.
  LossSum judge(std::span<const PairTokens* const> pairs, Session& session) const;
  /// The likeliest token again and again, until the end or twice the source's tokens and 5. Sources that are
  /// too long are read to where the model ends.
  std::vector<std::vector<std::int32_t>> translate(std::span<const std::vector<std::int32_t>> sources,
                                                   Session& session, const Before& before = {}) const;
  /// Scores of the token behind each pair's target, [pairs vocabulary + 2].
  std::vector<std::vector<float>> next_scores(std::span<const PairTokens> pairs, Session& session,
                                              const Before& before = {}) const;
  /// What the cross-attention of every block weighs while the decoder is given each pair's target: a tap for
  /// each block and pair, in that order. Row t is the step that reads begin (t = 0) or target token t - 1,
  /// and so predicts target token t; the last row predicts the end. Columns are the source's tokens, then its
  /// end.
  std::vector<Tap> cross_weights(std::span<const PairTokens* const> pairs, Session& session) const;

 private:
  struct Batch;
  Translator(Bpe bpe, const TranslatorConfig& config, ParamSet params);
  AnyView forward(Batch& batch, Call& call, Transformer::Saved* saved) const;
  std::int32_t begin() const { return static_cast<std::int32_t>(bpe_.vocabulary()); }
  std::int32_t end() const { return begin() + 1; }

  Bpe bpe_;
  TranslatorConfig config_;
  std::unique_ptr<ParamSet> params_;
  std::unique_ptr<Transformer> model_;
};

}  // namespace headwise
#pragma GCC visibility pop
