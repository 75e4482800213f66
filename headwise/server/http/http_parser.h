// HttpParser: one HTTP/1 request out of bytes that come in any pieces; strict, bounded, never guessing.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "headwise/base/index.h"

namespace headwise::server {

struct HttpLimits {
  Index line_bytes = Index{8} << 10;   // of the request line
  Index head_bytes = Index{32} << 10;  // of request line and headers together
  Index headers = 64;
  Index body_bytes = Index{1} << 20;
  Index chunks = 10'000;  // of one body: each costs more than its bytes
};

struct HttpHeader {
  std::string name, value;  // the name in lower case, the value without space around it
};

struct HttpRequest {
  std::string method, target;
  std::vector<HttpHeader> headers;
  std::string body;
  bool keep_alive = false;
  bool http10 = false;            // such a client reads no chunks
  bool expects_continue = false;  // the client waits for "100 Continue" before its body
  bool has_length = false;        // Content-Length or chunks
  bool chunked = false;
  Index length = 0;  // Content-Length; 0 when chunked

  /// Null when there is none; what may come once only is never there twice.
  const std::string* find(std::string_view name) const;
};

/// Why a request is refused: a status, and one sentence that quotes nothing of it.
struct HttpFault {
  int status = 0;
  const char* words = "";
};

/// What two servers could read in two ways is refused with 400: both lengths, one of them twice, a bare CR or
/// LF, folded headers. So are space before a colon, chunk extensions, trailers, targets that are no path.
class HttpParser {
 public:
  enum class Stage { head, body, done, failed };
  explicit HttpParser(const HttpLimits& limits = {}) : limits_(limits) {}

  /// Takes bytes and says how many: all, or fewer where the head ends, the request ends or a fault is found.
  std::size_t feed(std::string_view bytes);
  Stage stage() const { return stage_; }
  /// Whether a request has begun: bytes were taken since the last one ended.
  bool begun() const { return begun_; }
  /// Whole from stage body on, but for its body.
  const HttpRequest& request() const { return request_; }
  const HttpFault& fault() const { return fault_; }
  /// After a request that is done: ready for the next of the connection.
  void next() { *this = HttpParser(limits_); }

 private:
  enum class Wants { request_line, header, length, chunk_size, chunk, chunk_end, trailer, nothing };
  std::size_t take_line(std::string_view bytes, Index most, const HttpFault& too_long);
  std::size_t take_body(std::string_view bytes);
  void line_done(std::string_view line);
  void request_line(std::string_view line);
  void header_line(std::string_view line);
  void head_done();
  bool lengths_agree(const std::string* length, const std::string* coding);
  void chunk_size(std::string_view line);
  void done();
  void fail(int status, const char* words);

  HttpLimits limits_;
  Stage stage_ = Stage::head;
  Wants wants_ = Wants::request_line;
  bool begun_ = false, http10_ = false, empty_line_taken_ = false;
  HttpRequest request_;
  HttpFault fault_;
  std::string line_;
  Index head_bytes_ = 0;
  Index body_left_ = 0;  // of the body, or of the chunk
  Index chunks_ = 0;
};

}  // namespace headwise::server
