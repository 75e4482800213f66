// Transformer: embeddings, stack and output of an encoder, a decoder or both, from one config.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/layers/transformer/stack.h"
#include "headwise/masks/mask.h"

#pragma GCC visibility push(default)
namespace headwise {

/// encoder: every token sees all of its sequence. decoder: its past alone, logits over the vocabulary.
/// encoder_decoder: a decoder that also reads an encoder's rows.
enum class ModelKind : std::uint8_t { encoder, decoder, encoder_decoder };
inline constexpr std::string_view kModelNames[] = {"encoder", "decoder", "encoder_decoder"};
constexpr std::string_view name_of(ModelKind k) { return kModelNames[static_cast<int>(k)]; }

struct TransformerConfig {
  ModelKind kind = ModelKind::decoder;
  Index vocabulary = 0, source_vocabulary = 0;  // source_vocabulary 0: as vocabulary
  Index model_dim = 512, feed_dim = 2048;
  Index depth = 6, source_depth = 0;  // of the decoder and of the encoder before it; source_depth 0: as depth
  std::string heads = "mha:heads=8,dim=64", cross_heads = {};
  Positions positions = Positions::learned;
  Index max_tokens = 512;
  bool scaled_embedding = false;
  Index token_types = 0;    // rows added by segment; 0: none
  bool embed_norm = false;  // a norm behind the embeddings, as BERT has
  FeedKind feed = FeedKind::gelu;
  NormOptions norm = {};
  bool norm_first = true, final_norm = true, bias = true;
  double dropout = 0, attention_dropout = 0;
  Index share_layers = 1;
  double ds_init = 0;
  bool merged_attention = false;  // encoder_decoder: merged attention in the decoder
  bool tied = true;               // logits by the embedding table
  const Teams* teams = nullptr;   // blocks are cut over its tensor ranks; outlives the model, in no file
  Index outputs = 0;              // encoder: columns of a linear map at the end; 0: the rows themselves
};

/// Ids of one batch. sequences and mask are of the ids; the source's are encoder_decoder's.
struct TransformerInput {
  InputView ids = {}, source_ids = {};  // [tokens], i64 or i32
  InputView types = {};                 // of the ids, where the model has token types; empty: all 0
  InputView added = {};                 // [tokens model_dim], added to the embedded ids where given
  Sequences sequences = {}, source_sequences = {};
  MaskSet mask = {};  // empty: all for an encoder, causal for a decoder
  MaskSet source_mask = {}, cross_mask = {};
};

class Transformer {
 public:
  /// Declares embed, stack, source_embed, source_stack, out.
  Transformer(ParamSet& params, const TransformerConfig& config);

  struct Saved {
    Embed::Saved embed, source_embed;
    Stack::Saved stack, source_stack;
    Linear::Saved out;
    AnyView rows, source;
    TransformerInput input;
  };
  /// Logits [tokens vocabulary], or the encoder's rows or outputs. Fills the call's sequences, masks and
  /// source itself.
  AnyView forward(const TransformerInput& input, Call& call, Saved* saved) const;
  /// From the gradient of what forward gave; parameters' gradients are added. Returns the gradient of the
  /// rows the stack over the ids read, which is also that of input.added.
  AnyView backward(const InputView& dy, Call& call, Saved& saved) const;

  const TransformerConfig& config() const { return config_; }
  /// Where its parameters lie, so where it runs.
  Device device() const { return embed_->table().value().where(); }
  const Stack& stack() const { return *stack_; }
  const Stack* source_stack() const { return source_stack_ ? &*source_stack_ : nullptr; }

 private:
  AnyView encode(const TransformerInput& input, Call& call, Saved* saved) const;
  void set_up(const TransformerInput& input, Call& call) const;

  TransformerConfig config_;
  std::optional<Embed> embed_, source_embed_;
  std::optional<Stack> stack_, source_stack_;
  std::optional<Linear> out_;
  Mask causal_;
};

}  // namespace headwise
#pragma GCC visibility pop
