// DecoderHost: a model with its tokenizer, cache and generator in one place: what programs and bindings hold.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "headwise/decoder/generator.h"

#pragma GCC visibility push(default)
namespace headwise {

struct DecoderHostOptions {
  DecoderOptions model = {};  // weights as stored, rows exact
  DType kv_dtype = DType::f32;
  Index kv_bytes = Index{256} << 20;
  GeneratorOptions generator = {};
};

/// What came between two steps.
struct DecoderTurn {
  std::vector<GenerateRequest> added = {};
  std::vector<RequestId> dropped = {};  // that run no longer

  bool none() const { return added.empty() && dropped.empty(); }
};
/// Runs a step; where several ranks have the model, it first tells the others what came.
using DecoderLead = std::function<void(const DecoderTurn& turn, const std::function<void()>& step)>;

/// Of weights: none for "stored", f32, bf16 or f16; else refused with `name`.
std::optional<DType> weights_dtype_named(std::string_view name, std::string_view value);
/// Of keys and values: f32, bf16, f16, i8 or e4m3; else refused with `name`.
DType kv_dtype_named(std::string_view name, std::string_view value);
/// Whether rows that meet quantized matrices are rounded: "exact" or "i8"; else refused with `name`.
bool rounded_rows_named(std::string_view name, std::string_view value);

/// Rows of a text and what was asked of them: [tokens vocabulary] logits, statistics of heads.
struct DecoderRows {
  std::vector<float> logits;
  std::vector<HeadStats> heads;
};

/// Used by one thread at a time, as the cache. Callers share the steps: each takes the events of its own
/// requests.
class DecoderHost {
 public:
  DecoderHost(const std::string& path, const DecoderHostOptions& options, Context& ctx);

  const Decoder& model() const { return model_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  /// Throws in the words of `op` when no tokenizer lies beside the model.
  const Tokenizer& need_tokenizer(std::string_view op) const;
  const std::string& chat_template() const { return chat_template_; }
  const KvCache& cache() const { return cache_; }
  Generator& generator() { return generator_; }

  RequestId add(GenerateRequest request);
  /// Every step is run through it from now on, with all requests since. Statistics of heads and rows are
  /// refused.
  void lead(DecoderLead lead) { lead_ = std::move(lead); }
  /// Refuses what is computed on one rank alone, where this one leads others.
  void require_alone() const;
  /// What another host was told: the same requests get the same numbers and the same step is run. An error of
  /// the step is that of the other.
  void follow(const DecoderTurn& turn, Context& ctx);
  /// Of these requests: what waits for them, else what one step brings, which may be nothing yet.
  std::vector<GenerateEvent> next(std::span<const RequestId> ids, Context& ctx);
  /// They end at once and say nothing more.
  void drop(std::span<const RequestId> ids);

  /// Every row of a text, computed anew. Throws when the cache has no room beside the texts that are written
  /// now, and where others are led. memory: of models with cross-attention.
  struct Asked {
    bool logits = false, heads = false;
    const DecoderMemory* memory = nullptr;
  };
  DecoderRows rows(std::span<const TokenId> ids, const Asked& asked, Context& ctx);

 private:
  DecoderHost(std::unique_ptr<DecoderSource> source, const DecoderHostOptions& options, Context& ctx);

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::string chat_template_;
  Decoder model_;
  KvCache cache_;
  Generator generator_;
  DecoderLead lead_;
  DecoderTurn turn_;                                       // since the last step
  std::map<RequestId, std::vector<GenerateEvent>> inbox_;  // of requests that still run or were not fetched
};

}  // namespace headwise
#pragma GCC visibility pop
