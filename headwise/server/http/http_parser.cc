#include "headwise/server/http/http_parser.h"

#include <algorithm>
#include <array>

#include "headwise/base/words.h"

namespace headwise::server {
namespace {

constexpr std::string_view kBlanks = " \t";

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
/// RFC 9110's tchar.
bool is_token(char c) {
  return is_letter(c) || is_digit(c) || std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

/// Whether `word` stands among those of every header `name`, which have commas between them.
bool lists(const HttpRequest& request, std::string_view name, std::string_view word) {
  for (const HttpHeader& h : request.headers) {
    if (h.name != name) continue;
    for (std::size_t at = 0; at <= h.value.size();) {
      const std::size_t comma = std::min(h.value.find(',', at), h.value.size());
      if (lowered(trimmed(std::string_view(h.value).substr(at, comma - at), kBlanks)) == word) return true;
      at = comma + 1;
    }
  }
  return false;
}

/// Headers that decide something here: one of them twice could be read in two ways.
constexpr std::array<std::string_view, 10> kOnce = {
    "authorization", "content-encoding", "content-length", "content-type",      "expect",
    "host",          "origin",           "sec-fetch-site", "transfer-encoding", "headwise-deadline-ms"};

}  // namespace

const std::string* HttpRequest::find(std::string_view name) const {
  for (const HttpHeader& h : headers)
    if (h.name == name) return &h.value;
  return nullptr;
}

void HttpParser::fail(int status, const char* words) {
  stage_ = Stage::failed, wants_ = Wants::nothing;
  fault_ = {status, words};
}

void HttpParser::done() { stage_ = Stage::done, wants_ = Wants::nothing; }

std::size_t HttpParser::feed(std::string_view bytes) {
  std::size_t taken = 0;
  const Stage before = stage_;
  while (taken < bytes.size() && wants_ != Wants::nothing) {
    const std::string_view rest = bytes.substr(taken);
    begun_ = true;
    switch (wants_) {
      case Wants::request_line:
        // Another protocol, TLS say, is answered at once and not when a line would have ended.
        if (line_.empty() && !is_letter(rest[0]) && rest[0] != '\r') {
          fail(400, "this is no HTTP request; speak plain HTTP/1.1");
          break;
        }
        taken += take_line(rest, limits_.line_bytes, {414, "the request line is too long"});
        break;
      case Wants::header:
        taken += take_line(rest, limits_.head_bytes - head_bytes_, {431, "the headers are too long"});
        break;
      case Wants::chunk_size:
        taken += take_line(rest, 16, {400, "a chunk size is no plain hexadecimal number"});
        break;
      case Wants::chunk_end: taken += take_line(rest, 2, {400, "a chunk is longer than its size"}); break;
      case Wants::trailer: taken += take_line(rest, 2, {400, "trailers are not taken"}); break;
      case Wants::length:
      case Wants::chunk: taken += take_body(rest); break;
      case Wants::nothing: break;
    }
    if (before == Stage::head && stage_ != Stage::head) break;  // the caller looks at the head first
  }
  return taken;
}

std::size_t HttpParser::take_line(std::string_view bytes, Index most, const HttpFault& too_long) {
  const std::size_t feed_at = bytes.find('\n');
  const std::size_t end = feed_at == std::string_view::npos ? bytes.size() : feed_at + 1;
  const std::size_t room =
      std::max(static_cast<std::size_t>(std::max(most, Index{0})), line_.size()) - line_.size();
  if (end > room) {
    fail(too_long.status, too_long.words);
    return room;
  }
  line_.append(bytes.substr(0, end));
  if (feed_at == std::string_view::npos) return end;
  if (stage_ == Stage::head) head_bytes_ += static_cast<Index>(line_.size());
  std::string line = std::move(line_);
  line_.clear();
  if (line.size() < 2 || line[line.size() - 2] != '\r') {
    fail(400, "a line ends in a bare line feed");
    return end;
  }
  line.resize(line.size() - 2);
  const bool control = std::any_of(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f;
  });
  if (control)
    fail(400, "a line holds a control character");
  else
    line_done(line);
  return end;
}

void HttpParser::line_done(std::string_view line) {
  switch (wants_) {
    case Wants::request_line: return request_line(line);
    case Wants::header: return line.empty() ? head_done() : header_line(line);
    case Wants::chunk_size: return chunk_size(line);
    case Wants::chunk_end:
      if (!line.empty()) return fail(400, "a chunk is longer than its size");
      wants_ = Wants::chunk_size;
      return;
    case Wants::trailer: return line.empty() ? done() : fail(400, "trailers are not taken");
    case Wants::length:
    case Wants::chunk:
    case Wants::nothing: return;
  }
}

void HttpParser::request_line(std::string_view line) {
  if (line.empty() && !empty_line_taken_) {  // RFC 9112 2.2: one that a client sent behind its last body
    empty_line_taken_ = true;
    return;
  }
  const std::size_t first = line.find(' ');
  const std::size_t last = line.rfind(' ');
  if (first == std::string_view::npos || last == first)
    return fail(400, "the request line is not \"METHOD /path HTTP/1.1\"");
  const std::string_view method = line.substr(0, first), target = line.substr(first + 1, last - first - 1),
                         version = line.substr(last + 1);
  const bool upper = std::all_of(method.begin(), method.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  if (method.empty() || method.size() > 16 || !upper) return fail(400, "the method is not one of HTTP's");
  const bool plain =
      std::all_of(target.begin(), target.end(), [](char c) { return c > 0x20 && c < 0x7f && c != '#'; });
  if (target.empty() || target[0] != '/' || !plain)
    return fail(400, "the target is no path that begins with a slash");
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    const bool other = version.size() == 8 && version.starts_with("HTTP/") && is_digit(version[5]) &&
                       version[6] == '.' && is_digit(version[7]);
    return other ? fail(505, "speak HTTP/1.1") : fail(400, "the version is not HTTP/1.1");
  }
  request_.http10 = http10_ = version == "HTTP/1.0";
  request_.method = method, request_.target = target;
  wants_ = Wants::header;
}

void HttpParser::header_line(std::string_view line) {
  if (line[0] == ' ' || line[0] == '\t') return fail(400, "a header is folded over two lines");
  if (static_cast<Index>(request_.headers.size()) >= limits_.headers)
    return fail(431, "there are too many headers");
  const std::size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  if (colon == std::string_view::npos || name.empty() || !std::all_of(name.begin(), name.end(), is_token))
    return fail(400, "a header is not \"Name: value\"");
  std::string key = lowered(name);
  if (std::find(kOnce.begin(), kOnce.end(), key) != kOnce.end() && request_.find(key) != nullptr)
    return fail(400, "a header that may come once came twice");
  request_.headers.push_back({std::move(key), std::string(trimmed(line.substr(colon + 1), kBlanks))});
}

/// Which bytes are the body: the question behind request smuggling.
bool HttpParser::lengths_agree(const std::string* length, const std::string* coding) {
  if (length != nullptr && coding != nullptr)
    return fail(400, "Content-Length and Transfer-Encoding came together"), false;
  if (coding != nullptr && http10_) return fail(400, "HTTP/1.0 has no Transfer-Encoding"), false;
  if (coding != nullptr && lowered(*coding) != "chunked")
    return fail(501, "of transfer codings chunked alone is taken"), false;
  if (length != nullptr &&
      (length->empty() || length->size() > 15 || !std::all_of(length->begin(), length->end(), is_digit)))
    return fail(400, "Content-Length is no plain number"), false;
  return true;
}

void HttpParser::head_done() {
  const std::string* host = request_.find("host");
  // HTTP/1.0 knows no Host: probes and load balancers leave it out.
  if (host == nullptr ? !http10_ : host->empty()) return fail(400, "there is no Host");
  const std::string* length = request_.find("content-length");
  const std::string* coding = request_.find("transfer-encoding");
  if (!lengths_agree(length, coding)) return;
  if (const std::string* expect = request_.find("expect"); expect != nullptr && !http10_) {
    if (lowered(*expect) != "100-continue") return fail(417, "of expectations 100-continue alone is met");
    request_.expects_continue = true;
  }
  request_.chunked = coding != nullptr;
  request_.has_length = length != nullptr || coding != nullptr;
  request_.keep_alive =
      !lists(request_, "connection", "close") && (!http10_ || lists(request_, "connection", "keep-alive"));
  if (length != nullptr)
    for (const char digit : *length) request_.length = request_.length * 10 + (digit - '0');
  if (request_.length > limits_.body_bytes) return fail(413, "the body is too long");
  if (!request_.chunked && request_.length == 0) return done();
  stage_ = Stage::body;
  wants_ = request_.chunked ? Wants::chunk_size : Wants::length;
  body_left_ = request_.length;
}

void HttpParser::chunk_size(std::string_view line) {
  Index size = 0;
  if (line.empty() || line.size() > 8) return fail(400, "a chunk size is no plain hexadecimal number");
  for (const char c : line) {
    const char l = lower(c);
    if (!is_digit(l) && !(l >= 'a' && l <= 'f'))
      return fail(400, "a chunk size is no plain hexadecimal number");
    size = size * 16 + (is_digit(l) ? l - '0' : l - 'a' + 10);
  }
  if (++chunks_ > limits_.chunks) return fail(413, "the body has too many chunks");
  if (size > limits_.body_bytes - static_cast<Index>(request_.body.size()))
    return fail(413, "the body is too long");
  body_left_ = size;
  wants_ = size == 0 ? Wants::trailer : Wants::chunk;
}

std::size_t HttpParser::take_body(std::string_view bytes) {
  const std::size_t n = std::min(bytes.size(), static_cast<std::size_t>(body_left_));
  request_.body.append(bytes.substr(0, n));
  body_left_ -= static_cast<Index>(n);
  if (body_left_ == 0) {
    if (wants_ == Wants::chunk)
      wants_ = Wants::chunk_end;
    else
      done();
  }
  return n;
}

}  // namespace headwise::server
