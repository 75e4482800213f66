#include "headwise/server/http/http_response.h"

#include <array>
#include <charconv>
#include <cmath>
#include <ctime>

#include "headwise/base/error.h"

namespace headwise::server {

std::string_view status_words(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 411: return "Length Required";
    case 413: return "Content Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 421: return "Misdirected Request";
    case 422: return "Unprocessable Content";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    default: return "Internal Server Error";
  }
}

namespace {

/// IMF-fixdate, in the C locale's words whatever the host's locale is.
std::string date_now() {
  constexpr std::array<const char*, 7> kDays = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr std::array<const char*, 12> kMonths = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::time_t now = std::time(nullptr);
  std::tm t{};
  ::gmtime_r(&now, &t);
  const auto two = [](int n) {
    return std::string{static_cast<char>('0' + n / 10), static_cast<char>('0' + n % 10)};
  };
  return text(kDays[static_cast<std::size_t>(t.tm_wday)], ", ", two(t.tm_mday), " ",
              kMonths[static_cast<std::size_t>(t.tm_mon)], " ", t.tm_year + 1900, " ", two(t.tm_hour), ":",
              two(t.tm_min), ":", two(t.tm_sec), " GMT");
}

}  // namespace

std::string print_head(const HttpResponse& r, bool keep_alive, bool chunked) {
  std::string out = "HTTP/1.1 " + std::to_string(r.status) + " " + std::string(status_words(r.status));
  const auto line = [&](std::string_view name, std::string_view value) {
    out.append("\r\n").append(name).append(": ").append(value);
  };
  line("Date", date_now());
  line("Content-Type", r.type);
  if (!r.streamed) line("Content-Length", std::to_string(r.content().size()));
  if (r.streamed && chunked) line("Transfer-Encoding", "chunked");
  line("Connection", keep_alive ? "keep-alive" : "close");
  line("Cache-Control", "no-store");
  line("X-Content-Type-Options", "nosniff");
  for (const HttpHeader& h : r.headers) line(h.name, h.value);
  return out + "\r\n\r\n";
}

std::string json_number(float value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return std::string(digits.data(), end);
}

HttpResponse error_response(int status, std::string_view code, std::string_view message) {
  HttpResponse r;
  r.status = status;
  const std::string_view type = status == 429  ? "rate_limit_error"
                                : status < 500 ? "invalid_request_error"
                                               : "server_error";
  r.body = "{\"error\": {\"code\": " + page_string(code) + ", \"message\": " + page_string(message) +
           ", \"type\": " + page_string(type) + ", \"param\": null}}\n";
  return r;
}

}  // namespace headwise::server
