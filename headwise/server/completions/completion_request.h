// CompletionRequest: the bodies of OpenAI's completions and chat, and of /v1/heads, read without trust.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "headwise/decoder/chat_template.h"
#include "headwise/decoder/generator.h"

namespace headwise::server {

enum class CompletionKind : std::uint8_t { text, chat, heads };

struct CompletionLimits {
  Index prompts = 64, choices = 64;  // of one request; choices: prompts times n
  Index logprobs = 20, stops = 16;
  Index heads_tokens = 512;  // of prompt and continuation of /v1/heads
};

/// What a request is answered with instead; `param` is the key that is wrong, "" for none.
struct CompletionFault {
  int status = 400;
  std::string code, message, param;
};

struct CompletionRequest {
  CompletionKind kind = CompletionKind::text;
  std::vector<GenerateRequest> requests;  // prompts times n, the choices of one prompt together
  std::vector<std::string> echoes;        // of each: the text before its own
  Index prompt_tokens = 0;                // each prompt once
  bool stream = false, include_usage = false, per_token = false;
};

/// What a body is read against.
struct CompletionContext {
  std::string model;  // its name
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat = nullptr;  // null: the model has none that is known
  Index positions = 0, vocabulary = 0;
  CompletionLimits limits;
};

/// Throws CompletionFault.
CompletionRequest read_completion(std::string_view body, CompletionKind kind,
                                  const CompletionContext& context);

}  // namespace headwise::server
