// CompletionWriter: events of a generator as OpenAI's answers, whole or in server-sent events.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <vector>

#include "headwise/server/completions/completion_request.h"

namespace headwise::server {

/// {"error": {...}} in OpenAI's form.
std::string error_json(const CompletionFault& fault);

/// The answer to one request. The same choices come out whole or streamed.
class CompletionWriter {
 public:
  CompletionWriter(const CompletionRequest& request, const Tokenizer* tokenizer, std::string model,
                   std::uint64_t number);

  /// What an event adds to choice `choice`: the bytes of a stream, "" where it is not streamed.
  std::string take(std::size_t choice, const GenerateEvent& event);
  bool done() const { return open_ == 0; }
  /// Behind the last event of a stream: usage where it is asked, and the end.
  std::string last_events() const;
  /// An error after a stream began.
  static std::string error_event(const CompletionFault& fault);
  std::string whole() const;
  /// Of choice 0.
  const std::string& text() const { return choices_[0].text; }
  const std::vector<TokenId>& tokens() const { return choices_[0].tokens; }
  Finish finish() const { return choices_[0].finish; }

 private:
  struct Choice {
    std::string text;
    std::vector<TokenId> tokens;
    std::string logprobs[4];  // lists in JSON, without brackets; chat has one
    Index offset = 0;         // characters before the next token, for text_offset
    Finish finish = Finish::none;
    bool begun = false;
  };
  void add_logprobs(Choice& c, const Drawn& drawn) const;
  std::string logprobs_json(const Choice& c) const;
  std::string head(std::string_view object) const;
  std::string usage() const;
  std::string printable(TokenId id) const;
  std::string token_json(TokenId id, double logprob) const;

  bool chat_, streamed_, usage_asked_, logprobs_asked_;
  const Tokenizer* tokenizer_;
  std::string model_, id_;
  std::int64_t created_;
  Index prompt_tokens_;
  std::vector<Choice> choices_;
  std::size_t open_;
};

}  // namespace headwise::server
