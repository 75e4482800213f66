// HttpResponse: what goes back to a client, and how it is put on the wire.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/words.h"
#include "headwise/server/http/http_parser.h"

namespace headwise::server {

struct HttpResponse {
  int status = 200;
  std::string type = "application/json";
  std::string body;
  std::shared_ptr<const std::string> page;  // instead of the body: long, and the same for everybody
  std::vector<HttpHeader> headers;          // beside those every response has
  bool streamed = false;                    // its content comes in parts, and its length is not known

  std::string_view content() const { return page ? std::string_view(*page) : std::string_view(body); }
};

/// "Too Many Requests".
std::string_view status_words(int status);
/// Status line and headers with the empty line behind them. Nothing is cached, sniffed or framed.
/// `chunked`: a streamed response says that it comes in chunks; else it lasts until the connection ends.
std::string print_head(const HttpResponse& response, bool keep_alive, bool chunked = true);
/// `s` as a JSON string that is also safe inside a page: '<' is escaped.
inline std::string page_string(std::string_view s) { return json_string(s, {.also = "<\x7f"}); }
/// The shortest decimal that reads back as the same float.
std::string json_number(float value);
/// {"error": {"code": ..., "message": ..., "type": ..., "param": null}}, as OpenAI's clients read it.
HttpResponse error_response(int status, std::string_view code, std::string_view message);

}  // namespace headwise::server
