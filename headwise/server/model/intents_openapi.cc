#include "headwise/server/model/intents_openapi.h"

#include <utility>

#include "headwise/base/error.h"

namespace headwise::server {
namespace {

constexpr Operation kOperations[] = {
    {.path = "/v1/labels",
     .method = "get",
     .id = "labels",
     .summary = "The labels the model gives",
     .schema = "Labels"},
    {.path = "/",
     .method = "get",
     .id = "page",
     .summary = "The page of --report",
     .type = "text/html",
     .refusals = "404"},
    {.path = "/report",
     .method = "get",
     .id = "report",
     .summary = "The page of --report",
     .type = "text/html",
     .refusals = "404"},
    {.path = "/try",
     .method = "get",
     .id = "sentence",
     .summary = "A page on which a sentence is tried",
     .type = "text/html",
     .token = false},
    {.path = "/v1/intents",
     .method = "post",
     .id = "intents",
     .summary = "The intents of one text or several",
     .schema = "Answers",
     .body = "Texts",
     .refusals = "411 415 429 504"},
    {.path = "/v1/explain",
     .method = "post",
     .id = "explain",
     .summary = "Why a text has its intent",
     .schema = "Explanations",
     .body = "Text",
     .refusals = "404 411 415 429 504"},
};

constexpr std::string_view kAnswer = R"("labels": {"type": "array", "items": {"type": "string"}},
        "confidence": {"type": "number"}, "out_of_scope": {"type": "boolean"},
        "top": {"type": "array", "items": {"type": "object", "required": ["label", "probability"], "properties": {
          "label": {"type": "string"}, "probability": {"type": "number"}}}},
        "spans": {"type": "array", "items": {"type": "object", "required": ["label", "begin", "end", "probability"],
          "properties": {"label": {"type": "string"}, "begin": {"type": "integer"}, "end": {"type": "integer"},
          "probability": {"type": "number"}}}})";

std::string schemas(const TextLimits& limits) {
  // A limit in bytes is no length in characters; NUL is refused.
  const std::string one = text(R"({"type": "string", "pattern": "^[^\\u0000]*$", "description": "At most )",
                               limits.text_bytes, R"( bytes of UTF-8"})");
  return text(
      R"("Labels": {"type": "object", "required": ["model", "labels"], "properties": {"model": {"type": "string"},
        "labels": {"type": "array", "items": {"type": "string"}}, "multi_label": {"type": "boolean"},
        "threshold": {"type": "number"}, "out_of_scope": {"type": "number"}}},
      "Text": {"type": "object", "additionalProperties": false, "required": ["text"], "properties": {"text": )",
      one, R"(}},
      "Texts": {"oneOf": [{"$ref": "#/components/schemas/Text"},
        {"type": "object", "additionalProperties": false, "required": ["texts"], "properties": {
          "texts": {"type": "array", "minItems": 1, "description": "At most )",
      limits.texts, R"(", "items": )", one, R"(}}}]},
      "Answers": {"type": "object", "required": ["model", "answers", "tokens"], "properties": {"model": {"type": "string"},
        "tokens": {"type": "integer"}, "answers": {"type": "array", "items": {"type": "object", "properties": {
        )",
      kAnswer, R"(}}}}},
      "Explanations": {"type": "object", "required": ["model", "answers", "tokens"], "properties": {
        "model": {"type": "string"}, "tokens": {"type": "integer"}, "answers": {"type": "array", "items": {"type": "object",
        "properties": {
        )",
      kAnswer, R"(,
        "explained": {"type": "string"}, "given": {"type": "boolean"}, "probability": {"type": "number"},
        "needed": {"type": "number"}, "lacks": {"type": "number"},
        "words": {"type": "array", "items": {"type": "object", "properties": {
          "begin": {"type": "integer"}, "end": {"type": "integer"}, "importance": {"type": "number"}}}},
        "tokens": {"type": "array", "items": {"type": "object", "properties": {
          "piece": {"type": "string"}, "begin": {"type": "integer"}, "end": {"type": "integer"},
          "importance": {"type": "number"}}}},
        "heads": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}}}}}})");
}

}  // namespace

OpenapiFacts intents_openapi(const TextLimits& limits, bool token, Offered offered) {
  std::vector<Operation> operations(std::begin(kOperations), std::end(kOperations));
  std::erase_if(operations, [&](const Operation& o) {
    return (!offered.report && (o.id == "page" || o.id == "report")) ||
           (!offered.explain && o.id == "explain");
  });
  return {.about = "Intents of texts, and why; see docs/serve.md.",
          .operations = std::move(operations),
          .schemas = schemas(limits),
          .token = token};
}

}  // namespace headwise::server
