#include "headwise/server/completions/completions_openapi.h"

#include <string>

#include "headwise/base/error.h"
#include "headwise/base/words.h"
#include "headwise/server/completions/completion_keys.h"
#include "headwise/server/http/http_response.h"

namespace headwise::server {
namespace {

constexpr std::string_view kRefusals = "404 411 415 429 504";
constexpr Operation kOperations[] = {
    {.path = "/v1/models",
     .method = "get",
     .id = "models",
     .summary = "The model that is served",
     .schema = "Models"},
    {.path = "/v1/completions",
     .method = "post",
     .id = "completions",
     .summary = "How prompts go on",
     .schema = "Completion",
     .body = "CompletionBody",
     .refusals = kRefusals,
     .streams = true},
    {.path = "/v1/chat/completions",
     .method = "post",
     .id = "chat",
     .summary = "The next message of a conversation",
     .schema = "ChatCompletion",
     .body = "ChatBody",
     .refusals = kRefusals,
     .streams = true},
    {.path = "/v1/heads",
     .method = "post",
     .id = "heads",
     .summary = "What each head did on a text",
     .schema = "Heads",
     .body = "HeadsBody",
     .refusals = kRefusals},
};

/// What one key asks of another.
constexpr std::string_view kTogether =
    R"("allOf": [{"if": {"required": ["stream_options"], "properties": {"stream_options": {"type": "object"}}},
        "then": {"required": ["stream"], "properties": {"stream": {"const": true}}}},
        {"if": {"required": ["top_logprobs"], "properties": {"top_logprobs": {"type": "integer"}}},
        "then": {"required": ["logprobs"], "properties": {"logprobs": {"const": true}}}}])";

/// The numbers from 0 to `last` as a regular expression of their digits.
std::string numbers_to(Index last) {
  const std::string digits = std::to_string(last);
  std::string all = digits;
  for (std::size_t i = 0; i < digits.size(); ++i) {  // as far as digit i they agree, then one below it
    const char least = i == 0 && digits.size() > 1 ? '1' : '0';
    if (digits[i] == least) continue;
    const std::size_t rest = digits.size() - i - 1;
    all += text("|", digits.substr(0, i), "[", least, "-", static_cast<char>(digits[i] - 1), "]",
                rest ? text("[0-9]{", rest, "}") : "");
  }
  if (digits.size() > 1) all += "|[0-9]";
  if (digits.size() > 2) all += text("|[1-9][0-9]{1,", digits.size() - 2, "}");
  return "^(" + all + ")$";
}

std::string body_schema(std::string_view name, CompletionKind kind, std::string_view needs) {
  std::string keys;
  for (const CompletionKey& k : kCompletionKeys)
    if (k.of(kind)) {
      const bool needed = kind != CompletionKind::heads && (k.name == "prompt" || k.name == "messages");
      keys += text(keys.empty() ? "" : ",\n        ", "\"", k.name, "\": ", needed ? "" : "{\"anyOf\": [",
                   k.schema, needed ? "" : ", {\"type\": \"null\"}]}");
    }
  return text("\"", name, "\": {\"type\": \"object\", \"additionalProperties\": false, ", needs, ", ",
              kTogether, ", \"properties\": {\n        ", keys, "}},\n      ");
}

std::string parts(const CompletionContext& c) {
  const std::string ids =
      text(R"({"type": "array", "minItems": 1, "maxItems": )", c.positions,
           R"(, "items": {"type": "integer", "minimum": 0, "maximum": )", c.vocabulary - 1, "}}");
  // A tokenizer that begins each text with a token of its own makes a prompt of nothing too.
  const bool takes_empty = c.tokenizer != nullptr && !c.tokenizer->encode("").empty();
  const std::string words = takes_empty ? R"({"type": "string"})" : R"({"type": "string", "minLength": 1})";
  return text(R"("ModelName": {"const": )", page_string(c.model), R"(},
      "TokenName": {"type": "string", "pattern": ")",
              numbers_to(c.vocabulary - 1), R"("},
      "Choices": {"type": "integer", "minimum": 1, "maximum": )",
              c.limits.choices, R"(},
      "Prompt": {"anyOf": [)",
              words, ", ", ids, R"(, {"type": "array", "minItems": 1, "maxItems": )", c.limits.prompts,
              R"(, "items": {"anyOf": [)", words, ", ", ids, R"(]}}]},
      "Messages": {"type": "array", "minItems": 1, "items": {"type": "object", "additionalProperties": false,
        "required": ["role"], "properties": {"role": {"enum": ["system", "developer", "user", "assistant"]}, "name": {"type": ["string", "null"]},
        "content": {"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "object",
          "required": ["type", "text"], "properties": {"type": {"const": "text"}, "text": {"type": "string"}}}}]}}}},
      )");
}

