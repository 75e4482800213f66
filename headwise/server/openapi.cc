#include "headwise/server/openapi.h"

#include "headwise/base/error.h"
#include "headwise/base/version.h"

namespace headwise::server {
namespace {

/// What any request can be answered, whatever its route.
constexpr int kAlways[] = {400, 403, 405, 408, 413, 414, 417, 421, 431, 500, 501, 503, 505};

/// Routes of every service.
constexpr Operation kShared[] = {
    {.path = "/health/live",
     .method = "get",
     .id = "live",
     .summary = "The process answers",
     .schema = "Health",
     .token = false},
    {.path = "/health/ready",
     .method = "get",
     .id = "ready",
     .summary = "Requests are taken; 503 while draining",
     .schema = "Health",
     .token = false},
    {.path = "/metrics",
     .method = "get",
     .id = "metrics",
     .summary = "Prometheus text",
     .type = "text/plain"},
    {.path = "/openapi.json",
     .method = "get",
     .id = "openapi",
     .summary = "This document",
     .schema = "Any",
     .token = false},
};

std::string refusal(std::string_view status) {
  return text(", \"", status, "\": {\"$ref\": \"#/components/responses/refusal\"}");
}

std::string answer(const Operation& o) {
  const std::string schema = o.schema.empty() ? "{\"type\": \"string\"}"
                                              : text("{\"$ref\": \"#/components/schemas/", o.schema, "\"}");
  return text("\"200\": {\"description\": \"", o.summary,
              "\", \"headers\": {\"X-Request-Id\": {\"schema\": {\"type\": ",
              "\"string\"}}}, \"content\": {\"", o.type, "\": {\"schema\": ", schema, "}",
              o.streams ? ", \"text/event-stream\": {\"schema\": {}}" : "", "}}");
}

std::string print(const Operation& o) {
  std::string out = text("\"", o.path, "\": {\"", o.method, "\": {\"operationId\": \"", o.id,
                         "\", \"summary\": \"", o.summary, "\"");
  if (!o.token) out += ", \"security\": []";
  if (!o.body.empty())
    out += text(
        ", \"requestBody\": {\"required\": true, \"content\": {\"application/json\": {\"schema\": "
        "{\"$ref\": ",
        "\"#/components/schemas/", o.body, "\"}}}}");
  out += ", \"responses\": {" + answer(o);
  for (const int status : kAlways) out += refusal(std::to_string(status));
  if (o.token) out += refusal("401");
  for (std::string_view rest = o.refusals; !rest.empty();) {
    const std::size_t end = rest.find(' ');
    out += refusal(rest.substr(0, end));
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
  }
  return out + "}}}";
}

constexpr std::string_view kSchemas = R"("Any": {"type": "object"},
      "Health": {"type": "object", "required": ["model", "status"], "properties": {"model": {"type": "string"},
        "status": {"enum": ["ok", "draining"]}}},
      "Refusal": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object",
        "required": ["code", "message"], "properties": {"code": {"type": "string"}, "message": {"type": "string"}}}}})";

}  // namespace

std::string openapi_text(const OpenapiFacts& facts) {
  std::string paths;
  const auto add = [&](const Operation& o) { paths += (paths.empty() ? "" : ",\n    ") + print(o); };
  for (const Operation& o : kShared) add(o);
  for (const Operation& o : facts.operations) add(o);
  return text(R"({
  "openapi": "3.1.0",
  "info": {"title": "headwise serve", "version": ")",
              kVersion, R"(", "description": ")", facts.about, R"("},
  "security": )",
              facts.token ? R"([{"token": []}])" : "[]", R"(,
  "paths": {
    )",
              paths, R"(
  },
  "components": {
    "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    "responses": {"refusal": {"description": "A refusal in one sentence.", "content": {"application/json": {
      "schema": {"$ref": "#/components/schemas/Refusal"}}}}},
    "schemas": {
      )",
              kSchemas, ",\n      ", facts.schemas, R"(
    }
  }
}
)");
}

}  // namespace headwise::server
