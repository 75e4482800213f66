// DecoderPass: one step of a decoder through its layers, on the memory of a DecoderStep.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "headwise/decoder/forward/decoder.h"
#include "headwise/masks/mask.h"
#include "headwise/ops/attention/attention.h"

namespace headwise {

class DecoderPass {
 public:
  DecoderPass(const Decoder& model, std::span<const DecoderRow> rows, KvCache& cache, DecoderStep& step,
              Context& ctx);
  void run();

 private:
  /// Rows of one sequence, or of several sequences with one row each.
  struct Run {
    Index first = 0, rows = 0;
    bool singles = false;
    std::vector<SequenceId> sequences = {};
    std::vector<Index> lengths = {};  // with these rows
  };
  enum class Scratch : std::uint8_t {
    x,
    y,
    normed,
    qkv,
    attended,
    up,
    hidden,
    q16,
    out16,
    own,
    joined,
    states
  };

  void find_runs();
  /// [rows columns] of the step's memory; what is larger is kept.
  AnyView scratch(Scratch which, Index rows, Index columns, DType dtype = DType::f32);
  AnyView heads_of(const AnyView& rows, Index first_column, Index heads) const;
  void embed();
  void norm(const NormWeights& weights, const AnyView& from, const AnyView& to);
  /// The same of a layer, whose norms may be left out.
  void norm_part(const NormWeights& weights, const AnyView& from, const AnyView& to);
  AnyView residual() const { return step_.parts.residual ? x_ : AnyView{}; }
  /// out = activation(x W^T + b) * factor + residual.
  struct Product {
    AnyView x, out, factor = {}, residual = {};
    Activation activation = Activation::none;
  };
  void product(const ProductWeights& weights, const Product& p);
  void product(const StoredMatrix& matrix, const Product& p, const float* bias, Index first_column);
  /// The same of a cut model: a rank makes the columns of its rows of the matrices, and has the others from
  /// theirs.
  void whole_product(const ProductWeights& weights, Product p);
  /// The columns of all ranks.
  AnyView joined(const AnyView& own, Index columns);
  void attention(Index layer);
  void turn(Index layer, const AnyView& q, const AnyView& k);
  /// The keys of all heads of a layer, or of one kv head where heads have policies.
  struct Keys {
    Index layer, first_head;
    const KvCache* cache;
    Index slot;  // the layer in that cache
    const Mask* mask;
    Index kv_head = -1;  // whose policy weighs tokens
  };
  /// What probes write beside attention, [batch heads rows].
  struct Looks {
    Tensor entropy, top, mass, weights;
    std::vector<std::int32_t> classes = {};  // of all keys: 0 for the first, -1
    std::vector<Index> picks = {};
  };
  void attend_all(Index layer, const Run& run, const AnyView& q, const AnyView& out);
  void attend(const Keys& keys, const Run& run, const AnyView& q, const AnyView& out);
  void attend_weighed(const KvCache::Head& head, const Keys& keys, const Run& run, const AnyView& q,
                      const AnyView& out);
  /// Keys are shared out over the context team.
  void attend_shared(const AttentionArgs& args);
  void attend_watched(const Keys& keys, const Run& run, AttentionArgs args);
  /// Some row of the run is one whose heads are asked for.
  bool is_watched(const Run& run) const;
  void ask_rows(const AnyView& q, Index tokens, AttentionArgs& args);
  void take_rows(const Keys& keys, const Run& run, Index heads);
  /// Cross-attention: rows of one memory that follow each other are one call.
  void cross(Index layer);
  void attend_memory(Index layer, Index first, Index rows, const AnyView& q, const AnyView& out);
  void feed(Index layer);
  /// y behind a norm where the family has one, added to x.
  void add(const NormWeights& behind, const AnyView& y);
  void logits();

  const Decoder& model_;
  const DecoderConfig& c_;
  DecoderCut cut_;
  Index heads_ = 0, kv_heads_ = 0;  // of this rank
  std::span<const DecoderRow> rows_;
  KvCache& cache_;
  DecoderStep& step_;
  Context& ctx_;
  Index n_ = 0;
  std::vector<Run> runs_;
  std::vector<Index> positions_, asked_;
  Looks looks_;
  AnyView x_, other_;  // the residual stream, and where the next one goes
};

}  // namespace headwise