constexpr std::string_view kAnswers =
    R"("Usage": {"type": "object", "required": ["prompt_tokens", "completion_tokens",
        "total_tokens"], "additionalProperties": {"type": "integer"}},
      "Models": {"type": "object", "required": ["object", "data"], "properties": {"object": {"const": "list"},
        "data": {"type": "array", "items": {"type": "object", "required": ["id", "object", "created", "owned_by"],
        "properties": {"id": {"$ref": "#/components/schemas/ModelName"}, "created": {"type": "integer"}}}}}},
      "Finish": {"enum": ["stop", "length"]},
      "Completion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {"object": {"const": "text_completion"}, "usage": {"$ref": "#/components/schemas/Usage"},
        "choices": {"type": "array", "items": {"type": "object", "required": ["index", "text", "logprobs", "finish_reason"],
        "properties": {"index": {"type": "integer"}, "text": {"type": "string"}, "logprobs": {"type": ["object", "null"]},
        "finish_reason": {"$ref": "#/components/schemas/Finish"}}}}}},
      "ChatCompletion": {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"],
        "properties": {"object": {"const": "chat.completion"}, "usage": {"$ref": "#/components/schemas/Usage"},
        "choices": {"type": "array", "items": {"type": "object", "required": ["index", "message", "logprobs",
        "finish_reason"], "properties": {"index": {"type": "integer"}, "message": {"type": "object",
        "required": ["role", "content"], "properties": {"role": {"const": "assistant"}, "content": {"type": "string"}}},
        "logprobs": {"type": ["object", "null"]}, "finish_reason": {"$ref": "#/components/schemas/Finish"}}}}}},
      "HeadMeans": {"type": "object", "required": ["entropy", "top_weight", "first_mass"], "additionalProperties":
        {"type": "array", "items": {"type": "array", "items": {"type": ["number", "null"]}}}},
      "Heads": {"type": "object", "required": ["model", "text", "finish_reason", "layers", "heads", "prompt_tokens",
        "tokens", "prompt", "continuation"], "properties": {"text": {"type": "string"}, "layers": {"type": "integer"},
        "heads": {"type": "integer"}, "prompt_tokens": {"type": "integer"}, "tokens": {"type": "array", "items":
        {"type": "object", "required": ["id", "text"]}}, "prompt": {"$ref": "#/components/schemas/HeadMeans"},
        "continuation": {"anyOf": [{"$ref": "#/components/schemas/HeadMeans"}, {"type": "null"}]},
        "per_token": {"type": "array", "items": {"$ref": "#/components/schemas/HeadMeans"}}}})";

}  // namespace

OpenapiFacts completions_openapi(const CompletionContext& context, bool token) {
  const std::string bodies =
      body_schema("CompletionBody", CompletionKind::text, R"("required": ["prompt"])") +
      body_schema("ChatBody", CompletionKind::chat, R"("required": ["messages"])") +
      body_schema("HeadsBody", CompletionKind::heads,
                  R"("oneOf": [{"required": ["prompt"], "properties": {"prompt": {"not": {"type": "null"}},
        "messages": {"type": "null"}}}, {"required": ["messages"], "properties": {"prompt": {"type": "null"},
        "messages": {"not": {"type": "null"}}}}])");
  return {.about = "Texts of a language model, and what its heads did; see docs/serve.md.",
          .operations = {std::begin(kOperations), std::end(kOperations)},
          .schemas = bodies + parts(context) + std::string(kAnswers),
          .token = token};
}

}  // namespace headwise::server
