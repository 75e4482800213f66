// Generator: texts from a decoder; each depends on its model, prompt, options and seed alone.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "headwise/decoder/drafter.h"
#include "headwise/decoder/forward/decoder.h"
#include "headwise/decoder/forward/memory.h"
#include "headwise/decoder/sampling.h"
#include "headwise/decoder/text_stream.h"

#pragma GCC visibility push(default)
namespace headwise {

enum class Finish : std::uint8_t { none, stop, length, cancelled, error };
constexpr std::string_view name_of(Finish f) {
  constexpr std::string_view kNames[] = {"none", "stop", "length", "cancelled", "error"};
  return kNames[static_cast<int>(f)];
}

using RequestId = std::int64_t;

struct GenerateRequest {
  std::vector<TokenId> prompt;
  Index max_tokens = 256, min_tokens = 0;
  SamplingOptions sampling = {};
  std::vector<std::string> stop = {};  // texts that end it, not shown
  bool ignore_end = false;             // goes on behind the model's own end tokens
  Index logprobs = -1;                 // of so many likeliest tokens beside the drawn one; -1: none
  bool watch = false;                  // HeadStats with every token
  Index priority = 0;                  // higher goes first
  std::string tenant = {};             // only texts of one tenant share pages
  /// What a model with cross-attention looks at.
  std::shared_ptr<const DecoderMemory> memory = {};
};

/// What one step gave one request.
struct GenerateEvent {
  RequestId id = -1;
  std::vector<TokenId> tokens;   // drawn; end tokens are not among them
  std::string text;              // whole code points
  std::vector<Drawn> drawn;      // with the tokens, where log-probs were asked
  std::vector<HeadStats> heads;  // with the tokens, where they were asked
  Finish finish = Finish::none;
  std::string error;  // of Finish::error
};

struct GeneratorOptions {
  Index step_tokens = 256;  // rows computed at once, at most
  Index sequences = 16;     // texts at once, at most
  Drafter* drafter =
      nullptr;  // guesses tokens; the text is the same with and without. Must outlive the generator
  Index draft_tokens = 15;  // guesses at once, at most
};

struct GeneratorStats {
  Index steps = 0, rows = 0, drawn = 0, preemptions = 0, adopted = 0;
  Index guessed = 0, right = 0;  // tokens of drafts
};

/// Model and cache must outlive it. The tokenizer may be null: then events have no text and there are no
/// stops.
class Generator {
 public:
  Generator(const Decoder& model, const Tokenizer* tokenizer, KvCache& cache,
            const GeneratorOptions& options = {});
  ~Generator();

  /// Refuses what can never run: an empty prompt, more tokens than the model or the cache has room for.
  RequestId add(GenerateRequest request);
  /// Legal at any time; it ends with the next step.
  void cancel(RequestId id);
  /// Computes one step. False: nothing was left to do.
  bool step(Context& ctx);
  /// Of the last step, by request in order of arrival.
  const std::vector<GenerateEvent>& events() const { return events_; }
  Index running() const { return static_cast<Index>(running_.size()); }
  Index waiting() const { return static_cast<Index>(waiting_.size()); }
  GeneratorStats stats() const { return stats_; }

 private:
  struct Job {
    GenerateRequest request;
    std::vector<TokenId> tokens;  // prompt and output
    std::optional<SequenceId> sequence;
    TextStream stream;
    Index planned = 0;  // rows of this step, without guesses
    std::vector<TokenId> guesses;
    Index width = 1, rest = 0;  // guesses to ask for; steps without any before the next try
    Index misses = 0;           // tries in a row of which nothing was right
    explicit Job(GenerateRequest r) : request(std::move(r)), tokens(request.prompt), stream(request.stop) {}
    Index output() const { return static_cast<Index>(tokens.size() - request.prompt.size()); }
  };
  using Order = std::pair<Index, RequestId>;  // -priority, arrival

  Job& job(RequestId id) { return *jobs_.at(id); }
  Index missing(const Job& j) const;
  void plan(Context& ctx);
  bool plan_rows(RequestId id, Index rows);
  void plan_guesses(RequestId id, Context& ctx);
  void learn_width(Job& j, Index right) const;
  void preempt(RequestId id);
  RequestId victim() const;
  void admit();
  void compute(Context& ctx);
  /// Rows of one text that drew: the row of its last token, then those of its guesses.
  void draw_all(RequestId id, Index asked, GenerateEvent& event);
  /// False: the text has ended.
  bool draw_for(RequestId id, Index asked, GenerateEvent& event);
  void end(RequestId id, GenerateEvent& event, Finish finish);
  void take_cancelled();

  const Decoder& model_;
  const Tokenizer* tokenizer_;
  KvCache& cache_;
  GeneratorOptions options_;
  std::map<RequestId, std::unique_ptr<Job>> jobs_;
  std::set<Order> running_, waiting_;
  std::set<RequestId> cancelled_;
  std::vector<GenerateEvent> events_;
  DecoderStep step_;
  Index budget_ = 0;
  RequestId next_ = 0;
  GeneratorStats stats_;
};

}  // namespace headwise
#pragma GCC visibility pop
