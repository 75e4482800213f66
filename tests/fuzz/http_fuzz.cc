// Fuzzes the HTTP parser and the reader of bodies: any bytes in any pieces give the same request or the same
// fault, within the limits.
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "headwise/model/json_reader.h"
#include "headwise/server/http/http_parser.h"
#include "headwise/server/model/texts_request.h"

namespace {

using namespace headwise;
using namespace headwise::server;

constexpr HttpLimits kLimits = {
    .line_bytes = 256, .head_bytes = 1024, .headers = 8, .body_bytes = 512, .chunks = 16};

struct Seen {
  HttpParser::Stage stage;
  int status;
  std::string body;
  std::size_t headers;
  bool operator==(const Seen&) const = default;
};

Seen parse(std::string_view bytes, std::size_t step) {
  HttpParser p(kLimits);
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, step);
    const auto before = p.stage();
    const std::size_t n = p.feed(piece);
    if (n > piece.size()) std::abort();
    bytes.remove_prefix(n);
    if (p.stage() == HttpParser::Stage::done || p.stage() == HttpParser::Stage::failed) break;
    if (n < piece.size() && p.stage() == before) std::abort();  // stopped without a reason
  }
  const HttpRequest& r = p.request();
  if (r.headers.size() > 8 || r.body.size() > 512) std::abort();
  if (p.stage() == HttpParser::Stage::done) {
    if (r.target.empty() || r.target[0] != '/') std::abort();
    if (r.find("content-length") != nullptr && r.find("transfer-encoding") != nullptr) std::abort();
  }
  return {p.stage(), p.fault().status, r.body, r.headers.size()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Seen whole = parse(bytes, size == 0 ? 1 : size);
  if (!(parse(bytes, 1) == whole) || !(parse(bytes, 7) == whole)) std::abort();
  for (const std::string_view body : {bytes, std::string_view(whole.body)}) {
    const TextsRequest r = read_texts(body, {.texts = 4, .text_bytes = 64});
    if (r.status == 200 && (r.texts.empty() || r.texts.size() > 4)) std::abort();
    for (const std::string& t : r.texts)
      if (r.status == 200 && (t.size() > 64 || first_bad_utf8(t) >= 0)) std::abort();
  }
  return 0;
}
