// TextEncoder: a pretrained BERT-style encoder and its tokenizer, from texts to one vector each.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headwise/layers/transformer/transformer.h"
#include "headwise/ops/device/params.h"
#include "headwise/text/wordpiece.h"

#pragma GCC visibility push(default)
namespace headwise {

struct TextEncoderOptions {
  Index max_tokens = 0;  // of a text, [CLS] and [SEP] among them; longer ones are cut. 0: as the folder says
  bool normalized = true;     // vectors of length 1, so that a dot product is a cosine
  Index batch_tokens = 2048;  // computed at once, at least one text
};

/// vocab.txt of a folder whose table has `rows` rows: no more pieces than these, [UNK], [CLS] and [SEP] among
/// them.
Vocabulary read_bert_vocabulary(const std::string& folder, Index rows);

/// A folder as sentence-transformers lays it out: config.json, model.safetensors, vocab.txt, and where they
/// are there tokenizer_config.json, sentence_bert_config.json and 1_Pooling/config.json (mean or [CLS]).
class TextEncoder {
 public:
  explicit TextEncoder(const std::string& folder, const TextEncoderOptions& options = {});

  /// A row for each text, f32 [texts model_dim]. The bits of a row depend on its text alone. `before` may
  /// ask something of single heads: it sees the call of every forward first.
  Tensor embed(std::span<const std::string> texts, Context& ctx, StepMemory& memory,
               const std::function<void(Call&)>& before = {}) const;

  /// From now on the encoder runs on that device; texts and pooling stay on the CPU. Throws where the device
  /// is not there.
  void to(Device device, Context& ctx);
  Device device() const { return moved_.device(); }

  const Transformer& model() const { return *model_; }
  /// A vector is the mean of all rows; else the first row.
  bool pools_mean() const { return pooling_ == Pooling::mean; }
  const WordPiece& tokenizer() const { return *tokenizer_; }
  const ParamSet& params() const { return params_; }
  Index model_dim() const { return model_->config().model_dim; }
  Index max_tokens() const { return max_tokens_; }

 private:
  void pool(const AnyView& rows, std::span<const Index> numbers, std::span<const Index> offsets,
            const AnyView& out) const;

  TextEncoderOptions options_;
  std::optional<WordPiece> tokenizer_;
  ParamSet params_;
  DeviceParams moved_;
  std::optional<Transformer> model_;
  Index max_tokens_ = 0;
  enum class Pooling : std::uint8_t { mean, first } pooling_ = Pooling::mean;
};

}  // namespace headwise
#pragma GCC visibility pop
