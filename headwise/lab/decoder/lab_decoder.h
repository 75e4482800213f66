// LabDecoder: a language model's folder that the lab cuts and converts, and its loss on texts.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headwise/decoder/forward/decoder.h"
#include "headwise/lab/model/head_plan.h"

#pragma GCC visibility push(default)
namespace headwise {

/// What becomes of a decoder: heads of every layer, and matrices and biases that are new, by our names
/// (layers.3.q.weight).
struct EditedDecoder {
  Index heads = 0, kv_heads = 0;
  std::map<std::string, Tensor> values = {};
};

class LabDecoder {
 public:
  /// A folder of safetensors. Refused: GGUF and llama2.c files, and gpt2, whose config.json gives every head
  /// model_dim / heads columns, so that none can go and none can share.
  LabDecoder(const std::string& folder, std::string_view op);
  const std::string& folder() const { return folder_; }
  const DecoderConfig& config() const { return source_->config(); }
  /// Query heads by layer: all layers have as many.
  std::vector<Index> heads() const;
  /// "q.weight", "k.bias", ... of a layer as f32; empty where the family has none.
  Tensor weight(Index layer, const std::string& part) const;

  using Text = std::vector<TokenId>;
  /// Texts as tokens, the first `most` of each; those of one token say nothing and are left out.
  std::vector<Text> read(std::span<const std::string> texts, Index most) const;
  /// The model with the heads of the plan off: their columns of W_O are 0.
  Decoder without(const HeadPlan& plan, Context& ctx) const;

  /// The whole folder `out` or nothing; the model's own folder is refused. Other files are copied. `look`
  /// sees the new folder before it takes its name.
  void save(const EditedDecoder& edited, const std::string& out, std::string_view op,
            const std::function<void(const std::string& folder)>& look = {}) const;

 private:
  void write(const EditedDecoder& edited, const std::string& part, std::string_view op) const;
  std::string folder_;
  std::unique_ptr<DecoderSource> source_;
};

/// A folder or file that headwise generate reads, and no recogniser or encoder.
bool holds_decoder(const std::string& path);

/// Logits of every token of a text, [tokens vocabulary].
void each_logits(
    const Decoder& model, std::span<const LabDecoder::Text> texts, Context& ctx,
    const std::function<void(std::size_t text, std::span<const float> logits)>& look,
    const std::function<void(Index layer, const AnyView& q, const AnyView& k, const AnyView& v)>& heads = {});
/// Mean of -ln p(next token), nats.
double next_token_loss(const Decoder& model, std::span<const LabDecoder::Text> texts, Context& ctx);
/// Mean KL(before || after) of the next token's probabilities, nats.
double next_token_kl(const Decoder& before, const Decoder& after, std::span<const LabDecoder::Text> texts,
                     Context& ctx);

}  // namespace headwise
#pragma GCC visibility pop
