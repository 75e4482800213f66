#include "headwise/server/openapi.h"

#include <string_view>

#include "headwise/base/error.h"
#include "headwise/base/version.h"

namespace headwise::server {
namespace {

/// What any request can be answered, whatever its route.
constexpr int kAlways[] = {400, 403, 405, 408, 413, 414, 417, 421, 431, 500, 501, 503, 505};

std::string refusal(int status) {
  return text("\"", status, "\": {\"$ref\": \"#/components/responses/refusal\"}");
}

/// One operation: its own answer at 200, then refusals.
struct Operation {
  std::string_view method, id, summary, type, schema;  // schema: a name, "" for text
  std::string_view body = "";                          // the schema's name of what it takes
  bool token = true;
  std::string_view refusals = "";  // statuses of its own, ", 401" and so on
};

std::string answer(const Operation& o) {
  const std::string schema = o.schema.empty() ? "{\"type\": \"string\"}"
                                              : text("{\"$ref\": \"#/components/schemas/", o.schema, "\"}");
  return text("\"200\": {\"description\": \"", o.summary,
              "\", \"headers\": {\"X-Request-Id\": {\"schema\": {\"type\": ",
              "\"string\"}}}, \"content\": {\"", o.type, "\": {\"schema\": ", schema, "}}}");
}

std::string print(const Operation& o) {
  std::string out =
      text("\"", o.method, "\": {\"operationId\": \"", o.id, "\", \"summary\": \"", o.summary, "\"");
  if (!o.token) out += ", \"security\": []";
  if (!o.body.empty())
    out += text(
        ", \"requestBody\": {\"required\": true, \"content\": {\"application/json\": {\"schema\": "
        "{\"$ref\": ",
        "\"#/components/schemas/", o.body, "\"}}}}");
  out += ", \"responses\": {" + answer(o);
  for (const int status : kAlways) out += ", " + refusal(status);
  if (o.token) out += ", " + refusal(401);
  for (std::string_view rest = o.refusals; !rest.empty();) {
    const std::size_t end = rest.find(' ');
    out += text(", \"", rest.substr(0, end), "\": {\"$ref\": \"#/components/responses/refusal\"}");
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return out + "}}";
}

constexpr std::string_view kJson = "application/json";

std::string paths() {
  const auto path = [](std::string_view name, const Operation& o) {
    return text("\"", name, "\": {", print(o), "}");
  };
  const auto get = [](std::string_view id, std::string_view summary, std::string_view type,
                      std::string_view schema) {
    return Operation{.method = "get", .id = id, .summary = summary, .type = type, .schema = schema};
  };
  Operation live = get("live", "The process answers", kJson, "Health");
  Operation ready = get("ready", "Requests are taken; 503 while draining", kJson, "Health");
  Operation self = get("openapi", "This document", kJson, "Any");
  live.token = ready.token = self.token = false;
  Operation page = get("page", "The page of --report", "text/html", ""), report = page;
  page.refusals = "404", report.id = "report", report.refusals = "404";
  const Operation intents{.method = "post",
                          .id = "intents",
                          .summary = "The intents of one text or several",
                          .type = kJson,
                          .schema = "Answers",
                          .body = "Texts",
                          .refusals = "411 415 429 504"};
  const Operation explain{.method = "post",
                          .id = "explain",
                          .summary = "Why a text has its intent",
                          .type = kJson,
                          .schema = "Explanations",
                          .body = "Text",
                          .refusals = "404 411 415 429 504"};
  return text(path("/health/live", live), ",\n    ", path("/health/ready", ready), ",\n    ",
              path("/metrics", get("metrics", "Prometheus text", "text/plain", "")), ",\n    ",
              path("/openapi.json", self), ",\n    ",
              path("/v1/labels", get("labels", "The labels the model gives", kJson, "Labels")), ",\n    ",
              path("/", page), ",\n    ", path("/report", report), ",\n    ", path("/v1/intents", intents),
              ",\n    ", path("/v1/explain", explain));
}

constexpr std::string_view kAnswer = R"("labels": {"type": "array", "items": {"type": "string"}},
        "confidence": {"type": "number"}, "out_of_scope": {"type": "boolean"},
        "top": {"type": "array", "items": {"type": "object", "required": ["label", "probability"], "properties": {
          "label": {"type": "string"}, "probability": {"type": "number"}}}})";

std::string schemas(const OpenapiFacts& limits) {
  // A character of UTF-8 has up to 4 bytes; NUL is refused.
  const std::string one =
      text(R"({"type": "string", "pattern": "^[^\\u0000]*$", "maxLength": )", limits.text_bytes / 4, "}");
  return text(R"("Any": {"type": "object"},
      "Health": {"type": "object", "required": ["model", "status"], "properties": {"model": {"type": "string"},
        "status": {"enum": ["ok", "draining"]}}},
      "Labels": {"type": "object", "required": ["model", "labels"], "properties": {"model": {"type": "string"},
        "labels": {"type": "array", "items": {"type": "string"}}, "multi_label": {"type": "boolean"},
        "threshold": {"type": "number"}, "out_of_scope": {"type": "number"}}},
      "Text": {"type": "object", "additionalProperties": false, "required": ["text"], "properties": {"text": )",
              one, R"(}},
      "Texts": {"oneOf": [{"$ref": "#/components/schemas/Text"},
        {"type": "object", "additionalProperties": false, "required": ["texts"], "properties": {
          "texts": {"type": "array", "minItems": 1, "maxItems": )",
              limits.texts, R"(, "items": )", one, R"(}}}]},
      "Answers": {"type": "object", "required": ["model", "answers", "tokens"], "properties": {"model": {"type": "string"},
        "tokens": {"type": "integer"}, "answers": {"type": "array", "items": {"type": "object", "properties": {
        )",
              kAnswer, R"(}}}}},
      "Explanations": {"type": "object", "required": ["model", "answers", "tokens"], "properties": {
        "model": {"type": "string"}, "tokens": {"type": "integer"}, "answers": {"type": "array", "items": {"type": "object",
        "properties": {
        )",
              kAnswer, R"(,
        "explained": {"type": "string"}, "tokens": {"type": "array", "items": {"type": "object", "properties": {
          "piece": {"type": "string"}, "begin": {"type": "integer"}, "end": {"type": "integer"},
          "importance": {"type": "number"}}}},
        "heads": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}}}}}},
      "Refusal": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
        "required": ["code", "message"], "properties": {"code": {"type": "string"}, "message": {"type": "string"}}}}})");
}

}  // namespace

std::string openapi_text(const OpenapiFacts& facts) {
  return text(R"({
  "openapi": "3.1.0",
  "info": {"title": "headwise serve", "version": ")",
              kVersion, R"(", "description": "Intents of texts, and why; see docs/serve.md."},
  "security": )",
              facts.token ? R"([{"token": []}])" : "[]", R"(,
  "paths": {
    )",
              paths(), R"(
  },
  "components": {
    "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    "responses": {"refusal": {"description": "A refusal in one sentence.", "content": {"application/json": {
      "schema": {"$ref": "#/components/schemas/Refusal"}}}}},
    "schemas": {
      )",
              schemas(facts), R"(
    }
  }
}
)");
}

}  // namespace headwise::server
