// Decoder: a language model that reads and writes a KvCache: rows of any texts in, logits out.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "headwise/cache/kv_cache.h"
#include "headwise/decoder/forward/cut.h"
#include "headwise/decoder/forward/weights.h"
#include "headwise/layers/basic/block_parts.h"
#include "headwise/masks/mask.h"
#include "headwise/ops/attention/plan_shelf.h"
#include "headwise/ops/row/rope.h"

#pragma GCC visibility push(default)
namespace headwise {

class DecoderMemory;

/// One token to compute. Rows of one sequence stand together; the first stands behind what is committed.
struct DecoderRow {
  SequenceId sequence = 0;
  TokenId token = 0;
  bool logits = false;                    // asked for
  const DecoderMemory* memory = nullptr;  // of models with cross-attention: one for all rows of a text
};

/// What the heads of one row did: [layers heads] each.
struct HeadStats {
  std::vector<float> entropy;     // of the weights, in nats
  std::vector<float> top_weight;  // the largest
  std::vector<float> first_mass;  // on the text's first token
  /// [layers heads tokens]: what the cross heads gave to every state of the memory.
  std::vector<float> cross_weights = {};
};

/// Memory of steps, kept from one to the next. Belongs to one caller at a time.
class DecoderStep {
 public:
  /// Of the asked rows, in their order: [asked vocabulary].
  std::span<const float> logits(Index asked) const;
  /// Filled where `watch` is set: of the asked rows, in their order.
  const std::vector<HeadStats>& heads() const { return heads_; }
  bool watch = false;
  /// Called in every layer with its q, k and v of all rows, [1 rows heads head_dim] each, turned.
  std::function<void(Index layer, const AnyView& q, const AnyView& k, const AnyView& v)> look = {};
  BlockParts parts = {};  // of every layer; norms of single heads stay
  RowLook see_rows = {};  // sees the rows between layers
  /// Called in every layer with what its heads give before W_O reads it, [rows heads*head_dim]: changes it in
  /// place. part: own or cross.
  std::function<void(AttentionPart part, Index layer, const AnyView& y)> edit = {};
  /// Pairs a layer's heads may use, beside its own mask; null: all. Of cross-attention the keys are the
  /// memory's.
  std::function<const Mask*(AttentionPart part, Index layer)> open = {};

 private:
  friend class Decoder;
  friend class DecoderPass;
  Tensor logits_;
  Index vocabulary_ = 0;
  std::vector<Tensor> scratch_;
  std::vector<HeadStats> heads_;
  PlanShelf plans_;
};

struct DecoderOptions {
  /// f32, bf16 or f16, which matrices are rounded to; none: they stay as the file has them. Sums are f32.
  std::optional<DType> dtype = {};
  /// Rows that meet quantized matrices are rounded to 8 bits first, a scale for every 32 numbers: faster, and
  /// a numerics class of its own. Other matrices are multiplied exactly all the same.
  bool rounded_rows = false;
  /// Ranks that heads, their keys and values, and the rows of matrices are cut over; every rank computes the
  /// same rows and has all logits, with the bits of one rank. Outlives the model.
  const Communicator* team = nullptr;
  /// Ranks that the keys of every text are shared out over, in splits; the rest of a step is done on all.
  /// They have the bits of one rank, too. Outlives the model.
  const Communicator* context = nullptr;
};

/// A row's logits depend on its text, the weights and the dtypes alone: not on the other rows, on where a
/// prompt is cut, on page size, or on what was adopted from the cache. Const: many steps may share one model.
class Decoder {
 public:
  Decoder(DecoderSource& source, const DecoderOptions& options, Context& ctx);
  const DecoderConfig& config() const { return config_; }
  /// Of what this rank keeps.
  KvShape kv_shape() const;
  KeyShare key_share() const {
    return options_.context ? KeyShare{options_.context->rank(), options_.context->ranks()} : KeyShare{};
  }
  /// Of all its weights and settings that change what it computes; reads every weight once.
  std::uint64_t fingerprint() const;
  /// Numerics class of its products: two models with one file and one class give the same bits.
  std::string numerics() const;
  Index weight_bytes() const { return weights_.bytes; }
  /// Room for the rows was reserved. Keys and values are written; committing them is the caller's.
  void forward(std::span<const DecoderRow> rows, KvCache& cache, DecoderStep& step, Context& ctx) const;

 private:
  friend class DecoderPass;
  friend class DecoderMemory;
  DecoderConfig config_;
  DecoderOptions options_;
  DecoderWeights weights_;
  std::optional<RopeTable> turns_, sliding_turns_;
  Tensor scale_;
};

}  // namespace headwise
#pragma GCC visibility pop
