// Drafter: guesses of the next tokens, cheap and maybe wrong; a Generator checks them all in one step, so
// that its text stays the same.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <span>
#include <vector>

#include "headwise/decoder/forward/decoder.h"
#include "headwise/decoder/sampling.h"

#pragma GCC visibility push(default)
namespace headwise {

/// A text that waits for guesses.
struct DraftPlace {
  std::int64_t id = 0;              // of its request
  std::span<const TokenId> tokens;  // prompt and output
  Index prompt = 0;                 // how many of them are the prompt
  const SamplingOptions* sampling = nullptr;
  Index most = 0;  // guesses wanted, at most
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  virtual std::vector<TokenId> guess(const DraftPlace& place, Context& ctx) = 0;
  /// The request has ended, or was put off.
  virtual void forget(std::int64_t) {}
};

/// What followed the last place where the text's last four tokens stood before; three, two, one, where four
/// stood nowhere.
class NgramDrafter final : public Drafter {
 public:
  std::vector<TokenId> guess(const DraftPlace& place, Context& ctx) override;
  static constexpr Index kLongest = 4;
};

/// A smaller model with the same tokens. It draws with the noise of the text itself, so it is right whenever
/// its own choice would be the same.
class ModelDrafter final : public Drafter {
 public:
  /// `model` must outlive it. kv_bytes: of its own cache.
  ModelDrafter(const Decoder& model, Index kv_bytes);
  std::vector<TokenId> guess(const DraftPlace& place, Context& ctx) override;
  void forget(std::int64_t id) override;
  Index vocabulary() const { return model_.config().vocabulary; }

 private:
  /// Computes tokens behind what the cache has; the last one's logits are asked. False: there is no room.
  bool catch_up(SequenceId sequence, std::span<const TokenId> tokens, Context& ctx);
  const Decoder& model_;
  KvCache cache_;
  DecoderStep step_;
  std::map<std::int64_t, SequenceId> sequences_;
};

}  // namespace headwise
#pragma GCC visibility pop
