// openapi.json: every route of a service with what it takes and gives, for programs that read such things.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace headwise::server {

inline constexpr std::string_view kJsonType = "application/json";

/// One operation: its own answer at 200, then refusals.
struct Operation {
  std::string_view path, method, id, summary;
  std::string_view type = kJsonType, schema = "";  // schema: a name, "" for text
  std::string_view body = "";                      // the schema's name of what it takes
  std::string_view refusals = "";                  // statuses of its own, "404 411" and so on
  bool token = true;
  bool streams = false;  // server-sent events, where they are asked for
};

struct OpenapiFacts {
  std::string_view about;             // one sentence
  std::vector<Operation> operations;  // beside those of every service
  std::string schemas;                // their own, "\"Name\": {...}, ..."
  bool token = true;                  // whether one is asked for
};

/// A document of OpenAPI 3.1.
std::string openapi_text(const OpenapiFacts& facts);

}  // namespace headwise::server
