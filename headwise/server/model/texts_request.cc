#include "headwise/server/model/texts_request.h"

#include <utility>

#include "headwise/base/error.h"
#include "headwise/model/json_reader.h"

namespace headwise::server {
namespace {

TextsRequest refused(int status, std::string code, std::string message) {
  return {status, std::move(code), std::move(message), {}};
}

/// Throws Error where the body is not of the grammar.
TextsRequest parsed(std::string_view body, const TextLimits& limits) {
  TextsRequest request;
  JsonReader json(body, "the body");
  const auto text_too_long = [&] {
    return static_cast<Index>(request.texts.back().size()) > limits.text_bytes;
  };
  const auto most =
      static_cast<Index>(body.size());  // the length is judged after reading, with its own status
  bool seen = false;
  json.take('{', "a request");
  for (bool first = true; !json.try_take('}'); first = false) {
    if (!first) json.take(',', "a request");
    const std::string key = json.string("a key", 64);
    json.take(':', "a key");
    if (key != "text" && key != "texts")
      json.refuse("a request has \"text\" or \"texts\", not ", quoted(key));
    if (std::exchange(seen, true)) json.refuse("give \"text\" or \"texts\", and once");
    if (key == "text") {
      request.texts.push_back(json.string("a text", most));
    } else {
      json.take('[', "the list of texts");
      for (bool begin = true; !json.try_take(']'); begin = false) {
        if (!begin) json.take(',', "the list of texts");
        request.texts.push_back(json.string("a text", most));
        if (static_cast<Index>(request.texts.size()) > limits.texts)
          return refused(413, "too_many_texts",
                         text("a request may have ", limits.texts, " texts; send the others in another"));
        if (text_too_long()) break;
      }
    }
    if (!request.texts.empty() && text_too_long())
      return refused(413, "text_too_long",
                     text("text ", request.texts.size(), " is longer than ", limits.text_bytes, " bytes"));
  }
  if (json.peek() != '\0' || json.at() != body.size()) json.refuse("a request ends with its closing brace");
  if (request.texts.empty()) json.refuse("give at least one text");
  return request;
}

}  // namespace

TextsRequest read_texts(std::string_view body, const TextLimits& limits) {
  if (const Index bad = first_bad_utf8(body); bad >= 0)
    return refused(400, "not_utf8", text("byte ", bad, " of the body is no UTF-8"));
  try {
    return parsed(body, limits);
  } catch (const Error& e) {
    return refused(400, "bad_request", e.what());
  }
}

}  // namespace headwise::server
