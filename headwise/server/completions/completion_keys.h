// Keys of completion, chat and heads bodies with their JSON schemas, for the reader and openapi.json.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string_view>

#include "headwise/server/completions/completion_request.h"

namespace headwise::server {

struct CompletionKey {
  std::string_view name, schema;  // schema: of what is not null
  bool text = true, chat = true, heads = true;

  constexpr bool of(CompletionKind kind) const {
    return kind == CompletionKind::text ? text : kind == CompletionKind::chat ? chat : heads;
  }
};

inline constexpr CompletionKey kCompletionKeys[] = {
    {"prompt", R"({"$ref": "#/components/schemas/Prompt"})", true, false, true},
    {"messages", R"({"$ref": "#/components/schemas/Messages"})", false, true, true},
    {"model", R"({"$ref": "#/components/schemas/ModelName"})"},
    {"max_tokens", R"({"type": "integer", "minimum": 0, "maximum": 1099511627776})"},
    {"max_completion_tokens", R"({"type": "integer", "minimum": 0, "maximum": 1099511627776})", false, true,
     false},
    {"min_tokens", R"({"type": "integer", "minimum": 0, "maximum": 1099511627776})"},
    {"temperature", R"({"type": "number", "minimum": 0, "maximum": 100})"},
    {"top_p", R"({"type": "number", "minimum": 1e-9, "maximum": 1})"},
    {"top_k", R"({"type": "integer", "minimum": -1, "maximum": 1099511627776})"},
    {"min_p", R"({"type": "number", "minimum": 0, "maximum": 1})"},
    {"n", R"({"$ref": "#/components/schemas/Choices"})", true, true, false},
    {"n", R"({"const": 1})", false, false, true},
    {"seed", R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807})"},
    {"stop",
     R"({"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string", "minLength": 1}}]})"},
    {"stream", R"({"type": "boolean"})", true, true, false},
    {"stream", R"({"const": false})", false, false, true},
    {"stream_options",
     R"({"type": "object", "additionalProperties": false, "properties": {"include_usage": {"type": ["boolean", "null"]},
        "include_obfuscation": {}}})",
     true, true, false},
    {"stream_options", R"({"type": "null"})", false, false, true},
    {"user", "{}"},
    {"logit_bias",
     R"({"type": "object", "additionalProperties": {"type": ["number", "null"], "minimum": -100, "maximum": 100},
        "propertyNames": {"$ref": "#/components/schemas/TokenName"}})"},
    {"priority", R"({"type": "integer", "minimum": -1000000, "maximum": 1000000})"},
    {"logprobs", R"({"type": "integer", "minimum": 0})", true, false, true},
    {"logprobs", R"({"type": "boolean"})", false, true, false},
    {"top_logprobs", R"({"type": "integer", "minimum": 0})", false, true, false},
    {"presence_penalty", R"({"type": "number", "minimum": -2, "maximum": 2})"},
    {"frequency_penalty", R"({"type": "number", "minimum": -2, "maximum": 2})"},
    {"repetition_penalty", R"({"type": "number", "minimum": 0.01, "maximum": 100})"},
    {"cache_salt", R"({"type": "string"})"},
    {"echo", R"({"type": "boolean"})", true, false, false},
    {"best_of", R"({"const": 1})", true, false, false},
    {"suffix", R"({"type": "null"})", true, false, false},
    {"per_token", R"({"type": "boolean"})", false, false, true},
};

}  // namespace headwise::server
